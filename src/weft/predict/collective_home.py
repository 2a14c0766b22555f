"""Where a profile is at home: the machines of the GPUs that it was fitted on, against which other machines are scaled.

A profile states rates as shares of the link figure. That carries what the links bound over to other links, and not what
they do not: local copies go through a GPU's own memory, however slow its links are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import switch_rate
from weft.errors import UnknownNameError
from weft.hardware.libraries import Profile


def home_figure(ranks: int, fabric: Fabric, profile: Profile) -> float:
    """The library's figure per GPU among as many ranks of the profile's own machine [bytes/s]; a mean's is a mean."""
    return _mean([home.figure(_within(ranks, home)) for home in _homes(profile)]) or fabric.figure(ranks)


def home_pair_figure(ranks: int, fabric: Fabric, profile: Profile) -> float:
    """The same when every GPU sends to all others at once [bytes/s]."""
    figures = [home.pair_figure(_within(ranks, home)) for home in _homes(profile)]
    return _mean(figures) or fabric.pair_figure(ranks)


def switch_limit(ranks: int, fabric: Fabric, profile: Profile) -> float:
    """The rate per GPU and direction at most when the switch reduces [bytes/s]; 0 where none does.

    The library's search rounds to whole rings, which is right where the profile was fitted, and elsewhere only for what
    it chooses: the rate scales with the links.
    """
    if not fabric.multicast:
        return 0.0
    homes = [home for home in _homes(profile) if home.multicast]
    shares = [switch_rate(n, home) / home.figure(n) for home in homes if (n := _within(ranks, home))]
    return _mean(shares) * fabric.figure(ranks) if shares else switch_rate(ranks, fabric)


def _within(ranks: int, home: Fabric) -> int:
    return min(ranks, home.gpus_per_node)


def _mean(values: Sequence[float]) -> float:
    return math.prod(values) ** (1 / len(values)) if values else 0.0


def _homes(profile: Profile) -> tuple[Fabric, ...]:
    return _fabrics(profile.fitted_on)


@cache
def _fabrics(gpus: tuple[str, ...]) -> tuple[Fabric, ...]:
    found = []
    for gpu in gpus:
        try:
            found.append(fabric_of(gpu))
        except UnknownNameError:  # a user's own profile may name a GPU that the catalogue does not have
            continue
    return tuple(found)
