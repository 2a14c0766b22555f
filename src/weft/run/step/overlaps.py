"""Overlap methods of a plan: how the collectives of an axis and the GEMMs before or behind them are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, Literal, NamedTuple

from weft.errors import InputError, check_name
from weft.estimate import estimate
from weft.estimate.joined import Method, pair_of
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import Gpu, System
from weft.lower.fit import tiling_for
from weft.lower.machine import ring_link
from weft.options import RunOptions
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.result.stored import plain
from weft.run.single import simulate
from weft.run.step.prices import Prices
from weft.schedule import PASSES, SHARING
from weft.store import Store, kept

SEQUENTIAL = "sequential"
Form = Literal["gather", "scatter", "reduce"]
"""An all-gather before a GEMM, or a reduce-scatter or all-reduce of its output behind it."""
_FORMS: Mapping[str, Form] = {"all_gather": "gather", "reduce_scatter": "scatter", "all_reduce": "reduce"}
CHUNKS = 4
"""Chunks into which userbuffers cut a GEMM before a reduce-scatter; one of them stays exposed (NVIDIA-NeMo
Megatron-Bridge, performance guide)."""
MOST_WAVES = 32
"""Waves of tiles to which the engine's GEMM is cut; the time that its collective ends later grows with its rows."""


@dataclass(frozen=True)
class Pair:
    """A GEMM and the collective before or behind it, their times alone [s], and the ranks' system.

    `gather_s` is the time of the all-gather that follows the reduce-scatter of an all-reduce [s], else 0.
    """

    gemm: Gemm
    moved: Collective
    gemm_s: float
    moved_s: float
    gather_s: float
    system: System
    options: RunOptions

    @property
    def form(self) -> Form:
        """Where the collective stands."""
        return _FORMS[self.moved.name]


class Joined(NamedTuple):
    """What a GEMM and its collective take together: the GEMM, and the collective beyond it [s]."""

    gemm: float
    beyond: float


@dataclass(frozen=True)
class Joining:
    """A method that joins collectives of tensor parallelism with GEMMs, or carries them out in another way.

    `forms` are those that it has; `needs` is hardware that it takes. `join` gives the times from the pair, its times
    alone [s], and the system of its ranks.
    """

    forms: tuple[Form, ...]
    join: Callable[[Pair], Joined]
    needs: tuple[str, ...] = ()


def _closed(method: Method, pair: Pair) -> Joined:
    """By the closed forms of `weft.estimate.joined`, whose software costs count."""
    nodes = Node(pair.gemm, "gemm"), Node(pair.moved, "moved")
    both = pair_of(Graph(nodes, pair.moved.ranks), pair.system, pair.options)
    both = replace(both, gemm=pair.gemm_s, collective=pair.moved_s)
    return Joined(pair.gemm_s, float(both.seconds(method)) - pair.gemm_s)


def _userbuffers(pair: Pair) -> Joined:
    """Chunks of the GEMM and of the collective one behind the other.

    The first chunk of the GEMM comes before any reduce-scatter, and the last chunk of that behind any GEMM. Before an
    all-gather a ring hands on the ranks' parts, and the GEMM of a rank's own part needs none.
    """
    if pair.form == "gather":
        first = pair.gemm_s / pair.moved.ranks
        return Joined(pair.gemm_s, max(pair.moved_s + first - pair.gemm_s, 0.0))
    return Joined(pair.gemm_s, max(pair.moved_s / CHUNKS, pair.moved_s - pair.gemm_s * (1 - 1 / CHUNKS)))


def _linked(system: System) -> Gpu:
    """The GPU of a system, whose link has the rate of a ring through its nodes."""
    if system.nodes == 1:
        return system.gpu
    return system.gpu.model_copy(update={"link": ring_link(system)})


