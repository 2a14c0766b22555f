"""The contract of an overlap method: what it says of itself, what its runs keep, and where a step takes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args

import numpy as np

import weft
from weft.core.errors import InputError
from weft.core.options import SUSTAINED
from weft.graph import Collective, Gemm, Graph, Node, Routing, concurrent, experts
from weft.kernels.library.software import costs
from weft.models.parallel import dependent
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import AXES, FORMS, OVERLAPS, Axis, OverlapMethod, Pattern, not_an_overlap
from weft.overlaps.pairs import PairTimes, pair_of
from weft.simulate.result import Timeline
from weft.simulate.single import simulate
from weft.step.overlaps import check_overlap as check_step
from weft.testing.laws import ContractError, check_laws, runs_to_the_end

MACHINES: Sequence[tuple[str, int]] = (("t3-paper", 4), ("dgx-h100", 8))
"""Machines and GPU counts of the cases; a case runs on the first that has the hardware of the method."""
_GEMM = 1024, 1024, 256
_STEP, _PAIR = "8xa100", (4096, 8192, 1024)
"""The machine of the steps and of the pairs in closed form, and the GEMM of each rank."""
_PLANS: Mapping[Axis, Mapping[str, Any]] = {
    "tp": {"tp": 8},
    "cp": {"cp": 8},
    "ep": {"dp": 8, "ep": 8, "batch": 8},
    "dp": {"dp": 8, "batch": 8, "zero": 3},
}
"""Plans whose collectives are those of an axis."""


def check_overlap(method: OverlapMethod) -> None:
    """Raise ContractError unless an overlap method keeps every law: of its description, runs, formula and axes.

    The runs are small graphs of every pattern, on `t3-paper` or, for hardware that this lacks, on `dgx-h100`. The pairs
    in closed form and the plans of steps are on A100s. InputError for anything but an object of a subclass of
    `weft.overlaps.OverlapMethod`.

    Not checked: which rows or tiles a piece has (only how much of the GEMM ends before how much is sent, and the
    reverse behind an all-gather); the order of work of an MoE layer or a program that is cut into pieces; the
    work of an own plan, beyond the graph that `lower` returns with it; other sizes, machines and options; and whether
    the formula agrees with the engine.

    >>> check_overlap(OVERLAPS["t3-mca"])
    """
    if not isinstance(method, OverlapMethod):
        raise not_an_overlap(method)
    member = f"overlap '{method.name}'"
    check_laws(member, "its fields", DESCRIPTION, method)
    with OVERLAPS.using(method):
        for pattern, graph in samples(4).items():
            with runs_to_the_end(member, _REFUSES, pattern):
                accepted = method.accepts(graph)
            applies = method.simulated and method.applies_to(pattern)
            if accepted and not applies and pattern in FORMS:
                raise ContractError(member, _REFUSES, pattern, f"it accepts {graph}, which is not among its patterns")
            if applies:
                given, *runs = _run_twice(member, method, pattern)
                check_laws(member, pattern, WORK, method, pattern, given, runs[0].graph)
                check_laws(member, pattern, RUNS, method, *runs)
        for form in FORMS:
            with runs_to_the_end(member, _FORMULA, form):
                pair = pair_of(dependent(form, Gemm(*_PAIR, "bf16"), 8), _STEP, SUSTAINED)
                found = method.estimate(pair, costs())
            check_laws(member, form, FORMULAS, method, form, pair, found)
        for axis in AXES:
            check_laws(member, axis, (a_step_takes_it_on_its_axes_alone,), method, axis)


_REFUSES = "It refuses graphs that it does not apply to with an InputError"
_RUNS = "It runs every pattern that it applies to"
_FORMULA = "Its formula times the parts of a pair"


def samples(ranks: int) -> dict[Pattern, Graph]:
    """Return a small graph of every pattern that graphs form."""
    m, n, k = _GEMM
    gemm = Gemm(m, n, k, "bf16")
    forms: dict[Pattern, Graph] = {form: dependent(form, gemm, ranks) for form in FORMS}
    moved = Collective("all_gather", 1 << 20, ranks, "bf16")
    nodes = Node(gemm, "first"), Node(Gemm(m, k, n, "bf16"), "second", after=("first",))
    layer = experts(Routing(128, 2, 2 * ranks, ranks), hidden=512, ffn=256)
    return {**forms, "corun": concurrent(gemm, moved), "moe_layer": layer, "program": Graph(nodes, 1)}


def _run_twice(member: str, method: OverlapMethod, pattern: Pattern) -> tuple[Graph, Timeline, Timeline]:
    """Return a graph of a pattern, and two runs of it on the first machine that the method accepts."""
    *others, last = MACHINES
    for machine, gpus in others:
        with suppress(InputError):
            return _twice(member, method, pattern, machine, gpus)
    with runs_to_the_end(member, _RUNS, pattern):
        return _twice(member, method, pattern, *last)


def _twice(
    member: str, method: OverlapMethod, pattern: Pattern, machine: str, gpus: int
) -> tuple[Graph, Timeline, Timeline]:
    graph = samples(gpus)[pattern]
    try:
        return graph, simulate(graph, machine, method), simulate(graph, machine, method)
    except InputError:
        raise
    except Exception as error:
        raise ContractError(member, _RUNS, pattern, f"{type(error).__name__}: {error}") from error


# -- what it says of itself


def it_has_a_name_and_words(method: OverlapMethod) -> str | None:
    """It says what it is: a name of lower-case letters, digits and hyphens, a title, a summary, what it joins."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", method.name):
        return f"its name is {method.name!r}"
    missing = [field for field in ("title", "summary", "joins", "patterns") if not getattr(method, field)]
    return f"it has no {' and no '.join(missing)}" if missing else None


