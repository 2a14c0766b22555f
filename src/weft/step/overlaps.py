"""Overlap methods of a plan: how long GEMMs and the collectives before or behind them take where a method joins them.

The methods say what applies to them: see `weft.overlaps.OverlapMethod`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil
from operator import attrgetter
from typing import Any, cast

from weft.core.errors import InputError, check_name
from weft.core.options import Fidelity, RunOptions
from weft.core.store import Store, read_or_make
from weft.core.store.records import say
from weft.graph import Collective, Driver, Gemm, Graph, Node
from weft.graph.collective import Form, PairForm
from weft.hardware import System
from weft.kernels.library.software import costs
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import (
    AXES,
    FORMS,
    OVERLAPS,
    SEQUENTIAL,
    Axis,
    OverlapMethod,
    applicable,
    find_overlap,
    find_strategy,
)
from weft.overlaps.graphs import FORM_OF
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.machine import ring_link
from weft.overlaps.pairs import PairTimes, pair_of
from weft.simulate.kept import method_identity
from weft.simulate.result.stored import plain
from weft.simulate.single import simulate
from weft.step import expert_layers
from weft.step.durations import OperatorTimes
from weft.step.launches import FULL_ITERATION

AND = "+"
"""Between methods of tensor parallelism that join different collectives, as in t3-mca+t3-all-gather."""
MOST_WAVES = 32
"""Waves of tiles to which the engine's GEMM is cut; the time that its collective ends later grows with its rows."""


@dataclass(frozen=True)
class TimedPair:
    """A GEMM and the collective before or behind it, their times alone [s], and the ranks' system.

    `gather_s` is the time of the all-gather that follows the reduce-scatter of an all-reduce [s], else 0. A `framework`
    that calls both on two streams costs time, too. `form` says what waits for what (None: as in a step), `kernel` how
    many times as long as the library's the GEMM's own kernel takes, which `gemm_s` includes.
    """

    gemm: Gemm
    moved: Collective
    gemm_s: float
    moved_s: float
    gather_s: float
    system: System
    options: RunOptions
    framework: bool = True
    form: PairForm | None = None
    kernel: float = 1.0


def join(pair: TimedPair, method: str) -> tuple[float, float]:
    """Return the time of the GEMM under a method, and of the collective beyond the GEMM [s].

    The times come from the closed form of the method or, for methods without one, from the engine.
    """
    found = OVERLAPS[method]
    return _closed_form(pair, found) if found.estimates("tp") or not found.simulated else _engine(pair, method)


def _closed_form(pair: TimedPair, method: OverlapMethod) -> tuple[float, float]:
    """By the closed form of the method, whose software costs count."""
    both = _alone(pair.form or FORM_OF[pair.moved.name], pair.gemm, pair.moved, pair.system, pair.options)
    both = replace(both, gemm=pair.gemm_s, collective=pair.moved_s, framework=pair.framework)
    both = replace(both, piece=both.piece * pair.kernel)
    both = method.complete(both, pair.moved, pair.system, pair.options)
    return pair.gemm_s, float(method.seconds(both)) - pair.gemm_s


@lru_cache(4096)
def _alone(form: PairForm, gemm: Gemm, moved: Collective, system: System, options: RunOptions) -> PairTimes:
    """Return the times of what a GEMM and its collective split into; plans of a search ask for the same pairs."""
    before = form == "ag_gemm"
    nodes = Node(gemm, "gemm", after=("moved",) * before), Node(moved, "moved", after=("gemm",) * (not before))
    return pair_of(Graph(nodes[::-1] if before else nodes, moved.ranks), system, options)


