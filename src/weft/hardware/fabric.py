"""How GPUs are connected: fabrics of links and routes, each built by one function named in `FABRICS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.core.errors import InputError

EVERY_PEER = -1
"""The end of a link that represents all links of a GPU together."""


@dataclass(frozen=True)
class Link:
    """One direction of a connection from vertex `source` to vertex `target`; vertices are GPUs, then switches.

    `kind` and `owner` (a GPU or a node) name it. Data that enters at `bandwidth` [bytes/s] leaves `latency` [s] later.
    `bundle` is a link that this one is part of: both must be free for a message to start. `to_peer` marks a link to a
    single GPU, for which a DMA engine's own rate is the only limit. `payload` is the share of the bandwidth left for
    data (None: the owner's `link.kernel_efficiency` or `link.dma_efficiency`).
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
    """Links, and for each pair (source, target) of GPUs the indices of the links on its route, in order.

    `striped` are the routes of data that is spread over all links of its sender, as parallel rings do (empty: the same
    as `routes`). `symmetric` says that rotating the ranks maps every route onto links of the same kinds, so that one
    GPU can represent all; `period` that rotating them by as many ranks does, so that one node or row can (0: none).
    `reduces` says whether its switches can add up data that passes them. With a `merge_window` [s] they merge loads of
    one place that come within it, where nothing writes it meanwhile, and if they add also stores, in a table of
    `merge_entries` requests for each GPU (0: any number), as CAIS proposes (arXiv:2605.05628); without, they pass on
    every load, and hold every tile until all its stores have come.
    """

    name: str
    gpus: int
    links: tuple[Link, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]]
    striped: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    symmetric: bool = False
    period: int = 0
    reduces: bool = False
    merge_entries: int = 0
    merge_window: float = 0.0

    @property
    def merges(self) -> bool:
        """Whether its switches merge request by request, for a limited time."""
        return self.merge_window > 0

    def adjacent(self, group: int) -> bool:
        """Return whether data between any two GPUs of a group of `group` consecutive ones pass links and switches
        alone.
        """
        return all(
            self.links[k].source == source or self.links[k].source >= self.gpus
            for (source, target), passed in self.routes.items()
            if source // group == target // group
            for k in passed
        )

    def route(self, source: int, target: int, *, direct: bool = True) -> tuple[int, ...]:
        """Return the links from one GPU to another: the direct route, or with direct=False that of striped data.

        Raises InputError for a pair without a route.
        """
        routes = self.routes if direct or not self.striped else self.striped
        if (source, target) not in routes:
            raise InputError(
                f"the fabric '{self.name}' of {self.gpus} GPUs has no route from GPU {source} to GPU {target}"
            )
        return routes[source, target]


def pairs(gpus: int) -> list[tuple[int, int]]:
    """Return all ordered pairs of different GPUs."""
    return [(source, target) for source in range(gpus) for target in range(gpus) if source != target]


def full(
    gpus: int, bandwidth: float, latency: float, egress: float | None = None, striped: float | None = None
) -> Fabric:
    """`gpus` GPUs with `bandwidth` [bytes/s] to each peer.

    All links of a GPU together send at most `egress` and receive at most as much; data spread over all of them moves at
    `striped` (both by default the sum of the links) [bytes/s].
    """
    together = (gpus - 1) * bandwidth
    egress, striped = egress or together, striped or together
    out = [Link("egress", g, g, EVERY_PEER, egress) for g in range(gpus)]
    into = [Link("ingress", g, gpus + g, g, egress, latency) for g in range(gpus)]
    rings = [Link("striped", g, g, EVERY_PEER, striped, bundle=g) for g in range(gpus)]
    peers = [
        Link(f"peer {distance}", g, g, gpus + (g - distance) % gpus, bandwidth, bundle=g, to_peer=True)
        for g in range(gpus)
        for distance in range(1, gpus)
    ]
    direct = {(s, t): (3 * gpus + s * (gpus - 1) + (s - t) % gpus - 1, gpus + t) for s, t in pairs(gpus)}
    cut = {(s, t): (2 * gpus + s, gpus + t) for s, t in pairs(gpus)}
    return Fabric("full", gpus, (*out, *into, *rings, *peers), direct, cut, symmetric=True)


_LONGEST_WINDOW = 1e-3
"""Longest time that a switch holds requests for one place [s]: beyond any sub-layer's burst."""
NETWORK_PAYLOAD = 0.92
"""Payload share of the network between nodes, for any sender (assumed; 0.85 to 0.97)."""