def its_patterns_are_known(method: OverlapMethod) -> str | None:
    """Its patterns, and those of its formulas, are patterns of Weft."""
    known = get_args(Pattern)
    odd = [pattern for pattern in (*method.patterns, *method.closed_forms) if pattern not in known]
    return f"{odd[0]!r} is none of {', '.join(sorted(known))}" if odd else None


def it_is_a_value(method: OverlapMethod) -> str | None:
    """It is a value: equal to itself, and a key of a mapping, so that runs are made once."""
    return None if {method: 1}.get(method) == 1 else "it is not found in a mapping whose key it is"


def something_times_it(method: OverlapMethod) -> str | None:
    """The engine runs it, or a formula times it."""
    return None if method.simulated or method.closed_forms else "it is neither simulated nor has closed_forms"


# -- the work of its runs


def gemms_are_computed(method: OverlapMethod, pattern: Pattern, given: Graph, run: Graph) -> str | None:
    """It computes the FLOPs of the graph's GEMMs once, unless its class `leaves_out` "gemm"."""
    return None if "gemm" in method.leaves_out else _differs("FLOPs", _sum(_flops, given), _sum(_flops, run))


def data_are_moved(method: OverlapMethod, pattern: Pattern, given: Graph, run: Graph) -> str | None:
    """Its collectives move the bytes of the graph's once, unless its class `leaves_out` "collective"."""
    return (
        None
        if "collective" in method.leaves_out
        else _differs("bytes", _sum(_sent_bytes, given), _sum(_sent_bytes, run))
    )


def sums_are_made(method: OverlapMethod, pattern: Pattern, given: Graph, run: Graph) -> str | None:
    """Where the graph's collective adds up data of ranks, one of its run does, unless it `leaves_out` "collective"."""
    adding = {"reduce_scatter", "all_reduce"}
    names = [{getattr(node.op, "name", "") for node in graph.collectives} for graph in (given, run)]
    if "collective" in method.leaves_out or not adding & names[0] or adding & names[1]:
        return None
    return f"the graph's {' and '.join(sorted(adding & names[0]))} adds, and none of {', '.join(sorted(names[1]))} does"


