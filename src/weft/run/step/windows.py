"""Windows: how much a kernel and a collective slow each other down while both run, by the request-level engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Any

from weft.errors import InputError
from weft.graph import Attention, Collective, Gemm, Graph, KernelChoice, Node, Op
from weft.graph.graph import loop
from weft.hardware import System
from weft.lower.collectives import units_held
from weft.lower.fit import tiling_for
from weft.lower.machine import ring_link
from weft.options import RunOptions
from weft.result.step import Pass, Window
from weft.result.stored import plain
from weft.run.several import ALONE
from weft.run.single import simulate
from weft.run.step.spans import COMPUTE
from weft.run.sweep import Store, results
from weft.run.sweep.run import system_inputs
from weft.schedule import SHARING, Sharing

DEFAULT = "priority"
"""How a kernel and a collective share a GPU unless the plan says otherwise: frameworks launch the collective first."""
MOST_WAVES = 16
"""Waves of tiles to which a window cuts a GEMM, whose rows repeat the same work."""
MOST_DEPTH = 4096
"""Depth K to which a window cuts a GEMM: its tiles take K in equal steps."""
MOST_BYTES = 64 << 20
"""Bytes to which a window cuts a collective: every channel is busy, and larger ones repeat the same steps."""
MOST_RANKS = 8
"""Ranks to which a window cuts a ring: a GPU sends and receives (n-1)/n of the buffer, at the ring's rate."""
STREAMED = 32 << 20
"""Bytes that the stand-in of a streaming operator reads."""
SIDE = 4096
"""Rows, columns and depth of the stand-in of fused attention, which the matrix units bound like a large GEMM."""
SMALL = 0.05
"""Share of a pass below which an operator has no window of its own."""
MOST_REPEATS = 64
"""Most times that the shorter one of both is repeated, or prolonged, to cover the longer one."""
COVER = 1.3
"""How much longer than the GEMMs alone a collective must last, since it slows them down."""


