"""What the ring kernels of collective libraries cost in the engine, by GPU generation, every value with its source.

The libraries' sources say how a kernel cuts its data; how long it takes to start, how long from slice to slice, how
much it keeps on its way and what share of the link its stores reach, they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from weft.errors import ConfigError, InputError
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
_PAIRS = {f"{generation}.pairs": _RULES["in_flight"] for generation in GENERATIONS}
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

    All of AMD's are served by "cdna", NVIDIA's and others that the catalogue does not know by "ampere". Raises
    InputError for kernels that their library does not have.
    """
    name = f"{_generation(vendor, architecture)}.{protocol}"
    if name not in ring_costs():
        raise InputError(
            f"no '{name}' kernel is known: libraries push to all peers in one step on AMD's GPUs alone; "
            "take another algorithm, such as 'ring'"
        )
    cost = ring_costs()[name]
    return replace(cost, in_flight=_moved.get().get(name, cost.in_flight))


def pairs_in_flight(vendor: str, architecture: str) -> int:
    """What a workgroup of large sends and receives has on its way in either direction [bytes]."""
    name = f"{_generation(vendor, architecture)}.pairs"
    return _moved.get().get(name) or int(_RULES["in_flight"].parse(_leaves()[name].value))


def flights_of(vendor: str, architecture: str) -> Mapping[str, Provenance]:
    """Where the bytes in flight of the library's kernels on an architecture come from, by kernel.

    Such as "hopper.simple"; "hopper.pairs" are those of large sends and receives.
    """
    begin = f"{_generation(vendor, architecture)}."
    return {
        path.removesuffix(".in_flight"): leaf.provenance
        for path, leaf in _leaves().items()
        if path.startswith(begin) and path.endswith((".in_flight", ".pairs"))
    }


def _generation(vendor: str, architecture: str) -> str:
    return "cdna" if vendor == "amd" else architecture if architecture in GENERATIONS else "ampere"


@contextmanager
def in_flight_moved(moved: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Within it workgroups of other kernels, such as ("cdna.simple", 4096), keep so many bytes on their way."""
    mark = _moved.set({**_moved.get(), **dict(moved)})
    try:
        yield
    finally:
        _moved.reset(mark)


_moved: ContextVar[Mapping[str, int]] = ContextVar("moved", default={})  # noqa: B039 - never changed in place


@cache
def ring_costs() -> Mapping[str, RingCost]:
    """Every cost of the catalogue, by generation and protocol, such as "hopper.simple"; ConfigError for a bad file."""
    return {table: _cost(_leaves(), table) for table in _TABLES}


@cache
def _leaves() -> Mapping[str, Leaf]:
    """Every value as written, none missing."""
    known = {f"{table}.{key}": rule for table in _TABLES for key, rule in _RULES.items()} | _PAIRS
    leaves = read_leaves(read_toml(resources.files("weft.hardware") / _FILE), known, _FILE)
    missing = [path for path in known if path not in leaves]
    if missing:
        raise ConfigError("this value is missing; add it", _FILE, missing[0])
    return leaves


def _cost(leaves: Mapping[str, Leaf], table: str) -> RingCost:
    found = {key: leaves[f"{table}.{key}"] for key in _RULES}
    value = {key: _RULES[key].parse(leaf.value) for key, leaf in found.items()}
    return RingCost(
        start=value["start"],
        sync=value["sync"],
        in_flight=int(value["in_flight"]),
        link=value["link"],
        provenance={key: leaf.provenance for key, leaf in found.items()},
    )
