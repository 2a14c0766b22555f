"""A collective library's ring kernel on a machine: protocol by the library's own choice, channels, and their cost.

Structure and constants are the libraries' own (NCCL and RCCL, public sources). What a receiver needs between slices
and what a kernel needs to start is calibrated, by generation, on reduce-scatters of nccl-tests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.collectives.fabric import Fabric, fabric_of
from weft.collectives.library import Algorithm, Protocol, canonical, estimates
from weft.errors import InputError, join_or
from weft.hardware import Gpu, Machine
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
    in_flight: int
    wire: float


_SHAPES = {
    # LL: 8 B of data in a 16-B line per thread. LL128: 1,920 B in 2 KiB per warp. Simple: eight 16-B words per thread.
    "nvidia": {
        Protocol.LL: _Shape(512, 32 * 1024, 1, 8, 4096, 2.0),
        Protocol.LL128: _Shape(640, 576_000, 1, 8, 38_400, 16 / 15),
        Protocol.SIMPLE: _Shape(544, 2 * MIB, 2, 4, 64 * 1024, 1.0),
    },
    # 256 threads; lines of LL128 are 64 B with 56 B of data.
    "amd": {
        Protocol.LL: _Shape(256, 16 * 1024, 1, 8, 2048, 2.0),
        Protocol.LL128: _Shape(256, 256 * 1024, 1, 8, 14_336, 8 / 7),
        Protocol.SIMPLE: _Shape(256, 2 * MIB, 2, 4, 32 * 1024, 1.0),
    },
}


class _Cost(NamedTuple):
    """From a kernel's launch to its first load, from a slice's arrival to the next one's first load [us], and how much
    a workgroup has on its way, if less than its threads could [bytes].
    """

    start: float
    sync: float
    in_flight: int = 1 << 20


# Calibrated on reduce-scatters of 8 to 128 MiB, half and int8, 2 and 8 GPUs (ai-dynamo/aiconfigurator @095f58a,
# nccl_perf of a100_sxm 2.27.3 and h100_sxm 2.23 and 2.29.2); Blackwell and LL: intercepts and steps of the same
# tables. Plausible: start 1 to 20 us, sync 0 to 8 us, 16 to 128 KiB on their way. Ampere pulls data from its
# neighbour and pays a round trip per slice (NCCL src/graph/paths.cc), later generations push. AMD: base and step
# latencies of RCCL's tuning tables, two slices a step (assumed).
_COSTS = {
    "ampere": {Protocol.LL: _Cost(6.3, 0.1), Protocol.LL128: _Cost(14, 3.0), Protocol.SIMPLE: _Cost(14, 6.0)},
    "hopper": {
        Protocol.LL: _Cost(3.0, 0.0),
        Protocol.LL128: _Cost(6, 1.2),
        Protocol.SIMPLE: _Cost(11, 1.7, 32 * 1024),
    },
    "blackwell": {
        Protocol.LL: _Cost(5.5, 0.9),
        Protocol.LL128: _Cost(15, 2.0),
        Protocol.SIMPLE: _Cost(11, 5.5),
    },
}
_AMD_COST = {Protocol.LL: _Cost(12, 1.0), Protocol.LL128: _Cost(12, 1.9), Protocol.SIMPLE: _Cost(17, 1.7)}
# What stores of ring kernels reach of the rate that NCCL counts on: 230 of 240, 360 of 371, 700 of 722 GB/s
# (NVIDIA/nccl-tests #149 and the per-link figures of src/graph/topo.h); step counters and credits take the rest.
_WIRE = {"ampere": 240 / 230, "hopper": 371 / 360, "blackwell": 722 / 700}


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
    cost = _costs(fabric)[protocol]
    wire = shape.wire * (_WIRE.get(fabric.architecture, 1.0) if protocol is Protocol.SIMPLE else 1.0)
    tiling = ChannelTiling(
        channels=_channels(fabric, ranks, bytes_, shape.threads, protocol),
        threads=shape.threads,
        chunk=shape.chunk,
        slices=shape.slices,
        depth=shape.depth,
        in_flight=min(shape.in_flight, cost.in_flight),
        wire=wire,
        sync=cost.sync * 1e-6,
        start=cost.start * 1e-6,
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


def _costs(fabric: Fabric) -> dict[Protocol, _Cost]:
    return _AMD_COST if fabric.vendor == "amd" else _COSTS.get(fabric.architecture, _COSTS["ampere"])


def _channels(fabric: Fabric, ranks: int, bytes_: int, threads: int, protocol: Protocol) -> int:
    """Workgroups: all of the library's, fewer while there is too little for each thread (NCCL enqueue.cc)."""
    least = {Protocol.LL: 8 * ranks, Protocol.LL128: 8, Protocol.SIMPLE: 64}[protocol] * threads
    return max(1, min(fabric.workgroups(ranks), bytes_ // least))
