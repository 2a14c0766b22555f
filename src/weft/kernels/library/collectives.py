"""The algorithm and protocol that NCCL and RCCL choose for a collective: their own cost model, from public constants.

The libraries estimate every candidate as latency + bytes / bandwidth and take the minimum (NCCL src/graph/tuning.cc,
releases 2.27 to 2.30; RCCL src/graph/tuning.cc). The estimates are off by about a fifth: good enough to choose by, not
to predict times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import floor, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, UnknownNameError, join_or
from weft.kernels.library.interconnect import MOST_CHANNELS, Interconnect
from weft.kernels.library.profiles import Profile, numbers

KiB = 1024
MiB = 1024 * KiB

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Algorithm(IntEnum):
    """The paths along which data move."""

    RING = 0
    TREE = 1
    NVLS = 2
    NVLS_TREE = 3
    DIRECT = 4
    PAIRWISE = 5
    ONESHOT = 6


class Protocol(IntEnum):
    """How a receiver detects that data have arrived: a flag in every 8 B, in every 128-B line, or per slice."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


Way = tuple[Algorithm, Protocol]
_SWITCHED = (Algorithm.NVLS, Algorithm.NVLS_TREE)
RINGS = ("all_reduce", "reduce_scatter", "all_gather")
"""Collectives that compute units run around a ring."""
NAMES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
_ALIASES = {"alltoall": "all_to_all", "allreduce": "all_reduce", "allgather": "all_gather"}
_ALIASES |= {"reducescatter": "reduce_scatter", "p2p": "send_recv"}

PAYLOAD = {Protocol.LL: 0.5, Protocol.LL128: 0.9375, Protocol.SIMPLE: 1.0}
"""Share of the bytes on the wire that is data (NCCL src/device/prims_ll*.h)."""


class ProtocolShape(NamedTuple):
    """How a protocol cuts the data [bytes]: NCCL src/device/prims_*.h and enqueue.cc, RCCL for AMD."""

    threads: int
    chunk: int
    slices: int
    depth: int
    wire: float


SHAPES: Mapping[str, Mapping[Protocol, ProtocolShape]] = {
    # LL: 8 B of data in a 16-B line per thread. LL128: 1,920 B in 2 KiB per warp. Simple: eight 16-B words per thread.
    "nvidia": {
        Protocol.LL: ProtocolShape(512, 32 * KiB, 1, 8, 2.0),
        Protocol.LL128: ProtocolShape(640, 576_000, 1, 8, 16 / 15),
        Protocol.SIMPLE: ProtocolShape(544, 2 * MiB, 2, 4, 1.0),
    },
    # 256 threads; lines of LL128 are 64 B with 56 B of data.
    "amd": {
        Protocol.LL: ProtocolShape(256, 16 * KiB, 1, 8, 2.0),
        Protocol.LL128: ProtocolShape(256, 256 * KiB, 1, 8, 8 / 7),
        Protocol.SIMPLE: ProtocolShape(256, 2 * MiB, 2, 4, 1.0),
    },
}
"""The shape of each protocol, by vendor."""


def library_vendor(fabric: Interconnect) -> str:
    """Return the vendor whose library is modelled: NVIDIA's also for machines without a vendor."""
    return "amd" if fabric.gpu.vendor == "amd" else "nvidia"


_US = 1e-6
_GB = 1e9
# Base latency and latency per step [us] in the order LL, LL128, Simple (tuning.cc).
_BASE = {Algorithm.RING: (6.6, 14.0, 8.4), Algorithm.TREE: (6.8, 14.0, 8.4)}
_NVLINK_STEP = {Algorithm.RING: (0.6, 1.9, 3.4), Algorithm.TREE: (0.6, 1.25, 4.0)}
_PCIE_STEP = {Algorithm.RING: (1.0, 2.5, 5.7), Algorithm.TREE: (1.0, 1.9, 4.0)}
_NET_STEP = {Algorithm.RING: (2.7, 4.0, 14.0), Algorithm.TREE: (5.0, 8.5, 14.0)}
_AMD_BASE = (12.0, 12.0, 17.0)
_AMD_STEP = (1.0, 1.9, 3.4)
_NVLS_LATENCY, _NVLS_NET_LATENCY, _NVLS_TREE_LATENCY = 25.0, 18.0, 20.9


