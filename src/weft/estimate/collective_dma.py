"""Collectives that copy engines carry out: every GPU pushes its parts to all peers at once, and no compute unit works.

Copy engines cannot reduce, so there are all-gather, all-to-all, broadcast and send. A thread of the host hands one
engine's commands over after the other's, on AMD's machines for all GPUs of a node, and waits for every completion: that
makes small collectives several times slower than by compute units (AMD-DMA-Latte, arXiv:2511.06605). The engine of
`weft.kernels.copies` simulates the same; the two agree within 5 %.
"""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.estimate.answer import FloatArray, Parts
from weft.estimate.collective_forms import Group
from weft.library.interconnect import Interconnect

NAMES = ("all_gather", "all_to_all", "broadcast", "send_recv")


def copied(size: FloatArray, group: Group) -> Parts:
    """The parts of a collective by copy engines inside one node; InputError for one that must reduce.

    With fewer engines than peers, an engine serves several in turn.
    """
    name, fabric, ranks = group.name, group.fabric, group.ranks
    if group.nodes > 1:
        raise InputError(
            f"copy engines reach no further than a node of {fabric.gpus_per_node} GPUs; give at most as many ranks"
        )
    if name not in NAMES:
        raise InputError(
            f"copy engines cannot reduce, so {name} cannot be driven by DMA; take one of {', '.join(NAMES)}, or leave "
            "it to compute units"
        )
    dma = fabric.gpu.dma
    peers = 1 if name == "send_recv" else ranks - 1
    sent = size * (peers if name == "broadcast" else group.volume)
    engines = min(peers, dma.engines)
    driven = 1 if fabric.gpu.vendor == "nvidia" or name in ("broadcast", "send_recv") else ranks
    each = peers * dma.enqueue + engines * dma.doorbell
    turns = -(-peers // engines)
    earlier = each * (engines - 1) / engines
    return {
        "launch": np.full_like(size, driven * each + dma.fetch),
        "latency": np.full_like(size, turns * dma.setup + dma.drain + dma.sync + engines * dma.signal),
        "link": _transfer(sent / peers, peers, turns, fabric, earlier),
    }


def _transfer(each: FloatArray, peers: int, turns: int, fabric: Interconnect, earlier: float) -> FloatArray:
    """How long it takes to send `each` [bytes] to every peer from when the last engine begins, `earlier` [s] after the
    first: all share the egress, an engine's commands take turns.
    """
    link, dma = fabric.gpu.link, fabric.gpu.dma
    egress = fabric.figure(peers + 1, paired=True) / link.kernel_efficiency * link.dma_efficiency
    lane = min(egress, dma.bandwidth or egress)
    if fabric.topology == "mesh":
        others = fabric.gpus_per_node - 1
        lane = egress / peers / (link.dma_efficiency if dma.bandwidth else 1.0)
        lane, egress = min(lane, dma.bandwidth or lane), egress / peers * others
    return np.maximum(each * peers / egress - earlier, each * turns / lane)