def work_waits_for_its_data(method: OverlapMethod, pattern: Pattern, given: Graph, run: Graph) -> str | None:
    """A collective waits for the part of the GEMM that it sends, a GEMM for the rows that an all-gather brings.

    By edges and streams. What waits for the same pieces, or fewer, is no larger a share of its work than those pieces
    are of theirs; a GEMM has its own rank's rows before the all-gather. A method assembled from other runs, or that
    leaves out the GEMM, has no such order.
    """
    if method.parts or "gemm" in method.leaves_out:
        return None
    before = _predecessors(run)
    if pattern in ("moe_layer", "program"):
        ids = {node.id for node in run}
        for node in given:
            for edge in node.edges:
                if {node.id, edge.node} <= ids and edge.node not in before[node.id]:
                    return f"'{node.id}' does not wait for '{edge.node}'"
        return None
    gemms = _shares(_flops, run, given)
    if pattern == "ag_gemm":
        whole = run if "collective" in method.leaves_out else given
        return _early(gemms, _shares(_part, run, whole), before, ready=1 / run.ranks)
    moved = _shares(_part, run, given)
    if pattern == "corun":
        return None
    gathers = {name: size for name, size in moved.items() if getattr(run[name].op, "name", "") == "all_gather"}
    sends = {name: size for name, size in moved.items() if name not in gathers}
    return _early(sends, gemms, before) or _early(gathers, sends, before)


def _shares(size: Callable[[Node], float], run: Graph, whole: Graph) -> dict[str, float]:
    """Return the share of each piece of a run in what a whole graph has."""
    return {node.id: size(node) / sum(map(size, whole)) for node in run if size(node)}


def _early(work: dict[str, float], needs: dict[str, float], before: Mapping[str, set[str]], ready: float = 0.0) -> str:
    """Return which pieces of a work can begin before those of what it `needs` have ended; empty if none can."""
    for name in work:
        waited = before[name] & set(needs)
        have = ready + (1 - ready) * sum(needs[one] for one in waited)
        begun = [one for one in work if before[one] & set(needs) <= waited]
        share = sum(work[one] for one in begun)
        if share > have * (1 + _ROUNDING):
            after = "wait for " + (" and ".join(sorted(waited)) or f"none of {', '.join(needs)}")
            return f"{' and '.join(begun)}, {share:.0%} of the work, {after}, when {have:.0%} of its data are there"
    return ""


def _predecessors(graph: Graph) -> dict[str, set[str]]:
    """Return the nodes that each node waits for by edges and streams, and those that these wait for."""
    found: dict[str, set[str]] = {}
    last: dict[str, str] = {}
    for node in graph:
        direct = {edge.node for edge in node.edges} | ({last[node.stream]} if node.stream in last else set())
        found[node.id] = direct.union(*(found[one] for one in direct))
        last[node.stream] = node.id
    return found


def _flops(node: Node) -> int:
    """Return the FLOPs of an operator; none of a collective."""
    return 0 if isinstance(node.op, Collective) else node.op.flops


def _part(node: Node) -> float:
    """Return the bytes of a collective that pass between ranks; none of another operator."""
    op = node.op
    if not isinstance(op, Collective):
        return 0
    return float(op.bytes if op.name in ("broadcast", "send_recv") else op.bytes * (op.ranks - 1) / op.ranks)


def _sent_bytes(node: Node) -> float:
    """Return the least bytes that a rank sends: a reduce-scatter and an all-gather of as many make an all-reduce."""
    return _part(node) * (2 if getattr(node.op, "name", "") == "all_reduce" else 1)


def _sum(size: Callable[[Node], float], graph: Graph) -> float:
    """Return a size of all nodes, in the mean of the ranks."""
    return sum(size(node) / (1 if node.rank is None else graph.ranks) for node in graph)


def _differs(unit: str, asked: float, found: float) -> str | None:
    if asked <= found * (1 + 1e-9) and found <= asked * (1 + _ROUNDING):
        return None
    return f"{found:.0f} {unit} of each GPU, {asked:.0f} in the graph that it was given"


_ROUNDING = 0.01
"""What pieces of a whole may have more than it, as where a third of the rows is rounded up."""

# -- its runs


def runs_repeat(method: OverlapMethod, run: Timeline, again: Timeline) -> str | None:
    """It takes the same time in every run, and moves the same bytes."""
    if (run.seconds, dict(run.traffic)) == (again.seconds, dict(again.traffic)):
        return None
    return f"{again.seconds:.9g} s in the second run, {run.seconds:.9g} s in the first"


def operators_have_times(method: OverlapMethod, run: Timeline, again: Timeline) -> str | None:
    """Every GEMM of the graph that runs has a time, and nothing has one that is not in the graph.

    A collective may have none: the loads of a GEMM may carry it out.
    """
    names, timed = {node.name for node in run.graph}, set(run.durations)
    least = {node.name for node in run.graph.gemms}
    return None if least <= timed <= names else f"the graph has {sorted(names)}, times have {sorted(timed)}"


