"""Two kernels on one GPU: who held which compute unit when, whose bytes passed the memory channels when."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weft.report.plots.streams import COLLECTIVE, GEMM, LINK, WAITING, lanes
from weft.report.plots.style import Look, Picture, grid, handle, picture, styled
from weft.report.plots.units import draw_units, mark_parts, unit_map
from weft.result import Residency
from weft.result.concurrent import Concurrency, owned_bytes
from weft.result.loops import loop_of, number_of

BINS = 300
"""Moments of the traffic: finer ones would show single bursts."""
_COLORS = (GEMM.color, "#5FA3CF", COLLECTIVE.color, "#F3C766")
"""Kernels of a loop take turns in two shades."""
_TRAFFIC = {
    ("gemm", False): Look("GEMM reads", GEMM.color),
    ("gemm", True): Look("GEMM writes", "#56B4E9"),
    ("collective", False): Look("collective reads", COLLECTIVE.color, "////"),
    ("collective", True): Look("collective writes", "#D55E00", "\\\\\\\\"),
}
_US = 1e-9
_TERA = 1e-12


@styled
def held_units(answer: Concurrency, until: float | None = None) -> Picture:
    """Who held which compute unit of one GPU when [us], a line per unit, below the kernels of both streams.

    The time axis ends at `until` [s], for several runs to be compared, else with the run.
    """
    run = answer.run
    held = run.residency
    assert held is not None  # streams have one
    figure = picture(10, 5.2)
    above, units = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.2))
    lanes(above, answer)
    end = answer.makespan * 1e6
    image = unit_map(held, _owners(held, answer), round(answer.makespan * 1e15))
    draw_units(units, image, held, _COLORS, (0, end))
    mark_parts(units, held.units, run.config.partitions)
    units.set_xlim(0, (until or answer.makespan) * 1e6)
    units.set_xlabel("time [µs]")
    figure.legend(
        handles=[handle(look) for look in (GEMM, COLLECTIVE, WAITING)], loc="outside lower center", ncols=3
    )
    return figure


def _owners(held: Residency, answer: Concurrency) -> list[list[str]]:
    """The kernels of GEMMs and of collectives, those of a loop in turn."""
    return [
        [name for name in held.kernels if loop_of(name) == loop.name and number_of(name) % 2 == turn]
        for loop in (answer.gemm, answer.collective)
        for turn in (0, 1)
    ]


@styled
def channel_owners(answer: Concurrency, until: float | None = None) -> Picture:
    """Whose bytes passed the DRAM of one GPU when [TB/s], its peak dotted, and what its link carried [GB/s].

    The time axis ends at `until` [s], for several runs to be compared, else with the run.
    """
    run = answer.run
    assert run.series is not None  # a simulated run has one
    every = max(1, -(-run.series.link.shape[1] // BINS))
    time = run.series.time_us[::every]
    figure = picture(10, 4.2)
    dram, link = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    per_s = 1 / (run.series.bin_fs * every * 1e-15)
    rates = {key: _merged(owned_bytes(run, *key), every) * per_s * _TERA for key in _TRAFFIC}
    shown = {key: rate for key, rate in rates.items() if rate.any()}
    areas = dram.stackplot(
        time,
        *shown.values(),
        colors=[_TRAFFIC[key].color for key in shown],
        step="post",
        linewidth=0,
    )
    for area, key in zip(areas, shown, strict=True):
        area.set_hatch(_TRAFFIC[key].hatch)
        area.set_edgecolor("#444444")
    peak = run.config.dram_bytes_per_s * _TERA
    dram.axhline(peak, color="#444444", linewidth=0.6, linestyle=":")
    dram.set_ylim(0, peak * 1.05)
    dram.set_ylabel("DRAM [TB/s]")
    where = f"one of {answer.ranks} x {answer.gpu}"
    dram.set_title(f"Whose bytes passed memory channels and link ({answer.strategy.name}), {where}")
    link.step(
        time, _merged(run.series.link[0], every) * per_s / 1e9, where="post", color=LINK.color, linewidth=1
    )
    link.axhline(run.config.link_bytes_per_s / 1e9, color="#444444", linewidth=0.6, linestyle=":")
    link.set_ylim(0, run.config.link_bytes_per_s / 1e9 * 1.1)
    link.set_ylabel("link out [GB/s]")
    link.set_xlabel("time [µs]")
    link.set_xlim(0, (until or answer.makespan) * 1e6)
    for ax in (dram, link):
        grid(ax)
    figure.legend(
        handles=[handle(look) for look in (*(_TRAFFIC[key] for key in shown), LINK)],
        loc="outside lower center",
        ncols=5,
    )
    return figure


def _merged(bins: npt.NDArray[Any], every: int) -> npt.NDArray[np.float64]:
    """The sums of so many bins in a row."""
    return np.add.reduceat(bins.astype(np.float64), np.arange(0, len(bins), every))
