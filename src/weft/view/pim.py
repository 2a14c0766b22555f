"""The figure of memory that computes: which bank served whom on a channel over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from weft.core.report.table import Table, number, text
from weft.engine.layout import PIM_BANKS, PIM_COUNT
from weft.simulate.pim import ChannelRun
from weft.view import looks
from weft.view.figure import Figure, held_map

SHOWN_US = 6.0
"""How much of a run is shown [µs]."""
_FS_PER_US = 1e9
_KERNEL, _COMMANDS = "GEMM's request", "commands in memory"


def banks_over_time(met: Mapping[str, ChannelRun], path: float) -> Figure:
    """Return which bank of a channel served requests, and which commands, over the first microseconds of each way.

    `path` is the time from a channel's bus to the kernel [s].
    """
    rows = [(way, *row) for way, one in met.items() for row in _bank_rectangles(one, path * 1e6)]
    columns = [
        text("way"), text("owner", "serves"), number("start_us", "from", "µs", ".3f"),
        number("end_us", "to", "µs", ".3f"), number("unit", "bank"), number("unit_to", "to"),
    ]  # fmt: skip
    banks = max(one.pim.channel.banks for one in met.values())
    colors = {_KERNEL: looks.BLUE, _COMMANDS: looks.ORANGE}
    title = "Which bank serves whom?"
    return held_map(title, Table(columns, rows), colors, SHOWN_US, banks, "bank").with_caption(
        "A group of commands takes all banks of its units together; requests of the GEMM wait until it ends.",
    )


def _bank_rectangles(met: ChannelRun, path_us: float) -> Iterator[tuple[str, float, float, int, int]]:
    """Rectangles of a run: owner, from and until [µs], the bank and the one behind it."""
    bursts = met.requests.bytes / met.pim.units.word_bytes
    end = met.done / _FS_PER_US - np.where(met.requests.kind == 0, path_us, 0.0)
    begin = end - bursts * met.pim.units.period * 1e6
    for bank, first, last in zip(met.banks.tolist(), begin.tolist(), end.tolist(), strict=True):
        if first < SHOWN_US:
            yield _KERNEL, first, last, bank, bank + 1
    for run, first, last in zip(met.stream.runs, met.begin / _FS_PER_US, met.end / _FS_PER_US, strict=True):
        if first < SHOWN_US and run[PIM_COUNT]:
            for bank in range(met.pim.channel.banks):
                if run[PIM_BANKS] >> bank & 1:
                    yield _COMMANDS, float(first), float(last), bank, bank + 1
