"""Simulated annealing over a tile search, beside random draws: how many kernels a tuner would measure.

Both look up the times of an exhaustive search, so that their evaluations are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, inf, prod
from random import Random
from statistics import median

from weft.errors import InputError, check_whole
from weft.tune.tiles import Tiles

HOT = 0.3
"""Temperature at which a walk begins: a candidate slower by this share is taken with probability 1/e [assumed]."""
COOLING = 0.97
"""Factor of the temperature after each evaluation [assumed]."""
STALL = 100
"""Moves in a row without a new best of the walk after which it begins elsewhere [assumed]."""


@dataclass(frozen=True)
class Searched:
    """Evaluations until a candidate within `within` of the best is found.

    `exhaustive` times all; `random` is the mean of draws without replacement; `annealed` the median of many walks.
    """

    within: float
    exhaustive: int
    random: float
    annealed: float


def searched(answer: Tiles, within: float = 0.01, starts: int = 20, seed: int = 0) -> Searched:
    """Compare random draws and annealing on the candidates of a tile search; the same seed gives the same walks.

    Of n candidates, s of them good enough, the first good one is drawn after (n + 1) / (s + 1) draws on average. Raises
    InputError for a negative share, and fewer than one start.
    """
    check_whole("starts", starts, 1, 20)
    if not 0 <= within < inf:
        raise InputError(f"within is {within:g}; it must be a share of at least 0, such as 0.01")
    count = len(answer.seconds)
    known = dict(zip(answer.places.tolist(), answer.seconds.tolist(), strict=True))
    goal = (1 + within) * answer.best.seconds
    walks = [_until(goal, known, answer.template.sizes, Random(f"{seed}, {start}")) for start in range(starts)]
    return Searched(within, count, (count + 1) / (answer.within(within) + 1), float(median(walks)))


def _until(goal: float, known: Mapping[int, float], sizes: tuple[int, ...], random: Random) -> int:
    """Candidates that walks from one start after the other evaluate until one takes at most `goal` [s]."""
    starts, seen = list(known), set[int]()
    while True:
        for at in _walk(random.choice(starts), known, sizes, random):
            seen.add(at)
            if known[at] <= goal:
                return len(seen)


def _walk(at: int, known: Mapping[int, float], sizes: tuple[int, ...], random: Random) -> Iterator[int]:
    """The candidates that one walk evaluates: its start, and each neighbour that it considers, taken or not."""
    yield at
    temperature, best, idle = HOT, known[at], 0
    while idle < STALL:
        near, idle = _neighbour(at, sizes, random), idle + 1
        if near not in known:
            continue
        yield near
        if known[near] < best:
            best, idle = known[near], 0
        slower = known[near] / known[at] - 1
        if slower <= 0 or random.random() < exp(-slower / temperature):
            at = near
        temperature *= COOLING


def _neighbour(place: int, sizes: tuple[int, ...], random: Random) -> int:
    """The position one value up or down on one knob; -1 beyond its values."""
    knob = random.randrange(len(sizes))
    turn, stride = random.choice((-1, 1)), prod(sizes[knob + 1 :])
    return place + turn * stride if 0 <= place // stride % sizes[knob] + turn < sizes[knob] else -1
