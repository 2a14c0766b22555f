"""Windows: how much a kernel and a collective slow each other down while both run on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.store import Store, read_or_make
from weft.graph import Attention, Collective, Driver, Gemm, Node, Op
from weft.hardware import System
from weft.overlaps import find_strategy
from weft.overlaps.lower.machine import ring_link
from weft.step.corun import CoRunWindow, WaveGrowths
from weft.step.result.step import Pass, Window
from weft.step.spans import COMPUTE

DEFAULT = "priority"
"""How a kernel and a collective share a GPU unless the plan says otherwise: frameworks launch the collective first."""
MOST_BYTES = 64 << 20
"""Bytes to which a window cuts a collective: every channel is busy, and larger ones repeat the same steps."""
MOST_RANKS = 8
"""Ranks to which a window cuts a ring: a GPU sends and receives (n-1)/n of the buffer, at the ring's rate."""
STREAMED_ROWS = 64
"""Rows of the stand-in of a streaming operator, too few to keep the matrix units busy."""
STREAMED = 32 << 20
"""Bytes that the stand-in of a streaming operator reads."""
SIDE = 4096
"""Rows, columns and depth of the stand-in of fused attention, which the matrix units bound like a large GEMM."""
SMALL = 0.05
"""Share of a pass below which an operator has no window of its own."""