def _engine(pair: TimedPair, name: str) -> tuple[float, float]:
    """By the request-level engine: the GEMM's slowdown, and how much longer both take than it.

    An all-reduce is a reduce-scatter here; the ring all-gather behind it takes its time alone, as T3 leaves it in
    sequence (arXiv:2401.16677).
    """
    gathers = pair.moved.name == "all_gather"
    moved = pair.moved if gathers else replace(pair.moved, name="reduce_scatter")
    system = pair.system
    if system.nodes > 1:
        gpu = system.gpu.model_copy(update={"link": ring_link(system)})
        system = System(gpu=gpu, gpus=pair.moved.ranks, library=system.library)
    gemm = replace(pair.gemm, accumulates=False)
    task = JoinedGemm(gemm, moved, system, name, RunOptions(clock=pair.options.clock))
    found = read_or_make(task, Store())
    if gathers:  # whose GEMM the engine may run slower than its closed form says, in another order of tiles
        return pair.gemm_s, max(found["both"] - min(found["alone"], pair.gemm_s), 0.0)
    return pair.gemm_s * found["kernel"], found["beyond"] + pair.gather_s


@lru_cache(64)
def _in_sequence(graph: Graph, system: System, options: RunOptions) -> tuple[float, float]:
    """When the GEMM of a pair begins and ends if its collective runs apart [s]; all methods ask for the same pairs."""
    found = simulate(graph, system, SEQUENTIAL, options)
    return found.end("gemm") - found.duration("gemm"), found.end("gemm")


@cache
def _announce(overlap: str) -> None:
    """Say once that an overlap takes the engine's time."""
    say(f"the engine simulates GEMMs with their collectives under {overlap}, no closed form does; answers are kept ...")


@dataclass(frozen=True)
class JoinedGemm:
    """A GEMM that a pass joins by tiles with the collective behind it, or the all-gather before it, on a system.

    The record of this task has the slowdown of the GEMM against the baseline's, and how much later the reduce-scatter
    ends [s]; of an all-gather, what the GEMM takes alone, and what both take [s].
    """

    gemm: Gemm
    moved: Collective
    system: System
    overlap: str
    options: RunOptions

    @property
    def title(self) -> str:
        """What is joined."""
        return f"GEMM {self.gemm} with its {self.moved}, {self.overlap}"

    @property
    def weight(self) -> float:
        """Rough relative duration of the run: floating-point operations in billions."""
        return self.gemm.flops / 1e9

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the record."""
        named = {name: getattr(self, name) for name in ("gemm", "moved", "options")}
        return {**plain(named), "overlap": method_identity(OVERLAPS[self.overlap]), "system": self.system.inputs()}

    def run(self) -> Mapping[str, float]:
        """Both numbers, from a GEMM with as many rows as a few waves have; the time beyond it grows with the rows."""
        _announce(self.overlap)
        share = self._share()
        gemm = replace(self.gemm, m=self.gemm.m // share)
        moved = replace(self.moved, bytes=self.moved.bytes // share)
        gathers = moved.name == "all_gather"
        first, second = (moved, gemm) if gathers else (gemm, moved)
        names = ("all_gather", "gemm") if gathers else ("gemm", "reduce_scatter")
        graph = Graph((Node(first, names[0]), Node(second, names[1], after=names[:1])), moved.ranks)
        begins, before = _in_sequence(graph, self.system, self.options)
        joined = simulate(graph, self.system, self.overlap, self.options)
        if gathers:
            return {"alone": (before - begins) * share, "both": joined.makespan * share}
        ends = joined.end("gemm")  # updates that are still on their way then belong to no kernel
        return {"kernel": ends / before, "beyond": max(joined.seconds - ends, 0.0) * share}

    def _share(self) -> int:
        """The least divisor of the rows that leaves at most `MOST_WAVES` waves of tiles, and whole rows for ranks."""
        tiling = tiling_for(self.gemm, self.system.gpu, self.options, self.moved.ranks)
        slots = self.system.gpu.compute.compute_units * max(tiling.resident, 1)
        least = ceil(tiling.workgroups(self.gemm) / (MOST_WAVES * slots))
        rows = self.gemm.m // (tiling.rows * self.moved.ranks)
        return next((share for share in range(least, rows + 1) if rows % share == 0), 1)


def check_methods(overlap: Mapping[str, str], fidelity: Fidelity) -> None:
    """Raise InputError for a method that does not apply to its axis, or that the fidelity cannot tell from the default.

    Both list the methods that can be asked. Raises UnknownNameError for an unknown axis or method.
    """
    for axis, name in _each(overlap):
        check_name("axis of an overlap", axis, AXES)
        place = cast(Axis, axis)
        if not find_overlap(name, place).differs_from_default(place, fidelity):
            timed = ", ".join(one for one in applicable(place, "closed form") if find_strategy(one))
            raise InputError(
                f"closed forms (the fidelity 'estimate', and every search of plans) cannot tell '{name}' from the "
                f"default, priority; ask weft step with the fidelity 'windows', or choose one of {timed}"
            )


def _each(overlap: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield every method with its axis; of tensor parallelism there may be several."""
    for axis, names in overlap.items():
        yield from ((axis, name) for name in (names.split(AND) if axis == "tp" else [names]))