@dataclass(frozen=True)
class Meeting:
    """A GEMM and a collective that run on every GPU of a system at once, as a task whose record is both slowdowns.

    Either is compared with a loop of itself alone, by the same driver. Raises what `simulate` raises.
    """

    gemm: Gemm
    collective: Collective
    system: System
    sharing: str
    options: RunOptions
    waves: int = MOST_WAVES

    @property
    def title(self) -> str:
        """What meets what."""
        return f"GEMM {self.gemm} beside {self.collective}, {self.sharing}"

    @property
    def weight(self) -> float:
        """Rough relative duration of the run: floating-point operations in billions, traffic in MB."""
        return self.gemm.flops / 1e9 + self.collective.bytes / 1e6

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides both slowdowns."""
        named = {name: getattr(self, name) for name in ("gemm", "collective", "options", "sharing", "waves")}
        return {**plain(named), "system": system_inputs(self.system)}

    def run(self) -> Mapping[str, float]:
        """Both slowdowns; a kernel that the engine finds faster beside the other one is not slowed down: 1.

        The collective is as long as it takes to cover two GEMMs: on each of several short ones, workgroups of the GEMM
        would take the compute units between two launches.
        """
        kernel = self._gemm()
        gemm_s = self._alone(loop(kernel.op, "gemm", ALONE, "compute", kernel.choice))
        alone = self._alone(loop(self.collective, "moved", ALONE, "communication"))
        times = min(ceil(ALONE * COVER * gemm_s / alone), MOST_REPEATS)
        gemms = max(ALONE, min(ceil(alone / gemm_s), MOST_REPEATS))
        moved = loop(replace(self.collective, bytes=self.collective.bytes * times), "moved", 1, "communication")
        both = Graph((*moved, *loop(kernel.op, "gemm", gemms, "compute", kernel.choice)), self.collective.ranks)
        ran = simulate(both, self.system, SHARING[self.sharing], self.options)
        ends, (moved_end,) = ran.ends("gemm"), ran.ends("moved")
        shared = min(ends[-1], moved_end)
        beside = shared / max(self._alone(moved) - (moved_end - shared), 1e-3 * shared)
        return {"kernel": max(_until(ends, moved_end) / gemm_s, 1.0), "collective": max(beside, 1.0)}

    def _alone(self, nodes: tuple[Node, ...]) -> float:
        """Time of an operator in a loop of its own [s]: of the collective by the same driver, on any compute units."""
        driver = SHARING["dma" if SHARING[self.sharing].driver == "dma" else "streams"]
        return _period(Graph(nodes, self.collective.ranks), self.system, driver, self.options)

    def _gemm(self) -> Node:
        """The GEMM cut to a few waves and to less depth, with the tile of the whole one.

        Of the numbers of rows within the limit, it takes the one whose waves grow by nearly the same factor as those
        of the whole GEMM when the collective takes compute units.
        """
        tiling = tiling_for(self.gemm, self.system.gpu, self.options, split=True)
        columns = ceil(self.gemm.n / tiling.columns) * tiling.splits
        slots = max(tiling.resident, 1)
        units = self.system.gpu.compute.compute_units
        left = max(units - self._held(), 1)

        def growth(rows: int) -> float:
            return ceil(rows * columns / (left * slots)) / ceil(rows * columns / (units * slots))

        whole = ceil(self.gemm.m / tiling.rows)
        most = self.waves * units * slots // columns
        rows = whole
        if whole > most > 0:
            rows = min(range(max(most // 2, 1), most + 1), key=lambda few: (abs(growth(few) / growth(whole) - 1), -few))
        m, k = min(rows * tiling.rows, self.gemm.m), min(self.gemm.k, MOST_DEPTH * tiling.splits)
        cut = replace(self.gemm, m=m, k=k)
        return Node(cut, "gemm", stream="compute", choice=KernelChoice(tiling=tiling))

    def _held(self) -> int:
        """Compute units that the collective takes off the GEMM."""
        if SHARING[self.sharing].driver == "dma":
            return 0
        return units_held(Node(self.collective, "moved"), self.system)


@lru_cache(maxsize=256)
def _period(graph: Graph, system: System, sharing: Sharing, options: RunOptions) -> float:
    """Time of an iteration of a loop alone [s]."""
    return simulate(graph, system, sharing, options).period(graph.nodes[0].name)


def _until(ends: tuple[float, ...], other: float) -> float:
    """Mean time of the iterations that ended while the other loop ran [s]; of the first if none did."""
    both = max(1, sum(end <= other for end in ends))
    return ends[both - 1] / both


def stand_in(op: Op, dtype: str) -> Gemm:
    """The GEMM that uses a GPU like an operator: itself; a large one for attention; weights that are read, for others.

    The engine runs GEMMs and collectives: fused attention keeps its scores on chip and is bound by the matrix units,
    streaming operators by memory.
    """
    if isinstance(op, Gemm):
        return replace(op, m=op.m * op.batch, batch=1, accumulates=False)
    if isinstance(op, Attention) and op.fused:
        return Gemm(SIDE, SIDE, SIDE, dtype)
    return Gemm(64, SIDE, STREAMED // (2 * SIDE), dtype)


def ring_of(system: System, ranks: int) -> System:
    """At most `MOST_RANKS` GPUs that exchange data at the rate at which a ring of `ranks` of the system does.

    Ranks of one node keep their links; through several nodes each GPU's link gets the rate and latency of its part of
    the rings, which the network adapters limit (`weft.lower.machine.ring_link`).
    """
    if system.nodes == 1 and (system.node is None or ranks <= MOST_RANKS):
        return system.with_gpus(min(ranks, MOST_RANKS))
    if system.nodes == 1:
        return system.with_gpus(MOST_RANKS)
    gpu = system.gpu.model_copy(update={"link": ring_link(system)})
    return System(gpu=gpu, gpus=min(ranks, MOST_RANKS), library=system.library)


@dataclass
class Windows:
    """Slowdowns of kernels and collectives of a plan by content, each from the engine once and kept on disk.

    `among` gives the system of the ranks of an axis; `overlap` names a sharing strategy by axis (`DEFAULT` if none).
    `found` are the windows that were asked for.
    """

    among: Callable[[str, int], System]
    overlap: Mapping[str, str]
    dtype: str
    options: RunOptions
    store: Store = field(default_factory=Store)
    found: dict[tuple[Gemm, Collective, str], Window] = field(default_factory=dict)
    _means: dict[tuple[Any, ...], tuple[Any, tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, kernel: Node, moved: Node) -> tuple[float, float]:
        """How many times longer the kernel and the collective take while both run."""
        assert isinstance(moved.op, Collective)
        return self.of(kernel.op, moved.op, moved.stream)

    def of(self, op: Op, moved: Collective, axis: str) -> tuple[float, float]:
        """The same for operators, the collective among the ranks of an axis."""
        key = stand_in(op, self.dtype), cut(moved), axis
        if key not in self.found:
            self.found[key] = self._window(*key)
        return self.found[key].slowdowns

    def of_passes(self, passes: Sequence[Pass], moved: Collective, axis: str = "dp") -> tuple[float, float]:
        """The same for passes of many operators: the mean over the time that each takes, gaps undisturbed.

        Operators that take less than `SMALL` of the passes count as the mean of the others.
        """
        key = (*map(id, passes), moved, axis)
        if key not in self._means:
            self._means[key] = passes, self._mean(passes, moved, axis)
        return self._means[key][1]

    def _mean(self, passes: Sequence[Pass], moved: Collective, axis: str) -> tuple[float, float]:
        spent: defaultdict[Gemm, float] = defaultdict(float)
        for one in passes:
            for node in one.graph or ():
                if node.stream == COMPUTE:
                    begin, end = one.times[node.id]
                    spent[stand_in(node.op, self.dtype)] += end - begin
        total = sum(spent.values())
        large = {gemm: seconds for gemm, seconds in spent.items() if seconds >= SMALL * total > 0}
        if not large:
            return 1.0, 1.0
        met = [(seconds, *self.of(gemm, moved, axis)) for gemm, seconds in large.items()]
        measured, stretched = sum(large.values()), sum(seconds * own for seconds, own, _ in met)
        progress = sum(seconds * own / other for seconds, own, other in met)
        gaps = sum(one.seconds for one in passes) - total
        return (total * stretched / measured + gaps) / (total + gaps), stretched / progress

    def _window(self, gemm: Gemm, moved: Collective, axis: str) -> Window:
        sharing = self.sharing(axis, moved)
        system = ring_of(self.among(axis, moved.ranks), moved.ranks)
        few = replace(moved, ranks=system.gpus)
        task = Meeting(gemm, few, system, sharing, RunOptions(clock=self.options.clock))
        try:
            record = results([task], dict, store=self.store)[task]
        except InputError as error:
            return Window(str(gemm), str(moved), sharing, system.gpu.name, (1.0, 1.0), "none", str(error))
        slowdowns = record["kernel"], record["collective"]
        return Window(str(gemm), str(moved), sharing, system.gpu.name, slowdowns)

    def sharing(self, axis: str, moved: Collective) -> str:
        """The sharing strategy of an axis; what copies cannot do stays with compute units."""
        name = self.overlap.get(axis, DEFAULT)
        if name not in SHARING:
            return DEFAULT
        return DEFAULT if SHARING[name].driver == "dma" and moved.reduces else name


def cut(moved: Collective) -> Collective:
    """A collective of the bytes of a window; a message to a neighbour as a gathering among two, a broadcast as one."""
    if moved.name == "send_recv":
        return Collective("all_gather", min(2 * moved.bytes, MOST_BYTES), 2, moved.dtype)
    name = "all_gather" if moved.name == "broadcast" else moved.name
    return Collective(name, min(moved.bytes, MOST_BYTES), moved.ranks, moved.dtype)
