"""The result of a run: everything that a table, a plot or a trace shows is computed from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.overlap import PhaseTimes
from weft.overlap.strategies import STRATEGIES
from weft.units import format_bytes, format_time

FS_PER_US = 1_000_000_000
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunConfig:
    """What was run: sub-layer, machine, overlap and how it was simulated.

    `mode` is "mirrored" (one GPU stands for all) or "explicit" (all `tp` are simulated). The peak rates of
    memory and link [bytes/s] are those of the first GPU, and `link_note` says what the machine's ring made of the
    link; `changed` are the values that the user set. The compute units lie in `partitions` equal parts (XCDs).
    """

    model: str
    sublayer: str
    tp: int
    m: int
    n: int
    k: int
    dtype: str
    gpu: str
    overlap: str
    arbiter: str
    request_bytes: int
    mode: str
    dram_bytes_per_s: float
    link_bytes_per_s: float
    changed: tuple[str, ...] = ()
    link_note: str = ""
    partitions: int = 1

    @property
    def lone_collective(self) -> str:
        """The collective of streams that is no reduce-scatter, all-gather or both; else empty.

        Its traffic is counted where theirs is, but goes by its own name.
        """
        name = self.sublayer.rpartition(" beside ")[2] if self.overlap in STRATEGIES else ""
        return "" if name in ("GEMM", "reduce_scatter", "all_gather", "all_reduce") else name


@dataclass(frozen=True)
class KernelSpan:
    """A kernel on a GPU: requested, first workgroup, end [fs]; its workgroups' time by what they did or
    awaited [fs].

    `waits` keys: compute, memory (loads), matrix_unit (busy with another workgroup), store, chunk.
    """

    gpu: int
    name: str
    start_fs: int
    first_workgroup_fs: int
    end_fs: int
    workgroups: int
    waits: Mapping[str, int]


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
    """One chunk of a buffer on a GPU: when it was written from here, from the neighbour, sent by DMA, and
    complete [fs].

    Each is None if it never happened. `position` is the order in which the GPU deals with its chunks.
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
    """One DMA command: triggered, taken by an engine, last byte gone [fs]."""

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
    traffic: Mapping[str, Ints]
    link: Ints

    @property
    def time_us(self) -> npt.NDArray[np.float64]:
        """Start of each bin [us]."""
        return np.arange(self.link.shape[1], dtype=np.float64) * np.float64(self.bin_fs / FS_PER_US)

    def rate(self, cause: str, gpu: int = 0) -> npt.NDArray[np.float64]:
        """DRAM traffic of a cause over time [bytes/s]."""
        return np.asarray(self.traffic[cause][gpu] / (self.bin_fs * 1e-15), dtype=np.float64)


@dataclass(frozen=True)
class Residency:
    """Who held which compute unit when: per workgroup its GPU, kernel (of `kernels`), unit, start and end [fs].

    `rows` has the shape (workgroups, 5); each GPU has `units` compute units, numbered from 0.
    """

    kernels: tuple[str, ...]
    rows: Ints
    units: int

    def of(self, gpu: int, kernels: Collection[str]) -> tuple[Ints, Ints, Ints]:
        """Unit, start and end [fs] of the workgroups of some kernels on a GPU."""
        wanted = [k for k, name in enumerate(self.kernels) if name in kernels]
        found = self.rows[(self.rows[:, 0] == gpu) & np.isin(self.rows[:, 1], wanted)]
        return found[:, 2], found[:, 3], found[:, 4]


@dataclass(frozen=True)
class Result:
    """One run, or an ideal put together from the runs in `parts`.

    `bytes` is DRAM traffic by cause [bytes], of one GPU (the mean if several were simulated), and `levels` what caches
    served, by level and cause: "cache_hit" and "cache_merged" (on its way for another) in the last-level cache, and
    "memory_cache_hit", "_merged" and "_written" where there is one. `counters` holds what blocks counted (cache hits,
    tracker spills, DRAM activations, queue occupancy, ...), and `requests` and `events` are counts too: over all
    simulated GPUs. `residency` is there where streams share a GPU. `wall_s` is how long the simulation took.
    """

    config: RunConfig
    times: PhaseTimes
    bytes: Mapping[str, int]
    counters: Mapping[str, float] = field(default_factory=dict)
    kernels: tuple[KernelSpan, ...] = ()
    stages: tuple[StageSpan, ...] = ()
    chunks: tuple[ChunkSpan, ...] = ()
    dmas: tuple[DmaSpan, ...] = ()
    levels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    series: Series | None = None
    residency: Residency | None = None
    events: int = 0
    requests: int = 0
    wall_s: float = 0.0
    parts: tuple[Result, ...] = ()

    @property
    def total_us(self) -> float:
        """The whole sub-layer [us]."""
        return self.times.total * 1e6

    @property
    def total_bytes(self) -> int:
        """DRAM traffic of all causes [bytes]."""
        return sum(self.bytes.values())

    def speedup_over(self, baseline: Result) -> float:
        """How many times faster than `baseline`."""
        return baseline.times.total / self.times.total

    def record(self, baseline: Result | None = None) -> dict[str, Any]:
        """The run as plain data for JSON; with a baseline, its speedup too."""
        c, t = self.config, self.times
        return {
            "model": c.model,
            "tp": c.tp,
            "sublayer": c.sublayer,
            "overlap": c.overlap,
            "gpu": c.gpu,
            "gemm_us": t.gemm * 1e6,
            "rs_us": t.reduce_scatter * 1e6,
            "ag_us": t.all_gather * 1e6,
            "total_us": t.total * 1e6,
            "speedup": None if baseline is None else self.speedup_over(baseline),
            "bytes": dict(self.bytes),
            "events": self.events,
            "requests": self.requests,
            "wall_s": self.wall_s,
            "counters": dict(self.counters),
            "config": asdict(c),
        }

    def _repr_html_(self) -> str:
        from weft.result.html import result_html

        return result_html(self)

    def __str__(self) -> str:
        c, t = self.config, self.times
        return (
            f"{c.model} {c.sublayer}, TP {c.tp}, on {c.gpu} under {c.overlap}: {format_time(t.total, digits=4)} "
            f"(GEMM {format_time(t.gemm, digits=4)}, RS {format_time(t.reduce_scatter, digits=4)}, "
            f"AG {format_time(t.all_gather, digits=4)}), {format_bytes(self.total_bytes, digits=4)} of DRAM traffic"
        )