def _check_apart(names: str) -> None:
    """Raise InputError for methods of tensor parallelism in one plan that would join the same collectives."""
    taken: dict[Form, str] = {}
    for name in names.split(AND) if AND in names else ():
        for form in OVERLAPS[name].forms or FORMS:
            if form in taken:
                raise InputError(
                    f"'{taken[form]}' and '{name}' both time a GEMM with its collective ({form}); combine a method of "
                    "reduce-scatters with one of all-gathers, such as t3-mca+t3-all-gather"
                )
            taken[form] = name


def check_overlap(plan: Deployment, system: System, fidelity: Fidelity = "windows") -> None:
    """Raise InputError for a method that a plan on a system cannot use, and what `check_methods` raises."""
    check_methods(plan.overlap, fidelity)
    _check_apart(plan.overlap.get("tp", ""))
    for axis, name in _each(plan.overlap):
        ranks = plan.dp * plan.cp if axis == "dp" else plan.degree(axis)
        if ranks == 1:
            raise InputError(
                f"'{name}' overlaps the collectives of '{axis}', but {axis} is 1, so there are none; leave "
                f"{axis}={name} out of the overlap, or give {axis} more ranks"
            )
        if OVERLAPS[name].joins_gemms:
            _check_forms(OVERLAPS[name], plan)
        OVERLAPS[name].check_plan(axis, plan, system)


def serving_methods(axis: str) -> list[str]:
    """Methods for the collectives of an axis in a forward pass that is served: all-reduces behind GEMMs, exchanges.

    None that fuses GEMMs in software is among them: its closed form holds for GEMMs of many waves of tiles.
    """
    if axis == expert_layers.AXIS:
        return [name for name in applicable("ep") if OVERLAPS[name].applies_to("moe_layer")]
    names = applicable("tp") if axis == "tp" else []
    return [name for name in names if OVERLAPS[name].applies_to("gemm_ar") and not OVERLAPS[name].fills_waves]


def check_served(plan: Deployment, system: System, ep: int) -> None:
    """Raise InputError for a method that a forward pass on `plan` cannot use, `ep` GPUs of which hold whole experts."""
    check_methods(plan.overlap, "windows")
    for axis, name in _each(plan.overlap):
        if axis == expert_layers.AXIS and 1 < ep != plan.ep:
            raise InputError(
                f"'{name}' joins experts with the exchanges of tokens around them, but the {ep} GPUs of a replica hold "
                f"the same tokens, and exchange none; give tp 1 beside ep {ep}, or a method of tp"
            )
        if OVERLAPS[name].name not in serving_methods(axis):
            known = [f"{one}={other}" for one in ("tp", expert_layers.AXIS) for other in serving_methods(one)]
            why = "changes no collective of a forward pass, all-reduces behind GEMMs and exchanges around experts"
            if OVERLAPS[name].fills_waves:
                why = "has a closed form for GEMMs of many waves of tiles, and next tokens fill not one"
            raise InputError(f"'{name}' on '{axis}' {why}; choose one of {', '.join(known)}")
    check_overlap(plan, system)


