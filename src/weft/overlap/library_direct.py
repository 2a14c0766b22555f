"""Where RCCL pushes to all peers in one step instead: its MSCCL kernels for eight MI300X, as the engine runs them."""

from __future__ import annotations

from weft.collectives.fabric import Fabric
from weft.collectives.library import KiB, MiB, Protocol, one_step_kernels
from weft.hardware.ring_kernels import ring_cost
from weft.kernels.channels import ChannelTiling
from weft.kernels.direct import DirectExchange

SIMULATED = ("all_gather", "all_to_all")
"""The collectives of which there are such kernels here: all-reduces run on rings."""


def direct_exchange(
    collective: str, bytes_: int, ranks: int, fabric: Fabric, units: int | None = None
) -> DirectExchange | None:
    """The one-step kernel that RCCL takes for a collective of `bytes_` [bytes of the whole buffer]; None if none.

    `units` is the most workgroups that it may have (None: the library's own number).
    """
    for kernel in one_step_kernels(collective, ranks, fabric) if collective in SIMULATED else ():
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
        chunk=16 * KiB if flags else 2 * MiB,
        slices=1 if flags else 2,
        depth=8 if flags else 4,
        in_flight=cost.in_flight,
        wire=2.0 if flags else 1.0,
        link=cost.link,
        sync=cost.sync,
        start=cost.start,
    )
