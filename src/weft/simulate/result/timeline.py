"""The result of a run: every table, picture and trace is computed from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.answer import Answer, to_plain
from weft.core.errors import ConfigError, InputError, UnknownNameError, check_type
from weft.core.files import read_json, to_json, write_atomically
from weft.core.options import RunOptions
from weft.core.units import format_bytes, format_time
from weft.engine.layout import PIM_TOGETHER
from weft.graph import Collective, Gemm, Graph, RemoteLoads, TrackedArrivals
from weft.graph.choice import Tracked
from weft.hardware import System
from weft.simulate.result.heat import Heat
from weft.simulate.result.interference import MemoryInterference
from weft.simulate.result.stored import as_record, from_record, stored_kinds

Ints = npt.NDArray[np.int64]
Cause = tuple[str, str]
"""The operator for which bytes moved, and whether they were a "read", a "write" or an "update"."""


@dataclass(frozen=True)
class Span:
    """A kernel of an iteration of an operator on a GPU: enqueued, first workgroup, end [fs].

    `waits` is the total time of its workgroups by activity [fs]: compute, memory (loads), matrix_unit (busy with
    another workgroup), store, chunk. `per_workgroup` is the time of one workgroup slot [s] with keys as in `REASONS`:
    first the wait for a compute unit ("dispatch"), then loads and stores by what served them; empty for copies by DMA
    engines. `resident` workgroups fit on a compute unit at once.
    """

    gpu: int
    operator: str
    iteration: int
    stream: int
    kernel: str
    start_fs: int
    first_workgroup_fs: int
    end_fs: int
    workgroups: int
    resident: int
    waits: Mapping[str, int]
    per_workgroup: Mapping[str, float]


@dataclass(frozen=True)
class TileUpdates:
    """When memory updated every wavefront tile of every simulated GPU [fs]; -1 where it did not.

    Of a GEMM whose stores start its reduce-scatter; a run records this where its options say `updates=True`.
    `here_fs` is when a GPU's own products were in its memory, for each part of K, `peer_fs` when what came from a peer
    was, for each peer, the GPU above first; arrays of the shapes (gpus, tiles, wavefronts, parts of K) and (gpus,
    tiles, wavefronts, peers). `tiles` has the shape (gpus, tiles, 5): the position of a tile's chunk in the order in
    which the GPU makes chunks, the tile's row and column in the grid, and its rows and columns. `begun_fs`, (gpus,
    tiles), is when a tile's first workgroup began to read its operands, after it had waited for them.
    """

    tiles: Ints
    here_fs: Ints
    peer_fs: Ints
    begun_fs: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))


@dataclass(frozen=True)
class StageSpan:
    """One wave of a kernel's workgroups: as many as the GPU holds at once [fs]."""

    gpu: int
    kernel: str
    index: int
    workgroups: int
    start_fs: int
    end_fs: int


@dataclass(frozen=True)
class ChunkSpan:
    """One chunk of a buffer on a GPU: when it was written by this GPU, by others, sent by DMA, and complete [fs].

    Each is None if it never happened. `position` is its index in the order in which the GPU handles chunks.
    """

    gpu: int
    buffer: str
    position: int
    bytes: int
    first_local_fs: int | None
    last_local_fs: int | None
    first_remote_fs: int | None
    last_remote_fs: int | None
    first_sent_fs: int | None
    last_sent_fs: int | None
    complete_fs: int | None


@dataclass(frozen=True)
class DmaSpan:
    """One DMA command: when it was ready, taken by an engine, and its last byte sent [fs]."""

    gpu: int
    engine: int
    tile: int
    position: int
    bytes: int
    ready_fs: int
    start_fs: int
    end_fs: int


@dataclass(frozen=True)
class Series:
    """Bytes per time bin: DRAM traffic by cause and egress link traffic, arrays of shape (gpus, bins)."""

    bin_fs: int
    traffic: Mapping[Cause, Ints]
    link: Ints

    def rate(self, cause: Cause, gpu: int = 0) -> npt.NDArray[np.float64]:
        """DRAM traffic of a cause over time [bytes/s]."""
        return np.asarray(self.traffic[cause][gpu] / (self.bin_fs * 1e-15), dtype=np.float64)


@dataclass(frozen=True)
class MemoryCommands:
    """Commands that memory channels carried out during a run: when each run of commands began and ended [fs].

    `begin` and `end` have the shape (channels of all GPUs, runs); `runs` is a row for each (`engine.layout`, PIM_*).
    `bytes` is what the units of one channel read and wrote in their banks.
    """

    title: str
    bytes: int
    runs: Ints
    begin: Ints
    end: Ints

    @property
    def seconds(self) -> float:
        """When the last command of all channels ended [s]; 0 without commands."""
        return float(self.end.max(initial=0)) * 1e-15

    @property
    def busy(self) -> float:
        """Share of that time in which groups of commands hold a channel, the mean over channels."""
        last = np.flatnonzero(self.runs[:, PIM_TOGETHER] == 0)
        first = np.concatenate(([0], last[:-1] + 1))
        held = (self.end[:, last] - self.begin[:, first]).sum(axis=1).mean() if len(last) else 0.0
        return float(held * 1e-15 / max(self.seconds, 1e-15))