def _engine(name: str, pair: Pair) -> Joined:
    """By the request-level engine: the GEMM's slowdown, and how much later its reduce-scatter ends.

    The ring all-gather behind it takes its time alone, as T3 leaves it in sequence (arXiv:2401.16677).
    """
    scatter = replace(pair.moved, name="reduce_scatter")
    system = pair.system
    if system.nodes > 1:
        system = System(gpu=_linked(system), gpus=pair.moved.ranks, library=system.library)
    gemm = replace(pair.gemm, accumulates=False)
    task = Fused(gemm, scatter, system, name, RunOptions(clock=pair.options.clock))
    found = kept(task, Store())
    return Joined(pair.gemm_s * found["kernel"], found["beyond"] + pair.gather_s)


def _in_network(pair: Pair) -> Joined:
    """By switches that add: as an all-reduce between two GPUs, whose bytes cross each link once in each direction.

    A ring among n takes 2 (n - 1) / n times as long on the links, and 2 (n - 1) steps instead of two.
    """
    two = Node(replace(pair.moved, ranks=2), "moved")
    system = System(gpu=_linked(pair.system), gpus=2, library=pair.system.library)
    return Joined(pair.gemm_s, min(float(estimate(two.op, system, options=pair.options).seconds), pair.moved_s))


JOININGS: Mapping[str, Joining] = {
    "async-tp": Joining(("gather", "scatter"), partial(_closed, "pieces")),
    "flux": Joining(("gather", "scatter", "reduce"), partial(_closed, "fused")),
    "userbuffers": Joining(("gather", "scatter"), _userbuffers),
    "in-network": Joining(("reduce",), _in_network),
    **{
        name: Joining(("scatter", "reduce"), partial(_engine, name), PASSES[name].needs)
        for name in ("t3", "t3-mca", "t3-critical")
    },
}
"""The methods by name; "sequential" and the ways to share a GPU (`weft.schedule.SHARING`) are others."""


