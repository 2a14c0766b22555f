"""Suites of independent GEMMs: the declared one, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.catalog import read_toml, translated, unknown_key
from weft.errors import ConfigError, InputError
from weft.graph import Gemm
from weft.search.degree import Queue
from weft.search.kernels import DEGREES

Shape = tuple[int, int, int]
_KEYS = ("title", "rule", "networks", "gemm", "mixed")


class Entry(BaseModel):
    """A GEMM of a network, M x N x K, of which equal ones are queued in each of the numbers `queued`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: str
    layer: str
    gemm: Shape
    queued: tuple[int, ...] = Field(min_length=1)
    dtype: str = "fp16"

    def queues(self) -> Iterator[Queue]:
        """The queues of the entry."""
        return (Queue((Gemm(*self.gemm, self.dtype),) * count) for count in self.queued)


class Mixed(BaseModel):
    """GEMMs of several shapes that a network leaves independent, in the order in which they are queued."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: str
    layer: str
    gemms: tuple[Shape, ...] = Field(min_length=1)
    dtype: str = "fp16"

    def queues(self) -> Iterator[Queue]:
        """The one queue of the set."""
        yield Queue(tuple(Gemm(*shape, self.dtype) for shape in self.gemms))


class Suite(BaseModel):
    """A set of queues with a `title`, how they were chosen, `rule`, and each network's source, `networks`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    rule: str = ""
    networks: dict[str, str] = {}
    entries: tuple[Entry | Mixed, ...]

    @property
    def shapes(self) -> tuple[Gemm, ...]:
        """Every GEMM of the suite that is queued beside equal ones, once."""
        alike = (Gemm(*entry.gemm, entry.dtype) for entry in self.entries if isinstance(entry, Entry))
        return tuple(dict.fromkeys(alike))

    def longest(self) -> Suite:
        """The suite with each entry's longest queue only."""
        entries = (
            entry.model_copy(update={"queued": (max(entry.queued),)}) if isinstance(entry, Entry) else entry
            for entry in self.entries
        )
        return self.model_copy(update={"entries": tuple(entries)})


def declared_suite() -> Suite:
    """The suite of `weft study goldyloc`, as declared in suite.toml."""
    return _suite(read_toml(files(__package__) / "suite.toml"), "suite.toml")


def load_suite(path: str | Path) -> Suite:
    """The suite in a TOML file of the form of suite.toml.

    Raises InputError for a file that cannot be read, ConfigError for one that breaks a rule: it names the entry.
    """
    return _suite(read_toml(Path(path)), str(path))


def _suite(content: dict[str, Any], file: str) -> Suite:
    for key in content:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS, file)
    alike, mixed = content.pop("gemm", []), content.pop("mixed", [])
    for key, rows in (("gemm", alike), ("mixed", mixed)):
        if not isinstance(rows, list):
            raise ConfigError(f"{rows!r} must be a list of tables; write each below a line [[{key}]]", file, key)
    entries = [
        *(_entry(Entry, row, f"{file}: GEMM {number}") for number, row in enumerate(alike, start=1)),
        *(_entry(Mixed, row, f"{file}: mixed set {number}") for number, row in enumerate(mixed, start=1)),
    ]
    if not entries:
        raise ConfigError("there are no GEMMs; add some below a line [[gemm]] or [[mixed]]", file)
    try:
        return Suite(**content, entries=tuple(entries))
    except ValidationError as error:
        raise translated(error, ("title", "rule", "networks"), file) from None


def _entry(kind: type[Entry] | type[Mixed], row: Any, place: str) -> Entry | Mixed:
    """An entry whose every queue can be simulated; errors name it by its number in the file."""
    if not isinstance(row, dict):
        raise ConfigError(f"this must be a table of values, not {row!r}", place)
    try:
        entry = kind(**row)
        queues = list(entry.queues())
    except ValidationError as error:
        raise translated(error, list(kind.model_fields), place) from None
    except InputError as error:
        raise ConfigError(str(error), place) from None
    for queue in queues:
        if not 2 <= len(queue.gemms) <= DEGREES[-1]:
            raise ConfigError(
                f"{len(queue.gemms)} GEMMs are queued; write 2 to {DEGREES[-1]}, so that there is something to choose",
                place,
            )
    return entry
