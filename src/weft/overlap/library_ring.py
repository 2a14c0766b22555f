"""A collective library's ring kernel on a machine: protocol by the library's own choice, channels, and their cost.

Structure and constants are the libraries' own (NCCL and RCCL, public sources). What they do not say stands with its
sources in `hardware/ring_kernels.toml`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import Algorithm, Protocol, canonical, estimates
from weft.errors import InputError, join_or
from weft.hardware import Gpu, Machine
from weft.hardware.ring_kernels import ring_cost
from weft.kernels.channels import ChannelRing, ChannelTiling
from weft.kernels.copies import DmaGather
from weft.units import format_bytes

RINGS = ("all_reduce", "reduce_scatter", "all_gather")
"""Collectives that compute units drive around a ring."""
PUSHES = ("all_gather", "all_to_all")
"""Collectives that DMA engines can drive: they cannot add."""
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


def library_ring(
    collective: str, bytes_: int, ranks: int, machine: str | Gpu | Machine | Fabric, dtype: str = "bf16"
) -> ChannelRing:
    """The ring kernel that the machine's library runs for a collective of `bytes_` [bytes of the whole buffer].

    Where the library would take another algorithm (a tree, the switch), it is its best ring. Raises UnknownNameError
    for an unknown collective, InputError for one without a ring and for sizes and ranks that make none.
    """
    name = canonical(collective)
    if name not in RINGS:
        instead = "DMA engines can" if name in PUSHES else "it has no ring"
        raise InputError(
            f"no ring kernel drives {name} ({instead}); by compute units choose {join_or(RINGS)}"
        )
    _check(bytes_, ranks)
    fabric = fabric_of(machine)
    protocol = _protocol(name, bytes_, ranks, fabric)
    shape = _SHAPES["amd" if fabric.vendor == "amd" else "nvidia"][protocol]
    cost = ring_cost(fabric.vendor, fabric.architecture, protocol.name.lower())
    tiling = ChannelTiling(
        channels=_channels(fabric, ranks, bytes_, shape.threads, protocol),
        threads=shape.threads,
        chunk=shape.chunk,
        slices=shape.slices,
        depth=shape.depth,
        in_flight=cost.in_flight,
        wire=shape.wire,
        link=cost.link,
        sync=cost.sync,
        start=cost.start,
    )
    return ChannelRing(name, bytes_, ranks, tiling, element_bytes=1 if dtype == "int8" else 2)


def dma_collective(collective: str, bytes_: int, ranks: int) -> DmaGather:
    """The collective driven by DMA engines; InputError for one that has to add, or that they have no plan for."""
    name = canonical(collective)
    if name not in PUSHES:
        raise InputError(
            f"DMA engines cannot drive {name}: they copy and cannot add; choose {join_or(PUSHES)}, or compute units"
        )
    _check(bytes_, ranks)
    return DmaGather(name, bytes_, ranks)


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


def _channels(fabric: Fabric, ranks: int, bytes_: int, threads: int, protocol: Protocol) -> int:
    """Workgroups: all of the library's, fewer while there is too little for each thread (NCCL enqueue.cc)."""
    least = {Protocol.LL: 8 * ranks, Protocol.LL128: 8, Protocol.SIMPLE: 64}[protocol] * threads
    return max(1, min(fabric.workgroups(ranks), bytes_ // least))
