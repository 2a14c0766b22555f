"""Two kernels on one GPU: who held which compute unit when, whose bytes passed the memory channels when."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from weft.report.plots.streams import COLLECTIVE, GEMM, LINK, WAITING, lanes
from weft.report.plots.style import Look, Picture, grid, handle, picture, styled
from weft.result import Residency
from weft.result.concurrent import Concurrency, owned_bytes

COLUMNS = 1200
"""Moments of the map of compute units."""
BINS = 300
"""Moments of the traffic: finer ones would show single bursts."""
_IDLE, _GEMM, _NEXT_GEMM, _COLLECTIVE, _NEXT_COLLECTIVE, _BOTH = range(6)
_COLORS = ("#FFFFFF", GEMM.color, "#5FA3CF", COLLECTIVE.color, "#F3C766", "#4D4D4D")
_BOTH_LOOK = Look("both on one compute unit", _COLORS[_BOTH])
_TRAFFIC = {
    ("gemm", False): Look("GEMM reads", GEMM.color),
    ("gemm", True): Look("GEMM writes", "#56B4E9"),
    ("collective", False): Look("collective reads", COLLECTIVE.color, "////"),
    ("collective", True): Look("collective writes", "#D55E00", "\\\\\\\\"),
}
_US = 1e-9
_TERA = 1e-12
_PARTS_LABELLED = 16


@styled
def held_units(answer: Concurrency) -> Picture:
    """Who held which compute unit of one GPU when [us], a line per unit, below the kernels of both streams."""
    run = answer.run
    held = run.residency
    assert held is not None  # streams have one
    figure = picture(10, 5.2)
    above, units = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.2))
    lanes(above, answer)
    end = answer.makespan * 1e6
    image = unit_map(held, answer, round(answer.makespan * 1e15))
    units.imshow(
        image, cmap=ListedColormap(_COLORS), vmin=0, vmax=len(_COLORS) - 1, aspect="auto",
        interpolation="nearest", origin="lower", extent=(0, end, 0, held.units),
    )  # fmt: skip
    _parts(units, held.units, run.config.partitions)
    units.set_xlim(0, end)
    units.set_ylabel("compute unit")
    units.set_xlabel("time [µs]")
    looks = (GEMM, COLLECTIVE, WAITING, *((_BOTH_LOOK,) if (image == _BOTH).any() else ()))
    figure.legend(handles=[handle(look) for look in looks], loc="outside lower center", ncols=4)
    return figure


def unit_map(held: Residency, answer: Concurrency, end_fs: int) -> npt.NDArray[np.uint8]:
    """Who holds each unit of GPU 0 (rows) at `COLUMNS` moments up to `end_fs`; kernels of a loop take turns."""
    image = np.zeros((held.units, COLUMNS), dtype=np.uint8)
    for loop, colors in (
        (answer.gemm.name, (_GEMM, _NEXT_GEMM)),
        (answer.collective.name, (_COLLECTIVE, _NEXT_COLLECTIVE)),
    ):
        for name in (name for name in held.kernels if name.rpartition(" ")[0] == loop):
            color = colors[int(name.rpartition(" ")[2]) % 2]
            _paint(image, held.of(0, (name,)), color, end_fs)
    return image


def _paint(
    image: npt.NDArray[np.uint8], spans: tuple[npt.NDArray[np.int64], ...], color: int, end: int
) -> None:
    """Colour the moments at which workgroups held their units; a unit with workgroups of both kinds says so."""
    units, starts, ends = spans
    # A moment is the middle of its column.
    begin, over = (np.ceil(t / max(end, 1) * COLUMNS - 0.5).astype(np.int64) for t in (starts, ends))
    gemm = color in (_GEMM, _NEXT_GEMM)
    for unit, a, b in zip(units.tolist(), begin.tolist(), over.tolist(), strict=True):
        part = image[unit, a:b]
        meets = part != _IDLE
        if not gemm and meets.any():
            part[meets & (part <= _NEXT_GEMM)] = _BOTH
            part[~meets] = color
        else:
            part[:] = color


def _parts(ax: Axes, units: int, parts: int) -> None:
    """Lines between the XCDs, and their names."""
    if parts == 1:
        return
    edges = [part * units / parts for part in range(parts + 1)]
    for edge in edges[1:-1]:
        ax.axhline(edge, color="#222222", linewidth=0.6)
    if parts <= _PARTS_LABELLED:
        right = ax.secondary_yaxis("right")
        right.set_yticks([(a + b) / 2 for a, b in itertools.pairwise(edges)])
        right.set_yticklabels([f"XCD {part}" for part in range(parts)], fontsize=7)
        right.tick_params(length=0)


@styled
def channel_owners(answer: Concurrency) -> Picture:
    """Whose bytes passed the DRAM of one GPU when [TB/s], its peak dotted, and what its link carried [GB/s]."""
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
    dram.set_title(f"Whose bytes passed the memory channels and the link of one {run.config.gpu}")
    link.step(
        time, _merged(run.series.link[0], every) * per_s / 1e9, where="post", color=LINK.color, linewidth=1
    )
    link.axhline(run.config.link_bytes_per_s / 1e9, color="#444444", linewidth=0.6, linestyle=":")
    link.set_ylim(0, run.config.link_bytes_per_s / 1e9 * 1.1)
    link.set_ylabel("link out [GB/s]")
    link.set_xlabel("time [µs]")
    link.set_xlim(0, answer.makespan * 1e6)
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
