"""Published figures against Weft's, as text with units and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.core.report.table import Column, Shown, Table, text

if TYPE_CHECKING:
    from weft.papers.headline import HeadlineRow, Published

_PERCENT = ("fraction", "share")


def headline_table(rows: Sequence[HeadlineRow], title: str = "") -> Table:
    """Published figure, Weft's, and the difference, per row; Weft's alone if nothing is published."""
    columns = [text("figure"), *(Column(key, is_number=True) for key in ("published", "weft", "difference"))]
    table = Table(columns, [(row.what, *_headline_cells(row)) for row in rows], title)
    return table if any(row.published is not None for row in rows) else table.without(("published", "difference"))


def _headline_cells(row: HeadlineRow) -> tuple[Shown, Shown, Shown]:
    """Published figure, Weft's with one more digit, and the difference; blank if nothing is published."""
    published = "" if row.published is None else amount(row.published, row.unit)
    difference = "" if row.difference is None else gap(row.difference, row.unit)
    low = row.published[0] if isinstance(row.published, tuple) else row.published
    return (
        Shown(low, published),
        Shown(row.weft, amount(row.weft, row.unit, more=True)),
        Shown(row.difference, difference),
    )


_SMALL = 0.01
"""Share below which simulated figures have two digits that count, not one behind the point."""


def amount(value: Published, unit: str, more: bool = False) -> str:
    """Return a headline figure or range with its unit: fractions and shares in percent.

    `more` gives simulated figures one digit more than published ones.
    """
    if isinstance(value, tuple):
        return " to ".join(amount(end, unit, more) for end in value)
    if unit in _PERCENT:
        sign = "+" if unit == "fraction" else ""
        digits = ".3g" if not more else ".1f" if abs(value) >= _SMALL or not value else ".2g"
        return f"{100 * value:{sign}{digits}}%"
    return f"{value:.{3 if more else 2}f}x" if unit == "ratio" else f"{value:.4g} {unit}".rstrip()


def gap(value: float, unit: str) -> str:
    """Return the difference of headline figures with its sign; of fractions and shares in percentage points."""
    if unit in _PERCENT:
        return f"{round(100 * value, 1) + 0.0:+.1f} pp"
    return f"{value:+.3f}" if unit == "ratio" else f"{value:+.4g}"
