"""A GEMM beside a collective: who ran when and held which compute unit, whose bytes passed, what workgroups awaited."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from weft.report.plots.style import Look, Picture, bar, grid, legend, note, picture, stack, styled
from weft.report.plots.units import draw_units, mark_parts, unit_map
from weft.report.tables import percent
from weft.result import Comparison, CoRun, Timeline
from weft.result.metrics import owned_bytes
from weft.result.timeline import REASONS

GEMM = Look("GEMM", "#0072B2")
COLLECTIVE = Look("collective", "#E69F00", "////")
WAITING = Look("launched, but no compute unit is free", "#FFFFFF", "....")
LINK = Look("link", "#009E73")
_LOOKS = {
    "dispatch": WAITING,
    "cache": Look(REASONS["cache"], "#F5B9A0"),
    "memory_cache": Look(REASONS["memory_cache"], "#E08A5C", "...."),
    "memory": Look(REASONS["memory"], "#D55E00", "////"),
    "store": Look(REASONS["store"], "#F0E442", "\\\\\\\\"),
    "link": Look(REASONS["link"], LINK.color, "----"),
    "chunk": Look(REASONS["chunk"], "#CC79A7", "xxxx"),
    "begin": Look(REASONS["begin"], "#999999"),
    "compute": Look(REASONS["compute"], "#56B4E9"),
}
BINS = 300
"""Moments of the traffic: finer ones would show single bursts."""
_COLORS = (GEMM.color, "#5FA3CF", COLLECTIVE.color, "#F3C766")
"""Kernels of a loop take turns in two shades."""
_TRAFFIC = {
    (True, False): Look("GEMM reads", GEMM.color),
    (True, True): Look("GEMM writes", "#56B4E9"),
    (False, False): Look("collective reads", COLLECTIVE.color, "////"),
    (False, True): Look("collective writes", "#D55E00", "\\\\\\\\"),
}
"""Whether the GEMMs', and whether writes."""
_US = 1e-9
_TERA = 1e-12
_SEEN = 0.001
"""Share of the longest bar below which a wait is too short to be seen."""
_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 1}
"""Under words that lines would cross."""


def _where(answer: CoRun) -> str:
    return f"one of {answer.run.graph.ranks} x {answer.run.gpu.name}"


@styled
def held_units(answer: CoRun, until: float | None = None) -> Picture:
    """Who held which compute unit of one GPU when [us], a line per unit, below the kernels of both streams.

    The time axis ends at `until` [s], for several runs to be compared, else with the run.
    """
    run, held = answer.run, answer.run.residency
    assert held is not None  # streams have one
    figure = picture(10, 5.2)
    above, units = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.2))
    _lanes(above, answer)
    owners = [
        [s.kernel for s in run.spans if s.operator == loop.name and s.iteration % 2 == turn]
        for loop in (answer.gemm, answer.collective)
        for turn in (0, 1)
    ]
    image = unit_map(held, owners, round(answer.makespan * 1e15))
    draw_units(units, image, held, _COLORS, (0, answer.makespan * 1e6))
    mark_parts(units, held.units, run.gpu.dies)
    units.set_xlim(0, (until or answer.makespan) * 1e6)
    units.set_xlabel("time [µs]")
    legend(figure, (GEMM, COLLECTIVE, WAITING))
    return figure


def _lanes(ax: Axes, answer: CoRun) -> None:
    """When each kernel of both streams ran or waited for compute units [us]."""
    for row, (loop, look) in enumerate(((answer.gemm, GEMM), (answer.collective, COLLECTIVE))):
        _lane(ax, row, answer.run, loop.name, look)
    ax.set_yticks((0, 1), ("GEMM", answer.name))
    ax.set_ylim(1.5, -0.5)
    ax.set_title(f"GEMM beside {answer.name} ({answer.run.overlap}), {_where(answer)}")
    grid(ax, "x")


def _lane(ax: Axes, row: int, run: Timeline, name: str, look: Look) -> None:
    """The kernels of one stream as bars, every second one lighter."""
    placed = {stage.kernel: stage.start_fs for stage in run.stages if stage.gpu == 0 and stage.index == 0}
    spans = [span for span in run.spans if span.gpu == 0 and span.operator == name]
    for span in spans:
        launched, start = span.first_workgroup_fs, placed.get(span.kernel, span.first_workgroup_fs)
        length = (span.end_fs - start) * _US
        bar(ax, row, launched * _US, (start - launched) * _US, WAITING, 0.72, linewidth=0.3)
        shade = 1.0 if span.iteration % 2 == 0 else 0.55
        bar(ax, row, start * _US, length, look, 0.72, linewidth=0.3, alpha=shade)
        if len(spans) > 1 and length > run.seconds * 1e6 / 60:
            ax.text(start * _US + length / 2, row, str(span.iteration), ha="center", va="center", fontsize=7)


