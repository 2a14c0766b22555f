"""A co-run of a GEMM and a collective without dependencies: slowdowns, overlap, and what causes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weft.core.answer import Record, in_microseconds, to_plain
from weft.core.units import count_words, format_bytes, format_time
from weft.graph import DmaCopies, Driver, ExecutionPlanKernel, LibraryCollective, Node, PaperAllReduce
from weft.graph.choice import driver_of
from weft.kernels.copies import DmaGather
from weft.kernels.execution_kernel import PlanKernel
from weft.kernels.ring import WholeRing
from weft.overlaps import OVERLAPS, OverlapMethod
from weft.overlaps.lower.collectives import LibraryChoice, library_choice
from weft.overlaps.lower.masks import rounds_of, why_in_rounds
from weft.simulate.result.metrics import ideal_speedup, share_of_ideal
from weft.simulate.result.timeline import REASONS, Span, Timeline, words_of

_SHOWS = 0.01
"""Added waits above this fraction of a loop's isolated time are reported."""


@dataclass(frozen=True)
class Grid(Record):
    """How a GEMM fills a GPU: `tiles` tiles of `rows` x `columns`, `resident` at once on a compute unit.

    The GPU has `units` compute units; the strategy gives `given` of them to the GEMM. If K is cut into `splits` parts,
    every part of a tile counts as a tile.
    """

    rows: int
    columns: int
    tiles: int
    resident: int
    units: int
    given: int
    splits: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the waves as plain data."""
        return to_plain(**super().to_dict(), waves_on_all=self.waves_on_all, waves_on_given=self.waves_on_given)

    @property
    def waves_on_all(self) -> int:
        """Waves of tiles on all compute units."""
        return -(-self.tiles // (self.units * self.resident))

    @property
    def waves_on_given(self) -> int:
        """Waves of tiles on the compute units that the strategy gives."""
        return -(-self.tiles // (self.given * self.resident))

    def __str__(self) -> str:
        each = f", {self.resident} at once on a compute unit" if self.resident > 1 else ""
        waves = f"{count_words(self.waves_on_all, 'wave')} on all {self.units} compute units"
        if self.given != self.units:
            waves += f", {self.waves_on_given} on the {self.given} available to it"
        parts = f", K in {self.splits} parts" if self.splits > 1 else ""
        return f"{self.tiles:,} tiles of {self.rows} x {self.columns}{parts}{each}: {waves}"


@dataclass(frozen=True)
class LoopTimes(Record):
    """A loop of `count` equal iterations: the mean time of one alone and in the co-run, and the end of the loop [s].

    `concurrent` is the mean over the whole loop, as measurements report it: iterations after the end of the other loop
    count, so it depends on the numbers of iterations. `both` is the mean over those that ended while the other loop
    still ran; where none did, the time of the first. `waits` and `waits_alone` are the mean times of a workgroup slot
    by what it waited for [s]; keys as in `REASONS`.
    """

    name: str
    count: int
    alone: float
    concurrent: float
    both: float
    end: float
    waits: Mapping[str, float]
    waits_alone: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the loop as plain data, times in microseconds."""
        return to_plain(
            name=self.name, count=self.count, alone_us=self.alone * 1e6, concurrent_us=self.concurrent * 1e6,
            slowdown=self.slowdown, while_both_run_us=self.both * 1e6, slowdown_while_both_run=self.slowdown_both,
            end_us=self.end * 1e6, waits_us=in_microseconds(self.waits),
            waits_alone_us=in_microseconds(self.waits_alone),
        )  # fmt: skip

    @property
    def slowdown(self) -> float:
        """Slowdown of an iteration by the co-run, on average over the whole loop."""
        return self.concurrent / self.alone

    @property
    def slowdown_both(self) -> float:
        """Slowdown of an iteration while both loops run."""
        return self.both / self.alone

    @property
    def added(self) -> str:
        """The wait that the co-run lengthened most, in words; empty if none grew by more than 1 % of the time alone."""
        more = {why: wait - self.waits_alone.get(why, 0.0) for why, wait in self.waits.items()}
        more.pop("compute", None)
        if not more or max(more.values()) < _SHOWS * self.alone:
            return ""
        return REASONS[max(more, key=lambda why: more[why])]


