"""A collective library's kernels on a machine: protocol by the library's own choice, channels, and their cost.

Structure and constants are the libraries' own (NCCL and RCCL, public sources). What they do not say stands with its
sources in `hardware/ring_kernels.toml`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import Algorithm, Protocol, canonical, choose, estimates
from weft.errors import InputError, join_or
from weft.hardware import Gpu, Machine
from weft.hardware.ring_kernels import pairs_in_flight, ring_cost
from weft.kernels.channels import ChannelRing, ChannelTiling
from weft.kernels.copies import DmaGather
from weft.kernels.direct import DirectExchange
from weft.kernels.exchange import GRAIN, ChannelExchange
from weft.overlap.library_direct import direct_exchange
from weft.units import format_bytes

RINGS = ("all_reduce", "reduce_scatter", "all_gather")
"""Collectives that compute units drive around a ring."""
PUSHES = ("all_gather", "all_to_all")
"""Collectives that DMA engines can drive: they cannot add."""
BY_UNITS = (*RINGS, "all_to_all")
"""Collectives that compute units drive."""
MIB = 1 << 20


class _Shape(NamedTuple):
    """How a protocol cuts the data [bytes]: NCCL src/device/prims_*.h and enqueue.cc, RCCL for AMD."""

    threads: int
    chunk: int
    slices: int
    depth: int
    wire: float


_SHAPES = {
    # LL: 8 B of data in a 16-B line per thread. LL128: 1,920 B in 2 KiB per warp. Simple: eight 16-B words per thread.
    "nvidia": {
        Protocol.LL: _Shape(512, 32 * 1024, 1, 8, 2.0),
        Protocol.LL128: _Shape(640, 576_000, 1, 8, 16 / 15),
        Protocol.SIMPLE: _Shape(544, 2 * MIB, 2, 4, 1.0),
    },
    # 256 threads; lines of LL128 are 64 B with 56 B of data.
    "amd": {
        Protocol.LL: _Shape(256, 16 * 1024, 1, 8, 2.0),
        Protocol.LL128: _Shape(256, 256 * 1024, 1, 8, 8 / 7),
        Protocol.SIMPLE: _Shape(256, 2 * MIB, 2, 4, 1.0),
    },
}


class _Pairs(NamedTuple):
    """How sends and receives are dealt: channels in all, channels to a peer, and the slice of each protocol [bytes]."""

    channels: int
    per_peer: int
    slices: dict[Protocol, int]


# NVIDIA: channels rounded up to a power of two, every round at once. AMD, on a full mesh: 64 channels, 8 to a peer
# (RCCL src/graph/paths.cc, ncclTopoComputeP2pChannels), one round at a time in each (NCCL_MAX_DEV_WORK_P2P_PER_BATCH is
# 1: ROCm/rccl #1760).
_PAIRS = {
    "nvidia": _Pairs(64, 64, {Protocol.LL: 16 * 1024, Protocol.SIMPLE: MIB // 2}),
    "amd": _Pairs(64, 8, {Protocol.LL: 8 * 1024, Protocol.SIMPLE: MIB // 2}),
}
_LARGEST_PART = 32
"""Slices beyond which a part is cut further, as far as a peer's channels go (NCCL enqueue.cc, addP2pToPlan)."""


_OPERATIONS = 4
"""Rounds that a channel serves at most while parts can be fewer (the same)."""


def cu_collective(
    collective: str,
    bytes_: int,
    ranks: int,
    machine: str | Gpu | Machine | Fabric,
    dtype: str = "bf16",
    units: int | None = None,
) -> ChannelRing | ChannelExchange | DirectExchange:
    """The kernel by which the machine's library drives a collective with compute units: a ring, sends and receives, or
    one step to all peers.

    `bytes_` counts the whole buffer [bytes]: a reduction's input, an all-gather's output, what a GPU has for an
    all-to-all with its own part included. `units` is the most workgroups that it may have, each on a compute unit of
    its own (None: the library's own number). Raises UnknownNameError for an unknown collective, InputError for one that
    compute units have no kernel for here and for sizes, ranks and units that make none.
    """
    name = canonical(collective)
    if units is not None and units < 1:
        raise InputError(
            f"a collective with {units} workgroups moves nothing; give it at least 1 compute unit"
        )
    _check(bytes_, ranks)
    fabric = fabric_of(machine)
    direct = direct_exchange(name, bytes_, ranks, fabric, units)
    if direct is not None:
        return direct
    if name != "all_to_all":
        return library_ring(name, bytes_, ranks, machine, dtype, units)
    chosen = choose(name, [bytes_], ranks, fabric)[1]
    return _exchange(bytes_, ranks, fabric, Protocol(int(chosen[0])), units)


