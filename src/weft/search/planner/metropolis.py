"""A random walk over configurations, after FlexFlow (arXiv:1807.05358): what a search without structure finds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.errors import InputError, check_whole


@dataclass(frozen=True)
class Walk:
    """The best configuration that the walks found, its cost, and how they went.

    `accepted` is the share of proposals that were taken, `evaluations` counts costs, `ends` are the best costs of each
    start.
    """

    best: tuple[int, ...]
    cost: float
    accepted: float
    evaluations: int
    ends: tuple[float, ...]

    def distance(self, optimum: float) -> float:
        """How much more than the optimum the best costs, as a share of it."""
        return self.cost / optimum - 1


def metropolis(
    cost: Callable[[Sequence[int]], float],
    choices: Sequence[int],
    *,
    starts: int = 4,
    steps: int = 1000,
    temperature: float = 0.01,
    seed: int = 0,
) -> Walk:
    """Walk from several random configurations, taking worse ones with probability exp(-increase / temperature).

    A configuration picks one of so many `choices` at each place; a step proposes another choice at one place. The
    temperature is a share of the walk's present cost (assumed; 0.001 to 0.1 are sensible). An infinite cost marks what
    cannot be; walks that start there take anything. The same seed gives the same walks. O(starts x steps) costs. Raises
    InputError for places without a choice.

    >>> metropolis(lambda chosen: 1 + sum(chosen), [3, 3]).cost
    1
    """
    for name, value in (("starts", starts), ("steps", steps)):
        check_whole(name, value, 1, 4)
    if not choices or min(choices) < 1:
        raise InputError("a place has no choice; give at least one place, with at least one choice each")
    if temperature <= 0:
        raise InputError(f"temperature is {temperature:g}; give a share above 0, such as 0.01")
    walks = [_walk(cost, choices, steps, temperature, random.Random(seed + start)) for start in range(starts)]
    best = min(walks, key=lambda walk: walk[1])
    taken = sum(walk[2] for walk in walks)
    return Walk(best[0], best[1], taken / (starts * steps), starts * (steps + 1), tuple(walk[1] for walk in walks))


def _walk(
    cost: Callable[[Sequence[int]], float], choices: Sequence[int], steps: int, temperature: float, draw: random.Random
) -> tuple[tuple[int, ...], float, int]:
    """The best configuration of one walk, its cost, and how many proposals were taken."""
    now = [draw.randrange(count) for count in choices]
    here = cost(now)
    best, least, taken = tuple(now), here, 0
    for _ in range(steps):
        place = draw.randrange(len(choices))
        before, now[place] = now[place], draw.randrange(choices[place])
        there = cost(now)
        if there <= here or draw.random() < math.exp((here - there) / (temperature * here)):
            here, taken = there, taken + 1
            if here < least:
                best, least = tuple(now), here
        else:
            now[place] = before
    return best, least, taken
