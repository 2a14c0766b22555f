"""A fabric: directed links between GPUs and switches, and the links that each pair of GPUs sends over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import InputError

EVERY_PEER = -1
"""The end of a link that stands for all links of a GPU at once."""


@dataclass(frozen=True)
class Link:
    """One direction of a connection from vertex `source` to vertex `target`; GPUs come first, then switches.

    `kind` and `owner`, the GPU or node that it belongs to, name it. What enters at `bandwidth` [bytes/s] comes out
    `latency` [s] later. `bundle` is a link of which it is a part: both must be free for a message to start. `to_peer`
    marks a link to one GPU alone, which a DMA engine's own rate describes whole. `payload` is the share of the
    bandwidth that data gets, whoever sends (None: that of the owner's `link.kernel_efficiency`, `dma_efficiency`).
    """

    kind: str
    owner: int
    source: int
    target: int
    bandwidth: float
    latency: float = 0.0
    bundle: int | None = None
    to_peer: bool = False
    payload: float | None = None

    @property
    def name(self) -> str:
        """Its kind and owner, such as "egress 3"."""
        return f"{self.kind} {self.owner}"


@dataclass(frozen=True)
class Fabric:
    """Links, and for each pair (source, target) of GPUs the indices of those that a message passes, in order.

    `striped` are the routes of data that is cut over all links of its sender, as parallel rings are (empty: the same
    as `routes`). `symmetric` says that rotating the ranks maps every route onto links of the same kinds, so that one
    GPU can stand for all. `reduces` says whether its switches can add what passes them.
    """

    name: str
    gpus: int
    links: tuple[Link, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    striped: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    symmetric: bool = False
    reduces: bool = False

    def route(self, source: int, target: int, *, direct: bool = True) -> tuple[int, ...]:
        """The links from one GPU to another: the direct ones, or with direct=False those of striped data.

        Raises InputError for a pair without a route.
        """
        routes = self.routes if direct or not self.striped else self.striped
        if (source, target) not in routes:
            raise InputError(
                f"the fabric '{self.name}' of {self.gpus} GPUs has no route from GPU {source} to GPU {target}"
            )
        return routes[source, target]


def pairs(gpus: int) -> list[tuple[int, int]]:
    """All ordered pairs of different GPUs."""
    return [(source, target) for source in range(gpus) for target in range(gpus) if source != target]