def _exchange(
    bytes_: int, ranks: int, fabric: Fabric, protocol: Protocol, units: int | None
) -> ChannelExchange:
    vendor = "amd" if fabric.vendor == "amd" else "nvidia"
    pairs, shape = _PAIRS[vendor], _SHAPES[vendor][protocol]
    cost = ring_cost(fabric.vendor, fabric.architecture, protocol.name.lower())
    own = min(_power_of_two(fabric.workgroups(ranks) - 1) * 2, pairs.channels)
    channels = own if units is None else min(_power_of_two(units), own)
    slice_ = pairs.slices[protocol]
    parts = _parts(bytes_ // ranks, ranks, channels, pairs.per_peer, slice_)
    simple = protocol is Protocol.SIMPLE
    tiling = ChannelTiling(
        channels=min(ranks * parts, channels),
        threads=shape.threads,
        chunk=slice_,
        slices=1,
        depth=8,
        in_flight=pairs_in_flight(fabric.vendor, fabric.architecture) if simple else cost.in_flight // 2,
        wire=shape.wire,
        link=cost.link,
        sync=cost.sync,
        start=cost.start,
    )
    return ChannelExchange(bytes_, ranks, tiling, parts)


def _parts(peer: int, ranks: int, channels: int, per_peer: int, slice_: int) -> int:
    """In how many parts what goes to a peer is cut: one channel for all rounds of a part, unless parts are too long."""
    most = min(per_peer, channels)
    while most * ranks > channels * _OPERATIONS and most > 1:
        most //= 2
    parts = most
    while parts * ranks > channels and parts > 1:
        parts //= 2
    while peer > parts * slice_ * _LARGEST_PART and 2 * parts <= most:
        parts *= 2
    while parts > 1 and peer < parts * GRAIN:
        parts //= 2
    return parts


def _power_of_two(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (max(number, 1).bit_length() - 1)


def library_ring(
    collective: str,
    bytes_: int,
    ranks: int,
    machine: str | Gpu | Machine | Fabric,
    dtype: str = "bf16",
    units: int | None = None,
) -> ChannelRing:
    """The ring kernel that the machine's library runs for a collective of `bytes_` [bytes of the whole buffer].

    Where the library would take another algorithm (a tree, the switch), it is its best ring. `units` is the most
    workgroups that it may have (None: the library's own number). Raises UnknownNameError for an unknown collective,
    InputError for one without a ring and for sizes and ranks that make none.
    """
    name = canonical(collective)
    if name not in RINGS:
        raise InputError(f"no ring kernel drives {name}; by compute units choose {join_or(BY_UNITS)}")
    _check(bytes_, ranks)
    fabric = fabric_of(machine)
    protocol = _protocol(name, bytes_, ranks, fabric)
    shape = _SHAPES["amd" if fabric.vendor == "amd" else "nvidia"][protocol]
    cost = ring_cost(fabric.vendor, fabric.architecture, protocol.name.lower())
    # RCCL's reduceCopy unrolls copies from one place to one other twice as far. Two pieces in flight take as long as
    # the four wavefronts' own, to 0.3 %, and half the events.
    doubled = fabric.vendor == "amd" and protocol is Protocol.SIMPLE
    tiling = ChannelTiling(
        channels=_channels(units or fabric.workgroups(ranks), ranks, bytes_, shape.threads, protocol),
        threads=shape.threads,
        chunk=shape.chunk,
        slices=shape.slices,
        depth=shape.depth,
        in_flight=cost.in_flight,
        wire=shape.wire,
        link=cost.link,
        sync=cost.sync,
        start=cost.start,
        slots=2 if doubled else 4,
        copying=2 * cost.in_flight if doubled else None,
    )
    return ChannelRing(name, bytes_, ranks, tiling, element_bytes=1 if dtype == "int8" else 2)


def dma_collective(collective: str, bytes_: int, ranks: int, **options: Any) -> DmaGather:
    """The collective driven by DMA engines, with the options of `DmaGather`.

    Raises InputError for a collective that has to add, and for options that do not go together.
    """
    name = canonical(collective)
    if name not in PUSHES:
        raise InputError(
            f"DMA engines cannot drive {name}: they copy and cannot add; choose {join_or(PUSHES)}, or let compute "
            "units drive it"
        )
    _check(bytes_, ranks)
    return DmaGather(name, bytes_, ranks, **options)


def _check(bytes_: int, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"a collective of {ranks} ranks moves nothing; take at least 2")
    if bytes_ < ranks * 1024:
        raise InputError(
            f"{format_bytes(bytes_)} over {ranks} ranks is less than 1 KiB each; choose a larger collective"
        )


def _protocol(collective: str, bytes_: int, ranks: int, fabric: Fabric) -> Protocol:
    keys, times = estimates(collective, np.array([bytes_]), ranks, fabric)
    rings = [(times[i, 0], key[1]) for i, key in enumerate(keys) if key[0] is Algorithm.RING]
    return min(rings)[1]


def _channels(most: int, ranks: int, bytes_: int, threads: int, protocol: Protocol) -> int:
    """Workgroups: as many as there may be, fewer while there is too little for each thread (NCCL enqueue.cc)."""
    least = {Protocol.LL: 8 * ranks, Protocol.LL128: 8, Protocol.SIMPLE: 64}[protocol] * threads
    return max(1, min(most, bytes_ // least))
