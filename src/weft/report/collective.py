"""The page of a predicted collective over sizes, on one or several systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.report.page import Figure, write_page
from weft.report.plots.collectives import Curve, collective_parts, collective_times
from weft.report.tables import Table
from weft.units import format_bytes


def collective_report(title: str, curves: Sequence[Curve], out_dir: str | Path) -> Path:
    """Write `report.html` with time and bandwidth against size to a folder and return its path.

    Raises OutputError if the folder cannot be written to.
    """
    figures = [
        Figure(
            collective_times(curves),
            "Time and bus bandwidth against the size of the whole buffer, as nccl-tests counts them. A kink is a size "
            "where the library takes another protocol or algorithm.",
        )
    ]
    figures += [
        Figure(
            collective_parts(curve),
            f"Where the time goes on {curve.label}: launch and latency where it is small, links where large.",
        )
        for curve in curves
    ]
    return write_page("collective.html.j2", out_dir, title=title, figures=figures, table=_table(curves))


def _table(curves: Sequence[Curve]) -> Table:
    rows = [
        (
            curve.label,
            format_bytes(size, digits=4),
            by,
            str(bound),
            f"{1e6 * seconds:.4g}",
            f"{1e-9 * rate:.4g}",
        )
        for curve in curves
        for size, by, bound, seconds, rate in zip(
            curve.size,
            curve.by,
            np.ravel(curve.prediction.bound_names()),
            np.ravel(curve.prediction.seconds),
            curve.bus_bandwidth,
            strict=True,
        )
    ]
    return Table(("system", "size", "by", "bound", "time [µs]", "bus bandwidth [GB/s]"), rows, text_columns=4)
