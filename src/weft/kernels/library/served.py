"""How libraries of inference run their kernels: what each does, and its few costs and shares of a GPU's rates.

`served.toml` holds, by operator, what its parameters mean and may be, the libraries, and the values of each library by
what it runs (phase, data types, ...) and GPU architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from weft.core.catalog import Quantity, parse_value, read_toml
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.core.units import Dimension
from weft.graph.op import BLOCK_BYTES

_FILE = resources.files("weft.kernels.library") / "served.toml"
_DIMENSIONS: Mapping[str, Dimension] = {
    "us": Dimension.SECONDS,
    "GB/s": Dimension.BYTES_PER_SECOND,
    "share": Dimension.COUNT,
    "count": Dimension.COUNT,
}
ARCHITECTURES: Mapping[str, int] = {"ampere": 0, "ada": 1, "blackwell-rtx": 1, "hopper": 3, "blackwell": 4}
"""Places of architectures by how alike their kernels are: Ampere, Ada and Blackwell's RTX parts multiply by the same
instructions of a warp, Hopper and Blackwell by asynchronous ones, fed by copy engines. One without values takes those
of the nearest."""
_KERNELS_OF = {"blackwell-rtx": "ada"}


class ExpertFormat(NamedTuple):
    """Products' number format, bytes of an element of weights, and of rows, scales included."""

    products: str
    weight: float
    row: float


_MXFP4 = BLOCK_BYTES["mxfp4"]
EXPERT_FORMATS: Mapping[str, ExpertFormat] = {
    "bf16": ExpertFormat("bf16", 2, 2),
    "fp16": ExpertFormat("fp16", 2, 2),
    "fp8": ExpertFormat("fp8", 1, 1),
    "fp8-block": ExpertFormat("fp8", 1, 1 + 4 / 128),
    "mxfp8": ExpertFormat("mxfp8", BLOCK_BYTES["mxfp8"], BLOCK_BYTES["mxfp8"]),
    "nvfp4": ExpertFormat("nvfp4", BLOCK_BYTES["nvfp4"], BLOCK_BYTES["nvfp4"]),
    "bf16-mxfp4": ExpertFormat("bf16", _MXFP4, 2),
    "fp8-mxfp4": ExpertFormat("fp8", _MXFP4, BLOCK_BYTES["mxfp8"]),
    "bf16-int4": ExpertFormat("bf16", 0.5 + 2 / 128, 2),
}
"""Formats of experts: "fp8-block" has a scale for 128 elements; "bf16-mxfp4" weights narrower than the products."""


def kernels_of(architecture: str) -> str:
    """Return the architecture whose kernels stand for another's: Ada's for Blackwell's RTX parts, which run the same
    warp-level products from 100 KiB of shared memory, else its own.
    """
    return _KERNELS_OF.get(architecture, architecture)


@dataclass(frozen=True)
class ServedParameter:
    """A parameter of an operator's closed form: its unit, plausible range [base units], and what it means."""

    unit: str
    low: float
    high: float
    about: str


@dataclass(frozen=True)
class Library:
    """A library of inference: what it does by phase (`how`), and where that is from."""

    name: str
    title: str
    source: str
    aliases: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)


@cache
def _tables() -> Mapping[str, Any]:
    return read_toml(_FILE)


@cache
def parameters(operator: str) -> Mapping[str, ServedParameter]:
    """Return the parameters of an operator by name."""
    found = {}
    for name, (unit, low, high, about) in _tables()[operator]["parameters"].items():
        first, last = (_number(unit, f"{operator}.{name}", end) for end in (low, high))
        found[name] = ServedParameter(unit, first, last, about)
    return found


def _number(unit: str, path: str, raw: Any) -> float:
    """Return a number of the file in the unit of its parameter [base unit]."""
    rule = Quantity(_DIMENSIONS[unit], zero_allowed=True)
    return float(parse_value(rule, path, raw if rule.dimension is Dimension.COUNT else f"{raw} {unit}", _FILE.name))


@cache
def libraries(operator: str) -> Mapping[str, Library]:
    """Return every library of an operator by its name."""
    keys = Library.__dataclass_fields__
    return {
        name: Library(name, **{key: value for key, value in table.items() if key in keys})
        for name, table in _tables()[operator].items()
        if name != "parameters"
    }