def nodes(
    gpus: int,
    bandwidth: float,
    latency: float,
    each: int = 8,
    adapter: float = 50e9,
    adapter_latency: float = 2e-6,
    oversubscription: float | None = None,
) -> Fabric:
    """`gpus` GPUs in nodes of `each`, `bandwidth` [bytes/s] and `latency` [s] inside, an `adapter` [bytes/s] per GPU.

    Rail-optimised: adapters of GPUs with the same index in their nodes share a switch, and data for another index first
    moves inside its node. With `oversubscription` a fat tree instead: a leaf switch per node whose uplinks have
    `oversubscription` times less bandwidth than its adapters. Raises InputError for GPUs that fill no whole nodes.
    """
    if gpus % each:
        raise InputError(f"{gpus} GPUs do not fill nodes of {each}; choose a multiple of {each}")
    count, every = gpus // each, range(gpus)
    tree = oversubscription is not None
    # Vertices after the GPUs: a switch in each node, then one for each index (rails) or a leaf for each node.
    inside = [gpus + g // each for g in every]
    outside = [gpus + count + (g // each if tree else g % each) for g in every]
    links = [
        *(Link("egress", g, g, inside[g], bandwidth) for g in every),
        *(Link("ingress", g, inside[g], g, bandwidth, latency) for g in every),
        *(Link("adapter out", g, g, outside[g], adapter, payload=NETWORK_PAYLOAD) for g in every),
        *(Link("adapter in", g, outside[g], g, adapter, adapter_latency, payload=NETWORK_PAYLOAD) for g in every),
    ]
    if oversubscription is not None:
        spine, up = gpus + 2 * count, each * adapter / oversubscription
        links += [Link("up", n, gpus + count + n, spine, up, payload=NETWORK_PAYLOAD) for n in range(count)]
        links += [Link("down", n, spine, gpus + count + n, up, payload=NETWORK_PAYLOAD) for n in range(count)]

    def route(source: int, target: int) -> tuple[int, ...]:
        if source // each == target // each:
            return source, gpus + target
        if tree:
            up, down = 4 * gpus + source // each, 4 * gpus + count + target // each
            return 2 * gpus + source, up, down, 3 * gpus + target
        mate = source // each * each + target % each
        change = () if mate == source else (source, gpus + mate)
        return *change, 2 * gpus + mate, 3 * gpus + target

    routes = {(s, t): route(s, t) for s, t in pairs(gpus)}
    return Fabric("nodes", gpus, tuple(links), routes, symmetric=each == 1, period=each)


def ring(gpus: int, bandwidth: float, latency: float) -> Fabric:
    """`gpus` GPUs with `bandwidth` [bytes/s] to each of two neighbours; others are reached the shorter way round."""
    down = [Link("down", g, g, (g - 1) % gpus, bandwidth, latency, to_peer=True) for g in range(gpus)]
    up = [Link("up", g, g, (g + 1) % gpus, bandwidth, latency, to_peer=True) for g in range(gpus)]

    def route(source: int, target: int) -> tuple[int, ...]:
        upwards, left = _around(source, target, gpus)
        return tuple(upwards * gpus + gpu for gpu in left)

    return Fabric("ring", gpus, (*down, *up), {(s, t): route(s, t) for s, t in pairs(gpus)}, symmetric=True)


def _around(source: int, target: int, length: int) -> tuple[bool, list[int]]:
    """Return whether the shorter way round a ring goes upwards (down on a tie), and the GPUs that a message leaves on
    it.

    It leaves every GPU on the way but the last, `target`.
    """
    up = (target - source) % length
    upwards = up < length - up
    step = 1 if upwards else -1
    return upwards, [(source + step * n) % length for n in range(up if upwards else length - up)]


def switch(
    gpus: int,
    bandwidth: float,
    latency: float,
    *,
    reduces: bool = False,
    merge_entries: int = 0,
    merge_window: float = 0.0,
) -> Fabric:
    """`gpus` GPUs that send and receive at `bandwidth` [bytes/s] each, to and from any peer.

    The other values are those of `Fabric`. Raises InputError for a window out of range, and for a table without one:
    what comes after a sum has left would wait there for ever.
    """
    if not 0 <= merge_window <= _LONGEST_WINDOW:
        raise InputError(f"merge_window is {merge_window} s; give 0 (none) to {_LONGEST_WINDOW} s, such as 2e-6")
    if merge_entries < 0 or (merge_entries and not merge_window):
        raise InputError(
            f"merge_entries is {merge_entries} with a merge_window of {merge_window} s; a table holds any number of "
            "requests (0) or some, each for a merge_window above zero, such as 2 us: set both, or neither"
        )
    out = [Link("egress", g, g, gpus, bandwidth) for g in range(gpus)]
    into = [Link("ingress", g, gpus, g, bandwidth, latency) for g in range(gpus)]
    routes = {(s, t): (s, gpus + t) for s, t in pairs(gpus)}
    return Fabric(
        "switch", gpus, (*out, *into), routes,
        symmetric=True, reduces=reduces, merge_entries=merge_entries, merge_window=merge_window,
    )  # fmt: skip


_STEPS = (("x-", -1, 0), ("x+", 1, 0), ("y-", 0, -1), ("y+", 0, 1))


def torus(gpus: int, bandwidth: float, latency: float, columns: int | None = None) -> Fabric:
    """`gpus` GPUs, row after row of `columns` (default: as square as possible), `bandwidth` [bytes/s] per link.

    Raises InputError where `gpus` are no whole rows.
    """
    columns = columns or max(c for c in range(1, int(gpus**0.5) + 1) if gpus % c == 0)
    if gpus % columns:
        raise InputError(f"{gpus} GPUs are no rows of {columns}; choose columns that divide {gpus}")
    rows = gpus // columns

    def at(x: int, y: int) -> int:
        return y % rows * columns + x % columns

    links = [
        Link(kind, at(x, y), at(x, y), at(x + dx, y + dy), bandwidth, latency, to_peer=True)
        for kind, dx, dy in _STEPS
        for y in range(rows)
        for x in range(columns)
    ]

    def route(source: int, target: int) -> tuple[int, ...]:
        (y, x), (to_y, to_x) = divmod(source, columns), divmod(target, columns)
        (right, xs), (down, ys) = _around(x, to_x, columns), _around(y, to_y, rows)
        return (*(right * gpus + at(x, y) for x in xs), *((2 + down) * gpus + at(to_x, y) for y in ys))

    return Fabric("torus", gpus, tuple(links), {(s, t): route(s, t) for s, t in pairs(gpus)}, period=columns)


FABRICS: Mapping[str, Callable[..., Fabric]] = {
    "ring": ring,
    "full": full,
    "switch": switch,
    "torus": torus,
    "nodes": nodes,
}
"""Builders by name; each takes the number of GPUs, a link's bandwidth [bytes/s] and its latency [s]."""