@dataclass(frozen=True)
class CoRun:
    """A co-run of a loop of GEMMs and a loop of collectives on every GPU, compared with each loop alone.

    `run` has both; `gemm_alone` and `collective_alone` are short loops alone, the collective by the same driver as in
    `run`. `library_alone` is the collective by compute units, the baseline of every strategy (by DMA engines where
    compute units have no kernel).
    """

    run: Timeline
    gemm_alone: Timeline
    collective_alone: Timeline
    library_alone: Timeline

    @cached_property
    def choice(self) -> LibraryChoice | None:
        """The algorithm that the library would choose for the collective; None as `library_choice` says."""
        return library_choice(self._collective, self.run.system)

    @property
    def strategy(self) -> OverlapMethod:
        """The strategy that says how both share the GPU."""
        return OVERLAPS[self.run.overlap]

    @property
    def name(self) -> str:
        """The collective's name."""
        return self._collective.name

    @property
    def _collective(self) -> Node:
        return self.run.graph.collectives[0]

    @property
    def _gemm(self) -> Node:
        return self.run.graph.gemms[0]

    @cached_property
    def gemm(self) -> LoopTimes:
        """The loop of the GEMMs."""
        return _loop(self.run, self._gemm.name, self.gemm_alone, self.name)

    @cached_property
    def collective(self) -> LoopTimes:
        """The loop of the collectives."""
        return _loop(self.run, self.name, self.collective_alone, self._gemm.name)

    @property
    def grid(self) -> Grid:
        """How the GEMM's tiles fill its compute units."""
        gemm, choice = self.run.gemm, self._gemm.choice
        assert gemm is not None
        assert choice.tiling is not None
        tiling, have = choice.tiling, self.run.gpu.compute.compute_units
        resident = next(span.resident for span in self.run.spans if span.operator == self._gemm.name)
        given = have if choice.compute_units is None else len(choice.compute_units)
        return Grid(tiling.rows, tiling.columns, tiling.workgroups(gemm), resident, have, given, tiling.splits)

    @property
    def apart(self) -> int | None:
        """Compute units that the GEMM may not use; None where the strategy does not partition them."""
        grid = self.grid
        return None if self._gemm.choice.compute_units is None else grid.units - grid.given

    @property
    def first(self) -> str:
        """The stream that the host launched first: "collective" or "gemm"."""
        return "gemm" if self.run.graph.nodes[0].stream == self._gemm.stream else "collective"

    @property
    def copies(self) -> Mapping[str, int | bool]:
        """Options of the copies by DMA engines."""
        kernel = self._collective.choice.kernel
        return kernel.options if isinstance(kernel, DmaCopies) else {}

    @property
    def driver(self) -> Driver:
        """What moved the collective's data."""
        return driver_of(self._collective.choice.kernel)

    @property
    def _span(self) -> Span:
        """The collective's first kernel."""
        return next(span for span in self.run.spans if span.operator == self.name)

    @property
    def channels(self) -> int | None:
        """The collective's channels, each one workgroup; None where DMA engines move the data."""
        return self._span.workgroups or None

    @property
    def rounds(self) -> int:
        """Rounds in which the collective's workgroups run on compute units reserved for it; 1 if all fit at once."""
        mask = self._collective.choice.compute_units
        return rounds_of(self._span.workgroups, mask, self._span.resident, self.run.gpu)

    @property
    def warning(self) -> str:
        """How the collective's channels differ from those asked for, and why a mask slows it down and what to set
        instead; empty if neither holds.
        """
        return "; ".join(filter(None, (self._fewer, self._mask_words)))

    @property
    def _fewer(self) -> str:
        """Why the collective has fewer channels than asked for; empty if it has as many."""
        kernel = self._collective.choice.kernel
        asked = kernel.channels if isinstance(kernel, LibraryCollective | PaperAllReduce) else None
        if asked is None or asked == self.channels:
            return ""
        why = (
            "sends and receives take a power of two"
            if self.algorithm == "pairwise"
            else "the library gives this size no more"
        )
        return f"the {self.name} has {count_words(self.channels or 0, 'channel')}, not the {asked} asked for, as {why}"

    @property
    def _mask_words(self) -> str:
        span, mask = self._span, self._collective.choice.compute_units
        if self.rounds == 1 or mask is None:
            return ""
        return why_in_rounds(self.name, span.workgroups, mask, span.resident, self.run.gpu)

    @property
    def makespan(self) -> float:
        """When both loops had ended [s]."""
        return self.run.makespan

    @property
    def algorithm(self) -> str:
        """How the collective was simulated: "copies" by DMA engines, "direct" to all peers in one step, "pairwise"
        sends and receives, a library's "ring" or "nvls", the paper's "plain-ring", or an execution "plan".
        """
        kernel = self._collective.choice.kernel
        match kernel:
            case LibraryCollective(str(algorithm)):
                return algorithm
            case PaperAllReduce():
                return WholeRing.algorithm
            case DmaCopies():
                return DmaGather.algorithm
            case ExecutionPlanKernel():
                return PlanKernel.algorithm
            case _:
                raise AssertionError(f"{kernel} is no kernel of a lowered collective beside a GEMM")

    @property
    def differs(self) -> bool:
        """Whether the library would choose another algorithm than the simulated one."""
        return self.choice is not None and self.choice.algorithm != self.algorithm

    @property
    def _parts(self) -> tuple[float, float]:
        return self.gemm.alone * self.gemm.count, self.library_alone.period(self.name) * self.collective.count

    @property
    def serial(self) -> float:
        """Time of both loops serially, the collectives on compute units [s]."""
        return sum(self._parts)

    @property
    def speedup(self) -> float:
        """Speedup over running both loops serially."""
        return self.serial / self.makespan

    @property
    def ideal_speedup(self) -> float:
        """Speedup if neither slowed the other: serial over the longer loop."""
        return ideal_speedup(*self._parts)

    @property
    def share_of_ideal(self) -> float:
        """(speedup - 1) / (ideal speedup - 1): the fraction of the ideal gain that is reached."""
        return share_of_ideal(self.speedup, self.ideal_speedup)

    @property
    def causes(self) -> str:
        """What lengthened each side most, in words: more waves on fewer compute units, and the longest added wait."""
        grid = self.grid
        before, after = grid.waves_on_all, grid.waves_on_given
        waves = f"{count_words(after, 'wave')} of tiles instead of {before}" if after > before else ""
        sides = {
            "GEMM": ", ".join(filter(None, (waves, self.gemm.added))),
            "collective": self.collective.added,
        }
        return "; ".join(f"{who}: {why}" for who, why in sides.items() if why)

    def traffic(self) -> dict[str, tuple[float, float, float]]:
        """Traffic by level (caches, DRAM also by cause, link) of one GPU [MB]: GEMMs and collectives alone, co-run."""
        alone = ((self.gemm_alone, self._gemm.name), (self.collective_alone, self.name))
        parts = [
            _scaled_traffic(one, self.run.graph.iterations(name) / one.graph.iterations(name)) for one, name in alone
        ]
        both = _scaled_traffic(self.run, 1.0)
        names = dict.fromkeys(name for moved in (*parts, both) for name in moved)
        found = {name: [moved.get(name, 0.0) for moved in (*parts, both)] for name in names}
        return {name: (row[0], row[1], row[2]) for name, row in found.items() if any(row)}

    def record(self) -> dict[str, Any]:
        """Return all metrics as plain data for JSON."""
        held, choice = self.run.held, self.choice
        parts = (self.run, self.gemm_alone, self.collective_alone)
        return to_plain(
            gpu=self.run.gpu.name, ranks=self.run.graph.ranks, **vars(self.run.gemm), strategy=self.run.overlap,
            driver=self.driver, units_apart=self.apart, channels=self.channels, rounds=self.rounds,
            warning=self.warning, units_held={"gemm": held[self._gemm.name], "collective": held[self.name]},
            grid=self.grid, first=self.first, copies=self.copies, algorithm=self.algorithm,
            library_algorithm=choice and choice.algorithm, library_alone_us=choice and choice.seconds * 1e6,
            gemm=self.gemm, collective=self.collective,
            collective_by_units_alone_us=self.library_alone.period(self.name) * 1e6, makespan_us=self.makespan * 1e6,
            serial_us=self.serial * 1e6, speedup=self.speedup, ideal_speedup=self.ideal_speedup,
            share_of_ideal=self.share_of_ideal,
            bytes={" ".join(cause): amount for cause, amount in self.run.traffic.items()},
            **self.run.interference_record(),
            traffic_mb={
                name: {"gemm_alone": one, "collective_alone": other, "side_by_side": both}
                for name, (one, other, both) in self.traffic().items()
            },
            events=self.run.events, cpu_s=sum(part.cpu_s for part in parts),
            request_bytes=self.run.options.request_bytes, memory=self.run.options.memory,
        )  # fmt: skip

    def __str__(self) -> str:
        loops = "; ".join(
            f"{loop.count} x {loop.name}: {format_time(loop.alone, digits=4)} alone, "
            f"{format_time(loop.concurrent, digits=4)} beside the other ({loop.slowdown:.2f}x)"
            for loop in (self.gemm, self.collective)
        )
        together, serial = format_time(self.makespan, digits=4), format_time(self.serial, digits=4)
        moved = format_bytes(self.run.total_bytes, digits=4)
        return (
            f"{loops}; together {together} instead of {serial} serially, {moved} of DRAM traffic on {self.run.gpu.name}"
        )


