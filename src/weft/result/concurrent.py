"""What a GEMM and a collective that do not depend on each other cost each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.overlap.strategies import Strategy
from weft.result.loops import loop_of, number_of
from weft.result.result import Result
from weft.result.sharing import ideal_speedup, share_of_ideal
from weft.units import format_bytes, format_time

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
"""What a workgroup does or waits for, in words; one that ends and the next in its place count as one."""


_SHOWS = 0.01
"""Share of a loop's time alone from which on an added wait is worth a word."""


@dataclass(frozen=True)
class Grid:
    """How a GEMM fills a GPU: tiles of `rows` x `columns`, `tiles` of them, `resident` at once on a compute unit.

    The GPU has `units`, of which the strategy leaves the GEMM `given`. Where K is cut into `splits` parts, every part
    of a tile counts as one.
    """

    rows: int
    columns: int
    tiles: int
    resident: int
    units: int
    given: int
    splits: int = 1

    def waves(self, units: int) -> int:
        """How many times over the tiles fill so many compute units."""
        return -(-self.tiles // (units * self.resident))

    def record(self) -> dict[str, int]:
        """Tile, number of tiles and waves as plain data for JSON."""
        waves = {"waves_on_all": self.waves(self.units), "waves_on_given": self.waves(self.given)}
        return {**vars(self), **waves}

    def __str__(self) -> str:
        each = f", {self.resident} at once on a compute unit" if self.resident > 1 else ""
        waves = f"{_waves(self.waves(self.units))} on all {self.units} compute units"
        if self.given != self.units:
            waves += f", {self.waves(self.given)} on the {self.given} that it is left"
        parts = f", K in {self.splits} parts" if self.splits > 1 else ""
        return f"{self.tiles:,} tiles of {self.rows} x {self.columns}{parts}{each}: {waves}"


def _waves(count: int) -> str:
    return f"{count} wave" + "s" * (count != 1)


@dataclass(frozen=True)
class LoopTimes:
    """A loop of `count` equal kernels: one of them alone and in the concurrent run, on average, and when it ended [s].

    `concurrent` is the mean over the whole loop, as measurements report it: iterations that were left when the other
    loop had ended count, so it depends on the numbers of iterations. `both` is the mean over those that ended
    while the other loop still ran; where none did, it is that of the first.
    `waits` and `waits_alone` say how long a workgroup of one of them waited for what, on average [s]; keys as in
    `REASONS`.
    """

    name: str
    count: int
    alone: float
    concurrent: float
    both: float
    end: float
    waits: Mapping[str, float]
    waits_alone: Mapping[str, float]

    @property
    def slowdown(self) -> float:
        """How many times longer one takes in the concurrent run than alone, on average over the whole loop."""
        return self.concurrent / self.alone

    @property
    def slowdown_both(self) -> float:
        """How many times longer one takes than alone while both loops run."""
        return self.both / self.alone

    @property
    def added(self) -> str:
        """What a workgroup waited for longer than alone, most of all, in words; empty if for nothing that shows."""
        more = {why: wait - self.waits_alone.get(why, 0.0) for why, wait in self.waits.items()}
        more.pop("compute", None)
        if not more or max(more.values()) < _SHOWS * self.alone:
            return ""
        return REASONS[max(more, key=lambda why: more[why])]

    def record(self) -> dict[str, Any]:
        """The loop as plain data for JSON, in microseconds."""
        return {
            "name": self.name,
            "count": self.count,
            "alone_us": self.alone * 1e6,
            "concurrent_us": self.concurrent * 1e6,
            "slowdown": self.slowdown,
            "while_both_run_us": self.both * 1e6,
            "slowdown_while_both_run": self.slowdown_both,
            "end_us": self.end * 1e6,
            "waits_us": {reason: wait * 1e6 for reason, wait in self.waits.items()},
            "waits_alone_us": {reason: wait * 1e6 for reason, wait in self.waits_alone.items()},
        }


@dataclass(frozen=True)
class Choice:
    """How a collective is carried out: the algorithm ("ring", "tree", "nvls", "direct"), and how long alone [s]."""

    algorithm: str
    seconds: float


@dataclass(frozen=True)
class Concurrency:
    """A loop of GEMMs beside a loop of collectives on every one of `ranks` GPUs, and each loop alone.

    `strategy` says how they shared the GPU; `units` is on how many compute units each of "gemm" and "collective" ran,
    `apart` how many were set apart (None: the strategy sets none apart), `grid` says how the GEMM's tiles fill those
    that it may use, `first` is what the host launched first. `run` is the concurrent run, `gemm_alone` and
    `collective_alone` the isolated ones. `library_alone` is one collective by compute units alone [s], as a library
    runs it: with what overlap is compared, whoever drives the collective in it
    (where compute units cannot, by DMA engines). `choice` is what the library would
    take for a collective by compute units, in closed form. It is None where no library is
    known, or DMA engines drive it; `copies` are the options that those were given. With `direct`, the
    library's kernel pushes to all peers in one step.
    """

    gpu: str
    ranks: int
    strategy: Strategy
    units: Mapping[str, int]
    apart: int | None
    grid: Grid
    first: str
    gemm: LoopTimes
    collective: LoopTimes
    library_alone: float
    makespan: float
    run: Result
    gemm_alone: Result
    collective_alone: Result
    choice: Choice | None = None
    copies: Mapping[str, int | bool] = field(default_factory=dict)
    direct: bool = False

    @property
    def algorithm(self) -> str:
        """How the collective was simulated: "copies" by DMA engines, "direct" to all peers in one step, "pairwise"
        sends and receives, or a "ring".
        """
        if self.strategy.driver == "dma":
            return "copies"
        if self.direct:
            return "direct"
        return "pairwise" if self.collective.name == "all_to_all" else "ring"

    @property
    def differs(self) -> bool:
        """Whether the library would take another algorithm than the one that was simulated."""
        return self.choice is not None and self.choice.algorithm != self.algorithm

    @property
    def _parts(self) -> tuple[float, float]:
        return self.gemm.alone * self.gemm.count, self.library_alone * self.collective.count

    @property
    def serial(self) -> float:
        """Both loops one after the other, the collectives by compute units [s]."""
        return sum(self._parts)

    @property
    def speedup(self) -> float:
        """How many times faster than both loops one after the other."""
        return self.serial / self.makespan

    @property
    def ideal_speedup(self) -> float:
        """The same if neither slowed the other: serial over the longer loop."""
        return ideal_speedup(*self._parts)

    @property
    def share_of_ideal(self) -> float:
        """(speedup - 1) / (ideal speedup - 1): how much of what overlap could save it saves."""
        return share_of_ideal(self.speedup, self.ideal_speedup)

    @property
    def causes(self) -> str:
        """What most lengthened each side, in words: a GEMM's waves on fewer compute units, and what was waited for."""
        grid = self.grid
        before, after = grid.waves(grid.units), grid.waves(grid.given)
        waves = f"{_waves(after)} of tiles instead of {before}" if after > before else ""
        sides = {
            "GEMM": ", ".join(filter(None, (waves, self.gemm.added))),
            "collective": self.collective.added,
        }
        return "; ".join(f"{who}: {why}" for who, why in sides.items() if why)

    def traffic(self) -> dict[str, tuple[float, float, float]]:
        """What passed caches, DRAM (also by cause) and link: all GEMMs alone, all collectives alone, side by side [MB].

        Of one GPU.
        """
        parts = [_moved(run, loop.name, loop.count) for run, loop in self._alone()]
        both = _moved(self.run, "", 0)
        names = dict.fromkeys(name for moved in (*parts, both) for name in moved)
        found = {name: [moved.get(name, 0.0) for moved in (*parts, both)] for name in names}
        return {name: (row[0], row[1], row[2]) for name, row in found.items() if any(row)}

    def _alone(self) -> tuple[tuple[Result, LoopTimes], tuple[Result, LoopTimes]]:
        return (self.gemm_alone, self.gemm), (self.collective_alone, self.collective)

    def record(self) -> dict[str, Any]:
        """The answer as plain data for JSON."""
        config = self.run.config
        return {
            "gpu": self.gpu,
            "ranks": self.ranks,
            "m": config.m,
            "n": config.n,
            "k": config.k,
            "dtype": config.dtype,
            "strategy": self.strategy.name,
            "driver": self.strategy.driver,
            "units_apart": self.apart,
            "units_held": dict(self.units),
            "grid": self.grid.record(),
            "first": self.first,
            "copies": dict(self.copies),
            "algorithm": self.algorithm,
            "library_algorithm": None if self.choice is None else self.choice.algorithm,
            "library_alone_us": None if self.choice is None else self.choice.seconds * 1e6,
            "gemm": self.gemm.record(),
            "collective": self.collective.record(),
            "collective_by_units_alone_us": self.library_alone * 1e6,
            "makespan_us": self.makespan * 1e6,
            "serial_us": self.serial * 1e6,
            "speedup": self.speedup,
            "ideal_speedup": self.ideal_speedup,
            "share_of_ideal": self.share_of_ideal,
            "bytes": dict(self.run.bytes),
            "traffic_mb": {
                name: {"gemm_alone": one, "collective_alone": other, "side_by_side": both}
                for name, (one, other, both) in self.traffic().items()
            },
            "events": self.run.events,
            "wall_s": self.run.wall_s + self.gemm_alone.wall_s + self.collective_alone.wall_s,
            "request_bytes": config.request_bytes,
        }

    def __str__(self) -> str:
        loops = "; ".join(
            f"{loop.count} x {loop.name}: {format_time(loop.alone, digits=4)} alone, "
            f"{format_time(loop.concurrent, digits=4)} beside the other ({loop.slowdown:.2f}x)"
            for loop in (self.gemm, self.collective)
        )
        together, serial = format_time(self.makespan, digits=4), format_time(self.serial, digits=4)
        moved = format_bytes(self.run.total_bytes, digits=4)
        return (
            f"{loops}; together {together} instead of {serial} one after the other, "
            f"{moved} of DRAM traffic on {self.gpu}"
        )


_LEVELS = {
    "L2: hits": "cache_hit",
    "L2: joined a load under way": "cache_merged",
    "memory-side cache: hits": "memory_cache_hit",
    "memory-side cache: joined a load under way": "memory_cache_merged",
    "memory-side cache: writes": "memory_cache_written",
}
"""What caches served, in words."""


def _moved(run: Result, loop: str, count: int) -> dict[str, float]:
    """What passed in a run [MB]; of a loop that ran alone, scaled to `count` iterations."""
    ran = len({number_of(k.name) for k in run.kernels if loop_of(k.name) == loop}) if loop else 1
    scale = (count / ran if loop else 1.0) / 1e6
    return {
        **{words: sum(run.levels.get(name, {}).values()) * scale for words, name in _LEVELS.items()},
        "DRAM": run.total_bytes * scale,
        **{f"DRAM, {_words(cause, run)}": amount * scale for cause, amount in run.bytes.items()},
        "link out": run.counters.get("link_bytes", 0) * scale,
    }


def owned_bytes(run: Result, owner: str, writes: bool, gpu: int = 0) -> npt.NDArray[np.float64]:
    """Bytes per bin of a run's series that the GEMMs ("gemm") or the collectives read, or wrote, in DRAM."""
    assert run.series is not None  # a simulated run has one
    rows = [
        bins[gpu]
        for cause, bins in run.series.traffic.items()
        if cause.startswith("gemm") is (owner == "gemm") and cause.endswith("read") is not writes
        if cause != "earlier_write"
    ]
    return np.sum(rows, axis=0, dtype=np.float64) if rows else np.zeros(run.series.link.shape[1])


def _words(cause: str, run: Result) -> str:
    """A cause of traffic in words, such as "RS writes"; by the collective's own name where it has another."""
    owner, _, kind = cause.partition("_")
    other = run.config.lone_collective if owner in ("rs", "ag") else ""
    return f"{other or owner.upper()} {kind}s"


@dataclass(frozen=True)
class Strategies:
    """One GEMM loop beside one loop of collectives under several strategies, by name, and why others cannot be."""

    answers: Mapping[str, Concurrency]
    refused: Mapping[str, str]

    @property
    def best(self) -> Concurrency:
        """The answer of the strategy that takes least time."""
        return min(self.answers.values(), key=lambda answer: answer.makespan)

    def record(self) -> dict[str, Any]:
        """The answers as plain data for JSON."""
        return {
            "best": self.best.strategy.name,
            "runs": [answer.record() for answer in self.answers.values()],
            "refused": dict(self.refused),
        }
