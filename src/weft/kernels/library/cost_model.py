"""The cost model by which NCCL and RCCL choose an algorithm and protocol, from public constants.

The libraries estimate every candidate as latency + bytes / bandwidth and take the minimum (NCCL src/graph/tuning.cc,
releases 2.27 to 2.30, with the channels that src/graph/search.cc finds; RCCL src/graph/tuning.cc). The estimates are
off by about a fifth: good enough to choose by, not to predict times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, inf, log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, join_or
from weft.core.files import packaged_toml
from weft.kernels.library.collectives import (
    ONE_STEP,
    P2P_LL_BYTES,
    P2P_LL_BYTES_OLD,
    SWITCHED,
    Algorithm,
    CollectiveCall,
    FloatArray,
    IntArray,
    OneStep,
    Protocol,
    Way,
    canonical,
    plain_name,
    way_name,
)
from weft.kernels.library.interconnect import MOST_CHANNELS, Interconnect
from weft.kernels.library.profiles import Profile, numbers

_US = 1e-6
_GB = 1e9
_TUNING = packaged_toml("weft.kernels.library", "tuning.toml")
_TREE_FACTOR = np.array([_TUNING["tree_factor"][protocol.name.lower()] for protocol in Protocol])
_RING_PLATEAU, _RING_PLATEAU_VOLTA = 1.4, 1.9
"""Factors on the latency of a ring with Simple between nodes that carries data in every channel."""
_PLATEAU_BYTES = 64
"""Least bytes of each channel and rank from which they apply."""
_NVLS_HEADS = 8
_TREE_PATTERN = 0.85
"""Factor on a tree whose node sends and receives by one GPU: the only one that the search finds from Hopper on."""


class _BandwidthLimits(NamedTuple):
    """Bandwidth limits of an architecture [GB/s]: LL of all rings in one node, then per channel for one, two and more
    nodes, and the rates between nodes that the search tries.
    """

    ll: float
    ring_ll128: list[float]
    tree_ll128: list[float]
    tree_simple: list[float]
    nvls_tree: list[float]
    nvls: float
    steps: list[float]


_LIMITS = {name: _BandwidthLimits(**_TUNING[name]) for name in ("volta", "ampere", "hopper", "blackwell")}
_LIMITS |= {"ada": _LIMITS["ampere"], "blackwell-rtx": _LIMITS["blackwell"]}
"""Limits by architecture: Ada's compute capability, 8.9, counts like Ampere's, 12.0 like Blackwell's 10.0."""
_OLD = ("pascal", "volta", "turing")
_NEW = ("hopper", "blackwell", "blackwell-rtx")


def _limits(fabric: Interconnect) -> _BandwidthLimits:
    return _LIMITS.get(fabric.gpu.architecture, _LIMITS["volta"])


def _hop(algorithm: Algorithm, fabric: Interconnect) -> list[float]:
    """Return a hop inside a node [us], by protocol."""
    hops: list[float] = _TUNING["pcie" if fabric.topology == "pcie" else "nvlink"][algorithm.name.lower()]
    return hops


