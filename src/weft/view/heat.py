"""Load of memory channels and banks: who did how much when, and how even that was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.report import Part, Section
from weft.core.report.table import Table, number, text
from weft.simulate.result import Heat, Timeline
from weft.view.figure import Figure, load_map

SHOWN_BINS = 96
"""Most columns of a map over time; more bins are merged."""
_LOOKS = {"utilization": "utilisation", "efficiency": "efficiency", "row_hits": "row hits"}
_WHAT = (
    "Utilisation is the share of the time with data on the bus, efficiency that of the time in which requests waited "
    "or were served, row hits the share of requests that found their row open."
)


def heat_parts(runs: Sequence[Timeline]) -> list[Table | str]:
    """Return the table of runs that recorded the load of channels or banks; empty if none did."""
    found = [(run, run.heat) for run in runs if run.heat is not None]
    return [heat_table(found)] if found else []


def heat_table(found: Sequence[tuple[Timeline, Heat]]) -> Table:
    """Camping index, utilisation, efficiency and row hits of every run's channels or banks."""
    rows = []
    for run, heat in found:
        used = _share(heat.busy_fs, heat.end_s * 1e15)
        efficiency, hits = (_overall(a, b) for a, b in _parts(heat))
        least, most = float(used.min()), float(used.max())
        rows.append(
            (run.overlap, heat.of, "hashed" if run.options.hashing else "plain", heat.camping, float(used.mean()),
             least, most, efficiency, hits if run.options.memory == "banks" else None)
        )  # fmt: skip
    columns = [
        text("overlap"), text("of", "load of each"), text("addresses"), number("camping", "camping index", "", ".3f"),
        number("utilization", "utilisation, mean", "", ".1%"), number("least", "least", "", ".1%"),
        number("most", "most", "", ".1%"), number("efficiency", "efficiency", "", ".1%"),
        number("row_hits", "row hits", "", ".1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Memory channels and banks; camping index: largest over mean load, 1 is even")


def heat_section(runs: Sequence[Timeline]) -> Section:
    """The part of a page on the runs that recorded the load of channels or banks; empty if none did."""
    parts: list[Part] = []
    for run in runs:
        if run.heat is not None:
            parts += [load_over_time(run, run.heat)]
            parts += [bank_loads(run, run.heat)] if run.heat.of == "bank" else []
    return Section("Memory channels and banks over time", [*parts, *heat_parts(runs)])


def load_over_time(run: Timeline, heat: Heat) -> Figure:
    """Return every channel over time or, where banks were recorded, every bank of the channel with the largest load."""
    gpu, channel = np.unravel_index(int(heat.moved_bytes.sum(axis=(2, 3)).argmax()), heat.read.shape[:2])
    if heat.of == "bank":
        unit, where = "bank", f"of channel {channel}, which moves most"
        arrays = [a[gpu, channel] for a in _arrays(heat)]
    else:
        unit, where = "channel", "of the GPU" if len(heat.read) == 1 else f"of GPU {gpu}"
        arrays = [a[gpu, :, 0] for a in _arrays(heat)]
    columns = [
        number("start_us", "from", "µs", ",.2f"), number("end_us", "to", "µs", ",.2f"), number("unit", unit),
        number("unit_to", "to"), *(number(name, head, "", ".1%") for name, head in _LOOKS.items()),
        number("kilobytes", "moved", "kB", ",.1f"),
    ]  # fmt: skip
    table = Table(columns, list(_cells(arrays, heat.bin_s)))
    until = heat.read.shape[-1] * heat.bin_s * 1e6
    addresses = "hashed" if run.options.hashing else "plain"
    return load_map(
        f"How loaded is each {unit}? {run.overlap}, {addresses} addresses", table, _LOOKS, until, len(arrays[0]), unit
    ).with_caption(f"Each {unit} {where}; camping index of the run: {heat.camping:.3f}. {_WHAT}")


def bank_loads(run: Timeline, heat: Heat) -> Figure:
    """The whole run's load of every bank of every channel of the first GPU."""
    busy = _share(heat.busy_fs[0], heat.end_s * 1e15)
    efficiency, hits = (_ratio(a[0].sum(axis=-1), b[0].sum(axis=-1)) for a, b in _parts(heat))
    rows = [
        (channel, channel + 1, bank, bank + 1, *(_none(float(a[channel, bank])) for a in (busy, efficiency, hits)),
         float(heat.moved_bytes[0, channel, bank].sum()) / 1e3)
        for channel, bank in np.ndindex(*busy.shape)
    ]  # fmt: skip
    columns = [
        number("start_us", "channel"), number("end_us", "to"), number("unit", "bank"), number("unit_to", "to"),
        *(number(name, head, "", ".1%") for name, head in _LOOKS.items()), number("kilobytes", "moved", "kB", ",.1f"),
    ]  # fmt: skip
    title = f"How loaded is each bank over the whole run? {run.overlap}"
    banks = busy.shape[1]
    return load_map(title, Table(columns, rows), _LOOKS, len(busy), banks, "bank", across="channel").with_caption(_WHAT)


def _arrays(heat: Heat) -> tuple[npt.NDArray[np.int64], ...]:
    return heat.moved_bytes, heat.busy_fs, heat.pending_fs, heat.activates, heat.requests


def _cells(arrays: Sequence[npt.NDArray[np.int64]], bin_s: float) -> Iterator[tuple[Any, ...]]:
    """Rectangles of units over time, bins merged."""
    bins = arrays[0].shape[-1]
    merged = -(-bins // SHOWN_BINS)
    edges = np.arange(0, bins, merged)
    moved, busy, pending, activates, requests = (np.add.reduceat(a, edges, axis=-1) for a in arrays)
    width = np.diff([*edges, bins]) * bin_s
    used, efficiency = busy / (width * 1e15), _ratio(busy, pending)
    hits = 1 - _ratio(np.minimum(activates, requests), requests)
    for unit, place in np.ndindex(*moved.shape):
        if moved[unit, place]:
            start = float(edges[place]) * bin_s
            shares = (used[unit, place], efficiency[unit, place], hits[unit, place])
            yield (
                start * 1e6, (start + float(width[place])) * 1e6, unit, unit + 1,
                *(_none(min(float(share), 1.0)) for share in shares), float(moved[unit, place]) / 1e3,
            )  # fmt: skip


def _parts(heat: Heat) -> tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], ...]:
    """Part and whole of efficiency and of row hits."""
    missed = np.minimum(heat.activates, heat.requests)
    return (heat.busy_fs, heat.pending_fs), (heat.requests - missed, heat.requests)


def _overall(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> float:
    return float(part.sum() / max(whole.sum(), 1))


def _share(busy: npt.NDArray[np.int64], whole: float) -> npt.NDArray[np.float64]:
    return np.asarray(busy.sum(axis=-1) / whole)


def _ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = np.full(np.shape(part), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) > 0)
    return out


def _none(value: float) -> float | None:
    return None if np.isnan(value) else value
