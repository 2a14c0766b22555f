"""Who held which compute unit when: a line per unit, shared by all workgroups that it holds at a time."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from weft.report.plots.style import Look, Picture, legend, picture, styled
from weft.result import Residency, Timeline

COLUMNS = 1200
"""Moments of a map of compute units."""
LINES = 6
"""Lines of the map that a unit's workgroups share at most."""
_US = 1e-9
_PARTS_LABELLED = 16
Map = npt.NDArray[np.uint8]


def unit_map(held: Residency, owners: Sequence[Collection[str]], end_fs: int) -> Map:
    """Who holds the compute units of GPU 0 at `COLUMNS` moments up to `end_fs`: 1 for the first of `owners`, 0 nobody.

    An owner is the names of its kernels. Every unit has as many rows as a unit holds workgroups at a time; where it
    holds fewer, they share the rows evenly.
    """
    spans = [
        (unit, start, end, number)
        for number, names in enumerate(owners, 1)
        for unit, start, end in zip(*(column.tolist() for column in held.of(0, names)), strict=True)
    ]
    placed, places = _places(spans, held.units)
    image = np.zeros((held.units, places, COLUMNS), dtype=np.uint8)
    for (unit, start, end, number), place in placed:
        # A moment is the middle of its column.
        first, last = (int(np.ceil(at / max(end_fs, 1) * COLUMNS - 0.5)) for at in (start, end))
        image[unit, place, first:last] = number
    return _shared(image).reshape(-1, COLUMNS)


Span = tuple[int, int, int, int]


def _places(spans: Sequence[Span], units: int) -> tuple[list[tuple[Span, int]], int]:
    """Every workgroup with the first place of its unit that is free when it starts, and how many places there are."""
    free: list[list[int]] = [[] for _ in range(units)]
    placed = []
    for span in sorted(spans, key=lambda one: one[1]):
        ends = free[span[0]]
        place = next((at for at, end in enumerate(ends) if end <= span[1]), len(ends))
        ends[place : place + 1] = [span[2]]
        placed.append((span, place))
    return placed, max(1, *map(len, free))


def _shared(image: Map) -> Map:
    """The map with the rows of a unit shared evenly by whoever holds it, in at most `LINES` rows."""
    taken = (image > 0).sum(axis=1)
    first = np.argsort(image == 0, axis=1, kind="stable")
    dense = np.take_along_axis(image, first, axis=1)
    places = image.shape[1]
    lines = min(places, LINES)
    rows = (np.arange(lines)[None, :, None] * np.maximum(taken, 1)[:, None, :]) // lines
    return np.take_along_axis(dense, rows, axis=1)


def draw_units(ax: Axes, image: Map, held: Residency, colors: Sequence[str], span: tuple[float, float]) -> None:
    """A map on axes of time [us], from and to `span`; the owners' colours, white is idle."""
    ax.imshow(
        image, cmap=ListedColormap(["#FFFFFF", *colors]), vmin=0, vmax=len(colors), aspect="auto",
        interpolation="nearest", origin="lower", extent=(*span, 0, held.units),
    )  # fmt: skip
    ax.set_ylabel("compute unit")


def mark_parts(ax: Axes, units: int, parts: int) -> None:
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


class Way(NamedTuple):
    """One way to run some work: runs, each begun when the one before it has ended, and who owns each run's kernels.

    `owners` gives the number of the owner, one of `looks` in `units_by_way`, by operator.
    """

    title: str
    runs: Sequence[Timeline]
    owners: Sequence[Mapping[str, int]]


@styled
def units_by_way(ways: Sequence[Way], looks: Sequence[Look]) -> Picture:
    """Who held which compute unit of one GPU when [us], under each of several ways to run the same work."""
    figure = picture(10, 1.2 + 1.8 * len(ways))
    rows = figure.subplots(len(ways), 1, sharex=True, squeeze=False)[:, 0]
    for ax, way in zip(rows, ways, strict=True):
        _draw_way(ax, way, looks)
    rows[-1].set_xlim(0, max(sum(map(_end, way.runs)) for way in ways) * _US)
    rows[-1].set_xlabel("time [µs]")
    legend(figure, looks)
    return figure


def _draw_way(ax: Axes, way: Way, looks: Sequence[Look]) -> None:
    """The maps of a way's runs one behind the other, parted by lines."""
    begin = 0.0
    for run, owners in zip(way.runs, way.owners, strict=True):
        held = run.residency
        assert held is not None  # watched runs have one
        end = begin + _end(run) * _US
        owned: list[set[str]] = [set() for _ in looks]
        for span in run.spans:
            owned[owners[span.operator]].add(span.kernel)
        draw_units(ax, unit_map(held, owned, _end(run)), held, [look.color for look in looks], (begin, end))
        if begin:
            ax.axvline(begin, color="#222222", linewidth=0.8, linestyle=":")
        begin = end
        mark_parts(ax, held.units, run.gpu.dies if run is way.runs[0] else 1)
        ax.set_ylim(0, held.units)
    ax.set_title(f"{way.title}: {begin:,.0f} µs")


def _end(run: Timeline) -> int:
    """When the last workgroup of a run ended [fs]."""
    assert run.residency is not None  # watched runs have one
    return int(run.residency.rows[:, 4].max())
