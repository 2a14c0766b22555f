"""The classic costs of collectives: latencies alpha, bytes beta and reductions gamma, for teaching and as bounds.

p ranks, n bytes: the whole vector of a broadcast, reduce or all-reduce, the gathered or scattered whole of the others,
and what one rank sends in all in an all-to-all. Formulas after Chan, Heimlich, Purkayastha and van de Geijn (CCPE
19(13), 2007) and Thakur, Rabenseifner and Gropp (IJHPCA 19(1), 2005), as MPICH states them in src/mpi/coll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log2, sqrt

from weft.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Counts:
    """How often a cost holds each of the three: messages one after the other, bytes sent, bytes reduced."""

    messages: float
    sent: float
    reduced: float = 0.0

    def seconds(self, alpha: float, beta: float, gamma: float = 0.0) -> float:
        """The cost with a latency `alpha` [s], `beta` [s per byte] and `gamma` [s per reduced byte]."""
        return self.messages * alpha + self.sent * beta + self.reduced * gamma


@dataclass(frozen=True)
class Family:
    """One algorithm of one collective: its formula as text, and its counts for p ranks and n bytes."""

    collective: str
    name: str
    formula: str
    counts: Callable[[int, float], Counts]
    powers_only: bool = False


def _lg(p: int) -> int:
    return ceil(log2(p))


def _share(p: int, n: float) -> float:
    return (p - 1) / p * n


def _rabenseifner(p: int, n: float) -> Counts:
    if p == 2 ** _lg(p):
        return Counts(2 * _lg(p), 2 * _share(p, n), _share(p, n))
    return Counts(2 * floor(log2(p)) + 2, 2 * _share(p, n) + 2 * n, n + _share(p, n))


_ALL = (
    Family("broadcast", "tree", "ceil(lg p) (alpha + n beta)", lambda p, n: Counts(_lg(p), _lg(p) * n)),
    Family(
        "broadcast",
        "scatter + ring all-gather",
        "(ceil(lg p) + p - 1) alpha + 2 (p-1)/p n beta",
        lambda p, n: Counts(_lg(p) + p - 1, 2 * _share(p, n)),
    ),
    Family(
        "broadcast",
        "scatter + recursive doubling",
        "2 lg p alpha + 2 (p-1)/p n beta",
        lambda p, n: Counts(2 * _lg(p), 2 * _share(p, n)),
        powers_only=True,
    ),
    Family(
        "reduce",
        "tree",
        "ceil(lg p) (alpha + n beta + n gamma)",
        lambda p, n: Counts(_lg(p), _lg(p) * n, _lg(p) * n),
    ),
    Family(
        "reduce",
        "reduce-scatter + gather",
        "2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma",
        lambda p, n: Counts(2 * _lg(p), 2 * _share(p, n), _share(p, n)),
        powers_only=True,
    ),
    Family("scatter", "tree", "ceil(lg p) alpha + (p-1)/p n beta", lambda p, n: Counts(_lg(p), _share(p, n))),
    Family("scatter", "direct", "(p-1) alpha + (p-1)/p n beta", lambda p, n: Counts(p - 1, _share(p, n))),
    Family("gather", "tree", "ceil(lg p) alpha + (p-1)/p n beta", lambda p, n: Counts(_lg(p), _share(p, n))),
    Family("gather", "direct", "(p-1) alpha + (p-1)/p n beta", lambda p, n: Counts(p - 1, _share(p, n))),
    Family(
        "all_gather",
        "recursive doubling",
        "lg p alpha + (p-1)/p n beta",
        lambda p, n: Counts(_lg(p), _share(p, n)),
        powers_only=True,
    ),
    Family(
        "all_gather", "Bruck", "ceil(lg p) alpha + (p-1)/p n beta", lambda p, n: Counts(_lg(p), _share(p, n))
    ),
    Family("all_gather", "ring", "(p-1) alpha + (p-1)/p n beta", lambda p, n: Counts(p - 1, _share(p, n))),
    Family(
        "reduce_scatter",
        "recursive halving",
        "lg p alpha + (p-1)/p n (beta + gamma)",
        lambda p, n: Counts(_lg(p), _share(p, n), _share(p, n)),
        powers_only=True,
    ),
    Family(
        "reduce_scatter",
        "ring",
        "(p-1) alpha + (p-1)/p n (beta + gamma)",
        lambda p, n: Counts(p - 1, _share(p, n), _share(p, n)),
    ),
    Family(
        "reduce_scatter",
        "pairwise",
        "(p-1) alpha + (p-1)/p n (beta + gamma)",
        lambda p, n: Counts(p - 1, _share(p, n), _share(p, n)),
    ),
    Family(
        "reduce_scatter",
        "recursive doubling",
        "lg p alpha + n (lg p - (p-1)/p) (beta + gamma)",
        lambda p, n: Counts(_lg(p), n * _lg(p) - _share(p, n), n * _lg(p) - _share(p, n)),
        powers_only=True,
    ),
    Family(
        "all_reduce",
        "recursive doubling",
        "lg p (alpha + n beta + n gamma)",
        lambda p, n: Counts(_lg(p), _lg(p) * n, _lg(p) * n),
        powers_only=True,
    ),
    Family(
        "all_reduce",
        "Rabenseifner",
        "2 lg p alpha + 2 (p-1)/p n beta + (p-1)/p n gamma; else (2 floor(lg p) + 2) alpha "
        "+ (2 (p-1)/p + 2) n beta + (1 + (p-1)/p) n gamma",
        _rabenseifner,
    ),
    Family(
        "all_reduce",
        "ring",
        "2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma",
        lambda p, n: Counts(2 * (p - 1), 2 * _share(p, n), _share(p, n)),
    ),
    Family(
        "all_reduce",
        "tree",
        "2 ceil(lg p) alpha + ceil(lg p) n (2 beta + gamma)",
        lambda p, n: Counts(2 * _lg(p), 2 * _lg(p) * n, _lg(p) * n),
    ),
    Family(
        "all_reduce",
        "one-shot",
        "alpha + (p-1) n (beta + gamma)",
        lambda p, n: Counts(1, (p - 1) * n, (p - 1) * n),
    ),
    Family(
        "all_reduce",
        "two-shot",
        "2 alpha + 2 (p-1)/p n beta + (p-1)/p n gamma",
        lambda p, n: Counts(2, 2 * _share(p, n), _share(p, n)),
    ),
    Family(
        "all_to_all",
        "Bruck",
        "ceil(lg p) alpha + (n/2) lg p beta",
        lambda p, n: Counts(_lg(p), n / 2 * log2(p)),
        powers_only=True,
    ),
    Family(
        "all_to_all", "pairwise", "(p-1) alpha + (p-1)/p n beta", lambda p, n: Counts(p - 1, _share(p, n))
    ),
)

FAMILIES: Mapping[tuple[str, str], Family] = {(family.collective, family.name): family for family in _ALL}
"""Every algorithm by collective and name; all pass one message at a time over a link that takes one."""


def cost(collective: str, algorithm: str, p: int, n: float) -> Counts:
    """What an algorithm counts for `p` ranks and `n` bytes.

    Raises UnknownNameError for an unknown collective or algorithm, InputError for a number of ranks that it cannot
    serve.
    """
    known = [family.name for family in _ALL if family.collective == collective]
    if not known:
        raise UnknownNameError("collective", collective, sorted({family.collective for family in _ALL}))
    if algorithm not in known:
        raise UnknownNameError(f"{collective} algorithm", algorithm, known)
    _check(p, n)
    family = FAMILIES[collective, algorithm]
    if family.powers_only and p != 2 ** _lg(p):
        raise InputError(f"{algorithm} needs a power of two of ranks, not {p}; take 'ring' or a power of two")
    return family.counts(p, n)


def pipelined_chain(p: int, n: float, segments: int) -> Counts:
    """A broadcast along a chain in `segments` pieces: (p - 2 + m) (alpha + n/m beta)."""
    _check(p, n)
    rounds = p - 2 + segments
    return Counts(rounds, rounds * n / segments)


def best_segments(p: int, n: float, alpha: float, beta: float) -> int:
    """How many pieces make a pipelined chain fastest: sqrt((p - 2) n beta / alpha), at least one."""
    _check(p, n)
    return max(1, round(sqrt((p - 2) * n * beta / alpha)))


def hierarchical_all_reduce(groups: int, each: int, n: float) -> tuple[Counts, Counts]:
    """Reduce-scatter in groups of `each`, all-reduce of a share between `groups`, all-gather.

    The counts within the groups, and those between them.
    """
    within = Counts(2 * (each - 1), 2 * _share(each, n), _share(each, n))
    between = Counts(2 * (groups - 1), 2 * _share(groups, n / each), _share(groups, n / each))
    return within, between


def lower_bound(collective: str, p: int, n: float) -> Counts:
    """The least of each that any algorithm needs (Chan et al. 2007); no algorithm need reach all three at once.

    Raises UnknownNameError for an unknown collective.
    """
    _check(p, n)
    share = _share(p, n)
    bounds = {
        "broadcast": Counts(_lg(p), n),
        "reduce": Counts(_lg(p), n, share),
        "scatter": Counts(_lg(p), share),
        "gather": Counts(_lg(p), share),
        "all_gather": Counts(_lg(p), share),
        "reduce_scatter": Counts(_lg(p), share, share),
        "all_reduce": Counts(_lg(p), 2 * share, share),
        "all_to_all": Counts(_lg(p), share),
    }
    if collective not in bounds:
        raise UnknownNameError("collective", collective, list(bounds))
    return bounds[collective]


def _check(p: int, n: float) -> None:
    if p < 2:
        raise InputError(f"a collective needs at least 2 ranks, not {p}; give more ranks")
    if not n > 0:
        raise InputError(f"a collective of {n:g} bytes costs nothing; give a size above zero")
