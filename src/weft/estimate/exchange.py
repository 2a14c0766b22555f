"""Exchanges of tokens between the ranks that share an MoE layer's experts, in closed form, as libraries carry them out.

time = start + hops + a row's way through one warp + the longest of three that overlap: compute units moving rows, the
links inside a node, the network between nodes (joined smoothly, by the norm of exponent 4, as they share pipelines).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from weft.core.errors import InputError, UnknownNameError, show_value
from weft.core.options import RunOptions
from weft.estimate.answer import Estimate, FloatArray, blend_parts, from_parts
from weft.estimate.collective import collective
from weft.estimate.target import BenchmarkProtocol, Target, target
from weft.graph import Collective, TokenExchange
from weft.graph.routing import MOST_EXPERTS, check_groups, count_reached
from weft.hardware import Described
from weft.kernels.library.dispatchers import PAYLOAD, Dispatcher, dispatcher, shipped_values, table_of

OPERATIONS = ("dispatch", "combine", "combine_low_precision", "prepare")
"""What can be exchanged: tokens to their experts, results back (in BF16, or 4 bits), or only the numbers of tokens."""
_NORM = 4.0
"""How sharply the longest of the three decides [assumed, 2 to infinity, where it alone counts]."""
HOST_SYNC = 30e-6
"""The host reads how many tokens come and launches what follows [s; assumed: a copy of 10 us to the host, its wake-up
and the first launch, 15 to 60 us as for a device synchronisation in PyTorch]."""


@dataclass(frozen=True)
class Exchange:
    """A dispatch or combine of one layer: `tokens` of `hidden` elements on each of `ranks`, `top_k` of `experts` each.

    `dtype` is what travels (None: as the library does by default; combine brings BF16 back). Under group-limited
    routing a token's experts are of `reach` groups, (4, 8) of 8, or 4 of as many as there are nodes (None: of all).
    Dimensions may be arrays.
    """

    operation: str
    tokens: Any
    hidden: Any
    top_k: Any
    experts: Any
    ranks: int
    dtype: str | None = None
    reach: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise UnknownNameError("exchange", self.operation, OPERATIONS)
        if self.dtype is not None and self.dtype not in PAYLOAD:
            raise UnknownNameError("dtype of an exchange", self.dtype, PAYLOAD)
        for name in ("tokens", "hidden", "top_k", "experts"):
            if not np.all(np.asarray(getattr(self, name)) >= 1):
                raise InputError(f"{name} is {show_value(getattr(self, name))}; it must be 1 or more")
        if np.any(np.asarray(self.top_k) > np.asarray(self.experts)):
            raise InputError(f"top_k is {self.top_k}, but there are only {self.experts} experts; give at most as many")
        if self.ranks < 2 or np.any(np.asarray(self.experts) < self.ranks):
            raise InputError(
                f"{self.ranks} ranks cannot share {show_value(self.experts)} experts; give 2 ranks or more, at most "
                "one an "
                "expert"
            )
        if self.reach is not None:
            few, groups = self.reach if isinstance(self.reach, tuple) else (self.reach, MOST_EXPERTS)
            if not 1 <= few <= groups:
                raise InputError(
                    f"reach is {self.reach}; it counts the groups of experts that a token may reach: give 1 or more, "
                    "up to all groups"
                )
            if isinstance(self.reach, tuple):
                check_groups(int(np.max(self.top_k)), int(np.max(self.experts)), few, groups)


@dataclass(frozen=True)
class ExchangedBytes:
    """What an exchange moves for each rank: copies of a token, and bytes by level.

    `copies` are the rows that a rank's compute units handle for each token, one to itself included; `link_bytes` cross
    the links of its node, `network_bytes` its network adapter; `wire` is the bytes of a row.
    """

    copies: FloatArray
    link_bytes: FloatArray
    network_bytes: FloatArray
    wire: FloatArray


def count_bytes(what: Exchange, of: Dispatcher, nodes: int) -> ExchangedBytes:
    """Return the copies and bytes of an exchange over `nodes` nodes, by the library's rule."""
    wire = np.asarray(what.hidden) * PAYLOAD[_dtype(what, of)] * (what.operation != "prepare")
    per_node = what.ranks // nodes
    limit = what.reach if isinstance(what.reach, tuple) or what.reach is None else (what.reach, nodes)
    if of.copies == "expert":
        ranks = on_nodes = np.asarray(what.top_k, dtype=np.float64)
    else:
        ranks = count_reached(what.ranks, what.experts, what.top_k, limit)
        on_nodes = count_reached(nodes, what.experts, what.top_k, limit) if of.two_level else ranks
    away = np.asarray(what.tokens) * on_nodes * (1 - 1 / nodes) * wire
    # What a two-level library forwards inside a node, or a flat one sends to the node's other ranks.
    inside = ranks * (1 - 1 / per_node) if of.two_level else ranks * (per_node - 1) / what.ranks
    return ExchangedBytes(ranks, np.asarray(what.tokens) * inside * wire, away, np.asarray(wire, dtype=np.float64))


def _dtype(what: Exchange, of: Dispatcher) -> str:
    if what.operation == "combine":
        return "bf16"
    return "nvfp4" if what.operation == "combine_low_precision" else what.dtype or of.dtype


