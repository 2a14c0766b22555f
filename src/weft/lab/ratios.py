"""How far ratios of two measured times are off their prediction: pairs of rows that differ in one thing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from weft.lab.tables import FloatArray

TAIL = 0.1
"""Share of rows below an 80 % interval, and above it."""
FEWEST = 8
"""Pairs from which a change has an interval of its own."""
Pairs = tuple[Any, Any, FloatArray]
"""Positions of both rows of each pair, and ln of the measured / predicted ratio."""


def upper(values: FloatArray, tail: float) -> float:
    """Return the value that the next one exceeds with a probability of at most `tail`, as n + 1 are alike."""
    ordered, count = np.sort(values), len(values)
    return float(ordered[min(math.ceil((1 - tail) * (count + 1)), count) - 1])


def groups(rows: pd.DataFrame, names: Sequence[str]) -> Any:
    """Return one text for each row from some of its columns."""
    return np.array(["|".join(map(str, row)) for row in rows[[*names]].to_numpy()])


def pairs(
    rows: pd.DataFrame, changes: Sequence[str], same: Sequence[str], along: Mapping[str, Collection[str]]
) -> Iterator[tuple[str, int, int]]:
    """Yield what two rows differ in, one of the columns `changes`, and their positions.

    All other changes and the columns `same` are equal, but for those that differ `along` with a change.
    """
    for change in changes:
        texts = groups(
            rows, [name for name in (*same, *changes) if name != change and name not in along.get(change, ())]
        )
        own = rows[change].astype(str).to_numpy()
        for at in pd.Series(texts).groupby(texts).indices.values():
            for one, two in combinations(at.tolist(), 2):
                if own[one] != own[two]:
                    yield change, one, two


def by_change(residual: FloatArray, found: Iterator[tuple[str, int, int]], fewest: int = FEWEST) -> dict[str, Pairs]:
    """Return the pairs of each change that has at least `fewest`, by the rows' ln(measured / predicted)."""
    each: dict[str, list[tuple[int, int]]] = {}
    for change, one, two in found:
        each.setdefault(change, []).append((one, two))
    both = {change: np.array(of).T for change, of in each.items() if len(of) >= fewest}
    return {change: (first, second, residual[first] - residual[second]) for change, (first, second) in both.items()}


def half_width(of: Pairs, change: FloatArray | None = None) -> list[float]:
    """Return half the 80 % interval of ln of the ratio, relative to `change` where that is given; pairs; and rows.

    Of a pair either may come first, so that the interval is symmetric.
    """
    first, second, off = of
    scaled = np.abs(off) if change is None else np.abs(off) / change
    return [round(upper(scaled, 2 * TAIL), 3), len(off), len({*first.tolist(), *second.tolist()})]


def calls(predicted: FloatArray, work: Any, of: Pairs, change: FloatArray | None = None) -> list[int]:
    """Return numbers of pairs: all, called by the interval, called rightly, and inside it.

    `predicted` times are of all rows. The half width is that of pairs that share no `work` with the pair; where
    `change` is given, the same share of it.
    """
    first, second, off = of
    scale, logs = np.ones(len(off)) if change is None else change, np.log(predicted)
    said, counts, mine = logs[first] - logs[second], [0, 0, 0], (work[first], work[second])
    widths: dict[tuple[str, str], float] = {}
    for at, key in enumerate(zip(*mine, strict=True)):
        if key not in widths:
            apart = ~(np.isin(mine[0], key) | np.isin(mine[1], key))
            some = apart if apart.any() else np.ones(len(off), np.bool_)
            widths[key] = upper((np.abs(off) / scale)[some], 2 * TAIL)
        width = widths[key] * scale[at]
        is_called = abs(said[at]) > width
        counts[0] += int(is_called)
        counts[1] += int(is_called and said[at] * (said[at] + off[at]) > 0)
        counts[2] += int(abs(off[at]) <= width)
    return [len(off), *counts]