@styled
def channel_owners(answer: CoRun, until: float | None = None) -> Picture:
    """Whose bytes passed the DRAM of one GPU when [TB/s], its peak dotted, and what its link carried [GB/s].

    The time axis ends at `until` [s], for several runs to be compared, else with the run.
    """
    run, series = answer.run, answer.run.series
    assert series is not None  # a simulated run has one
    every = max(1, -(-series.link.shape[1] // BINS))
    time = series.time_us[::every]
    figure = picture(10, 4.2)
    dram, link = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    per_s = 1 / (series.bin_fs * every * 1e-15)
    rates = {key: _merged(owned_bytes(run, *key), every) * per_s * _TERA for key in _TRAFFIC}
    shown = {key: rate for key, rate in rates.items() if rate.any()}
    colors = [_TRAFFIC[key].color for key in shown]
    areas = dram.stackplot(time, *shown.values(), colors=colors, step="post", linewidth=0)
    for area, key in zip(areas, shown, strict=True):
        area.set_hatch(_TRAFFIC[key].hatch)
        area.set_edgecolor("#444444")
    peak, most = run.gpu.memory.bandwidth * _TERA, run.gpu.link.bandwidth / 1e9
    dram.set_ylim(0, peak * 1.05)
    dram.set_ylabel("DRAM [TB/s]")
    dram.set_title(f"Whose bytes passed memory channels and link ({run.overlap}), {_where(answer)}")
    link.step(time, _merged(series.link[0], every) * per_s / 1e9, where="post", color=LINK.color, linewidth=1)
    link.set_ylim(0, most * 1.1)
    link.set_ylabel("link out [GB/s]")
    link.set_xlabel("time [µs]")
    link.set_xlim(0, (until or answer.makespan) * 1e6)
    for ax, limit in ((dram, peak), (link, most)):
        ax.axhline(limit, color="#444444", linewidth=0.6, linestyle=":")
        grid(ax)
    legend(figure, [*(_TRAFFIC[key] for key in shown), LINK], 5)
    return figure


def _merged(bins: npt.NDArray[Any], every: int) -> npt.NDArray[np.float64]:
    """The sums of so many bins in a row."""
    return np.add.reduceat(bins.astype(np.float64), np.arange(0, len(bins), every))


@styled
def stream_waits(answer: CoRun) -> Picture:
    """What a workgroup of one GEMM, and of one collective, did or waited for, alone and beside the other [us]."""
    bars = {
        f"{name}, {how}": {reason: spent * 1e6 for reason, spent in waits.items()}
        for name, loop in (("GEMM", answer.gemm), (answer.name, answer.collective))
        for how, waits in (("alone", loop.waits_alone), ("beside", loop.waits))
        if waits
    }
    figure = picture(10, 0.9 + 0.35 * len(bars))
    ax = figure.subplots()
    seen = _SEEN * max(sum(waits.values()) for waits in bars.values())
    looks = {w: look for w, look in _LOOKS.items() if any(b.get(w, 0.0) > seen for b in bars.values())}
    stack(ax, list(bars.values()), looks)
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set_xlabel("time of a workgroup's place [µs]")
    legend(figure, looks.values(), 3)
    return figure


@styled
def strategies(found: Comparison) -> Picture:
    """When GEMMs and collectives had ended under each strategy [us], serial execution and the ideal beside them."""
    answers = [found.corun(name) for name in found.timelines]
    one = answers[0]
    serial = one.serial * 1e6
    figure = picture(10, 1.2 + 0.45 * len(answers))
    ax = figure.subplots()
    for row, answer in enumerate(answers):
        for offset, loop, look in ((-0.19, answer.gemm, GEMM), (0.19, answer.collective, COLLECTIVE)):
            bar(ax, row + offset, 0, loop.end * 1e6, look, 0.36, linewidth=0.3)
        said = f"{answer.speedup:.2f}x, {percent(answer.share_of_ideal)} of the ideal"
        note(ax, said, (answer.makespan * 1e6, row), (5, 0), fontsize=8, bbox=_PLAIN)
    ax.axvline(serial, color="#444444", linewidth=1, linestyle=":")
    ax.axvline(serial / one.ideal_speedup, color="#444444", linewidth=1, linestyle="--")
    ax.set_xlim(0, max(serial, *(answer.makespan * 1e6 for answer in answers)) * 1.25)
    ax.set_yticks(range(len(answers)), list(found.timelines))
    ax.invert_yaxis()
    ax.set_xlabel("time [µs]")
    counts = f"{one.gemm.count} × GEMM beside {one.collective.count} × {one.name}"
    ax.set_title(f"{counts}, {_where(one).removeprefix('one of ')}")
    grid(ax, "x")
    legend(figure, (GEMM, COLLECTIVE))
    return figure