def exchange(
    what: Exchange,
    system: Described,
    library: str = "deepep",
    *,
    compute_units: Any = None,
    options: RunOptions | None = None,
    harness: BenchmarkProtocol | None = None,
) -> Estimate:
    """Return how long one exchange takes with a library, what bounds it, and where the time goes.

    `compute_units` are those that the library takes (None: its own number); of the `harness` only its `values` count.
    Raises UnknownNameError for an unknown library or system, InputError for what the library cannot do.

    >>> from weft.estimate.exchange import Exchange, exchange
    >>> what = Exchange("dispatch", 4096, 7168, 8, 256, ranks=64)
    >>> exchange(what, "64xh100", "deepep").bound
    'link'
    """
    if compute_units is not None and not np.all(np.asarray(compute_units) >= 1):
        raise InputError(f"compute_units is {show_value(compute_units)}; give 1 or more, or leave it out")
    of, machine = dispatcher(library), target(system, options, harness)
    nodes = machine.nodes(what.ranks)
    found = time_exchange(what, machine, of, nodes, compute_units)
    return found.case() if np.ndim(found.seconds) == 0 else found


def of_operator(op: TokenExchange, machine: Target) -> Estimate:
    """Return how long an exchange of a graph takes: what `exchange` says of it."""
    reach = (op.reach, op.groups) if op.reach else None
    what = Exchange(op.operation, op.tokens, op.hidden, op.top_k, op.experts, op.ranks, op.dtype, reach)
    return time_exchange(what, machine, dispatcher(op.library), machine.nodes(op.ranks), op.units or None)


def traffic(what: Exchange, system: Described, library: str = "deepep", *, compute_units: Any = None) -> dict[str, Any]:
    """Return what an exchange moves for each rank as plain data.

    Nodes, copies of a token, bytes over the links of the node and over the network, and the compute units that it
    takes (0: not known).
    """
    of, machine = dispatcher(library), target(system)
    nodes = machine.nodes(what.ranks)
    known = of.by_experts or of.compute_units
    amount = count_bytes(what, of, nodes)
    units = of.units(what.experts, machine.gpu.compute.compute_units) if known else 0
    return {
        "nodes": nodes,
        "copies": amount.copies,
        "link_bytes": amount.link_bytes,
        "network_bytes": amount.network_bytes,
        "compute_units": units if compute_units is None else compute_units,
    }


def time_exchange(what: Exchange, machine: Target, of: Dispatcher, nodes: int, compute_units: Any) -> Estimate:
    """Return the exchange over `nodes` nodes by values of the library, as arrays; see `exchange`."""
    host = {"host": np.asarray(HOST_SYNC)} if of.host_sync and what.operation == "dispatch" else {}
    if of.name in ("nccl", "allgather-reducescatter"):
        return _by_collective(what, machine, of, nodes, host)
    place = table_of(of, what.operation, nodes, machine.gpu.architecture)
    paths, changed = {key: f"{place}.{key}" for key in _VALUES}, machine.harness.values or {}
    given = {key: changed.get(path, shipped_values().get(path, 0.0)) for key, path in paths.items()}
    amount, gpu = count_bytes(what, of, nodes), machine.gpu
    tokens = np.asarray(what.tokens, dtype=np.float64)
    units = of.units(what.experts, gpu.compute.compute_units) if compute_units is None else compute_units
    work = given["token"] + amount.copies * given["copy"]
    if given["rate"]:
        work = work + amount.copies * amount.wire / given["rate"]
    wide = {"units": tokens / units * work}
    if given["link"]:
        wide["link"] = amount.link_bytes / (given["link"] * gpu.link.bandwidth)
    if nodes > 1:
        share = given["network"] * (2.0 / nodes) ** given["spread"]
        wide["network"] = amount.network_bytes / (share * machine.fabric.adapter(nodes, "exchange"))
    wide = blend_parts(wide, _NORM)
    if nodes > 1:  # whose tables hold the network alone: never faster than the wires of a node
        lacking = amount.link_bytes / gpu.link.bandwidth - np.sum(list(wide.values()), axis=0)
        wide["link"] = wide.get("link", 0.0) + np.maximum(lacking, 0.0)
    peers = nodes if nodes > 1 else what.ranks
    return from_parts(
        {
            "launch": np.asarray(
                given["start"] + given["hop"] * np.log2(peers) + given["expert"] * np.asarray(what.experts)
            ),
            "latency": amount.wire / given["row"] if given["row"] else np.zeros_like(amount.wire),
            **wide,
            **host,
        }
    )


_VALUES = ("start", "hop", "row", "token", "copy", "expert", "rate", "link", "network", "spread")


def _by_collective(
    what: Exchange, machine: Target, of: Dispatcher, nodes: int, host: Mapping[str, FloatArray]
) -> Estimate:
    """Return the all-to-all of equal parts, after which the host may wait, or all tokens to all ranks and back."""
    amount = count_bytes(what, of, nodes)
    name, copies = "all_to_all", amount.copies
    if of.name != "nccl":
        name, copies = "all_gather" if what.operation == "dispatch" else "reduce_scatter", np.asarray(what.ranks)
    size = np.asarray(what.tokens) * copies * amount.wire
    found = collective(Collective(name, cast("Any", np.maximum(size, 1.0)), what.ranks), machine)
    return from_parts({name: np.asarray(part) for name, part in {**found.parts, **host}.items()})