def _check_forms(method: OverlapMethod, plan: Deployment) -> None:
    """Raise InputError for a method that joins none of the collectives that tensor-parallel ranks of the plan run."""
    run: tuple[Form, ...] = ("ag_gemm", "gemm_rs") if plan.sp else ("gemm_ar",)
    if any(map(method.applies_to, run)):
        return
    known = ", ".join(other for other in applicable("tp") if any(map(OVERLAPS[other].applies_to, run)))
    if plan.sp:
        raise InputError(
            f"'{method.name}' shortens all-reduces, but with sequence parallelism (sp) tensor-parallel ranks gather "
            f"and scatter, which moves no byte less in a switch; leave sp out, or choose one of {known}"
        )
    raise InputError(
        f"'{method.name}' joins all-gathers and reduce-scatters with GEMMs, but without sequence parallelism (sp) "
        f"tensor-parallel ranks all-reduce; set sp, or choose one of {known}"
    )


_SETTLING = attrgetter(
    "cuda_graph_impl", "cuda_graph_modules", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"
)


def framework_fields(plan: TrainingPlan) -> tuple[object, ...]:
    """Return the fields of a plan by which `resolve_framework` changes a framework."""
    return *_SETTLING(plan), tuple(sorted(plan.overlap.items())) if plan.overlap else ()


def resolve_framework(framework: Framework, plan: TrainingPlan) -> Framework:
    """Return a framework with the methods, CUDA graphs and paired passes of the plan in place of its own.

    Raises InputError for gradients of weights that the plan delays where no passes are paired.
    """
    changed: dict[str, Any] = {}
    if plan.cuda_graph_impl is not None:
        layers = plan.cuda_graph_modules or ("attn", "mlp")
        whole = {"none": (), FULL_ITERATION: (FULL_ITERATION,)}
        changed["graphs"] = whole.get(plan.cuda_graph_impl, layers)
    if plan.overlap_moe_expert_parallel_comm is not None:
        changed["paired"] = plan.overlap_moe_expert_parallel_comm
        changed["delay_wgrad"] = bool(plan.delay_wgrad_compute)
    elif plan.delay_wgrad_compute is not None:
        changed["delay_wgrad"] = plan.delay_wgrad_compute
        if plan.delay_wgrad_compute and not framework.paired:
            raise InputError(
                f"delay_wgrad_compute fills MoE dispatch and combine with gradients of weights, but {framework.title} "
                "does not run them beside another micro-batch; give overlap_moe_expert_parallel_comm, too"
            )
    for axis in plan.overlap:
        changed |= _framework_changes(plan, axis)
    return replace(framework, **changed) if changed else framework


def _framework_changes(plan: TrainingPlan, axis: str) -> dict[str, Any]:
    """Return what the methods of an axis change in a framework; several methods of "tp" go by all of their names."""
    changed = [OVERLAPS[name].framework_changes(axis) for _, name in _each({axis: plan.overlap[axis]})]
    if len(changed) > 1:
        return {"tp": plan.overlap[axis] if all(one["tp"] for one in changed) else ""}
    return changed[0]