@lru_cache(maxsize=4096)
def stand_in(op: Op, dtype: str) -> Gemm:
    """The GEMM that uses a GPU like an operator: itself; a large one for attention; weights that are read, for others.

    The engine runs GEMMs and collectives: fused attention keeps its scores on chip and is bound by the matrix units,
    streaming operators by memory.
    """
    dtype = dtype if dtype in ("fp16", "bf16") else "bf16"
    if isinstance(op, Gemm):
        return replace(op, m=op.m * op.batch, batch=1, accumulates=False)
    if isinstance(op, Attention) and op.fused:
        return Gemm(SIDE, SIDE, SIDE, dtype)
    return Gemm(STREAMED_ROWS, SIDE, STREAMED // (2 * SIDE), dtype)


def ring_of(system: System, ranks: int) -> System:
    """At most `MOST_RANKS` GPUs that exchange data at the rate at which a ring of `ranks` of the system does.

    Ranks of one node keep their links; through several nodes each GPU's link gets the rate and latency of its part of
    the rings, which the network adapters limit (`weft.overlaps.lower.machine.ring_link`).
    """
    if system.nodes == 1 and (system.node is None or ranks <= MOST_RANKS):
        return system.with_gpus(min(ranks, MOST_RANKS))
    if system.nodes == 1:
        return system.with_gpus(MOST_RANKS)
    gpu = system.gpu.model_copy(update={"link": ring_link(system)})
    return System(gpu=gpu, gpus=min(ranks, MOST_RANKS), library=system.library)


class GemmTimes(NamedTuple):
    """Seconds of passes by the GEMM that uses a GPU like their operators, and of the whole passes."""

    spent: Mapping[Gemm, float]
    whole: float


def sum_gemm_times(passes: Sequence[Pass], dtype: str) -> GemmTimes:
    """Return the times of passes, their operators by their stand-ins."""
    spent: defaultdict[Gemm, float] = defaultdict(float)
    for one in passes:
        for node in one.graph or ():
            if node.stream == COMPUTE:
                begin, end = one.times[node.id]
                spent[stand_in(node.op, dtype)] += end - begin
    return GemmTimes(spent, sum(one.seconds for one in passes))


@dataclass
class Windows:
    """Slowdowns of kernels and collectives of a plan by content, each found once.

    With `engine` they come from the request-level engine and are kept on disk. Else a GEMM slows down as its waves of
    tiles grow beside the collective, and nothing else does: 1.4 % from the engine's slowdown of GEMMs on average over
    1,381 windows of A100 and H100, 0.5 to 5 % from that of collectives. `among` gives the system of the ranks of an
    axis; `overlap` names a sharing strategy by axis (`DEFAULT` if none). `found` are the windows that were computed,
    `meetings` what the engine runs for them.
    """

    among: Callable[[str, int], System]
    overlap: Mapping[str, str]
    dtype: str
    options: RunOptions
    engine: bool = True
    store: Store | None = None
    waves: WaveGrowths = field(default_factory=WaveGrowths)
    found: dict[tuple[Gemm, Collective, str], Window] = field(default_factory=dict)
    meetings: list[CoRunWindow] = field(default_factory=list)
    _asked: dict[tuple[Op, Collective, str], tuple[float, float]] = field(default_factory=dict)
    _means: dict[tuple[Any, ...], tuple[Any, tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, kernel: Node, moved: Node) -> tuple[float, float]:
        """Return the slowdown factors of the kernel and the collective while both run."""
        assert isinstance(moved.op, Collective)
        return self.of(kernel.op, moved.op, moved.stream)

    def of(self, op: Op, moved: Collective, axis: str) -> tuple[float, float]:
        """Return the same for operators, the collective among the ranks of an axis."""
        asked = op, moved, axis
        if asked not in self._asked:
            strategy = find_strategy(self.sharing(axis, moved))
            copied = strategy is not None and strategy.moved_by is Driver.DMA
            key = stand_in(op, self.dtype), cut(moved, copied), axis
            if key not in self.found:
                self.found[key] = self._window(*key)
            self._asked[asked] = self.found[key].slowdowns
        return self._asked[asked]

    def of_passes(self, passes: Sequence[Pass], moved: Collective, axis: str = "dp") -> tuple[float, float]:
        """Return the same for passes of many operators: the mean over the time that each takes, gaps undisturbed.

        Operators that take less than `SMALL` of the passes count as the mean of the others.
        """
        key = (*map(id, passes), moved, axis)
        if key not in self._means:
            self._means[key] = passes, self._mean(sum_gemm_times(passes, self.dtype), moved, axis)
        return self._means[key][1]

    def of_times(self, times: GemmTimes, moved: Collective, axis: str = "dp") -> tuple[float, float]:
        """Return the same for the `sum_gemm_times` of passes."""
        key = id(times), moved.name, min(moved.bytes, MOST_BYTES), moved.ranks, axis
        if key not in self._means:
            self._means[key] = times, self._mean(times, moved, axis)
        return self._means[key][1]

    def _mean(self, times: GemmTimes, moved: Collective, axis: str) -> tuple[float, float]:
        spent, whole = times
        total = sum(spent.values())
        large = {gemm: seconds for gemm, seconds in spent.items() if seconds >= SMALL * total > 0}
        if not large:
            return 1.0, 1.0
        met = [(seconds, *self.of(gemm, moved, axis)) for gemm, seconds in large.items()]
        measured, stretched = sum(large.values()), sum(seconds * own for seconds, own, _ in met)
        progress = sum(seconds * own / other for seconds, own, other in met)
        gaps = whole - total
        return (total * stretched / measured + gaps) / (total + gaps), stretched / progress

    def _window(self, gemm: Gemm, moved: Collective, axis: str) -> Window:
        sharing = self.sharing(axis, moved)
        system = self.waves.ring(self.among(axis, moved.ranks), moved.ranks, ring_of)
        few = replace(moved, ranks=min(moved.ranks, system.gpus))
        task = CoRunWindow(gemm, few, system, sharing, self._run_options)
        window = partial(Window, str(gemm), str(moved), sharing, system.gpu.name)
        if not self.engine and task.strategy.takes_turns:
            why = "who is launched first takes the compute units; ask with the fidelity 'windows'"
            return window((1.0, 1.0), "none", why)
        try:
            if self.engine:
                self.store = self.store or Store()  # made late: it loads the engine
                record = read_or_make(task, self.store)
                found = window((record["kernel"], record["collective"]), "engine")
            else:
                found = window((1.0 if gemm.m == STREAMED_ROWS else self.waves.growth(task), 1.0), "waves")
        except InputError as error:
            return window((1.0, 1.0), "none", str(error))
        self.meetings.append(task)
        return found

    @cached_property
    def _run_options(self) -> RunOptions:
        return RunOptions(clock=self.options.clock)

    def sharing(self, axis: str, moved: Collective) -> str:
        """Return the sharing strategy of an axis; what copies cannot do stays with compute units."""
        name = self.overlap.get(axis, DEFAULT)
        strategy = find_strategy(name)
        return name if strategy is not None and strategy.moves(moved.reduces) else DEFAULT


def cut(moved: Collective, copied: bool = False) -> Collective:
    """A collective of the bytes of a window, a broadcast as a gathering.

    A message to a neighbour is one between two ranks; `copied` by DMA engines, which the engine runs for gatherings
    alone, it is a gathering among two.
    """
    if moved.name == "send_recv" and copied:
        return Collective("all_gather", min(2 * moved.bytes, MOST_BYTES), 2, moved.dtype)
    name = "all_gather" if moved.name == "broadcast" else moved.name
    ranks = 2 if name == "send_recv" else moved.ranks
    return Collective(name, min(moved.bytes, MOST_BYTES), ranks, moved.dtype)
