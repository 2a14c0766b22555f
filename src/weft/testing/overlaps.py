"""The contract of an overlap method: what it says of itself, what its runs keep, and where a step takes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

import weft
from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node, Routing, concurrent, experts
from weft.library.software import costs
from weft.options import SUSTAINED
from weft.overlaps import AXES, FORMS, OVERLAPS, PLACES, Axis, OverlapMethod, Pattern
from weft.overlaps.pairs import PairTimes, pair_of
from weft.parallel import dependent
from weft.parallel.plan import TrainingPlan
from weft.result import Timeline
from weft.run import simulate
from weft.run.step.overlaps import check_overlap as check_step
from weft.testing.laws import ContractError, check_laws, runs_to_the_end

MACHINES: Sequence[tuple[str, int]] = (("t3-paper", 4), ("dgx-h100", 8))
"""Where the cases run: the first machine, with so many GPUs, that has the hardware which a method needs."""
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

    >>> check_overlap(OVERLAPS["t3-mca"])
    """
    if not isinstance(method, OverlapMethod):
        raise InputError(f"{method!r} is no overlap method; give an object of a subclass of weft.OverlapMethod")
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
                check_laws(member, pattern, RUNS, method, *_run_twice(member, method, pattern))
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


def _run_twice(member: str, method: OverlapMethod, pattern: Pattern) -> tuple[Timeline, Timeline]:
    """Return two runs of a pattern on the first machine that the method accepts."""
    *others, last = MACHINES
    for machine, gpus in others:
        with suppress(InputError):
            return _twice(member, method, pattern, machine, gpus)
    with runs_to_the_end(member, _RUNS, pattern):
        return _twice(member, method, pattern, *last)


def _twice(member: str, method: OverlapMethod, pattern: Pattern, machine: str, gpus: int) -> tuple[Timeline, Timeline]:
    graph = samples(gpus)[pattern]
    try:
        return simulate(graph, machine, method), simulate(graph, machine, method)
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
    known = {pattern for patterns in PLACES.values() for pattern in patterns}
    odd = [pattern for pattern in (*method.patterns, *method.closed_forms) if pattern not in known]
    return f"{odd[0]!r} is none of {', '.join(sorted(known))}" if odd else None


def it_is_a_value(method: OverlapMethod) -> str | None:
    """It is a value: equal to itself, and a key of a mapping, so that runs are made once."""
    return None if {method: 1}.get(method) == 1 else "it is not found in a mapping whose key it is"


def something_times_it(method: OverlapMethod) -> str | None:
    """The engine runs it, or a formula times it."""
    return None if method.simulated or method.closed_forms else "it is neither simulated nor has closed_forms"


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
RUNS = (runs_repeat, operators_have_times, no_run_beats_the_gpu, nobody_begins_early, data_crosses_links)
FORMULAS = (a_formula_is_where_it_says, a_formula_hides_no_gemm, a_formula_takes_arrays)
