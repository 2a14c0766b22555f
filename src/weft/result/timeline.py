"""What happened in a run: every table, picture and trace is computed from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.answer import Answer
from weft.errors import InputError, UnknownNameError, check_type
from weft.files import read_json, write_atomically
from weft.graph import Collective, Gemm, Graph
from weft.hardware import System
from weft.options import RunOptions
from weft.units import format_bytes, format_time

Ints = npt.NDArray[np.int64]
Cause = tuple[str, str]
"""Why bytes moved: for which operator, and whether they were a "read", a "write" or an "update"."""


@dataclass(frozen=True)
class Span:
    """A kernel of an iteration of an operator on a GPU: enqueued, first workgroup, end [fs].

    `waits` is the time of all its workgroups by what they did or waited for [fs]: compute, memory (loads), matrix_unit
    (busy with another workgroup), store, chunk. `per_workgroup` is the time of one workgroup slot [s] with keys as in
    `REASONS`: loads and stores by what served them, and first the wait for a compute unit ("dispatch"); empty for
    copies by DMA engines. `resident` workgroups fit on a compute unit at once.
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

    Each is None if it never happened. `position` is its place in the order in which the GPU handles chunks.
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
    """One DMA command: ready, taken by an engine, last byte sent [fs]."""

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


@dataclass(frozen=True)
class Timeline(Answer):
    """A run of a graph on a system, or an ideal put together from the runs in `parts`.

    `graph` is what ran, every node with the kernel that was chosen; `overlap` is the pass that made it, `arbiter` the
    memory arbitration. `system` and `options` are those of the run, request size and mode settled. `seconds` is the
    whole, `durations` how long each operator ran [s]: from its request to its end on the slowest GPU; a fused
    reduce-scatter from its first byte sent to its last one reduced. `held` is on how many compute units each ran.

    `traffic` is DRAM traffic by cause [bytes] of one GPU (the mean if several were simulated); `levels` what caches
    served, by level and cause: "cache_hit" and "cache_merged" (in flight for another) in the last-level cache,
    "memory_cache_hit", "_merged" and "_written" where there is one. `counters` holds what blocks counted (cache hits,
    tracker spills, DRAM activations, queue occupancy, ...), and `requests` and `events` are counts too: over all
    simulated GPUs. `wall_s` is how long the simulation took.
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
    events: int = 0
    requests: int = 0
    wall_s: float = 0.0
    parts: tuple[Timeline, ...] = ()

    # -- what ran

    @property
    def gpu(self) -> Any:
        """The GPU, the first one where they differ."""
        return self.system.gpu

    @property
    def title(self) -> str:
        """What ran, in a few words; of a model's sub-layer with its GEMM as one GPU computes it."""
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
        """How long an operator ran [s]; 0 for one that did not run."""
        return self.durations.get(operator, 0.0)

    @cached_property
    def _ends(self) -> Mapping[str, tuple[float, ...]]:
        ends: dict[str, dict[int, int]] = {}
        for span in self.spans:
            of = ends.setdefault(span.operator, {})
            of[span.iteration] = max(of.get(span.iteration, 0), span.end_fs)
        return {name: tuple(of[i] * 1e-15 for i in sorted(of)) for name, of in ends.items()}

    def ends(self, operator: str) -> tuple[float, ...]:
        """When each iteration of an operator had ended on every GPU [s]; UnknownNameError for one that did not run."""
        if operator not in self._ends:
            raise UnknownNameError("operator of this timeline", operator, self._ends)
        return self._ends[operator]

    def end(self, operator: str) -> float:
        """When the last iteration of an operator had ended [s]."""
        return max(self.ends(operator))

    def period(self, operator: str) -> float:
        """The time of an iteration in steady state, from end to end; of one alone, its end [s]."""
        ends = self.ends(operator)
        return ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)

    @property
    def makespan(self) -> float:
        """When the last kernel had ended, from the common start [s]."""
        return max(max(ends) for ends in self._ends.values())

    def waits(self, operator: str) -> dict[str, float]:
        """What a workgroup slot of an operator did or waited for in an iteration, on average, on GPU 0 [s].

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
        """Times [us], bytes and counters of the run as plain data; a saved .json file holds every field."""
        about = {name: self.graph.labels.get(name, "") for name in ("model", "sublayer")}
        gemm = self.gemm
        return {
            **about,
            "tp": self.graph.ranks,
            "overlap": self.overlap,
            "gpu": self.gpu.name,
            "gemm_us": self.duration("gemm") * 1e6,
            "rs_us": self.duration("reduce_scatter") * 1e6,
            "ag_us": self.duration("all_gather") * 1e6,
            "total_us": self.seconds * 1e6,
            "bytes": {" ".join(cause): amount for cause, amount in self.traffic.items()},
            "events": self.events,
            "requests": self.requests,
            "wall_s": self.wall_s,
            "counters": dict(self.counters),
            "gemm": None if gemm is None else vars(gemm),
            "arbiter": self.arbiter,
            "clock": self.options.clock,
            "request_bytes": self.options.request_bytes,
            "mode": self.options.mode,
            "changed": list(self.system.changes),
        }

    def _save_json(self, file: Path) -> Path:
        from weft.result.stored import as_record

        return write_atomically(file, json.dumps(as_record(self)) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """The timeline that `save` wrote to a .json file, every field of it; InputError for another file."""
        from weft.result.stored import from_record

        again = "write one with Timeline.save('run.json')"
        check_type("the path", path, (str, Path), again)
        try:
            return from_record(read_json(path, "timeline", again))
        except (KeyError, TypeError, ValueError):
            raise InputError(f"'{path}' holds no timeline; {again}") from None

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {format_time(s, digits=4)}" for name, s in self.durations.items())
        return (
            f"{self.graph} on {self.gpu.name} under {self.overlap}: {format_time(self.seconds, digits=4)} ({parts}), "
            f"{format_bytes(self.total_bytes, digits=4)} of DRAM traffic"
        )


REASONS = {
    "dispatch": "no compute unit free",
    "cache": "loads from L2",
    "memory_cache": "loads from memory-side cache",
    "memory": "loads from DRAM",
    "store": "stores into memory",
    "link": "stores over the link",
    "chunk": "data from another GPU",
    "begin": "beginning and ending workgroups",
    "compute": "computing",
}
"""What a workgroup slot does or waits for, in words; a slot holds one workgroup after another."""


_SHORT = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}
_KINDS = {"update": "updates near memory"}


def words_of(cause: Cause) -> str:
    """A cause of traffic in words, such as "RS writes"."""
    operator, kind = cause
    return f"{_SHORT.get(operator, operator)} {_KINDS.get(kind, f'{kind}s')}"
