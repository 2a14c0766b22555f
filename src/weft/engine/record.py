"""Counters and series for the result: traffic by cause over time, chunk and link activity."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block, shared, spliced
from weft.engine.state import SERIES_BINS, Machine, Table


@shared
def _fold(series: Table, link_series: Table) -> None:
    for g in range(series.shape[0]):
        for b in range(SERIES_BINS // 2):
            for cause in range(series.shape[1]):
                series[g, cause, b] = series[g, cause, 2 * b] + series[g, cause, 2 * b + 1]
            link_series[g, b] = link_series[g, 2 * b] + link_series[g, 2 * b + 1]
        series[g, :, SERIES_BINS // 2 :] = 0
        link_series[g, SERIES_BINS // 2 :] = 0


@block
def _bin(m: Machine, time: int) -> int:
    """The bin of `time`; when the series is full, pairs of bins are merged and bins become twice as wide."""
    b = m.clock[y.CLOCK_BIN_LAST]
    since = time - b * m.clock[y.CLOCK_BIN]
    if 0 <= since < m.clock[y.CLOCK_BIN]:
        return b  # type: ignore[no-any-return]
    b = time // m.clock[y.CLOCK_BIN]
    while b >= SERIES_BINS:
        _fold(m.series, m.link_series)
        m.clock[y.CLOCK_BIN] *= 2
        b = time // m.clock[y.CLOCK_BIN]
    m.clock[y.CLOCK_BIN_LAST] = b
    return b  # type: ignore[no-any-return]


@spliced
def record_traffic(m: Machine, g: int, cause: int, bytes_: int, time: int) -> None:
    """Count bytes that the DRAM of GPU `g` moved."""
    m.traffic[g, cause] += bytes_
    m.series[g, cause, _bin(m, time)] += bytes_


@block
def record_link(m: Machine, g: int, bytes_: int, time: int) -> None:
    """Count bytes that left GPU `g`."""
    m.link_series[g, _bin(m, time)] += bytes_


@block
def record_chunk(m: Machine, g: int, region: int, first: int, time: int) -> None:
    """Record the first and last time of an activity of a chunk; `first` is the column of the first."""
    if m.chunk_log[g, region, first] == y.NONE:
        m.chunk_log[g, region, first] = time
    m.chunk_log[g, region, first + 1] = max(m.chunk_log[g, region, first + 1], time)
