"""Which algorithm and protocol carry out a collective, in the words in which a user asks for one: "ring-ll128"."""

from __future__ import annotations

import numpy as np

from weft.errors import InputError, UnknownNameError, join_or
from weft.library.collectives import ONE_STEP, Algorithm, FloatArray, IntArray, Protocol, choose, estimates
from weft.library.interconnect import Interconnect
from weft.library.profiles import Profile

Way = tuple[Algorithm, Protocol]
_SWITCHED = (Algorithm.NVLS, Algorithm.NVLS_TREE)


def ways(
    name: str,
    size: FloatArray,
    ranks: int,
    fabric: Interconnect,
    profile: Profile,
    *,
    wanted: str = "auto",
    nodes: int = 1,
    floating: bool = True,
    version: str = "",
    place: str = "this system",
) -> tuple[IntArray, IntArray]:
    """The `Algorithm` and `Protocol` of each size [bytes, of the whole buffer]: the library's choice, or `wanted`.

    `wanted` is "auto", an algorithm such as "nvls", or one with its protocol such as "ring-ll128"; `version` the
    library's, if it is not the profile's; messages name the system `place`. Raises UnknownNameError for a name that
    there is not, InputError for a way that the system cannot take.
    """
    first, second = (None, None) if wanted == "auto" else _parsed(wanted)
    if first is not None:
        possible = _possible(name, ranks, nodes, fabric, profile)
        protocols = [protocol for algorithm, protocol in possible if algorithm is first]
        if not protocols:
            others = dict.fromkeys(_plain(algorithm) for algorithm, _ in possible)
            raise InputError(f"{_reason(first, name, nodes, place, fabric)}; choose {join_or([*others])}")
        if second not in (None, *protocols):
            names = [way_name(first, own) for own in protocols]
            raise InputError(f"{place} has no '{wanted}'; choose {join_or(names)}")
    algorithm, protocol = choose(
        name,
        size,
        ranks,
        fabric,
        nodes=nodes,
        floating=floating,
        one_step=first in (None, Algorithm.DIRECT),
        version=(version or profile.version) if profile.library == "nccl" else "",
    )
    if first is not None:
        algorithm = np.full(size.shape, int(first))
    if first is Algorithm.DIRECT:  # knows no LL128
        protocol = np.where(protocol == Protocol.LL128, int(Protocol.SIMPLE), protocol)
    return algorithm, protocol if second is None else np.full(size.shape, int(second))


def way_name(algorithm: Algorithm, protocol: Protocol) -> str:
    """What a user calls it, such as "ring-ll128"; a switch that reduces has no protocol to choose."""
    name = _plain(algorithm)
    return name if algorithm in _SWITCHED else f"{name}-{protocol.name.lower()}"


def _plain(algorithm: Algorithm) -> str:
    return algorithm.name.lower().replace("_", "-")


def _parsed(wanted: str) -> tuple[Algorithm, Protocol | None]:
    text = wanted.upper().replace("-", "_")
    if text in Algorithm.__members__:
        return Algorithm[text], None
    first, _, second = text.rpartition("_")
    if first not in Algorithm.__members__:
        raise UnknownNameError("algorithm", wanted, ["auto", *map(_plain, Algorithm)])
    if second not in Protocol.__members__:
        raise UnknownNameError("protocol", second.lower(), [own.name.lower() for own in Protocol])
    return Algorithm[first], Protocol[second]


def _possible(name: str, ranks: int, nodes: int, fabric: Interconnect, profile: Profile) -> list[Way]:
    """What the library weighs, and what it takes where conditions of its own are met."""
    if name in ("all_to_all", "send_recv"):
        ways = [(Algorithm.PAIRWISE, Protocol.LL), (Algorithm.PAIRWISE, Protocol.SIMPLE)]
    else:
        ways = estimates(name, 1.0, ranks, fabric, nodes=nodes)[0]
    known = name == "all_reduce" or fabric.gpu.vendor == "amd"  # NCCL has no kernels of one step to all peers
    if known and name in ONE_STEP and nodes == 1 and fabric.topology == "mesh":
        ways += [(Algorithm.DIRECT, Protocol.LL), (Algorithm.DIRECT, Protocol.SIMPLE)]
    if name == "all_reduce" and nodes == 1 and "oneshot.launch" in profile.values:
        ways.append((Algorithm.ONESHOT, Protocol.SIMPLE))
    return ways


def _reason(algorithm: Algorithm, name: str, nodes: int, place: str, fabric: Interconnect) -> str:
    if algorithm in _SWITCHED and not fabric.multicast:
        return f"{place} has no switch that reduces"
    where = f"on {nodes} nodes of {place}" if nodes > 1 else f"on {place}"
    return f"'{_plain(algorithm)}' carries out no {name} {where}"