class _BandwidthLimits(NamedTuple):
    """Bandwidth limits of one generation [GB/s]: LL of all rings, LL128 per ring, LL128 and Simple per tree channel."""

    ll: float
    ll128_ring: float
    ll128_tree: float
    simple_tree: float
    nvls: float


_LIMITS = {
    "ampere": _BandwidthLimits(87.7, 20.0, 20.0, 24.0, 0.0),
    "hopper": _BandwidthLimits(141.0, 36.7, 36.7, 38.7, 0.85),
    "blackwell": _BandwidthLimits(282.0, 40.0, 55.6, 70.0, 0.74),
}
_VOLTA = _BandwidthLimits(39.0, 20.0, 20.0, 26.5, 0.0)
_NVLS_HEADS = 8


def _limits(fabric: Interconnect) -> _BandwidthLimits:
    return _LIMITS.get(fabric.gpu.architecture, _VOLTA)


def _step(algorithm: Algorithm, fabric: Interconnect) -> tuple[float, float, float]:
    """Return a hop inside a node [us], by protocol."""
    return (_PCIE_STEP if fabric.topology == "pcie" else _NVLINK_STEP)[algorithm]


# Factors on a tree's bandwidth for messages of 64 B, 128 B, ... (tuning.cc, treeCorrectionFactor).
_TREE_FACTOR = np.array(
    (
        [1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1],
        [1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9, 1],
        7 * [0.9] + [0.8, 0.7, 0.6, 0.6] + 6 * [0.5] + [0.6, 0.6, 0.7, 0.8, 0.9],
    )
)
_RING_PLATEAU = 1.4


class OneStep(NamedTuple):
    """A one-step kernel for buffers of at most `up_to` bytes: its protocol, and the parts per peer."""

    up_to: int
    protocol: Protocol
    parts: int = 1


ONE_STEP: Mapping[str, tuple[OneStep, ...]] = {
    "all_reduce": (
        OneStep(64 * KiB, Protocol.LL, 4),
        OneStep(512 * KiB, Protocol.LL, 8),
        OneStep(16 * MiB, Protocol.SIMPLE, 8),
    ),
    "all_gather": (OneStep(128 * KiB, Protocol.LL, 2), OneStep(16 * MiB, Protocol.SIMPLE, 4)),
    "all_to_all": (
        OneStep(190 * KiB, Protocol.LL, 2),
        OneStep(512 * KiB, Protocol.LL, 4),
        OneStep(7 * MiB, Protocol.SIMPLE, 4),
        OneStep(43 * MiB, Protocol.SIMPLE, 8),
    ),
}
"""RCCL's MSCCL kernels for eight MI300X, which push to all peers in one step (an all-reduce: in two).

Sizes, protocols and parts are those of ROCm/rccl tools/msccl-algorithms as tuned in PRs #1110 and #1120
(allgather-8n-8kb-128kb @ee38c4c, -128kb-1mb @ee38c4c, -1mb-16mb @e6987a6; alltoall-8n-9kb-190kb @0f59f1f, -190kb-512kb
@c2fc1d6, -512kb-7mb and -7mb-43mb @db48bcf; allreduce-allpairs-8n-ll-32tb @62d10fd, -ll-64tb @bb144dc and -simple
@2a59f8d). They hold for all-gathers in place and all-to-alls out of place.
"""
KERNELS = ("ring", "direct", "nvls")
"""Algorithms of kernels on compute units that can be asked for in a simulation."""
FLOATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
"""The number formats that a switch can add up."""
NVLS_CHANNELS: Mapping[str, int] = {"hopper": 16, "blackwell": 24}
"""Channels of a collective through the switch in one node, by architecture (NCCL src/transport/nvls.cc)."""
NVLS_THREADS = 640
"""Threads of its workgroups (NCCL src/graph/tuning.cc)."""
NVLS_DEPTH = 8
"""Chunks that its buffers hold for each channel and head (NCCL_STEPS)."""
_NVLS_CHUNKS = ((2, 16 * KiB), (8, 32 * KiB), (64, 64 * KiB))
_NVLS_CHUNK = 128 * KiB
P2P_LL_BYTES = 16 * KiB
"""Bytes per peer up to which send and receive use LL (NCCL 2.28 on)."""
_P2P_LL_BYTES_OLD = 512 * KiB
"""The same in NCCL 2.27 and before: 32 channels of 16 KiB each."""


