"""One GPU, every value with its provenance, changed only through validated copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from weft.errors import ConfigError, InputError, UnitError
from weft.hardware.achieved import Achieved
from weft.hardware.fields import Quantity
from weft.hardware.parts import (
    Arbiter,
    Cache,
    Compute,
    Dma,
    Host,
    Launch,
    Link,
    Memory,
    MemoryCache,
    Part,
    Tracker,
)
from weft.hardware.rates import DTYPES, Clocks, ClockState, Rates
from weft.hardware.sourced import Leaf, Provenance, set_by_user, translated, unknown_key

Vendor = Literal["nvidia", "amd", "none"]
"""Who makes a GPU, and so whose libraries run on it."""
Architecture = Literal["ampere", "ada", "hopper", "blackwell", "cdna1", "cdna2", "cdna3", "cdna4", "t3"]
"""The generation of a GPU: it decides which kernels its libraries have."""


class Gpu(Part):
    """A GPU: compute units, caches, memory, arbiter, tracker, DMA engines and links, and what it reaches.

    `provenance` explains each value by its path, such as "memory.timing.rcd". Raises ConfigError for values
    that break a rule.
    """

    name: str
    title: str
    description: str
    vendor: Vendor
    architecture: Architecture
    aliases: tuple[str, ...] = ()
    compute: Compute
    rates: Rates
    clocks: Clocks
    cache: Cache
    memory_cache: MemoryCache
    memory: Memory
    arbiter: Arbiter
    tracker: Tracker
    dma: Dma
    link: Link
    host: Host
    launch: Launch
    achieved: Achieved
    provenance: Mapping[str, Provenance] = Field(default_factory=dict, repr=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, type(self).paths()) from None

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.value(path) for path in self.paths())))

    @property
    def dies(self) -> int:
        """Groups of compute units with a cache of their own, the XCDs of an AMD GPU; others share one cache: 1.

        Compute unit u lies in group u * dies // compute_units.
        """
        return self.cache.partitions if self.vendor == "amd" else 1

    @property
    def vector_lanes(self) -> float:
        """Lanes of a compute unit that each do an fp32 multiply-add, or an addition, per clock.

        NVIDIA's fp32 rate is theirs; AMD's vector rate counts a multiply-add as two on packed halves.
        """
        return self.rates.fp32 / 2 if self.vendor == "nvidia" else self.compute.vector_flops_per_clock / 4

    def supports(self, dtype: str) -> bool:
        """Whether the GPU multiplies matrices of that data type."""
        return dtype in DTYPES and bool(getattr(self.rates, dtype))

    def matrix_rate(self, dtype: str, clock: ClockState = "peak") -> float:
        """Dense rate of a matrix product at a clock [FLOP/s]; InputError names the data types that there are.

        The data sheet's "peak" uses `clocks.matrix_peak` for the types of the matrix units, and the boost clock
        for fp32 and fp64.
        """
        if not self.supports(dtype):
            known = ", ".join(name for name in DTYPES if self.supports(name))
            raise InputError(f"{self.name} has no matrix rate for '{dtype}'; it has {known}")
        return self.compute.compute_units * int(getattr(self.rates, dtype)) * self._clock(dtype, clock)

    def _clock(self, dtype: str, clock: ClockState) -> float:
        if clock == "sustained":
            return self.clocks.sustained
        if clock == "peak" and dtype not in ("fp32", "fp64"):
            return self.clocks.matrix_peak
        return self.compute.clock

    @classmethod
    def paths(cls) -> tuple[str, ...]:
        """Every settable path, in the order of the fields."""
        return tuple(quantities())

    def value(self, path: str) -> float:
        """The plain number at `path` [base unit]; ConfigError names the nearest path if there is none."""
        if path not in quantities():
            raise unknown_key(path, self.paths())
        found: Any = self
        for part in path.split("."):
            found = getattr(found, part)
        return float(found) if isinstance(found, float) else int(found)

    def text(self, path: str) -> str:
        """The value at `path` with its unit."""
        value = self.value(path)
        return quantities()[path].format(value)

    @property
    def changes(self) -> tuple[str, ...]:
        """What the user set, as texts such as "memory.bandwidth = 2 TB/s"."""
        return tuple(f"{path} = {p.text}" for path, p in self.provenance.items() if p.kind == "set by user")

    def with_values(self, values: Mapping[str, str | float]) -> Self:
        """A copy with the values at the given paths replaced, such as {"memory.bandwidth": "2 TB/s"}.

        Raises ConfigError for an unknown path (naming the nearest), a missing unit, or a broken rule.
        """
        fields = self.model_dump()
        for path, raw in values.items():
            _place(fields, path, _parsed(path, raw))
            fields["provenance"][path] = set_by_user(str(raw))
        return type(self)(**fields)

    @classmethod
    def from_leaves(cls, about: Mapping[str, Any], leaves: Mapping[str, Leaf], file: str) -> Self:
        """A GPU from its name and other texts and the leaves of a file; ConfigError if one is missing."""
        fields: dict[str, Any] = {
            **about,
            "provenance": {path: leaf.provenance for path, leaf in leaves.items()},
        }
        for path, quantity in quantities().items():
            if path not in leaves:
                example = f'{{ value = "{quantity.example}", kind = "published", source = "data sheet" }}'
                raise ConfigError(f"this value is missing; add it, like {example}", file, path)
            _place(fields, path, _parsed(path, leaves[path].value, file))
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(error.message, file, error.key) from None


@cache
def quantities() -> Mapping[str, Quantity]:
    """The rule of every settable path of a Gpu."""
    return dict(quantities_of(Gpu, ""))


def quantities_of(
    model: type[BaseModel], prefix: str, skip: tuple[str, ...] = ()
) -> Iterator[tuple[str, Quantity]]:
    """The dotted paths of the numeric fields of a model and its parts, each with its rule."""
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from quantities_of(field.annotation, f"{prefix}{name}.")
        for rule in field.metadata:
            if isinstance(rule, Quantity):
                yield f"{prefix}{name}", rule


def _parsed(path: str, raw: object, file: str | None = None) -> float:
    if path not in quantities():
        raise unknown_key(path, quantities(), file)
    try:
        return quantities()[path].parse(raw)
    except UnitError as error:
        raise ConfigError(str(error), file, path) from None


def _place(fields: dict[str, Any], path: str, value: float) -> None:
    *tables, name = path.split(".")
    for table in tables:
        fields = fields.setdefault(table, {})
    fields[name] = value


def parse_assignment(text: str) -> tuple[str, str]:
    """The path and the value of 'memory.bandwidth="2 TB/s"', quotes or not; InputError if malformed."""
    path, equals, value = (part.strip() for part in text.partition("="))
    bare = value.strip("\"'").strip()
    if not (path and equals and bare):
        raise InputError(
            f"'{text}' does not assign a value to a path; write it like 'memory.bandwidth=\"2 TB/s\"'"
        )
    return path, bare
