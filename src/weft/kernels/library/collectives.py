"""Collectives as NCCL and RCCL carry them out: algorithms, protocols, channels and chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, UnknownNameError
from weft.kernels.library.interconnect import MOST_CHANNELS, Interconnect

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
    PAT = 7


class Protocol(IntEnum):
    """How a receiver detects that data have arrived: a flag in every 8 B, in every 128-B line, or per slice."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


Way = tuple[Algorithm, Protocol]
SWITCHED = (Algorithm.NVLS, Algorithm.NVLS_TREE)
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
P2P_LL_BYTES_OLD = 512 * KiB
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

    `floating` says whether the data type is a floating one: only those can be reduced by the switch. `release` holds
    the numbers of NCCL's release, none for the newest that is known.
    """

    name: str
    ranks: int
    fabric: Interconnect
    nodes: int = 1
    floating: bool = True
    release: tuple[int, ...] = ()

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
    def hops_between(self) -> int:
        """Number of those hops that a ring makes between nodes."""
        return self.hops // (self.ranks - 1) * (self.nodes - 1) if self.nodes > 1 else 0


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


def protocol_of(name: str) -> Protocol:
    """Return the protocol of a name such as "ll128"; UnknownNameError for an unknown one."""
    if name.upper() not in Protocol.__members__:
        raise UnknownNameError("protocol", name, [own.name.lower() for own in Protocol])
    return Protocol[name.upper()]


def way_name(algorithm: Algorithm, protocol: Protocol) -> str:
    """The name of algorithm and protocol, such as "ring-ll128"; PAT and the switch have no protocol to choose."""
    name = plain_name(algorithm)
    return name if algorithm in (*SWITCHED, Algorithm.PAT) else f"{name}-{protocol.name.lower()}"


def plain_name(algorithm: Algorithm) -> str:
    """Return the name of an algorithm in options and answers, such as "nvls-tree"."""
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
        raise UnknownNameError("algorithm", wanted, ["auto", *map(plain_name, Algorithm)])
    return Algorithm[first], protocol_of(second.lower())
