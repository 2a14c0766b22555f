"""Interference in memory: tables of latencies, queues and delays, and a burst that meets a GEMM's loads over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.core.report import Section
from weft.core.report.table import Column, Table, number, text
from weft.simulate.result import MemoryInterference, Percentiles, StreamInterference, Timeline
from weft.simulate.result.metrics import stage_ends, stage_spreads
from weft.simulate.result.timeline import words_of
from weft.view import looks
from weft.view.figure import Axis, Figure, areas, levels, stack_figures
from weft.view.words import us

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Window = tuple[float, float]
"""Begin and end of the time that the figure shows [us]."""
_MET = "What compute and communication cost each other in memory"
_CAPTION = (
    "The end of one stage of the GEMM. Its workgroups (a tick at the end of each) store their tiles at about the "
    "same time; the more of the channels communication takes meanwhile, the longer that lasts, and the later "
    "the loads of the next stage begin. Above: from the issue of an iteration's loads to its last data, by the time of "
    "issue. Below: bytes between the memory controllers and DRAM, by cause."
)
_RANKS = ("mean", "p50", "p90", "p99", "max")
_BEFORE, _AFTER = 0.08, 0.4
"""How much the figure shows before and after the first workgroup of a stage ends, as a share of a stage's length."""
_US = 1e-9
"""One femtosecond in microseconds."""
_LATENCY: looks.Looks = {"99th percentile": looks.PINK, "mean": looks.DARK}


def interference_parts(runs: Sequence[Timeline]) -> list[Table | str]:
    """The tables of the runs that recorded interference, and how far apart a stage's workgroups end."""
    found = [(run, run.interference) for run in runs if run.interference is not None]
    if not found:
        return []
    return [_latencies(found), _queues(found), _delays(found), *filter(None, (_stages(run) for run, _ in found))]


def interference_section(runs: Sequence[Timeline]) -> Section:
    """The part of a page about the runs that recorded interference; empty if none did."""
    staged = {run.overlap: run for run in runs if run.interference is not None and len(stage_ends(run)) > 1}
    return Section(_MET, [*([bursts(staged)] if staged else []), *interference_parts(runs)])


def _streams(
    found: Sequence[tuple[Timeline, MemoryInterference]],
) -> Iterator[tuple[tuple[str, ...], MemoryInterference, StreamInterference]]:
    """Yield the leading cells and the figures of each stream in use, with the GPU if several were simulated."""
    for run, met in found:
        several = any(one.gpu for one in met.streams)
        for one in met.streams:
            if one.requests:
                yield (run.overlap, f"{one.stream}, GPU {one.gpu}" if several else one.stream), met, one


def _latencies(found: Sequence[tuple[Timeline, MemoryInterference]]) -> Table:
    rows = []
    for about, _, one in _streams(found):
        for what, took in (("kernel loads", one.load_latency_s), ("channel reads", one.read_latency_s)):
            if took.count:
                rows.append((*about, what, took.count, *(value * 1e9 for value in _rank_values(took))))
    columns = [text("overlap"), text("stream"), text("what", "latency of"), number("count", spare=True)]
    columns += _percentiles("ns", ",.0f")
    return Table(columns, rows, "Latency of loads, from issue to last data, and of DRAM reads at their channel [ns]")


def _queues(found: Sequence[tuple[Timeline, MemoryInterference]]) -> Table:
    rows = []
    for about, _, one in _streams(found):
        waiting = {
            "own stream": one.own_waiting_bytes,
            "other stream": one.other_waiting_bytes,
            "command queue": one.queue_bytes,
        }
        rows += [(*about, where, *(value / 1024 for value in _rank_values(of))) for where, of in waiting.items()]
    columns = [text("overlap"), text("stream"), text("where", "waiting in"), *_percentiles("kib", ",.2f")]
    return Table(columns, rows, "What a request finds at its memory channel when it arrives [KiB]")


def _percentiles(unit: str, format_: str) -> list[Column]:
    """Return columns of percentiles; a narrow terminal leaves the middle ones out. The table's title has the unit."""
    return [number(f"{rank}_{unit}", rank, format_=format_, spare=rank in ("p50", "p90")) for rank in _RANKS]


def _delays(found: Sequence[tuple[Timeline, MemoryInterference]]) -> Table:
    rows = [
        (*about, one.requests, one.ahead_bytes.mean / 1024, one.ahead_bytes.p99 / 1024, met.mean_delay(one) * 1e9,
         one.delaying_bytes / 1e6, met.delay_of(one) * 1e6)
        for about, met, one in _streams(found)
    ]  # fmt: skip
    columns = [
        text("overlap"), text("stream"), number("requests", spare=True),
        number("ahead_kib", "ahead", "KiB", ",.2f"), number("ahead_p99_kib", "p99", "KiB", ",.1f", spare=True),
        number("delay_ns", "delay", "ns", ",.1f"),
        number("while_waiting_mb", "while any waits", "MB", ",.1f", spare=True),
        number("delayed_us", "per channel", "µs", ",.1f"),
    ]  # fmt: skip
    title = "Who delays whom: bytes of the other stream served between a request's arrival and its service"
    return Table(columns, rows, title)


def _rank_values(values: Percentiles) -> tuple[float, ...]:
    return values.mean, values.p50, values.p90, values.p99, values.max