def no_run_beats_the_gpu(method: OverlapMethod, run: Timeline, again: Timeline) -> str | None:
    """No run beats the matrix units or, unless it is assembled from other runs, the bandwidth of memory."""
    flops = sum(node.op.flops for node in run.graph if isinstance(node.op, Gemm))
    least = flops / run.gpu.matrix_rate("bf16", "boost")
    least = least if method.parts else max(least, run.total_bytes / run.gpu.memory.bandwidth)
    return None if math.isfinite(run.seconds) and run.seconds >= least else f"{run.seconds:.3g} s, below {least:.3g} s"


def nobody_begins_early(method: OverlapMethod, run: Timeline, again: Timeline) -> str | None:
    """No operator begins before one that it waits for, as a whole kernel, has ended."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for span in run.spans:
        key = f"{span.operator}.{span.iteration}" if span.iteration else span.operator
        begins[key] = min(begins.get(key, span.start_fs), span.start_fs)
        ends[key] = max(ends.get(key, 0), span.end_fs)
    for node in run.graph:
        for edge in node.edges:
            if edge.by == "kernel" and node.id in begins and begins[node.id] < ends.get(edge.node, 0):
                return f"'{node.id}' begins at {begins[node.id]} fs, '{edge.node}' ends at {ends[edge.node]} fs"
    return None


def data_crosses_links(method: OverlapMethod, run: Timeline, again: Timeline) -> str | None:
    """A collective among several GPUs sends bytes over their links, unless the run is assembled from other runs."""
    if method.parts or not run.graph.collectives or run.counters["link_bytes"] > 0:
        return None
    return f"no byte of {run.graph.collectives[0].id} crosses a link"


# -- its formula


def a_formula_is_where_it_says(method: OverlapMethod, form: Pattern, pair: PairTimes, found: Any) -> str | None:
    """`estimate` answers for the forms in `closed_forms`."""
    return f"{form} is in closed_forms, but it answers None" if method.estimates(form) and found is None else None


def a_formula_hides_no_gemm(method: OverlapMethod, form: Pattern, pair: PairTimes, found: Any) -> str | None:
    """Its formula takes at least as long as the GEMM alone and, in sequence, as the collective."""
    if not method.estimates(form):
        return None
    least = max(pair.gemm, pair.collective if method.in_sequence else 0.0)
    return None if math.isfinite(found) and found >= least else f"{float(found):.3g} s, below {least:.3g} s"


def a_formula_takes_arrays(method: OverlapMethod, form: Pattern, pair: PairTimes, found: Any) -> str | None:
    """Its formula times several pairs at once as each by itself."""
    if not method.estimates(form):
        return None
    both = method.seconds(PairTimes.stack([pair, pair]))
    return None if np.allclose(both, found, rtol=1e-12) else f"{both.tolist()} for two pairs of {float(found):.9g} s"


# -- its axes


def a_step_takes_it_on_its_axes_alone(method: OverlapMethod, axis: Axis) -> str | None:
    """A step takes it on the axes where it applies, and refuses it with an InputError on others."""
    sp = (
        {"sp": method.applies_to("ag_gemm") or method.applies_to("gemm_rs") or not method.forms} if axis == "tp" else {}
    )
    plan = TrainingPlan(**{"batch": 4, "sequence": 2048, **_PLANS[axis], **sp, "overlap": {axis: method.name}})
    try:
        check_step(plan, weft.system(_STEP), "windows")
    except InputError as error:
        return f"a step refuses it: {error}" if method.applies_to(axis) else None
    return None if method.applies_to(axis) else "a step takes it, but the axis is not among its patterns"


DESCRIPTION = (it_has_a_name_and_words, its_patterns_are_known, it_is_a_value, something_times_it)
WORK = (gemms_are_computed, data_are_moved, sums_are_made, work_waits_for_its_data)
RUNS = (runs_repeat, operators_have_times, no_run_beats_the_gpu, nobody_begins_early, data_crosses_links)
FORMULAS = (a_formula_is_where_it_says, a_formula_hides_no_gemm, a_formula_takes_arrays)
