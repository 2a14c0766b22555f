"""Where RCCL pushes to all peers in one step instead: its MSCCL kernels for eight MI300X, by size.

Sizes, protocols and numbers of parts are those of ROCm/rccl tools/msccl-algorithms as tuned in PRs #1110 and #1120
(allgather-8n-8kb-128kb @ee38c4c, -128kb-1mb @ee38c4c, -1mb-16mb @e6987a6; alltoall-8n-9kb-190kb @0f59f1f, -190kb-512kb
@c2fc1d6, -512kb-7mb and -7mb-43mb @db48bcf). They hold for all-gathers in place and all-to-alls out of place.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.collectives.fabric import Fabric
from weft.collectives.library import Protocol, has_msccl
from weft.hardware.ring_kernels import ring_cost
from weft.kernels.channels import ChannelTiling
from weft.kernels.direct import DirectExchange

KIB, MIB = 1 << 10, 1 << 20


class _Kernel(NamedTuple):
    """A kernel for buffers of up to so many bytes: its protocol, the parts that each peer's data are cut in."""

    up_to: int
    protocol: Protocol
    parts: int


_KERNELS = {
    "all_gather": (_Kernel(128 * KIB, Protocol.LL, 2), _Kernel(16 * MIB, Protocol.SIMPLE, 4)),
    "all_to_all": (
        _Kernel(190 * KIB, Protocol.LL, 2),
        _Kernel(512 * KIB, Protocol.LL, 4),
        _Kernel(7 * MIB, Protocol.SIMPLE, 4),
        _Kernel(43 * MIB, Protocol.SIMPLE, 8),
    ),
}


def direct_exchange(
    collective: str, bytes_: int, ranks: int, fabric: Fabric, units: int | None = None
) -> DirectExchange | None:
    """The one-step kernel that RCCL takes for a collective of `bytes_` [bytes of the whole buffer]; None if none.

    `units` is the most workgroups that it may have (None: the library's own number).
    """
    if not has_msccl(fabric, ranks):
        return None
    for kernel in _KERNELS.get(collective, ()):
        if bytes_ <= kernel.up_to:
            own = DirectExchange.workgroups(collective, ranks, kernel.parts)
            tiling = _tiling(fabric, kernel.protocol, min(own, units or own))
            return DirectExchange(collective, bytes_, ranks, tiling, kernel.parts)
    return None


def _tiling(fabric: Fabric, protocol: Protocol, workgroups: int) -> ChannelTiling:
    """Slices as in a ring: LL in 16 KiB with flags, Simple in halves of at most 2 MiB (RCCL src/device/prims_*.h)."""
    cost = ring_cost(fabric.vendor, fabric.architecture, f"direct_{protocol.name.lower()}")
    flags = protocol is Protocol.LL
    return ChannelTiling(
        channels=workgroups,
        threads=256,
        chunk=16 * KIB if flags else 2 * MIB,
        slices=1 if flags else 2,
        depth=8 if flags else 4,
        in_flight=cost.in_flight,
        wire=2.0 if flags else 1.0,
        link=cost.link,
        sync=cost.sync,
        start=cost.start,
    )