def _stages(run: Timeline) -> str:
    """Return how far apart the workgroups of a stage of the GEMM end, and the operand misses by chunk, in words."""
    spreads, said = stage_spreads(run), []
    if len(spreads) > 1:
        least, most = us(min(spreads)), us(max(spreads))
        said.append(
            f"ends of a stage's workgroups: standard deviation {us(median(spreads))} µs (median of {len(spreads)} "
            f"stages; {least} to {most})"
        )
    if run.interference and any(run.interference.misses):
        said.append(f"misses of operands by chunk: {', '.join(f'{count:,}' for count in run.interference.misses)}")
    return f"{run.overlap}: {'; '.join(said)}" if said else ""


def bursts(runs: Mapping[str, Timeline], stage: int | None = None, gpu: int = 0) -> Figure:
    """The end of a GEMM's stage in runs that recorded interference: latency of loads, and bytes by cause, over time.

    Time counts from the end of the stage's first workgroup; ticks mark the ends of all. Loads are shown when they were
    issued. `stage` is by default the one in the middle. Raises InputError for a run without stages or without
    interference.
    """
    shown = {name: _StageEnd(name, run, stage, gpu) for name, run in runs.items()}
    longest = max(each.length_us for each in shown.values())
    window = -_BEFORE * longest, _AFTER * longest
    slowest = max(float(each.latency(window).max()) for each in shown.values())
    panels = [
        panel
        for at, each in enumerate(shown.values())
        for panel in each.panels(f"burst{at}", window, slowest, last=at == len(shown) - 1)
    ]
    return stack_figures("How a burst meets the GEMM's loads", panels, _CAPTION, titled=True)


class _StageEnd:
    """The end of one stage of a run's GEMM; times in microseconds from the end of the stage's first workgroup."""

    def __init__(self, name: str, run: Timeline, stage: int | None, gpu: int) -> None:
        stages = stage_ends(run, gpu)
        if run.interference is None or run.series is None or not stages:
            raise InputError(f"'{name}' recorded no interference; simulate a GEMM with RunOptions(interference=True)")
        self.stage = len(stages) // 2 if stage is None else stage
        if not 0 <= self.stage < len(stages):
            raise InputError(f"stage is {self.stage}; the GEMM of '{name}' has stages 0 to {len(stages) - 1}")
        self.name, self.run, self.gpu = name, run, gpu
        self.series, self.recorded, self.ends = run.series, run.interference, stages[self.stage]
        self.first = int(self.ends.min())
        self.length_us = (self.first - (int(stages[self.stage - 1].min()) if self.stage else 0)) * _US

    def latency(self, window: Window) -> Floats:
        """99th percentile and mean of the GEMM's loads in every bin [us], 0 where there are none; shape (2, bins)."""
        series = (self.recorded.load_p99_fs, self.recorded.load_mean_fs)
        return np.stack([rows["compute"][self.gpu][self._bins(window)] for rows in series]) * _US

    def panels(self, key: str, window: Window, slowest: float, last: bool) -> Iterator[Figure]:
        """Latency of the GEMM's loads with the ends of workgroups, then DRAM traffic by cause."""
        bins = self._bins(window)
        latency = dict(zip(_LATENCY, (np.where(row > 0, row, np.nan) for row in self.latency(window)), strict=True))
        ends = [[round(float(end - self.first) * _US, 3)] for end in self.ends]
        yield levels(
            f"{self.name}: latency of loads [µs]", self._table(bins, latency, "µs", ",.2f"), looks=_LATENCY, height=90,
            window=window, most=slowest, ticks=Table([number("time_us", "end of a workgroup", "µs", ",.2f")], ends),
            name=f"{key}_latency",
        )  # fmt: skip
        causes = list(self.series.traffic)
        rates = {words_of(cause): self.series.rate(cause, self.gpu)[bins] / 1e9 for cause in causes}
        colors = {head: color for head, color in looks.cause_looks(causes).items() if rates[head].any()}
        peak = self.run.gpu.memory.bandwidth / 1e9
        time = f"time from the first end in stage {self.stage} [µs]" if last else ""
        yield areas(
            f"{self.name}: DRAM traffic [GB/s]",
            self._table(bins, {head: rates[head] for head in colors}, "GB/s", ",.0f"),
            x=Axis("time_us", title=time, domain=window),
            looks=colors, limit=(peak, f"peak {peak:,.0f} GB/s"), height=150, name=f"{key}_bytes",
        )  # fmt: skip

    def _bins(self, window: Window) -> Ints:
        """The bins of the series that begin in the window, at least one."""
        times = self._times(np.arange(self.series.link.shape[1]))
        kept = np.flatnonzero((times > window[0]) & (times < window[1]))
        return kept if len(kept) else np.array([self.first // self.series.bin_fs])

    def _times(self, bins: Ints) -> Floats:
        return np.asarray((bins * self.series.bin_fs - self.first) * _US, dtype=np.float64)

    def _table(self, bins: Ints, values: Mapping[str, Floats], unit: str, format_: str) -> Table:
        columns = [number("time_us", "time", "µs", ",.2f"), number("until_us", "until", "µs", ",.2f")]
        columns += [number(f"v{at}", head, unit, format_) for at, head in enumerate(values)]
        rows = zip(self._times(bins), self._times(bins + 1), *values.values(), strict=True)
        return Table(columns, [[None if np.isnan(value) else round(float(value), 3) for value in row] for row in rows])
