"""How libraries exchange the tokens of a mixture of experts: bytes by routing, compute units, fixed costs and rates.

Values stand in `dispatchers.toml`, by library, operation, level (`node`: all ranks share a node's links; `network`:
several nodes) and, inside a node, GPU architecture. A library that is `two_level` sends a token once to each node and
forwards it there; a `flat` one sends it to each rank, or with `copies = "expert"` once for each expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.catalog import Leaf, Quantity, read_leaves, read_toml
from weft.core.errors import InputError, UnknownNameError
from weft.core.units import Dimension
from weft.graph import EXCHANGES
from weft.graph.collective import Copies

FloatArray = npt.NDArray[np.float64]

_TIME = Quantity(Dimension.SECONDS, zero_allowed=True)
_RATE = Quantity(Dimension.BYTES_PER_SECOND)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
_POWER = Quantity(Dimension.COUNT, zero_allowed=True, at_most=1)
RULES: Mapping[str, Quantity] = {
    "start": _TIME,
    "hop": _TIME,
    "row": _RATE,
    "token": _TIME,
    "copy": _TIME,
    "expert": _TIME,
    "rate": _RATE,
    "link": _SHARE,
    "network": _SHARE,
    "spread": _POWER,
    "host": _TIME,
}
"""Every value of a table with its rule; `ABOUT` says what it means."""
ABOUT: Mapping[str, str] = {
    "start": "an exchange without tokens: launch, flags of all ranks, end",
    "hop": "what each doubling of the peers (nodes, or ranks of one-level libraries) adds to the start",
    "row": "rate at which one warp passes a row on, which even a single token waits for",
    "token": "a compute unit's time for each token beside its bytes",
    "copy": "a compute unit's time for each copy of a token beside its bytes",
    "expert": "what each expert adds to the start: a counter and a flag",
    "rate": "rate at which one compute unit moves rows",
    "link": "share of the links' rate that is reached",
    "network": "share of the network's rate that is reached on two nodes",
    "spread": "how that share falls with nodes: (2 / nodes) to this power",
    "host": "what the host spends on an exchange over the network in a training framework, beside its own launches",
}
_FILE = resources.files("weft.kernels.library") / "dispatchers.toml"
_SCALE_BLOCK = 128
PAYLOAD: Mapping[str, float] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0 + 4 / _SCALE_BLOCK,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes of an element on the wire, its scales included: fp32 for 128 elements of FP8, FP8 for 16 of NVFP4."""


@dataclass(frozen=True)
class Dispatcher:
    """A library that exchanges tokens: how many copies it sends, over which levels, and by which compute units.

    `compute_units` is its own number (0: as many as its kernels fill, by the experts where `by_experts`); `dtype` what
    dispatch sends by default; `host_sync` says that the host waits to learn how many tokens come. An operation without
    values of its own has those of the library that it is `like`.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    copies: Copies
    two_level: bool
    compute_units: int
    by_experts: bool
    dtype: str
    host_sync: bool
    source: str
    like: str = ""

    def units(self, experts: npt.ArrayLike, available: int) -> FloatArray:
        """Compute units that an exchange takes of `available` ones.

        Low-latency kernels of DeepEP give each expert a group of warps, as many groups to a unit as it takes to hold
        all (csrc/kernels/internode_ll.cu: `num_warp_groups = ceil_div(num_experts, num_device_sms)`).
        """
        count = np.asarray(experts, dtype=np.float64)
        if not self.by_experts:
            return np.full(count.shape, float(self.compute_units or available))
        return np.asarray(np.ceil(count / np.ceil(count / available)))


@cache
def _tables() -> Mapping[str, Any]:
    return read_toml(_FILE)


@cache
def dispatchers() -> Mapping[str, Dispatcher]:
    """Return every library by its name."""
    return {name: Dispatcher(name, copies=EXCHANGES[name], **_about(table)) for name, table in _tables().items()}


def _about(table: Mapping[str, Any]) -> dict[str, Any]:
    said = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    return said | {"aliases": tuple(said.get("aliases", ()))}


def dispatcher(name: str) -> Dispatcher:
    """Return the library of that name or alias; UnknownNameError lists the known ones."""
    known = dispatchers()
    for one in known.values():
        if name.lower() in (one.name, *one.aliases):
            return one
    raise UnknownNameError("dispatcher", name, known)


@cache
def leaves() -> Mapping[str, Leaf]:
    """Return every value by path, such as "deepep.dispatch.node.hopper.start", with its source and range."""
    found: dict[str, Leaf] = {}
    for place, table in _walk((), _tables()):
        read = read_leaves(table, {key: RULES[key] for key in table if key in RULES}, f"{_FILE.name}, {place}")
        found |= {f"{place}.{key}": leaf for key, leaf in read.items()}
    return found


def _walk(place: tuple[str, ...], table: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return every table that holds values, with its path."""
    below = [(key, value) for key, value in table.items() if isinstance(value, Mapping) and "value" not in value]
    own = {key: value for key, value in table.items() if isinstance(value, Mapping) and "value" in value}
    return [
        *([(".".join(place), own)] if own else []),
        *(found for key, value in below for found in _walk((*place, key), value)),
    ]


@cache
def shipped_values() -> Mapping[str, float]:
    """Return every value by path [seconds, bytes/s or a ratio]."""
    return {path: leaf.value for path, leaf in leaves().items()}


@cache
def bounds() -> Mapping[str, tuple[float, float]]:
    """Return the plausible range of every value by path [as `shipped_values`]."""
    return {path: leaf.range for path, leaf in leaves().items()}


@cache
def places() -> Mapping[str, tuple[str, ...]]:
    """Return the names of the values that each table holds, by its path."""
    known: dict[str, tuple[str, ...]] = {}
    for path in leaves():
        place, _, key = path.rpartition(".")
        known[place] = (*known.get(place, ()), key)
    return known


def table_of(of: Dispatcher, operation: str, nodes: int, architecture: str) -> str:
    """Return the path of the values for an operation on one node or several of an architecture.

    An architecture without values takes those of the last one. Raises InputError for what the library cannot do.
    """
    level = "node" if nodes == 1 else "network"
    for name in filter(None, (of.name, of.like)):
        stem = f"{name}.{operation}.{level}"
        known = [place for place in places() if place == stem or place.startswith(stem + ".")]
        if known:
            break
    if not known:
        able = sorted({" on ".join(place.split(".")[1:3]) for place in places() if place.startswith(of.name + ".")})
        where = "one node" if nodes == 1 else f"{nodes} nodes"
        raise InputError(
            f"no {operation} of {of.name} is known on {where}; known are {', '.join(able)} (network: several nodes); "
            "choose one of these, or another library"
        )
    own = f"{stem}.{architecture}"
    return own if own in known else known[-1]
