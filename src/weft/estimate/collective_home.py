"""Where a profile is at home: the machines of the GPUs that it was fitted on, against which other machines are scaled.

A profile states rates as shares of the link figure. That carries what the links bound over to other links, and not what
they do not: local copies go through a GPU's own memory, however slow its links are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from weft.errors import UnknownNameError
from weft.hardware import system
from weft.library.collectives import Protocol, ll128_rate, step_ratio, switch_rate
from weft.library.interconnect import Interconnect, interconnect
from weft.library.profiles import Profile

_STEPS = {"ll_step": Protocol.LL, "ll128_step": Protocol.LL128, "simple_step": Protocol.SIMPLE}
_MEASURED_RANKS = 8
"""The most ranks of which LL128 was measured inside one node."""


def home_figure(ranks: int, fabric: Interconnect, profile: Profile, *, paired: bool) -> float:
    """The library's figure per GPU among as many ranks of the profile's own machine [bytes/s]; a mean's is a mean."""
    homes = _homes(profile, fabric)
    return _mean([home.figure(_within(ranks, home), paired) for home in homes]) or fabric.figure(ranks, paired)


def switch_limit(ranks: int, fabric: Interconnect, profile: Profile) -> float:
    """The rate per GPU and direction at most when the switch reduces [bytes/s]; 0 where none does.

    The library's search rounds to whole rings, which is right where the profile was fitted, and elsewhere only for what
    it chooses: the rate scales with the links.
    """
    if not fabric.multicast:
        return 0.0
    homes = [home for home in _homes(profile, fabric) if home.multicast]
    shares = [switch_rate(n, home) / home.figure(n) for home in homes if (n := _within(ranks, home))]
    return _mean(shares) * fabric.figure(ranks) if shares else switch_rate(ranks, fabric)


def over_links(profile: Profile, fabric: Interconnect) -> Profile:
    """The profile with the hops of this kind of link: over PCIe longer by the ratio of the library's own constants."""
    if any(home.topology == fabric.topology for home in _homes(profile)):
        return profile
    ratios = {step: step_ratio(protocol, fabric) for step, protocol in _STEPS.items()}
    values = {path: value * ratios.get(path.rpartition(".")[2], 1.0) for path, value in profile.values.items()}
    return replace(profile, values=values)


def ll128_share(ranks: int, profile: Profile) -> float:
    """The rate of a ring with LL128 as a share of the library's figure: as fitted, up to the ranks of the fit.

    The library takes LL128 for few sizes, on Blackwell for a single one of 2 MiB per rank, where it is slow. Beyond the
    ranks that were measured it counts as no slower than the library expects: an extrapolation.
    """
    fitted = profile.value("ring.ll128_efficiency")
    if ranks <= _MEASURED_RANKS:
        return fitted
    counted = [ll128_rate(n, home) / home.figure(n) for home in _homes(profile) if (n := _within(ranks, home))]
    return max(fitted, _mean(counted))


def _within(ranks: int, home: Interconnect) -> int:
    return min(ranks, home.gpus_per_node)


def _mean(values: Sequence[float]) -> float:
    return math.prod(values) ** (1 / len(values)) if values else 0.0


def _homes(profile: Profile, fabric: Interconnect | None = None) -> tuple[Interconnect, ...]:
    """The machines that the profile's GPUs are usually sold in; `fabric` itself if it is one, of whatever size."""
    found = _fabrics(profile.fitted_on)
    return tuple(
        fabric if fabric and (fabric.gpu.name, fabric.topology) == (home.gpu.name, home.topology) else home
        for home in found
    )


@cache
def _fabrics(gpus: tuple[str, ...]) -> tuple[Interconnect, ...]:
    found = []
    for gpu in gpus:
        try:
            found.append(interconnect(system(gpu)))
        except UnknownNameError:  # a user's own profile may name a GPU that the catalogue does not have
            continue
    return tuple(found)
