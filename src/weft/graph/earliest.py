"""When tasks run whose order is known: each as soon as all that it needs has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


def earliest(
    order: Iterable[int],
    needs: Sequence[Iterable[tuple[int, Any]]],
    took: Sequence[Any],
    least: Sequence[Any],
    later: Callable[[Any, Any], Any] = max,
) -> tuple[list[Any], list[Any]]:
    """Earliest start and end of every task [s], by its number.

    `order` lists every task after those that it `needs`, each of which ends some delay before it [s]. A task takes
    `took` and begins no sooner than `least`; one that is not listed keeps `least`. Times may be arrays of one shape if
    `later` answers the later of two.

    >>> earliest([0, 1, 2], [[], [(0, 0.5)], [(0, 0.0), (1, 0.0)]], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    ([0.0, 1.5, 3.5], [1.0, 3.5, 6.5])
    """
    start, end = list(least), list(least)
    for task in order:
        begin = least[task]
        for source, delay in needs[task]:
            begin = later(begin, end[source] + delay)
        start[task], end[task] = begin, begin + took[task]
    return start, end
