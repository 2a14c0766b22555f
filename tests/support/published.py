"""Whether a study's figures keep to their bars, or miss them as the deviations say."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from weft.studies.headline import HeadlineRow

BARS: Mapping[str, Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    (Path(__file__).parents[1] / "published" / "bars.toml").read_text(encoding="utf-8")
)
"""By study and figure: its `bar`, and where it is missed the most that it may be off, `miss`, and the `cause`."""


def broken(rows: Iterable[HeadlineRow], bars: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong, a sentence for each figure; empty if all is as declared.

    A published figure without a bar, a bar without a figure, and a miss that is none are wrong.
    """
    found = {row.id: row for row in rows}
    wrong = [f"{id_}: there is a bar, but no figure" for id_ in sorted(set(bars) - set(found))]
    for id_, row in found.items():
        if id_ in bars:
            wrong += _off(row, **bars[id_])
        elif row.published is not None:
            wrong.append(f"{id_}: it is published, but has no bar")
    return wrong


def _off(row: HeadlineRow, bar: float, miss: float | None = None, cause: str = "") -> list[str]:
    if row.difference is None:
        return [f"{row.id}: there is a bar, but nothing published beside the figure"]
    off = f"{row.id}: {row.weft:.4g} is {row.difference:+.4g} off"
    if abs(row.difference) <= bar:
        return [] if miss is None else [f"{off} and meets the bar, {bar:.4g}; take away its miss"]
    if miss is None:
        return [f"{off}, the bar is {bar:.4g}"]
    missed_so = 0 < row.difference <= miss or miss <= row.difference < 0
    return [] if missed_so else [f"{off}, where at most {miss:+.4g} was known; docs/deviations.md#{cause}"]
