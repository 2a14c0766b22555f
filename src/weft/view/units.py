"""Who held which compute unit when: a line per unit, shared by all workgroups that it holds at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.result import Residency, Timeline
from weft.result import Span as Kernel
from weft.view.figure import Figure, held_map
from weft.view.looks import Looks
from weft.view.table import Table, microseconds, number, text

COLUMNS = 480
"""Moments of a map of compute units."""
LINES = 4
"""Lines of the map that a unit's workgroups share at most."""
_MOST_LINES = 640
Map = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Span = tuple[int, int, int, int]


class Way(NamedTuple):
    """One way to run some work: runs, each begun when the one before it has ended, and who owns each run's kernels.

    `owners` gives the number of the owner, one of `looks` in `units_by_way`, of a kernel.
    """

    title: str
    runs: Sequence[Timeline]
    owners: Sequence[Callable[[Kernel], int]]


def units_by_way(ways: Sequence[Way], looks: Looks, until: float | None = None) -> Figure:
    """Who held which compute unit of one GPU when [us], under each of several ways to run the same work.

    The axis of time ends at `until` [s], or with the longest way.
    """
    names = list(looks)
    rows = [(way.title, names[owner], *where) for way in ways for owner, *where in _held(way, len(names))]
    columns = [
        text("way"), text("owner", "held by"), number("unit", "compute unit", format_=",.1f"), number("unit_to", " "),
        microseconds("start", "from"), microseconds("end", "until"),
    ]  # fmt: skip
    whole = until or max(sum(map(_end, way.runs)) for way in ways) * 1e-15
    units = max(run.residency.units for way in ways for run in way.runs if run.residency)
    title = f"Who held which compute unit when ({', '.join(way.title for way in ways)})"
    return held_map(title, Table(columns, rows), looks, whole * 1e6, units)


def _held(way: Way, owners: int) -> Iterator[tuple[int, float, float, float, float]]:
    """Owner, compute units from and to, and time from and to [us] of every rectangle of a way's map."""
    begin = 0.0
    for run, whose in zip(way.runs, way.owners, strict=True):
        held, end_fs = run.residency, _end(run)
        assert held is not None  # watched runs have one
        owned: list[set[str]] = [set() for _ in range(owners)]
        for span in run.spans:
            owned[whose(span)].add(span.kernel)
        image = unit_map(held, owned, end_fs)
        for owner, low, high, first, last in rectangles(image):
            start, end = (begin + at / COLUMNS * end_fs * 1e-9 for at in (first, last))
            yield owner - 1, low / len(image) * held.units, high / len(image) * held.units, start, end
        begin += end_fs * 1e-9


def _end(run: Timeline) -> int:
    """When the last kernel of a run had ended [fs]."""
    return max(span.end_fs for span in run.spans)


def rectangles(image: Map) -> Iterator[tuple[int, int, int, int, int]]:
    """Owner, rows from and to, columns from and to of what covers a map: equal stretches of rows in a row are one."""
    open_: dict[tuple[int, int, int], int] = {}
    for row in range(len(image) + 1):
        runs = set(_stretches(image[row])) if row < len(image) else set()
        for owner, first, last in [run for run in open_ if run not in runs]:
            yield owner, open_.pop((owner, first, last)), row, first, last
        for run in runs:
            open_.setdefault(run, row)


def _stretches(line: Map) -> Iterator[tuple[int, int, int]]:
    """Owner, first column and the one behind the last of each stretch that an owner holds."""
    edges = np.flatnonzero(np.diff(line, prepend=0, append=0))
    edges = np.unique(np.append(edges, [0, len(line)]))
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if line[first]:
            yield int(line[first]), first, last


def unit_map(held: Residency, owners: Sequence[Collection[str]], end_fs: int) -> Map:
    """Who holds the compute units of GPU 0 at `COLUMNS` moments up to `end_fs`: 1 for the first of `owners`, 0 nobody.

    An owner is the names of its kernels. Every unit has as many rows as a unit holds workgroups at a time; where it
    holds fewer, they share the rows evenly.
    """
    spans = [
        (unit, start, end, owner)
        for owner, names in enumerate(owners, 1)
        for unit, start, end in zip(*(column.tolist() for column in held.of(0, names)), strict=True)
    ]
    placed, places = _places(spans, held.units)
    image = np.zeros((held.units, places, COLUMNS), dtype=np.uint8)
    for (unit, start, end, owner), place in placed:
        # A moment is the middle of its column.
        first, last = (int(np.ceil(at / max(end_fs, 1) * COLUMNS - 0.5)) for at in (start, end))
        image[unit, place, first:last] = owner
    return _shared(image).reshape(-1, COLUMNS)


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
    lines = min(places, LINES, max(1, _MOST_LINES // image.shape[0]))
    rows = (np.arange(lines)[None, :, None] * np.maximum(taken, 1)[:, None, :]) // lines
    return np.take_along_axis(dense, rows, axis=1)


def held_stretches(units: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Begin and end [fs] of every stretch in which a unit is held: workgroups of one that overlap or touch are one."""
    order = np.lexsort((starts, units))
    # Units one behind the other on one axis, so that the latest end so far is that of the same unit.
    apart = units[order] * (int(ends.max(initial=0)) + 1)
    begin, over = starts[order] + apart, np.maximum.accumulate(ends[order] + apart)
    fresh = np.flatnonzero(np.append(True, begin[1:] > over[:-1])) if len(order) else order
    last = np.append(fresh[1:], len(order)).astype(np.int64) - 1 if len(order) else order
    return (begin - apart)[fresh], (over - apart)[last]
