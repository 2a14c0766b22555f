"""Which tokens of a mixture of experts (MoE) go to which experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_type, check_whole, show_value

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Loads = float | tuple[float, ...]
"""Tokens by expert: the exponent of a power law, or relative numbers, one for each expert (none: even loads)."""
MOST_EXPERTS = 4096
"""Most experts of a layer."""


@dataclass(frozen=True)
class Routing:
    """`tokens` on each of `ranks` GPUs; each token goes to `top_k` of `experts` experts, dealt evenly to the GPUs.

    `loads` are relative numbers of tokens by expert (none: even loads); every GPU's tokens follow them. An expert gets
    a token at most once, so that none gets more than all tokens. `reach` is the number of GPUs on which a token's
    experts lie where loads are even, as under group-limited routing (0: as many as `top_k`, if there are so many GPUs).
    Raises InputError for numbers that contradict each other.

    >>> Routing(tokens=4, top_k=2, experts=4, ranks=2, loads=(3, 2, 2, 1)).counts.tolist()
    [3, 2, 2, 1]
    """

    tokens: int
    top_k: int
    experts: int
    ranks: int
    loads: tuple[float, ...] = ()
    reach: int = 0

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("top_k", 1), ("experts", 1), ("ranks", 1)):
            check_whole(f"{name} of a routing", getattr(self, name), least, 8)
        if self.top_k > self.experts:
            raise InputError(f"top_k is {self.top_k}, but there are only {self.experts} experts; give at most as many")
        if self.experts % self.ranks or self.experts > MOST_EXPERTS:
            raise InputError(
                f"{self.experts} experts cannot be dealt evenly to {self.ranks} GPUs; give a multiple of {self.ranks}, "
                f"up to {MOST_EXPERTS}"
            )
        check_whole("the reach of a routing", self.reach, 0, 4)
        most = min(self.top_k, self.ranks)
        if self.reach > most or 0 < self.reach * self.experts_per_rank < self.top_k:
            raise InputError(
                f"a token that goes to {self.top_k} of {self.experts} experts on {self.ranks} GPUs cannot reach "
                f"{self.reach} of these; give {-(-self.top_k // self.experts_per_rank)} to {most}, or 0"
            )
        check_type("the loads of experts", self.loads, tuple, "give a tuple of numbers, one for each expert")
        if self.loads and len(self.loads) != self.experts:
            raise InputError(
                f"there are {len(self.loads)} loads for {self.experts} experts; give one for each, or none"
            )
        check_loads(self.loads)
        if self.loads and sum(load > 0 for load in self.loads) < self.top_k:
            raise InputError(
                f"fewer than {self.top_k} experts have a load above zero, but each token goes to {self.top_k}; give "
                "more of them a load"
            )

    @classmethod
    def by_power_law(
        cls, tokens: int, top_k: int, experts: int, ranks: int, exponent: float, reach: int = 0
    ) -> Routing:
        """The expert at place p of the order of loads has a load of p ** -`exponent`; places are dealt to the GPUs.

        Loads drawn from a density x ** -1.01 to x ** -1.2, as ai-dynamo/aiconfigurator's POWER_LAW_DISTRIBUTION.md
        measured them, have exponents of about 0.5 to 0.6 here. Raises InputError for an exponent below zero.
        """
        even = cls(tokens, top_k, experts, ranks, reach=reach)
        given: object = exponent
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if not is_number or not 0 <= exponent < math.inf:
            raise InputError(f"the exponent of the loads is {show_value(given)}; give a number from zero on, like 1.1")
        expert = np.arange(experts)
        place = 1 + expert % even.experts_per_rank * ranks + expert // even.experts_per_rank
        loads = tuple((place ** -float(exponent)).tolist())
        return cls(tokens, top_k, experts, ranks, loads, reach)

    @classmethod
    def under(cls, loads: Loads, tokens: int, top_k: int, experts: int, ranks: int, reach: int = 0) -> Routing:
        """Return the routing under such loads: a power law of `by_power_law`, or numbers."""
        if isinstance(loads, tuple):
            return cls(tokens, top_k, experts, ranks, loads, reach)
        return cls.by_power_law(tokens, top_k, experts, ranks, loads, reach)

    @property
    def experts_per_rank(self) -> int:
        """The experts on each GPU."""
        return self.experts // self.ranks

    @property
    def rows(self) -> int:
        """The rows that a GPU sends to experts, those on itself included: `top_k` for each token."""
        return self.tokens * self.top_k

    @cached_property
    def expected_rows(self) -> Floats:
        """The rows that each GPU sends to every expert, expected, not rounded to whole ones."""
        loads = np.asarray(self.loads or (1.0,) * self.experts)
        share = np.zeros(self.experts)
        open_ = loads > 0
        for _ in range(self.experts):  # what exceeds an expert's most goes to the others, of which each round fills one
            if not open_.any() or share.sum() >= self.rows - 1e-6:
                break
            wanted = loads[open_] / loads[open_].max()  # their sum may exceed the largest number
            share[open_] += wanted / wanted.sum() * (self.rows - share.sum())
            share, open_ = np.minimum(share, self.tokens), open_ & (share < self.tokens)
        return share

    def choice_probability(self, tokens: int) -> Floats:
        """Return by expert the probability that any of `tokens` tokens chooses it, each token by the loads alone."""
        found: Floats = 1.0 - (1.0 - self.expected_rows / self.tokens) ** tokens
        return found

    @cached_property
    def counts(self) -> Counts:
        """The rows that each GPU sends to every expert."""
        share = self.expected_rows
        found = np.floor(share + 1e-9).astype(np.int64)
        left = self.rows - int(found.sum())
        order = np.lexsort((np.arange(self.experts), found - share, found >= self.tokens))
        found[order[:left]] += 1
        return found

    @property
    def even(self) -> bool:
        """Whether all experts get as many tokens, so that all GPUs do the same."""
        return len(set(self.counts.tolist())) == 1

    def first_rows(self, rank: int) -> Counts:
        """The row of a GPU's list at which the rows of every expert begin: in the order of GPUs from its own on.

        Where a token's experts lie on fewer GPUs than it has experts, neighbouring GPUs share bands of the list, so
        that rows a number of tokens apart are of one GPU.
        """
        expert = np.arange(self.experts)
        distance, place = (expert // self.experts_per_rank - rank) % self.ranks, expert % self.experts_per_rank
        order = np.lexsort((place, distance, self._layer(distance, place), self._bands[distance]))
        first = np.zeros(self.experts, dtype=np.int64)
        first[order] = np.cumsum(self.counts[order]) - self.counts[order]
        return first

    @cached_property
    def _bands(self) -> Counts:
        """The band of the GPU at every distance: as many bands as a token reaches GPUs, of nearly equal size."""
        bands = self.reach or self.ranks
        return np.arange(self.ranks) * bands // self.ranks

    def _layer(self, distance: Counts, place: Counts) -> Counts:
        """Return the layer of its band, a pass over the tokens, of the expert at `place` on the GPU at `distance`."""
        wide = np.bincount(self._bands)[self._bands[distance]]
        layers = np.maximum(np.round(wide * self.top_k / self.ranks).astype(np.int64), 1)
        return place * layers // self.experts_per_rank

    def token_of(self, rows: Counts) -> Counts:
        """Return the token of each row of a GPU's list: row i holds token i modulo the number of tokens.

        The rows of an expert follow each other and are at most as many as there are tokens, so that no expert gets a
        token twice.
        """
        return np.asarray(rows) % self.tokens

    def sent_tokens(self, rank: int, to: int) -> list[tuple[int, int]]:
        """The tokens of a GPU that have an expert on GPU `to`, as runs: the first token, and how many there are."""
        wanted = np.zeros(self.tokens + 1, dtype=np.int64)
        first = self.first_rows(rank)
        for expert in range(to * self.experts_per_rank, (to + 1) * self.experts_per_rank):
            wanted[self.token_of(first[expert] + np.arange(self.counts[expert]))] = 1
        edges = np.flatnonzero(np.diff(wanted, prepend=0))
        return [(int(begin), int(end - begin)) for begin, end in zip(edges[::2], edges[1::2], strict=True)]

    @property
    def fullest(self) -> Counts:
        """The rows of the experts of the GPU that gets most, the first of several."""
        return max((self.received_rows(rank) for rank in range(self.ranks)), key=lambda rows: int(rows.sum()))

    @property
    def imbalance(self) -> float:
        """Rows of the busiest expert over the mean of all."""
        return float(self.counts.max() / self.counts.mean())

    def received_rows(self, rank: int) -> Counts:
        """Return the rows that the experts of a GPU get from all GPUs together, expert by expert."""
        own = slice(rank * self.experts_per_rank, (rank + 1) * self.experts_per_rank)
        return self.counts[own] * self.ranks


def count_reached(
    parts: npt.ArrayLike, experts: npt.ArrayLike, top_k: npt.ArrayLike, limit: tuple[int, int] | None = None
) -> Floats:
    """Of equal `parts` (ranks or nodes) that share the experts, how many a token reaches on average.

    parts x (1 - C(E - E / parts, k) / C(E, k)) for k different ones of E experts, each set equally likely; for many
    experts that is parts x (1 - (1 - 1 / parts)^k). Under a `limit` (4, 8) they are of 4 groups out of 8, each choice
    of groups equally likely: a part holds whole groups, or shares one with others.
    """
    places, count, each = np.broadcast_arrays(*(np.asarray(one, dtype=np.float64) for one in (parts, experts, top_k)))
    if limit is None or limit[0] >= limit[1]:
        return np.asarray(places * (1.0 - _miss_probability(count, count / places, each)))
    few, groups = limit
    near, inside = count * few / groups, count / groups
    if groups < places.max(initial=1):  # parts of a group
        return np.asarray(places * few / groups * (1.0 - _miss_probability(near, count / places, each)))
    own = max(round(groups / float(places.max(initial=1))), 1)
    ways = math.comb(groups, few)
    odds = [
        math.comb(own, chosen) * math.comb(groups - own, few - chosen) / ways for chosen in range(min(own, few) + 1)
    ]
    missed = sum(odd * _miss_probability(near, chosen * inside, each) for chosen, odd in enumerate(odds))
    return np.asarray(places * (1.0 - missed))


def _miss_probability(count: Floats, mine: Floats, each: Floats) -> Floats:
    """Return the probability that none of `each` different experts out of `count` is one of `mine`."""
    missed = np.ones(count.shape)
    for draw in range(int(each.max(initial=0))):
        left = np.clip((count - mine - draw) / np.maximum(count - draw, 1.0), 0.0, 1.0)
        missed = np.where(draw < each, missed * left, missed)
    return missed


def check_groups(top_k: int, experts: int, reach: int, groups: int) -> None:
    """Raise InputError for group-limited routing that cannot be: `reach` of `groups` groups hold a token's experts."""
    if experts % groups:
        raise InputError(f"{experts} experts cannot be in {groups} equal groups; give a divisor of {experts}")
    if reach > groups or reach * (experts // groups) < top_k:
        raise InputError(
            f"a token's {top_k} experts cannot be of {reach} out of {groups} groups of {experts // groups}; give "
            f"{-(-top_k * groups // experts)} to {groups}"
        )


def gpus_reached(reach: int, groups: int, ranks: int, top_k: int) -> int:
    """The GPUs on which a token's experts lie if they are of `reach` out of `groups` groups (0: as many as it has)."""
    few = -(-reach * ranks // groups) if groups else 0
    return few if few < min(top_k, ranks) else 0


def loads_of(text: str) -> Loads:
    """Parse loads of experts: "even", "power:1.1" (the exponent), or a number for each expert, "3,2,2,1"."""
    name, colon, exponent = text.partition(":")
    try:
        if text == "even":
            return ()
        return float(exponent) if colon and name == "power" else tuple(map(float, text.split(",")))
    except ValueError:
        raise InputError(
            f"{show_value(text)} are no loads; write even, power:1.1 or a number for each expert, like 3,2,2,1"
        ) from None


def check_loads(loads: Loads) -> None:
    """Raise InputError unless loads are finite numbers from zero on, or the exponent of a power law is one."""
    for load in loads if isinstance(loads, tuple) else (loads,):
        check_type("a load of an expert", load, (int, float), "give a number")
        if isinstance(load, bool) or not 0 <= load < math.inf:
            raise InputError(
                f"a load of an expert is {show_value(load)}; give finite numbers from zero on, or 'power:0.6'"
            )