def library(operator: str, name: str) -> Library:
    """Return the library of that name or alias; UnknownNameError lists the known ones."""
    known = libraries(operator)
    for one in known.values():
        if name.lower() in (one.name, *one.aliases):
            return one
    raise UnknownNameError(f"library of {operator.replace('_', '-')}", name, known)


@cache
def shipped_values() -> Mapping[str, float]:
    """Return every value by path, such as "attention.trtllm.context.bf16-fp8.hopper.start" [base unit]."""
    return {f"{place}.{name}": value for place, of in tables().items() for name, value in of.items()}


@cache
def tables() -> Mapping[str, Mapping[str, float]]:
    """Return the values of every table by name [base units], by the table's path."""
    return {
        place: {
            key: _value(place, key, raw, parameters(place.partition(".")[0]))
            for key, raw in table.items()
            if key not in _EVIDENCE
        }
        for place, table in _raw_tables()
    }


_EVIDENCE = ("fitted", "pooled")


class FittedSet(NamedTuple):
    """What a table rests on: `rows` (0: assumed), values `own` to them, and those `pooled` from other tables."""

    rows: int
    own: tuple[str, ...]
    pooled: tuple[str, ...]


@cache
def fitted_sets() -> Mapping[str, FittedSet]:
    """Return what every table was fitted to, by its path."""
    found = {}
    for place, table in _raw_tables():
        pooled, first = tuple(table.get("pooled", ())), str(table["fitted"]).split()[0].replace(",", "")
        own = tuple(key for key in table if key not in (*_EVIDENCE, *pooled))
        found[place] = FittedSet(int(first) if first.isdigit() else 0, own, pooled)
    return found


def _raw_tables() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for operator, libraries_of in _tables().items():
        for name, table in libraries_of.items():
            if name != "parameters":
                yield from _walk(f"{operator}.{name}", table)


def _walk(place: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every table of values, which names the rows that it is fitted to, with its path."""
    if "fitted" in table:
        yield place, table
        return
    for key, value in table.items():
        if key != "how" and isinstance(value, Mapping):
            yield from _walk(f"{place}.{key}", value)


def _value(place: str, key: str, raw: Any, known: Mapping[str, ServedParameter]) -> float:
    if key not in known:
        raise ConfigError(f"unknown parameter; known are {', '.join(known)}", f"{_FILE.name}, {place}", key)
    of = known[key]
    value = _number(of.unit, f"{place}.{key}", raw)
    if not of.low * (1 - 1e-9) <= value <= of.high * (1 + 1e-9):
        raise ConfigError(f"{raw} {of.unit} is outside the range of this parameter", f"{_FILE.name}, {place}", key)
    return value


def values_of(place: str, changed: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the values of a table by name [base units], some of them `changed`, by path."""
    own = dict(tables()[place])
    return own | {key: changed[f"{place}.{key}"] for key in own if changed and f"{place}.{key}" in changed}


def table_of(operator: str, name: str, what: str, architecture: str) -> str:
    """Return the path of a library's values for `what` it runs, such as "context.bf16-fp8", on an architecture.

    An architecture without values takes those of the nearest. Raises InputError for what the library has no values of,
    and for architectures that are like none of those with values.
    """
    own = f"{operator}.{name}.{what}.{architecture}"
    if own in tables():
        return own
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{name} is not known on GPUs of the architecture '{architecture}', only on {', '.join(ARCHITECTURES)}: "
            "choose such a GPU, or leave the library out"
        )
    stem = f"{operator}.{name}.{what}"
    known = places(operator, name, what)
    if not known:
        start = f"{operator}.{name}."
        able = sorted({place.removeprefix(start).rpartition(".")[0] for place in tables() if place.startswith(start)})
        raise InputError(
            f"no {what} of {name} is known; it has {', '.join(able)}: choose one of these, or another library"
        )
    own = f"{stem}.{kernels_of(architecture)}"
    return own if own in known else known[nearest(architecture, [place.rpartition(".")[2] for place in known])]


def places(operator: str, name: str, what: str) -> list[str]:
    """The tables of a library for what it runs, one for each architecture that was measured."""
    stem = f"{operator}.{name}.{what}"
    return [place for place in tables() if place.rpartition(".")[0] == stem]


def nearest(architecture: str, known: list[str]) -> int:
    """Return the place, in a list of architectures, of the one nearest to another."""
    away = [abs(ARCHITECTURES[one] - ARCHITECTURES[architecture]) for one in known]
    return away.index(min(away))
