"""Collectives that copy engines carry out: every GPU pushes its parts to all peers at once, and no compute unit works.

Copy engines cannot reduce, so there are all-gather, all-to-all, broadcast and send. The host sets up one copy after the
other, for microseconds each, and an engine takes some time for the smallest one; both make small collectives several
times slower than by compute units (AMD-DMA-Latte, arXiv:2511.06605).
"""

from __future__ import annotations

import numpy as np

from weft.collectives.fabric import Fabric
from weft.collectives.library import volume
from weft.errors import InputError
from weft.hardware.libraries import Profile
from weft.predict.collective_forms import Parts
from weft.predict.prediction import FloatArray

NAMES = ("all_gather", "all_to_all", "broadcast", "send_recv")


def copied(name: str, size: FloatArray, ranks: int, fabric: Fabric, profile: Profile) -> Parts:
    """The parts of a collective by copy engines inside one node; InputError for one that must reduce.

    With fewer engines than peers, an engine serves several in turn.
    """
    if name not in NAMES:
        raise InputError(
            f"copy engines cannot reduce, so {name} cannot be driven by DMA; take one of {', '.join(NAMES)}"
        )
    peers = 1 if name == "send_recv" else ranks - 1
    turns = -(-peers // max(fabric.engines, 1))
    rate = fabric.pair_figure(peers + 1) / fabric.payload * fabric.dma_efficiency
    sent = peers if name == "broadcast" else volume(name, ranks)
    return {
        "launch": np.full_like(size, peers * profile.value("dma.setup")),
        "latency": np.full_like(size, turns * profile.value("dma.copy")),
        "link": size * sent / rate,
    }
