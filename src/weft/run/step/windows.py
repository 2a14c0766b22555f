"""Windows: how much a kernel and a collective slow each other down while both run, by the request-level engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from weft.result.step import Window
from weft.result.stored import plain
from weft.run.several import ALONE
from weft.run.single import simulate
from weft.run.sweep import Store, results
from weft.run.sweep.run import system_inputs
from weft.schedule import SHARING

DEFAULT = "priority"
"""How a kernel and a collective share a GPU unless the plan says otherwise: frameworks launch the collective first."""
MOST_WAVES = 16
"""Waves of tiles to which a window cuts a GEMM, whose rows repeat the same work."""
MOST_BYTES = 64 << 20
"""Bytes to which a window cuts a collective: every channel is busy, and larger ones repeat the same steps."""
MOST_RANKS = 8
"""Ranks to which a window cuts a ring: a GPU sends and receives (n-1)/n of the buffer, at the ring's rate."""
STREAMED = 32 << 20
"""Bytes that the stand-in of a streaming operator reads."""
SIDE = 4096
"""Rows, columns and depth of the stand-in of fused attention, which the matrix units bound like a large GEMM."""
MOST_LOOPS = 32
"""Most iterations of the shorter operator beside the longer one."""
_COVER = 1.3  # the shorter one's loop outlasts the longer operators although both slow down


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
        """Both slowdowns; a kernel that the engine finds faster beside the other one is not slowed down: 1."""
        kernel, moved = self._gemm(), loop(self.collective, "moved", ALONE, "communication")
        alone = self._period((kernel,), "gemm"), self._period(moved, "moved")
        gemms, count = _counts(alone[0] / alone[1])
        both = (
            *loop(self.collective, "moved", count, "communication"),
            *loop(kernel.op, "gemm", gemms, "compute", kernel.choice),
        )
        ran = self._run(both)
        ends = ran.ends("gemm"), ran.ends("moved")
        beside = _until(ends[0], ends[1][-1]), _until(ends[1], ends[0][-1])
        return {"kernel": max(beside[0] / alone[0], 1.0), "collective": max(beside[1] / alone[1], 1.0)}

    def _run(self, nodes: tuple[Node, ...]) -> Any:
        return simulate(Graph(nodes, self.collective.ranks), self.system, SHARING[self.sharing], self.options)

    def _period(self, nodes: tuple[Node, ...], name: str) -> float:
        """Time of an operator in a loop of its own [s]."""
        repeated = nodes if len(nodes) > 1 else loop(nodes[0].op, name, ALONE, nodes[0].stream, nodes[0].choice)
        whole = SHARING["streams"] if name == "gemm" else SHARING[self.sharing]
        graph = Graph(repeated, self.collective.ranks)
        return float(
            simulate(graph, self.system, replace(whole, partition=False, units=None), self.options).period(name)
        )

    def _gemm(self) -> Node:
        """The GEMM cut to a few waves, with the tile of the whole one.

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
        cut = replace(self.gemm, m=min(rows * tiling.rows, self.gemm.m))
        return Node(cut, "gemm", stream="compute", choice=KernelChoice(tiling=tiling))

    def _held(self) -> int:
        """Compute units that the collective takes off the GEMM."""
        if SHARING[self.sharing].driver == "dma":
            return 0
        return units_held(Node(self.collective, "moved"), self.system)


def _counts(ratio: float) -> tuple[int, int]:
    """Iterations of a GEMM that takes `ratio` times as long as the collective, and of the collective."""
    if ratio >= 1:
        return ALONE, min(ceil(ALONE * _COVER * ratio) + 1, MOST_LOOPS)
    return min(ceil(_COVER / ratio) + 1, MOST_LOOPS), 1


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

    def __call__(self, kernel: Node, moved: Node) -> tuple[float, float]:
        """How many times longer the kernel and the collective take while both run."""
        assert isinstance(moved.op, Collective)
        return self.of(kernel.op, moved.op, moved.stream)

    def of(self, op: Op, moved: Collective, axis: str) -> tuple[float, float]:
        """The same for operators, the collective among the ranks of an axis."""
        key = (stand_in(op, self.dtype), moved, axis)
        if key not in self.found:
            self.found[key] = self._window(*key)
        return self.found[key].slowdowns

    def _window(self, gemm: Gemm, moved: Collective, axis: str) -> Window:
        sharing = self.sharing(axis, moved)
        system = ring_of(self.among(axis, moved.ranks), moved.ranks)
        few = _ring(moved, system.gpus)
        task = Meeting(gemm, few, system, sharing, RunOptions(clock=self.options.clock))
        try:
            record = results([task], dict, store=self.store)[task]
        except InputError as error:
            return Window(str(gemm), str(moved), sharing, system.gpu.name, (1.0, 1.0), "none", str(error))
        slowdowns = record["kernel"], record["collective"]
        return Window(str(gemm), str(moved), sharing, system.gpu.name, slowdowns, "engine")

    def sharing(self, axis: str, moved: Collective) -> str:
        """The sharing strategy of an axis; what copies cannot do stays with compute units."""
        name = self.overlap.get(axis, DEFAULT)
        if name not in SHARING:
            return DEFAULT
        return DEFAULT if SHARING[name].driver == "dma" and moved.reduces else name


def _ring(moved: Collective, ranks: int) -> Collective:
    """A collective among fewer ranks, cut to the bytes of a window; messages to a neighbour as a gathering of two."""
    if moved.name == "send_recv":
        return Collective("all_gather", min(2 * moved.bytes, MOST_BYTES), 2, moved.dtype)
    name = "all_gather" if moved.name == "broadcast" else moved.name
    return Collective(name, min(moved.bytes, MOST_BYTES), ranks, moved.dtype)