@dataclass(frozen=True)
class Residency:
    """Residency of workgroups: for each its GPU, kernel (index in `kernels`), compute unit, start and end [fs].

    `rows` has the shape (workgroups, 5); each GPU has `units` compute units, numbered from 0.
    """

    kernels: tuple[str, ...]
    rows: Ints
    units: int

    def of(self, gpu: int, kernels: Collection[str]) -> tuple[Ints, Ints, Ints]:
        """Compute unit, start and end [fs] of the workgroups of some kernels on a GPU; each of shape (workgroups,)."""
        wanted = [k for k, name in enumerate(self.kernels) if name in kernels]
        found = self.rows[(self.rows[:, 0] == gpu) & np.isin(self.rows[:, 1], wanted)]
        return found[:, 2], found[:, 3], found[:, 4]


@dataclass(frozen=True, repr=False)
class Timeline(Answer):
    """A run of a graph on a system, or an ideal assembled from the runs in `parts`.

    `graph` is what ran, every node with its chosen kernel; `overlap` is the pass that made it, `arbiter` the memory
    arbitration. `system` and `options` are those of the run, request size and mode filled in. `seconds` is the total
    time, `durations` how long each operator ran [s]: from its request to its end on the slowest GPU; a fused
    reduce-scatter from its first byte sent to its last one reduced. `held` is the number of compute units that each
    occupied.

    `traffic` is DRAM traffic by cause [bytes] of one GPU (the mean if several were simulated); `levels` the bytes that
    caches served, by level and cause: "cache_hit" and "cache_merged" (merged with a miss in flight) in the last-level
    cache, "memory_cache_hit", "_merged" and "_written" in a memory-side one. `counters` holds the hardware blocks'
    counts (cache hits, tracker spills, DRAM activations, queue occupancy, ...); like `requests` and `events` they sum
    all simulated GPUs. `interference` is what the streams of the memory channels cost each other, if the options ask
    for it, `heat` what every memory channel or bank did over time, `updates` when memory updated each tile, `commands`
    what memory that computes did during the run. `cpu_s` is the processor time of the simulation [s].
    """

    kind = "timeline"

    graph: Graph
    system: System
    options: RunOptions
    overlap: str
    arbiter: str
    seconds: float
    durations: Mapping[str, float]
    traffic: Mapping[Cause, int]
    levels: Mapping[str, Mapping[Cause, int]] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    stages: tuple[StageSpan, ...] = ()
    chunks: tuple[ChunkSpan, ...] = ()
    dmas: tuple[DmaSpan, ...] = ()
    series: Series | None = None
    residency: Residency | None = None
    interference: MemoryInterference | None = None
    heat: Heat | None = None
    updates: TileUpdates | None = None
    commands: MemoryCommands | None = None
    events: int = 0
    requests: int = 0
    cpu_s: float = 0.0
    parts: tuple[Timeline, ...] = ()

    # -- what ran

    @property
    def gpu(self) -> Any:
        """The GPU; of unequal ones the first."""
        return self.system.gpu

    @property
    def title(self) -> str:
        """A short description of the work; for a model's sub-layer, with the GEMM of one GPU."""
        return f"{self.graph}, {self.gemm}" if self.graph.labels else str(self.graph)

    @property
    def gemm(self) -> Gemm | None:
        """The first GEMM of the graph, as one GPU computes it; None without one."""
        return next((node.op for node in self.graph.gemms if isinstance(node.op, Gemm)), None)

    @property
    def collective(self) -> Collective | None:
        """The first collective of the graph; None without one."""
        return next((n.op for n in self.graph.collectives if isinstance(n.op, Collective)), None)

    # -- times

    def duration(self, operator: str) -> float:
        """Return how long an operator ran [s]; 0 if it did not run."""
        return self.durations.get(operator, 0.0)

    @cached_property
    def _ends(self) -> Mapping[str, tuple[float, ...]]:
        ends: dict[str, dict[int, int]] = {}
        for span in self.spans:
            of = ends.setdefault(span.operator, {})
            of[span.iteration] = max(of.get(span.iteration, 0), span.end_fs)
        return {name: tuple(of[i] * 1e-15 for i in sorted(of)) for name, of in ends.items()}

    def ends(self, operator: str) -> tuple[float, ...]:
        """End of each iteration of an operator on the slowest GPU [s]; UnknownNameError if it did not run."""
        if operator not in self._ends:
            raise UnknownNameError("operator of this timeline", operator, self._ends)
        return self._ends[operator]

    def end(self, operator: str) -> float:
        """End of the last iteration of an operator [s]."""
        return max(self.ends(operator))

    def period(self, operator: str) -> float:
        """Time of an iteration in steady state, from one end to the next; with a single iteration, its end [s]."""
        ends = self.ends(operator)
        return ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)

    @property
    def makespan(self) -> float:
        """Time from the common start to the end of the last kernel [s]."""
        return max(max(ends) for ends in self._ends.values())

    def waits(self, operator: str) -> dict[str, float]:
        """Return the mean time of a workgroup slot in one iteration of an operator on GPU 0, by activity [s].

        Keys as in `REASONS`; empty for copies by DMA engines.
        """
        spans = [s for s in self.spans if s.operator == operator and s.gpu == 0]
        iterations = len({span.iteration for span in spans})
        spent = [span.per_workgroup for span in spans if span.per_workgroup]
        return {why: sum(one[why] for one in spent) / iterations for why in (spent[0] if spent else ())}

    # -- bytes

    @property
    def total_bytes(self) -> int:
        """DRAM traffic of all causes [bytes]."""
        return sum(self.traffic.values())

    def bytes(self, operator: str, *kinds: str) -> int:
        """DRAM traffic of an operator, of some kinds ("read", "write", "update") or all [bytes]."""
        return sum(n for (of, kind), n in self.traffic.items() if of == operator and (not kinds or kind in kinds))

    def to_dict(self) -> dict[str, Any]:
        """Return the times [us], bytes and counters of the run as plain data; a saved .json file holds every field."""
        about = {name: self.graph.labels.get(name, "") for name in ("model", "sublayer")}
        return to_plain(
            **about, tp=self.graph.ranks, overlap=self.overlap, gpu=self.gpu.name, gemm_us=self.duration("gemm") * 1e6,
            rs_us=self.duration("reduce_scatter") * 1e6, ag_us=self.duration("all_gather") * 1e6,
            total_us=self.seconds * 1e6, bytes={" ".join(cause): amount for cause, amount in self.traffic.items()},
            events=self.events, requests=self.requests, cpu_s=self.cpu_s, counters=self.counters, gemm=self.gemm,
            arbiter=self.arbiter, clock=self.options.clock, request_bytes=self.options.request_bytes,
            mode=self.options.mode, memory=self.options.memory, changed=list(self.system.changes),
            **self.interference_record(), **{} if self.heat is None else {"heat": self.heat.to_dict()},
        )  # fmt: skip

    def interference_record(self) -> dict[str, Any]:
        """Return the interference under its name as plain data; empty if the run did not record it."""
        return {} if self.interference is None else {"interference": self.interference.to_dict()}

    def _save_json(self, file: Path) -> Path:
        return write_atomically(file, to_json(as_record(self)) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Load a timeline that `save` wrote to a .json file; InputError for any other file."""
        again = "write one with Timeline.save('run.json')"
        check_type("the path", path, (str, Path), again)
        try:
            return from_record(read_json(path, "timeline", again))
        except ConfigError:
            raise
        except InputError as error:
            raise InputError(f"'{path}' holds no timeline: {error}") from None

    @property
    def hypothetical(self) -> tuple[str, ...]:
        """Hardware in use that no GPU on the market has."""
        kernels = [node.choice.kernel for node in self.graph]
        parts = {
            "a tracker that triggers copies": any(isinstance(kernel, Tracked) for kernel in kernels),
            "a tracker of tile lines that arrive": any(isinstance(kernel, TrackedArrivals) for kernel in kernels),
            "a cache of other GPUs' memory": any(isinstance(kernel, RemoteLoads) for kernel in kernels),
            "updates near memory": any(kind == "update" for _, kind in self.traffic),
        }
        return tuple(part for part, is_used in parts.items() if is_used)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {format_time(s, digits=4)}" for name, s in self.durations.items())
        how = f"{self.overlap} (hypothetical hardware)" if self.hypothetical else self.overlap
        return (
            f"{self.graph} on {self.gpu.name} under {how}: {format_time(self.seconds, digits=4)} ({parts}), "
            f"{format_bytes(self.total_bytes, digits=4)} of DRAM traffic"
        )


REASONS = {
    "dispatch": "no compute unit free",
    "cache": "loads from L2",
    "fabric": "loads that wait in the fabric of the package",
    "memory_cache": "loads from memory-side cache",
    "memory": "loads from DRAM",
    "store": "stores into memory",
    "link": "stores over the link",
    "chunk": "data from another GPU",
    "begin": "beginning and ending workgroups",
    "compute": "computing",
}
"""Activities and waits of a workgroup slot, in words; a slot holds one workgroup after another."""


_SHORT = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}
_KINDS = {"update": "updates near memory"}


def words_of(cause: Cause) -> str:
    """Return the words for a cause of traffic, such as "RS writes"."""
    operator, kind = cause
    return f"{_SHORT.get(operator, operator)} {_KINDS.get(kind, f'{kind}s')}"


stored_kinds(Timeline, Span, StageSpan, ChunkSpan, DmaSpan, Series, Residency, MemoryCommands, TileUpdates)
