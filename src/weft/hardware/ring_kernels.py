"""What the ring kernels of collective libraries cost in the engine, by GPU generation, every value with its source.

The libraries' sources say how a kernel cuts its data; how long it takes to start, how long from slice to slice, how
much it keeps on its way and what share of the link its stores reach, they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from weft.errors import ConfigError
from weft.hardware.fields import Quantity
from weft.hardware.sourced import Leaf, Provenance, read_leaves, read_toml
from weft.units import Dimension

PROTOCOLS = ("ll", "ll128", "simple")
GENERATIONS = ("ampere", "hopper", "blackwell", "cdna")
DIRECT = ("cdna.direct_ll", "cdna.direct_simple")
"""The kernels that push to all peers in one step."""
_TABLES = (*(f"{generation}.{protocol}" for generation in GENERATIONS for protocol in PROTOCOLS), *DIRECT)
_RULES = {
    "start": Quantity(Dimension.SECONDS, zero_allowed=True),
    "sync": Quantity(Dimension.SECONDS, zero_allowed=True),
    "in_flight": Quantity(Dimension.BYTES, whole=True),
    "link": Quantity(Dimension.COUNT, at_most=1),
}
_FILE = "ring_kernels.toml"


@dataclass(frozen=True)
class RingCost:
    """What a ring kernel of one protocol costs on one generation of GPUs.

    `start` [s] passes from its launch to its first load, `sync` [s] from a slice's arrival to the receiver's next load;
    a workgroup keeps `in_flight` bytes on their way; its stores reach the share `link` of the link's payload rate.
    """

    start: float
    sync: float
    in_flight: int
    link: float
    provenance: Mapping[str, Provenance] = field(default_factory=dict, repr=False, compare=False)


def ring_cost(vendor: str, architecture: str, protocol: str) -> RingCost:
    """The costs of a protocol ("ll", "ll128" or "simple"; "direct_ll", "direct_simple") on GPUs of an architecture.

    All of AMD's are served by "cdna", NVIDIA's and others that the catalogue does not know by "ampere".
    """
    name = f"{_generation(vendor, architecture)}.{protocol}"
    return _moved.get().get(name) or ring_costs()[name]


def costs_of(vendor: str, architecture: str) -> Mapping[str, RingCost]:
    """All kernels of the library on GPUs of an architecture, by name, such as "hopper.simple"."""
    begin = f"{_generation(vendor, architecture)}."
    return {name: cost for name, cost in ring_costs().items() if name.startswith(begin)}


def _generation(vendor: str, architecture: str) -> str:
    return "cdna" if vendor == "amd" else architecture if architecture in GENERATIONS else "ampere"


@contextmanager
def in_flight_moved(name: str, in_flight: int) -> Iterator[None]:
    """Within it a workgroup of the rings of `name`, such as "cdna.simple", keeps `in_flight` bytes on their way."""
    mark = _moved.set({**_moved.get(), name: replace(ring_costs()[name], in_flight=in_flight)})
    try:
        yield
    finally:
        _moved.reset(mark)


_moved: ContextVar[Mapping[str, RingCost]] = ContextVar("moved", default={})  # noqa: B039 - never changed in place


@cache
def ring_costs() -> Mapping[str, RingCost]:
    """Every cost of the catalogue, by generation and protocol, such as "hopper.simple"; ConfigError for a bad file."""
    leaves = read_leaves(read_toml(resources.files("weft.hardware") / _FILE), _quantities(), _FILE)
    return {table: _cost(leaves, table) for table in _TABLES}


def _quantities() -> dict[str, Quantity]:
    return {f"{table}.{key}": rule for table in _TABLES for key, rule in _RULES.items()}


def _cost(leaves: Mapping[str, Leaf], table: str) -> RingCost:
    missing = [f"{table}.{key}" for key in _RULES if f"{table}.{key}" not in leaves]
    if missing:
        raise ConfigError("this value is missing; add it", _FILE, missing[0])
    found = {key: leaves[f"{table}.{key}"] for key in _RULES}
    value = {key: _RULES[key].parse(leaf.value) for key, leaf in found.items()}
    return RingCost(
        start=value["start"],
        sync=value["sync"],
        in_flight=int(value["in_flight"]),
        link=value["link"],
        provenance={key: leaf.provenance for key, leaf in found.items()},
    )
