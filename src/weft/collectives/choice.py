"""Which algorithm and protocol carry out a collective, in the words in which a user asks for one: "ring-ll128"."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import ONE_STEP, Algorithm, Protocol, canonical, choose, estimates
from weft.errors import InputError, UnknownNameError, join_or
from weft.hardware.finding import SystemMatch
from weft.hardware.libraries import Profile, profile_for

Way = tuple[Algorithm, Protocol]
_SWITCHED = (Algorithm.NVLS, Algorithm.NVLS_TREE)


def profile_of(system: SystemMatch) -> Profile:
    """The profile of the library that a system usually runs."""
    fabric = fabric_of(system)
    return profile_for(fabric.gpu, fabric.architecture, "rccl" if fabric.vendor == "amd" else "nccl")


def taken(
    name: str,
    bytes: npt.ArrayLike,
    ranks: int,
    system: SystemMatch,
    profile: Profile,
    *,
    algorithm: str | None = None,
    nodes: int | None = None,
) -> list[str]:
    """The way of each size [bytes, of the whole buffer] by name: the library's own choice, or the one asked for.

    Raises as `check_way` for an `algorithm` that cannot be.
    """
    size, across = np.atleast_1d(np.asarray(bytes, dtype=np.float64)), _across(system, ranks, nodes)
    version = profile.version if profile.library == "nccl" else ""
    first, second = (None, None)
    if algorithm not in (None, "auto"):
        first, second = check_way(str(algorithm), name, ranks, system, profile, nodes=nodes)
    one_step = first in (None, Algorithm.DIRECT)
    chosen = choose(name, size, ranks, fabric_of(system), nodes=across, one_step=one_step, version=version)
    return [
        way_name(
            Algorithm(int(own)) if first is None else first,
            Protocol(int(flags)) if second is None else second,
        )
        for own, flags in zip(*chosen, strict=True)
    ]


def way_name(algorithm: Algorithm, protocol: Protocol) -> str:
    """What a user calls it, such as "ring-ll128"; a switch that reduces has no protocol to choose."""
    name = algorithm.name.lower().replace("_", "-")
    return name if algorithm in _SWITCHED else f"{name}-{protocol.name.lower()}"


def check_way(
    wanted: str, name: str, ranks: int, system: SystemMatch, profile: Profile, *, nodes: int | None = None
) -> tuple[Algorithm, Protocol | None]:
    """The algorithm that is meant by "nvls" or "ring-ll128", and the protocol if it is named.

    Raises UnknownNameError for a name that there is not, InputError for one that the system cannot take.
    """
    algorithm, protocol = _parsed(wanted)
    fabric, across = fabric_of(system), _across(system, ranks, nodes)
    possible = _possible(canonical(name), ranks, across, fabric, profile)
    if algorithm not in {way[0] for way in possible}:
        names = [own.name.lower().replace("_", "-") for own in dict.fromkeys(way[0] for way in possible)]
        raise InputError(f"{_reason(algorithm, name, across, system, fabric)}; choose {join_or(names)}")
    protocols = [way[1] for way in possible if way[0] is algorithm]
    if protocol is not None and protocol not in protocols:
        names = [way_name(algorithm, own) for own in protocols]
        raise InputError(f"{system.name} has no '{wanted}'; choose {join_or(names)}")
    return algorithm, protocol


def _parsed(wanted: str) -> tuple[Algorithm, Protocol | None]:
    text = wanted.upper().replace("-", "_")
    if text in Algorithm.__members__:
        return Algorithm[text], None
    first, _, second = text.rpartition("_")
    if first not in Algorithm.__members__:
        known = ["auto", *(own.name.lower().replace("_", "-") for own in Algorithm)]
        raise UnknownNameError("algorithm", wanted, known)
    if second not in Protocol.__members__:
        raise UnknownNameError("protocol", second.lower(), [own.name.lower() for own in Protocol])
    return Algorithm[first], Protocol[second]


def _across(system: SystemMatch, ranks: int, nodes: int | None) -> int:
    if nodes is not None:
        return nodes
    return system.nodes if system.gpus == ranks else -(-ranks // system.machine.gpus_per_node)


def _possible(name: str, ranks: int, nodes: int, fabric: Fabric, profile: Profile) -> list[Way]:
    """What the library weighs, and what it takes where conditions of its own are met."""
    if name in ("all_to_all", "send_recv"):
        ways = [(Algorithm.PAIRWISE, Protocol.LL), (Algorithm.PAIRWISE, Protocol.SIMPLE)]
    else:
        ways = estimates(name, 1.0, ranks, fabric, nodes=nodes)[0]
    known = name == "all_reduce" or fabric.vendor == "amd"  # NCCL has no kernels of one step to all peers
    if known and name in ONE_STEP and nodes == 1 and fabric.topology == "mesh":
        ways += [(Algorithm.DIRECT, Protocol.LL), (Algorithm.DIRECT, Protocol.SIMPLE)]
    if name == "all_reduce" and nodes == 1 and "oneshot.launch" in profile.values:
        ways.append((Algorithm.ONESHOT, Protocol.SIMPLE))
    return ways


def _reason(algorithm: Algorithm, name: str, nodes: int, system: SystemMatch, fabric: Fabric) -> str:
    if algorithm in _SWITCHED and not fabric.multicast:
        return f"{system.name} has no switch that reduces"
    wanted = algorithm.name.lower().replace("_", "-")
    where = f"on {nodes} nodes of {system.name}" if nodes > 1 else f"on {system.name}"
    return f"'{wanted}' carries out no {name} {where}"