def canonical(collective: str) -> str:
    """Weft's name of the collective; UnknownNameError for an unknown one."""
    name = _ALIASES.get(collective, collective.replace("-", "_"))
    if name not in NAMES:
        raise UnknownNameError("collective", collective, NAMES)
    return name


def steps(collective: str, ranks: int) -> int:
    """Return the number of times that a chunk is forwarded in a ring."""
    if ranks < 2:
        raise InputError(f"a collective needs at least 2 ranks, not {ranks}; give more ranks")
    return {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(collective, ranks - 1)


def volume(collective: str, ranks: int) -> float:
    """Return the bytes that each rank must send, divided by the collective's bytes."""
    if collective in ("broadcast", "send_recv"):
        return 1.0
    return steps(collective, ranks) / ranks


@dataclass(frozen=True)
class CollectiveCall:
    """A collective of `ranks` GPUs on `nodes` nodes, over the links between the ranks of one node.

    `floating` says whether the data type is a floating one: only those can be reduced by the switch. With `halved_tree`
    a tree over two nodes is costed like one over many, at half the rate.
    """

    name: str
    ranks: int
    fabric: Interconnect
    nodes: int = 1
    floating: bool = True
    halved_tree: bool = False

    @property
    def per_node(self) -> int:
        """Ranks of each node."""
        return self.ranks // self.nodes

    @property
    def amd(self) -> bool:
        """Whether RCCL runs it rather than NCCL."""
        return self.fabric.gpu.vendor == "amd"

    @property
    def hops(self) -> int:
        """Number of times that a chunk is forwarded in a ring."""
        return steps(self.name, self.ranks)

    @property
    def volume(self) -> float:
        """Bytes that each rank must send, divided by the collective's bytes."""
        return volume(self.name, self.ranks)

    @property
    def bus_rate(self) -> float:
        """Rate of all rings, limited by the network if there are several nodes [bytes/s]."""
        rate = self.fabric.ring_rate(max(2, self.per_node))
        return min(rate, self.fabric.nic * self.per_node) if self.nodes > 1 and self.fabric.nic else rate


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

    `one_step` says whether RCCL has the kernels of `ONE_STEP`. `version` is NCCL's: up to 2.27 send and receive keep LL
    for larger sizes, and up to 2.18 a tree over two nodes is no special case.
    """
    name, size, release = canonical(collective), np.asarray(bytes, dtype=np.float64), numbers(version)
    call = CollectiveCall(name, ranks, fabric.among(ranks // nodes), nodes, floating, () < release < (2, 19))
    if name in ("all_to_all", "send_recv"):
        peer = size / ranks if name == "all_to_all" else size
        limit = _P2P_LL_BYTES_OLD if () < release < (2, 28) else P2P_LL_BYTES
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


def nvls_chunk(bytes_: int, heads: int) -> int:
    """Return the bytes of a chunk of each of `heads` (GPUs times channels) for a collective through the switch.

    The library starts with the largest chunk, and takes the next smaller one while a head has less than 64, 8 and 2 of
    the larger (NCCL src/enqueue.cc, calcCollChunking).
    """
    chunk = _NVLS_CHUNK
    for chunks, smaller in reversed(_NVLS_CHUNKS):
        if bytes_ < chunks * heads * chunk:
            chunk = smaller
    return chunk


def own_channels(
    bytes: npt.ArrayLike, ranks: int, fabric: Interconnect, protocol: Protocol, most: int | None = None
) -> FloatArray:
    """Channels of a ring for each size [bytes]: `most` of them (None: the library's own number), or as many as leave
    every thread enough data (NCCL enqueue.cc).
    """
    least = {Protocol.LL: 8 * ranks, Protocol.LL128: 8, Protocol.SIMPLE: 64}[protocol]
    per_channel = least * SHAPES[library_vendor(fabric)][protocol].threads
    channels = np.clip(np.asarray(bytes) // per_channel, 1, most or fabric.workgroups(ranks))
    return np.asarray(channels, dtype=np.float64)


def check_channels(channels: int | None, fabric: Interconnect) -> None:
    """Raise InputError for fewer channels than one, or more than the library can have."""
    most = MOST_CHANNELS[library_vendor(fabric)]
    if channels is not None and not 1 <= channels <= most:
        library = "RCCL" if fabric.gpu.vendor == "amd" else "NCCL"
        raise InputError(
            f"channels is {channels}, but {library} has 1 to {most} of them; choose one of these, or leave channels "
            "out for the library's own number"
        )


def estimates(call: CollectiveCall, bytes: npt.ArrayLike) -> tuple[list[Way], FloatArray]:
    """The library's own estimates, for the links that are sold: the candidates, and one row of times [s] for each."""
    call = replace(call, fabric=call.fabric.sold_links)
    size = np.asarray(bytes, dtype=np.float64)
    ways, rows = [], []
    for algorithm, protocol, latency, rate in _candidates(call):
        factor = _tree_factor(size, protocol) if algorithm is Algorithm.TREE else 1.0
        ways.append((algorithm, protocol))
        rows.append(latency * _US + size / (rate * factor))
    return ways, np.array(rows)


def _tree_factor(size: FloatArray, protocol: Protocol) -> FloatArray:
    table = _TREE_FACTOR[protocol]
    place = np.floor(np.log2(np.maximum(size / 64, 1))).astype(int)
    return np.where(place < table.size, table[np.minimum(place, table.size - 1)], 1.0)


class _Candidate(NamedTuple):
    algorithm: Algorithm
    protocol: Protocol
    latency: float
    rate: float


def _candidates(call: CollectiveCall) -> Iterator[_Candidate]:
    name, fabric = call.name, call.fabric
    for protocol in Protocol:
        if protocol is Protocol.LL128 and not _has_ll128(fabric):
            continue
        yield _ring(call, protocol)
        if name == "all_reduce" and not call.amd:
            yield _tree(call, protocol)
    reduced = name in ("all_reduce", "reduce_scatter") and call.floating
    if fabric.multicast and (reduced or name == "all_gather"):
        yield from _nvls(call)


def _has_ll128(fabric: Interconnect) -> bool:
    return fabric.topology != "pcie" and (fabric.gpu.vendor == "nvidia" or fabric.gpu.architecture == "cdna2")


def _ring(call: CollectiveCall, protocol: Protocol) -> _Candidate:
    fabric, nodes, rate = call.fabric, call.nodes, call.bus_rate
    base, step = (_AMD_BASE, _AMD_STEP) if call.amd else (_BASE[Algorithm.RING], _step(Algorithm.RING, fabric))
    if protocol is Protocol.LL:
        rate = rate / 2 if call.amd else min(_limits(fabric).ll * _GB, rate / 2)
    elif protocol is Protocol.LL128:
        rate = _ll128(rate, call.ranks, fabric)
    between = (call.hops // (call.ranks - 1)) * (nodes - 1) if nodes > 1 else 0
    latency = base[protocol] + (call.hops - between) * step[protocol] + between * _NET_STEP[Algorithm.RING][protocol]
    if nodes > 1 and protocol is Protocol.SIMPLE and call.name == "all_reduce":
        latency *= _RING_PLATEAU
    return _Candidate(Algorithm.RING, protocol, latency, rate / call.volume)


def _tree(call: CollectiveCall, protocol: Protocol) -> _Candidate:
    fabric, nodes, limits = call.fabric, call.nodes, _limits(call.fabric)
    rings = fabric.rings(call.ranks)
    rate = min(0.92 * fabric.ring_rate(max(2, call.per_node)), rings * limits.simple_tree * _GB)
    if nodes > 1 and fabric.nic:
        twice = 1 if call.halved_tree else nodes / (nodes - 1)
        rate = min(rate, fabric.nic * call.per_node * twice)
    if protocol is Protocol.LL:
        rate = min(rate / 3.8, limits.ll * _GB)
    elif protocol is Protocol.LL128:
        rate = min(rate * (7 / 9 if nodes == 1 else 0.9375), rings * limits.ll128_tree * _GB)
    latency = _BASE[Algorithm.TREE][protocol] + 2 * (call.per_node - 1) * _step(Algorithm.TREE, fabric)[protocol]
    latency += 2 * floor(log2(nodes)) * _NET_STEP[Algorithm.TREE][protocol]
    return _Candidate(Algorithm.TREE, protocol, latency, rate / 2)


def _nvls(call: CollectiveCall) -> Iterator[_Candidate]:
    share, reduces = _limits(call.fabric).nvls, call.name == "all_reduce"
    if not share or call.per_node < 3 or (call.nodes > 1 and not reduces):
        return
    heads = min(call.per_node, _NVLS_HEADS)
    rate = call.bus_rate * share * (heads - 1) / heads * heads / _NVLS_HEADS * (2 if reduces else 1)
    algorithm, latency = Algorithm.NVLS, _NVLS_LATENCY
    if call.nodes > 1:
        algorithm, latency = Algorithm.NVLS_TREE, 2 * _NVLS_TREE_LATENCY + _NVLS_NET_LATENCY
    yield _Candidate(algorithm, Protocol.SIMPLE, latency, rate / call.volume)


def switch_rate(ranks: int, fabric: Interconnect) -> float:
    """Rate per GPU and direction that the library assumes where the switch reduces [bytes/s]; else 0."""
    return fabric.ring_rate(ranks) * _limits(fabric).nvls if fabric.multicast else 0.0


def step_ratio(protocol: Protocol, fabric: Interconnect) -> float:
    """Latency of a ring's hop over these links, relative to NVLink, by the library's constants."""
    if fabric.gpu.vendor == "amd":
        return 1.0
    return _step(Algorithm.RING, fabric)[protocol] / _NVLINK_STEP[Algorithm.RING][protocol]


def ll128_rate(ranks: int, fabric: Interconnect) -> float:
    """Rate per GPU that the library assumes for a ring with LL128 on one node [bytes/s]."""
    return _ll128(fabric.ring_rate(ranks), ranks, fabric)


def _ll128(rate: float, ranks: int, fabric: Interconnect) -> float:
    if fabric.gpu.vendor == "amd":
        return 0.875 * rate
    return min(0.92 * rate, fabric.rings(ranks) * (_limits(fabric).ll128_ring * _GB))


def protocol_of(name: str) -> Protocol:
    """Return the protocol of a name such as "ll128"; UnknownNameError for an unknown one."""
    if name.upper() not in Protocol.__members__:
        raise UnknownNameError("protocol", name, [own.name.lower() for own in Protocol])
    return Protocol[name.upper()]


def way_name(algorithm: Algorithm, protocol: Protocol) -> str:
    """The name of algorithm and protocol, such as "ring-ll128"; in-switch reduction has no protocol to choose."""
    name = _plain(algorithm)
    return name if algorithm in _SWITCHED else f"{name}-{protocol.name.lower()}"


def _plain(algorithm: Algorithm) -> str:
    return algorithm.name.lower().replace("_", "-")


def parsed_way(wanted: str) -> tuple[Algorithm | None, Protocol | None]:
    """Parse a name like "nvls" or "ring-ll128"; None for what it leaves to the library ("auto" leaves both).

    Raises UnknownNameError.
    """
    if wanted == "auto":
        return None, None
    text = wanted.upper().replace("-", "_")
    if text in Algorithm.__members__:
        return Algorithm[text], None
    first, _, second = text.rpartition("_")
    if first not in Algorithm.__members__:
        raise UnknownNameError("algorithm", wanted, ["auto", *map(_plain, Algorithm)])
    return Algorithm[first], protocol_of(second.lower())


def check_way(
    algorithm: Algorithm, protocol: Protocol | None, call: CollectiveCall, profile: Profile, place: str, wanted: str
) -> None:
    """Raise InputError if the system `place` cannot run the algorithm and protocol; messages call them `wanted`."""
    possible = _possible(call, profile)
    protocols = [own for one, own in possible if one is algorithm]
    if not protocols:
        others = dict.fromkeys(_plain(one) for one, _ in possible)
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
    if algorithm in _SWITCHED and not call.fabric.multicast:
        return f"{place} has no switch that reduces"
    where = f"on {call.nodes} nodes of {place}" if call.nodes > 1 else f"on {place}"
    return f"'{_plain(algorithm)}' carries out no {call.name} {where}"