def choose(
    collective: str,
    bytes: npt.ArrayLike,
    ranks: int,
    fabric: Interconnect,
    *,
    nodes: int = 1,
    floating: bool = True,
    one_step: bool = True,
    version: str = "",
) -> tuple[IntArray, IntArray]:
    """Return the `Algorithm` and `Protocol` that the library chooses for each size [bytes, of the whole buffer].

    `one_step` says whether RCCL has the kernels of `ONE_STEP`. `version` is NCCL's, "" the newest that is known.
    """
    name, size, release = canonical(collective), np.asarray(bytes, dtype=np.float64), numbers(version)
    call = CollectiveCall(name, ranks, fabric.among(ranks // nodes), nodes, floating, release)
    if name in ("all_to_all", "send_recv"):
        peer = size / ranks if name == "all_to_all" else size
        limit = P2P_LL_BYTES_OLD if () < release < (2, 28) else P2P_LL_BYTES
        algorithm = np.full(size.shape, int(Algorithm.PAIRWISE))
        protocol = np.where(peer <= limit, int(Protocol.LL), int(Protocol.SIMPLE))
    else:
        keys, times = estimates(call, size)
        table = np.array(keys, dtype=np.int64)[np.argmin(times, axis=0)]
        algorithm, protocol = table[..., 0], table[..., 1]
    for kernel in reversed(_one_step_kernels(name, ranks, call.fabric) if one_step and nodes == 1 else ()):
        taken = size <= kernel.up_to
        algorithm = np.where(taken, int(Algorithm.DIRECT), algorithm)
        protocol = np.where(taken, int(kernel.protocol), protocol)
    return algorithm, protocol


def _one_step_kernels(collective: str, ranks: int, fabric: Interconnect) -> tuple[OneStep, ...]:
    """Return the one-step kernels of RCCL in ROCm 6 for a collective on these GPUs, smallest sizes first."""
    full = fabric.gpu.architecture == "cdna3" and fabric.topology == "mesh" and ranks == fabric.gpus_per_node == 8
    return ONE_STEP.get(collective, ()) if full else ()


def best_ring(call: CollectiveCall, bytes: npt.ArrayLike) -> IntArray:
    """Return the `Protocol` of the ring that the library's cost model prefers for each size [bytes]."""
    ways, times = estimates(call, bytes)
    of_rings = [i for i, (algorithm, _) in enumerate(ways) if algorithm is Algorithm.RING]
    protocols = np.array([int(ways[i][1]) for i in of_rings], dtype=np.int64)
    return np.asarray(protocols[np.argmin(times[of_rings], axis=0)])


def estimates(call: CollectiveCall, bytes: npt.ArrayLike) -> tuple[list[Way], FloatArray]:
    """The library's own estimates, for the links that are sold: the candidates, and one row of times [s] for each."""
    size = np.asarray(bytes, dtype=np.float64)
    found = candidates(call)
    return [(one.algorithm, one.protocol) for one in found], np.array([one.seconds(size) for one in found])


class Candidate(NamedTuple):
    """An algorithm and protocol in the library's cost model: its latency [us] and algorithm rate [bytes/s].

    `factors` scale the rate by the size of the message, from 64 B on in powers of two. `plateau` multiplies the latency
    from `plateau_from` [bytes] on.
    """

    algorithm: Algorithm
    protocol: Protocol
    latency: float
    rate: float
    factors: FloatArray | None = None
    plateau: float = 1.0
    plateau_from: float = 0.0

    def seconds(self, size: npt.NDArray[np.floating[Any]]) -> FloatArray:
        """Return the library's estimate for each size [s]."""
        factor: FloatArray | float = 1.0
        if self.factors is not None:
            place = np.floor(np.log2(np.maximum(size / 64, 1))).astype(int)
            last = self.factors.size
            factor = np.where(place < last, self.factors[np.minimum(place, last - 1)], 1.0)
        latency: FloatArray | float = self.latency * _US
        if self.plateau != 1:
            latency = np.where(size >= self.plateau_from, self.plateau, 1.0) * latency
        return np.asarray(latency + size / (self.rate * factor), dtype=np.float64)


def candidates(call: CollectiveCall) -> list[Candidate]:
    """Return what the library compares for a call, for the links that are sold."""
    return [*_candidates(replace(call, fabric=call.fabric.sold_links))]


def _candidates(call: CollectiveCall) -> Iterator[Candidate]:
    name, fabric = call.name, call.fabric
    channels = _channels(call)
    for protocol in Protocol:
        if protocol is Protocol.LL128 and not _has_ll128(fabric):
            continue
        yield _rccl_ring(call, protocol) if call.amd else _ring(call, protocol, channels)
        if name == "all_reduce" and not call.amd:
            yield _tree(call, protocol, channels)
    if _has_pat(call):
        yield _pat(call, channels)
    reduced = name in ("all_reduce", "reduce_scatter") and call.floating
    if fabric.multicast and (reduced or name == "all_gather"):
        yield from _nvls(call)


def _has_ll128(fabric: Interconnect) -> bool:
    return fabric.topology != "pcie" and (fabric.gpu.vendor == "nvidia" or fabric.gpu.architecture == "cdna2")


class _Channels(NamedTuple):
    """The rings or trees that NCCL's search builds: their number, and the rate of all between nodes and inside one
    [bytes/s].
    """

    number: int
    rate: float
    inside: float


def tree_channels(call: CollectiveCall) -> int:
    """Return how many trees NCCL builds over several nodes: a channel each."""
    return _channels(replace(call, fabric=call.fabric.sold_links)).number


def _channels(call: CollectiveCall) -> _Channels:
    """Return what NCCL's search finds for a call (src/graph/search.cc).

    Over several nodes there is a channel for each GPU and its adapter, at the highest rate tried that the adapter and
    the links carry: a GPU forwards all channels but the one that leaves through its own adapter. Few fast channels are
    then doubled at half the rate each. Between two nodes the search raises the rate inside the nodes up to twice that
    between them.
    """
    fabric, local = call.fabric, call.per_node
    if call.nodes == 1 or not fabric.nic:
        rate = fabric.ring_rate(max(2, local))
        return _Channels(fabric.rings(call.ranks), rate, rate)
    most = MOST_CHANNELS["nvidia"] // 2
    count = 1 if fabric.topology == "pcie" else min(local, most)
    adapter = fabric.nic * local / count if fabric.topology == "pcie" else fabric.nic
    links = fabric.figure(local) if local > 1 else inf
    limit = min(adapter, links / max(count - 1, 1))
    each = next((step for step in _limits(fabric).steps if step * _GB <= limit), limit / _GB)
    newer = fabric.gpu.architecture in _NEW
    if each >= 25 and not (newer and each < 50 and count > 4):
        doubled = min(2 * count, most)
        each /= ceil(doubled / count)
        count = doubled
    rate = count * each * _GB
    return _Channels(count, rate, max(rate, min(2 * rate, links)))


def _ring(call: CollectiveCall, protocol: Protocol, channels: _Channels) -> Candidate:
    fabric, nodes, limits, rate = call.fabric, call.nodes, _limits(call.fabric), channels.rate
    base, hop = _TUNING["base"]["ring"][protocol], _hop(Algorithm.RING, fabric)[protocol]
    if protocol is Protocol.LL:
        most = limits.ll if nodes == 1 else _cpu(call)["ll"][min(nodes, 3) - 2]
        rate = min(most * _GB, rate / 2)
    elif protocol is Protocol.LL128:
        rate = min(0.92 * rate, channels.number * limits.ring_ll128[min(nodes, 3) - 1] * _GB)
    between, plateau = call.hops_between, 1.0
    if nodes > 1:
        hop = max(hop, _cpu(call)["overhead"] * (3 if protocol is Protocol.SIMPLE else 1))
        if protocol is Protocol.SIMPLE and call.name == "all_reduce":
            plateau = _RING_PLATEAU_VOLTA if fabric.gpu.architecture in _OLD else _RING_PLATEAU
    # With one GPU per node nothing hides the network, so that NCCL takes the latency of its trees.
    network = _TUNING["network"]["tree" if call.per_node == 1 else "ring"][protocol]
    latency = base + (call.hops - between) * hop + between * network
    return Candidate(
        Algorithm.RING,
        protocol,
        latency,
        rate / call.volume,
        plateau=plateau,
        plateau_from=_PLATEAU_BYTES * channels.number * call.ranks,
    )


def _cpu(call: CollectiveCall) -> Mapping[str, Any]:
    """Return what the library assumes of the nodes' CPUs."""
    found: Mapping[str, Any] = _TUNING["cpu"][call.fabric.cpu]
    return found


def _rccl_ring(call: CollectiveCall, protocol: Protocol) -> Candidate:
    fabric, nodes = call.fabric, call.nodes
    rate = fabric.ring_rate(max(2, call.per_node))
    if nodes > 1 and fabric.nic:
        rate = min(rate, fabric.nic * call.per_node)
    rate *= {Protocol.LL: 0.5, Protocol.LL128: 0.875, Protocol.SIMPLE: 1.0}[protocol]
    base, hop, between = _TUNING["rccl"]["base"], _TUNING["rccl"]["hop"], call.hops_between
    latency = base[protocol] + (call.hops - between) * hop[protocol] + between * _TUNING["network"]["ring"][protocol]
    slowed = nodes > 1 and protocol is Protocol.SIMPLE and call.name == "all_reduce"
    return Candidate(Algorithm.RING, protocol, latency, rate / call.volume, plateau=_RING_PLATEAU if slowed else 1.0)


def _tree(call: CollectiveCall, protocol: Protocol, channels: _Channels) -> Candidate:
    fabric, nodes, limits = call.fabric, call.nodes, _limits(call.fabric)
    count, rate = channels.number, channels.inside if nodes == 2 else channels.rate
    place = min(nodes, 3) - 1
    rate = min(0.92 * rate, count * limits.tree_simple[place] * _GB)
    if protocol is Protocol.LL:
        rate = min(rate / 3.8, (limits.ll if nodes == 1 else _cpu(call)["ll"][place - 1]) * _GB)
    elif protocol is Protocol.LL128:
        rate = min(rate * (7 / 9 if nodes == 1 else 0.9375), count * limits.tree_ll128[place] * _GB)
    if nodes > 1 and (call.per_node == 1 or fabric.gpu.architecture in _NEW):
        rate *= _TREE_PATTERN
    latency = _TUNING["base"]["tree"][protocol] + 2 * (call.per_node - 1) * _hop(Algorithm.TREE, fabric)[protocol]
    latency += 2 * int(log2(nodes)) * _TUNING["network"]["tree"][protocol]
    return Candidate(Algorithm.TREE, protocol, latency, rate / 2, _TREE_FACTOR[protocol])


def _has_pat(call: CollectiveCall) -> bool:
    """Return whether NCCL has its log-time algorithm for a call: between nodes of one GPU, from release 2.23 on."""
    alone = call.nodes > 1 and call.per_node == 1 and not call.amd
    return alone and call.name in ("all_gather", "reduce_scatter") and not () < call.release < (2, 23)


def _pat(call: CollectiveCall, channels: _Channels) -> Candidate:
    own = _TUNING["pat"]
    latency = own["launch"] + int(log2(call.nodes)) * own["level"] + call.ranks * own["rank"]
    return Candidate(Algorithm.PAT, Protocol.SIMPLE, latency, own["share"] * channels.rate)


def _nvls(call: CollectiveCall) -> Iterator[Candidate]:
    limits, reduces, nodes = _limits(call.fabric), call.name == "all_reduce", call.nodes
    if not limits.nvls or call.per_node < 3 or (nodes > 1 and not reduces):
        return
    fabric, latency = call.fabric, _TUNING["nvls"]["node"]
    if nodes == 1:
        heads = min(call.per_node, _NVLS_HEADS)
        rate = fabric.ring_rate(call.per_node) * limits.nvls * (heads - 1) / _NVLS_HEADS * (2 if reduces else 1)
        yield Candidate(Algorithm.NVLS, Protocol.SIMPLE, latency, rate / call.volume)
        return
    old = () < call.release < (2, 28)
    latency += 2 * int(log2(nodes)) * _TUNING["nvls"]["level_2_27" if old else "level"]
    yield Candidate(
        Algorithm.NVLS_TREE,
        Protocol.SIMPLE,
        latency,
        _nvls_tree_2_27(call) if old else _nvls_tree(call),
        # From release 2.29 on NCCL scales NVLS-Tree like a tree on Blackwell beside an x86 CPU.
        _TREE_FACTOR[Protocol.SIMPLE] if not old and _scales_nvls_tree(call) else None,
    )


def _scales_nvls_tree(call: CollectiveCall) -> bool:
    recent = not call.release or call.release >= (2, 29)
    return recent and call.fabric.gpu.architecture == "blackwell" and call.fabric.cpu != "arm"


def _nvls_heads(call: CollectiveCall) -> tuple[int, float, float]:
    """Return the GPUs of a node that reduce, and the rate of each between nodes and inside one [bytes/s].

    The links of a GPU carry S + S/n bytes of every head's share.
    """
    fabric, heads = call.fabric, min(call.per_node, MOST_CHANNELS["nvidia"] // 2)
    steps = _limits(fabric).steps
    links = fabric.figure(call.per_node) / (heads * (1 + 1 / call.per_node))
    inside = next((step for step in steps if step * _GB <= links), steps[-1]) * _GB
    between = next((step for step in steps if step * _GB <= fabric.nic), steps[-1]) * _GB
    return heads, between, inside


def _nvls_tree(call: CollectiveCall) -> float:
    heads, between, inside = _nvls_heads(call)
    limits, two = _limits(call.fabric), call.nodes == 2
    inside *= limits.nvls * (heads - 1) / heads * 2
    most = limits.nvls_tree[1 if two else 2] * _GB
    return heads * min(inside, between * (2 if two else 1), most) / call.volume


def _nvls_tree_2_27(call: CollectiveCall) -> float:
    heads, between, inside = _nvls_heads(call)
    return heads * min(inside, between / (1 if call.nodes == 2 else 2)) * 5 / 6


def switch_rate(ranks: int, fabric: Interconnect) -> float:
    """Rate per GPU and direction that the library assumes where the switch reduces [bytes/s]; else 0."""
    return fabric.ring_rate(ranks) * _limits(fabric).nvls if fabric.multicast else 0.0


def step_ratio(protocol: Protocol, fabric: Interconnect) -> float:
    """Latency of a ring's hop over these links, relative to NVLink, by the library's constants."""
    if fabric.gpu.vendor == "amd":
        return 1.0
    ratio: float = _hop(Algorithm.RING, fabric)[protocol] / _TUNING["nvlink"]["ring"][protocol]
    return ratio


def ll128_rate(ranks: int, fabric: Interconnect) -> float:
    """Rate per GPU that the library assumes for a ring with LL128 on one node [bytes/s]."""
    rate = fabric.ring_rate(ranks)
    if fabric.gpu.vendor == "amd":
        return 0.875 * rate
    return min(0.92 * rate, fabric.rings(ranks) * _limits(fabric).ring_ll128[0] * _GB)


def check_way(
    algorithm: Algorithm, protocol: Protocol | None, call: CollectiveCall, profile: Profile, place: str, wanted: str
) -> None:
    """Raise InputError if the system `place` cannot run the algorithm and protocol; messages call them `wanted`."""
    possible = _possible(call, profile)
    protocols = [own for one, own in possible if one is algorithm]
    if not protocols:
        others = dict.fromkeys(plain_name(one) for one, _ in possible)
        raise InputError(f"{_reason(algorithm, call, place)}; choose {join_or([*others])}")
    if protocol not in (None, *protocols):
        names = [way_name(algorithm, own) for own in protocols]
        raise InputError(f"{place} has no '{wanted}'; choose {join_or(names)}")


def _possible(call: CollectiveCall, profile: Profile) -> list[Way]:
    """Algorithms and protocols whose costs the library compares, and those that it takes by special rules."""
    name, one_node = call.name, call.nodes == 1
    if name in ("all_to_all", "send_recv"):
        ways = [(Algorithm.PAIRWISE, Protocol.LL), (Algorithm.PAIRWISE, Protocol.SIMPLE)]
    else:
        ways = estimates(call, 1.0)[0]
    known = name == "all_reduce" or call.amd  # NCCL has no one-step kernels
    if known and name in ONE_STEP and one_node and call.fabric.topology == "mesh":
        ways += [(Algorithm.DIRECT, Protocol.LL), (Algorithm.DIRECT, Protocol.SIMPLE)]
    if name == "all_reduce" and one_node and "oneshot.launch" in profile.values:
        ways.append((Algorithm.ONESHOT, Protocol.SIMPLE))
    return ways


def _reason(algorithm: Algorithm, call: CollectiveCall, place: str) -> str:
    if algorithm in SWITCHED and not call.fabric.multicast:
        return f"{place} has no switch that reduces"
    where = f"on {call.nodes} nodes of {place}" if call.nodes > 1 else f"on {place}"
    return f"'{plain_name(algorithm)}' carries out no {call.name} {where}"