def _loop(run: Timeline, name: str, alone: Timeline, other: str) -> LoopTimes:
    """Return the times of a loop, co-running with the loop `other` and alone."""
    ends, until = run.ends(name), run.ends(other)[-1]
    # The iterations that ended while the other loop ran, or the first one if none did.
    both = max(1, sum(end <= until for end in ends))
    return LoopTimes(
        name=name,
        count=len(ends),
        alone=alone.period(name),
        concurrent=ends[-1] / len(ends),
        both=ends[both - 1] / both,
        end=ends[-1],
        waits=run.waits(name),
        waits_alone=alone.waits(name),
    )


_LEVELS = {
    "L2: hits": "cache_hit",
    "L2: joined a load under way": "cache_merged",
    "memory-side cache: hits": "memory_cache_hit",
    "memory-side cache: joined a load under way": "memory_cache_merged",
    "memory-side cache: writes": "memory_cache_written",
}
"""The traffic that caches served, in words, and its name in `Timeline.levels`."""


def _scaled_traffic(run: Timeline, scale: float) -> dict[str, float]:
    """The traffic of a run times `scale`, by level [MB]."""
    mega = scale / 1e6
    return {
        **{words: sum(run.levels.get(name, {}).values()) * mega for words, name in _LEVELS.items()},
        "DRAM": run.total_bytes * mega,
        **{f"DRAM, {words_of(cause)}": amount * mega for cause, amount in run.traffic.items()},
        "link out": run.counters.get("link_bytes", 0) * mega,
    }
