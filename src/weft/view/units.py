"""Maps of compute units over time: a line per unit, divided among the workgroups that it holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.report.table import Table, microseconds, number, text
from weft.simulate.result import Residency, Span, Timeline
from weft.view.figure import Figure, held_map
from weft.view.looks import Looks

COLUMNS = 480
"""Number of moments in a map of compute units."""
LINES = 4
"""Most rows per compute unit in a map."""
_MOST_LINES = 640
Map = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class ShownRun(NamedTuple):
    """One way to run some work: consecutive runs, each with a function that maps a kernel to its owner.

    An owner is an index into the `looks` of `units_by_way`.
    """

    title: str
    runs: Sequence[Timeline]
    owners: Sequence[Callable[[Span], int]]


def units_by_way(ways: Sequence[ShownRun], looks: Looks, until: float | None = None) -> Figure:
    """Return which owner held which compute unit of one GPU over time [us], under each of several ways to run the same
    work.

    The time axis ends at `until` [s], or with the longest way.
    """
    rows = [
        (way.title, list(looks)[owner], *where) for way in ways for owner, *where in _unit_rectangles(way, len(looks))
    ]
    columns = [
        text("way"), text("owner", "held by"), number("unit", "compute unit", format_=",.1f"), number("unit_to", " "),
        microseconds("start", "from"), microseconds("end", "until"),
    ]  # fmt: skip
    whole = until or max(sum(run.makespan for run in way.runs) for way in ways)
    units = max(run.residency.units for way in ways for run in way.runs if run.residency)
    title = f"Who held which compute unit when ({', '.join(way.title for way in ways)})"
    return held_map(title, Table(columns, rows), looks, whole * 1e6, units)


def _unit_rectangles(way: ShownRun, owners: int) -> Iterator[tuple[int, float, float, float, float]]:
    """Owner, range of compute units, and start and end [us] of every rectangle in a way's map."""
    begin = 0.0
    for run, owner_of in zip(way.runs, way.owners, strict=True):
        assert run.residency is not None  # simulated runs always have a residency
        owned: list[set[str]] = [set() for _ in range(owners)]
        for span in run.spans:
            owned[owner_of(span)].add(span.kernel)
        duration = run.makespan * 1e6
        image = unit_map(run.residency, owned, round(run.makespan * 1e15))
        for owner, low, high, first, last in rectangles(image):
            start, end = (begin + at / COLUMNS * duration for at in (first, last))
            unit, unit_to = (at / len(image) * run.residency.units for at in (low, high))
            yield owner - 1, unit, unit_to, start, end
        begin += duration


def rectangles(image: Map) -> Iterator[tuple[int, int, int, int, int]]:
    """Owner, range of rows and range of columns of rectangles that cover a map; equal neighbouring rows are merged."""
    open_: dict[tuple[int, int, int], int] = {}
    for row, line in enumerate([*image, np.zeros_like(image[0])]):
        edges = np.flatnonzero(np.diff(line, prepend=0, append=0)).tolist()
        runs = {(int(line[first]), first, last) for first, last in pairwise(edges) if line[first]}
        for run in [run for run in open_ if run not in runs]:
            yield run[0], open_.pop(run), row, run[1], run[2]
        for run in runs:
            open_.setdefault(run, row)


def unit_map(held: Residency, owners: Sequence[Collection[str]], end_fs: int) -> Map:
    """Owners of GPU 0's compute units at `COLUMNS` moments up to `end_fs`: 1 for the first of `owners`, 0 for none.

    An owner is a set of kernel names. Every unit has as many rows as it holds workgroups at a time, at most `LINES`;
    the workgroups that it holds at a moment share them evenly.
    """
    change = np.zeros((len(owners), held.units, COLUMNS + 1), dtype=np.int64)
    for owner, names in enumerate(owners):
        units, *moments = held.of(0, names)
        # Each column is sampled at its middle.
        first, last = (np.ceil(at / max(end_fs, 1) * COLUMNS - 0.5).astype(int).clip(0, COLUMNS) for at in moments)
        np.add.at(change[owner], (units, first), 1)
        np.add.at(change[owner], (units, last), -1)
    upto = change.cumsum(axis=2)[:, :, None, :-1].cumsum(axis=0)
    taken = upto[-1]
    lines = max(1, min(taken.max(), LINES, _MOST_LINES // held.units))
    place = np.arange(lines)[None, :, None] * np.maximum(taken, 1) // lines
    image = np.where(taken > 0, 1 + (upto <= place).sum(axis=0), 0)
    return image.reshape(-1, COLUMNS).astype(np.uint8)


def held_stretches(units: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Unit, begin and end [fs] of every stretch in which a unit is held; touching workgroups are merged."""
    order = np.lexsort((starts, units))
    # Units are laid one after another on one axis, so that the running maximum of ends stays within a unit.
    apart = units[order] * (int(ends.max(initial=0)) + 1)
    begin, over = starts[order] + apart, np.maximum.accumulate(ends[order] + apart)
    fresh = np.append(True, begin[1:] > over[:-1])[: len(order)]
    last = np.append(fresh[1:], True)[: len(order)]
    return units[order][fresh], (begin - apart)[fresh], (over - apart)[last]