def pairs(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """The GEMMs of a pass and the collectives of tensor parallelism before or behind them, each in one pair at most.

    A gradient of weights adds up over the gathered tokens, so that no part of it can begin before they have arrived.
    """
    nodes = {node.id: node for node in graph}
    taken: set[str] = set()
    for node in graph:
        for edge in node.edges:
            before = nodes[edge.node]
            if {node.id, before.id} & taken or "weight" in (node.phase, before.phase):
                continue
            gemm, moved = (node, before) if isinstance(node.op, Gemm) else (before, node)
            gathers = isinstance(moved.op, Collective) and moved.op.name == "all_gather"
            if isinstance(gemm.op, Gemm) and moved.stream == "tp" and gathers == (gemm is node):
                taken |= {gemm.id, moved.id}
                yield gemm, moved


def overlap_nodes(
    graph: Graph, prices: OperatorTimes, method: str, alone: Mapping[str, float] | None = None, hides: bool = False,
    framework: bool = True,
) -> tuple[dict[str, float], dict[str, float], set[str]]:  # fmt: skip
    """Return the times of nodes under a method, and without any, by name [s], and the collectives joined with GEMMs.

    Where `method` joins a GEMM with a collective, the collective has what is left beyond its GEMM.

    `alone` are the times without any method, by name (None: by the prices). Of methods such as "t3-mca+t3-all-gather"
    each joins its own collectives. One that no method joins begins after the gap between two streams of a `framework`,
    which a graph of kernels that is launched at once has not. The all-gather behind a joined reduce-scatter takes at
    most as long as the whole all-reduce of the library, which has one. With `hides`, what the engine would time is
    hidden in full.
    """
    alone, joined = dict(prices.graph(graph) if alone is None else alone), set()
    seconds = dict(alone)
    joins = [name for name in filter(None, method.split(AND)) if OVERLAPS[name].joins_gemms]
    by_form = {form: name for name in joins for form in OVERLAPS[name].forms}
    for gemm, moved in pairs(graph):
        op = moved.op
        assert isinstance(gemm.op, Gemm)
        assert isinstance(op, Collective)
        if FORM_OF[op.name] not in by_form:
            alone[moved.name] = seconds[moved.name] = alone[moved.name] + framework * costs()["sequential.gap"]
            continue
        moved_s, gather_s = seconds[moved.name], 0.0
        if op.name == "all_reduce":
            gather_s = min(prices.of(replace(op, name="all_gather"), "tp"), moved_s)
        among = prices.among("tp", op.ranks)
        pair = TimedPair(gemm.op, op, seconds[gemm.name], moved_s, gather_s, among, prices.options, framework)
        name = by_form[FORM_OF[op.name]]
        own = (pair.gemm_s, gather_s) if hides and not OVERLAPS[name].estimates("tp") else join(pair, name)
        seconds[gemm.name], seconds[moved.name] = own
        joined.add(moved.name)
    around = prices.plan.overlap.get(expert_layers.AXIS, "")
    joined |= expert_layers.join_layers(graph, seconds, prices.among, around, prices.options, hides)
    return seconds, alone, joined


def needs(plan: Deployment, system: System) -> tuple[str, ...]:
    """Return sentences on the hardware that a plan's methods take and that GPUs on sale, or the system, lack."""
    asked = [name for axis, name in _each(plan.overlap) if axis in ("tp", expert_layers.AXIS)]
    return tuple(filter(None, (OVERLAPS[name].missing_hardware(system) for name in asked)))


def engine_note(plan: Deployment, when: str = "") -> tuple[str, ...]:
    """Return a sentence on a method that runs the engine, and `when`."""
    found = []
    for axis, name in _each(plan.overlap):
        method = OVERLAPS[name]
        if axis == "tp" and method.joins_gemms and not method.estimates("tp"):
            found.append((name, "all-gathers" if method.forms == ("ag_gemm",) else "reduce-scatters"))
        if axis == expert_layers.AXIS and method.applies_to("moe_layer"):
            found.append((name, "exchanges of experts"))
    timed = "has no closed form: the engine timed its GEMMs and"
    return tuple(f"{name} {timed} {moved}{when}." for name, moved in found)


def idle_note(plan: TrainingPlan, met: Collection[str]) -> tuple[str, ...]:
    """Return sentences on ways to share a GPU that change nothing, as no collective of their axis meets a kernel.

    `met` are the axes whose collectives run concurrently with kernels.
    """
    return tuple(
        f"{axis}={name} changes nothing here: no collective of {axis} runs beside a kernel."
        for axis, name in plan.overlap.items()
        if axis not in met and (strategy := find_strategy(name)) is not None and strategy.driver is Driver.CU
    )
