"""From a fabric to the engine's links and routes; where one GPU stands for all, to those of that GPU alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Table
from weft.errors import InputError
from weft.hardware import Link as OwnLink
from weft.hardware import System
from weft.hardware.fabric import Link
from weft.lower.nodes import fabric_of, ring_link
from weft.program import Hop, Wiring
from weft.units import to_fs

UNIT = 64


def wiring(system: System, ranks: int) -> Wiring:
    """The links of `ranks` simulated GPUs and the routes between them.

    With one rank, links of a kind become that GPU's own: what the others send through theirs, it sends through its.

    Raises InputError for one rank of a fabric that is not symmetric.
    """
    return _Wires(system).mirrored() if ranks == 1 else _Wires(system).explicit(ranks)


class _Wires:
    def __init__(self, system: System) -> None:
        self.system, self.fabric = system, fabric_of(system)
        self.common = self._own_link(None)
        self.own = {rank: self._own_link(rank) for rank in system.variants}

    def _own_link(self, rank: int | None) -> OwnLink:
        """The link of a GPU, as a ring has it where the system has no fabric of its own; None: that of all alike."""
        gpu = self.system.gpu if rank is None else self.system.gpu_of(rank)
        return gpu.link if self.system.fabric is not None else ring_link(self.system, gpu)

    def explicit(self, ranks: int) -> Wiring:
        links = self.fabric.links
        routes = {
            (g, distance, direct): self._hops((g, (g - distance) % ranks), range(len(links)), direct)
            for g in range(ranks)
            for distance in range(1, ranks)
            for direct in (False, True)
        }
        return Wiring(self._table(links, range(len(links))), tuple(link.name for link in links), routes)

    def mirrored(self) -> Wiring:
        links = self.fabric.links
        if not self.fabric.symmetric:
            raise InputError(
                f"one GPU cannot stand for all of the fabric '{self.fabric.name}', whose ranks are not alike; simulate "
                "each GPU, in mode 'explicit'"
            )
        first = {link.kind: link for link in reversed(links)}
        idle = _never_wait(first)
        kinds = [kind for kind in reversed(first) if kind not in idle]
        rows = [y.NONE if link.kind in idle else kinds.index(link.kind) for link in links]
        routes = {
            (0, distance, direct): self._hops((0, -distance % self.fabric.gpus), rows, direct)
            for distance in range(1, self.fabric.gpus)
            for direct in (False, True)
        }
        return Wiring(self._table([first[kind] for kind in kinds], rows), tuple(kinds), routes)

    def _hops(self, ends: tuple[int, int], rows: Sequence[int], direct: bool) -> tuple[Hop, ...]:
        """The rows of a route's links and the time to the next one or the receiver [fs], at least 1 in all."""
        hops: list[Hop] = []
        for k in self.fabric.route(*ends, direct=direct):
            link = self.fabric.links[k]
            latency = to_fs(link.latency * (self._owner(link).latency / self.common.latency))
            if rows[k] == y.NONE:
                hops[-1] = hops[-1]._replace(latency=hops[-1].latency + latency)
            else:
                hops.append(Hop(rows[k], latency))
        if not any(hop.latency for hop in hops):
            hops[-1] = hops[-1]._replace(latency=1)
        return tuple(hops)

    def _owner(self, link: Link) -> OwnLink:
        """The link of the GPU that a fabric's link belongs to; the network's are nobody's."""
        return self.common if link.payload is not None else self.own.get(link.owner, self.common)

    def _table(self, links: Sequence[Link], rows: Sequence[int]) -> Table:
        table = np.zeros((len(links), y.LINK_COLUMNS), dtype=np.int64)
        for row, link in zip(table, links, strict=True):
            own = self._owner(link)
            bandwidth = link.bandwidth * (own.bandwidth / self.common.bandwidth)
            stores, engines = bandwidth * own.kernel_efficiency, bandwidth * own.dma_efficiency
            if link.payload is not None:
                stores = engines = bandwidth * link.payload
            if link.to_peer:
                engines = min(bandwidth, self.system.gpu.dma.bandwidth or engines)
            row[y.LINK_STORE64], row[y.LINK_DMA64] = to_fs(UNIT / stores), to_fs(UNIT / engines)
            row[y.LINK_BUNDLE] = y.NONE if link.bundle is None else rows[link.bundle]
        return table


def _never_wait(first: dict[str, Link]) -> set[str]:
    """Ingress of a GPU that stands for all: it takes what its egress lets out, as fast and in the same order."""
    out, into = first.get("egress"), first.get("ingress")
    same = out and into and into.bandwidth >= out.bandwidth and into.payload == out.payload
    return {"ingress"} if same else set()