@dataclass(frozen=True)
class Fused:
    """A GEMM whose reduce-scatter a pass joins by tiles, on a system, as a task.

    Its record has the slowdown of the GEMM against the baseline's, and how much later the reduce-scatter ends [s].
    """

    gemm: Gemm
    scatter: Collective
    system: System
    overlap: str
    options: RunOptions

    @property
    def title(self) -> str:
        """What is joined."""
        return f"GEMM {self.gemm} with its {self.scatter}, {self.overlap}"

    @property
    def weight(self) -> float:
        """Rough relative duration of the run: floating-point operations in billions."""
        return self.gemm.flops / 1e9

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the record."""
        named = {name: getattr(self, name) for name in ("gemm", "scatter", "overlap", "options")}
        return {**plain(named), "system": self.system.inputs()}

    def run(self) -> Mapping[str, float]:
        """Both numbers, of a GEMM with as many rows as a few waves have; the time beyond it grows with the rows."""
        share = self._share()
        gemm = replace(self.gemm, m=self.gemm.m // share)
        scatter = replace(self.scatter, bytes=self.scatter.bytes // share)
        nodes = Node(gemm, "gemm"), Node(scatter, "reduce_scatter", after=("gemm",))
        graph = Graph(nodes, scatter.ranks)
        before = simulate(graph, self.system, SEQUENTIAL, self.options)
        joined = simulate(graph, self.system, self.overlap, self.options)
        ends = joined.end("gemm")
        return {"kernel": ends / before.end("gemm"), "beyond": max(joined.makespan - ends, 0.0) * share}

    def _share(self) -> int:
        """The least divisor of the rows that leaves at most `MOST_WAVES` waves of tiles, and whole rows for ranks."""
        tiling = tiling_for(self.gemm, self.system.gpu, self.options, self.scatter.ranks)
        slots = self.system.gpu.compute.compute_units * max(tiling.resident, 1)
        least = ceil(tiling.workgroups(self.gemm) / (MOST_WAVES * slots))
        rows = self.gemm.m // (tiling.rows * self.scatter.ranks)
        return next((share for share in range(least, rows + 1) if rows % share == 0), 1)


def check_overlap(plan: Parallelism, system: System) -> None:
    """Raise InputError for a method that an axis does not have, UnknownNameError for an unknown one."""
    for axis, name in plan.overlap.items():
        check_name("axis of an overlap", axis, ("tp", "cp", "ep", "dp"))
        known = (*((SEQUENTIAL,) if axis in ("tp", "dp") else ()), *(JOININGS if axis == "tp" else ()), *SHARING)
        if name in JOININGS and axis != "tp":
            raise InputError(
                f"'{name}' joins the collectives of tensor parallelism with their GEMMs, but overlap names it for "
                f"'{axis}'; choose one of {', '.join(known)}"
            )
        check_name(f"overlap of {axis}", name, known)
        if name in JOININGS and "reduce" not in JOININGS[name].forms and not plan.sp:
            raise InputError(
                f"'{name}' joins all-gathers and reduce-scatters with GEMMs, but without sequence parallelism (sp) "
                "tensor-parallel ranks all-reduce; set sp, or choose one of flux, t3, t3-mca, t3-critical"
            )
        if name in JOININGS and JOININGS[name].forms == ("reduce",) and plan.sp:
            raise InputError(
                f"'{name}' shortens all-reduces, but with sequence parallelism (sp) tensor-parallel ranks gather and "
                "scatter, which moves no byte less in a switch; leave sp out, or choose another method"
            )
        if name in SHARING and SHARING[name].driver == "dma":
            _check_copies(axis, name, plan, system)


def _check_copies(axis: str, name: str, plan: Parallelism, system: System) -> None:
    reduces = (axis == "tp" and not plan.sp) or (axis == "dp" and plan.zero == 0)
    if reduces:
        raise InputError(
            f"'{name}' copies by DMA engines, which cannot add, but '{axis}' only all-reduces here; "
            + ("set sp" if axis == "tp" else "set zero to 1, 2 or 3")
            + ", or choose priority or partition"
        )
    each = system.gpus_per_node if system.node else system.gpus
    if plan.stride(axis) * plan.degree(axis) > each:
        raise InputError(
            f"'{name}' copies by DMA engines, which reach the {each} GPUs of a node, but the ranks of '{axis}' lie in "
            "several nodes; choose priority or partition"
        )


def settled(framework: Framework, plan: Parallelism) -> Framework:
    """A framework with the methods of the plan in place of its own."""
    changed: dict[str, Any] = {}
    if plan.overlap.get("tp") == SEQUENTIAL:
        changed |= {"async_tp": False, "tp": ""}
    elif "tp" in plan.overlap:
        changed["tp"] = plan.overlap["tp"] if plan.overlap["tp"] in JOININGS else ""
    if plan.overlap.get("dp") == SEQUENTIAL:
        changed |= {"dp_overlap": False, "gather_overlap": False}
    return replace(framework, **changed) if changed else framework


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


class Overlapped(NamedTuple):
    """Times of a graph's nodes under a method by name [s], and the collectives that it joins with GEMMs."""

    seconds: dict[str, float]
    joined: frozenset[str]


def overlapped(graph: Graph, prices: Prices, method: str) -> Overlapped:
    """Times of nodes [s] where `method` joins GEMMs and collectives; a collective has what is left beyond its GEMM."""
    seconds, joined = prices.graph(graph), set()
    for gemm, moved in pairs(graph) if method in JOININGS else ():
        op = moved.op
        assert isinstance(gemm.op, Gemm)
        assert isinstance(op, Collective)
        if _FORMS[op.name] not in JOININGS[method].forms:
            continue
        gather_s = prices.of(replace(op, name="all_gather"), "tp") if op.name == "all_reduce" else 0.0
        pair = Pair(
            gemm.op, op, seconds[gemm.name], seconds[moved.name], gather_s, prices.among("tp", op.ranks), prices.options
        )
        seconds[gemm.name], seconds[moved.name] = JOININGS[method].join(pair)
        joined.add(moved.name)
    return Overlapped(seconds, frozenset(joined))


def needs(plan: Parallelism) -> tuple[str, ...]:
    """Sentences on the hardware that a plan's methods take and GPUs on sale lack."""
    method = plan.overlap.get("tp", "")
    parts = JOININGS[method].needs if method in JOININGS else ()
    return (f"{method} needs hardware that no GPU on sale has: {', '.join(parts)}.",) if parts else ()
