"""Suites of independent GEMMs: the declared one, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from weft.errors import ConfigError
from weft.graph import Gemm
from weft.search.degree import Queue
from weft.search.kernels import DEGREES
from weft.studies.headline import declared
from weft.studies.suites import cases_of, suite_in, suite_of

DECLARED = declared(__file__)
Shape = tuple[int, int, int]
E = TypeVar("E", "Entry", "Mixed")


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
    """The declared suite of `weft study goldyloc`."""
    return _suite(DECLARED.cases, "suite.toml")


def load_suite(path: str | Path) -> Suite:
    """The suite in a TOML file of the form of the declared cases, with errors of `suite_in`, which name the entry."""
    return suite_in(path, _suite)


def _suite(content: Mapping[str, Any], file: str) -> Suite:
    alike = cases_of(Entry, content.get("gemm", ()), f"{file}: GEMM", _checked)
    mixed = cases_of(Mixed, content.get("mixed", ()), f"{file}: mixed set", _checked)
    suite = suite_of(Suite, content, {"gemm": alike, "mixed": mixed}, file, entries=(*alike, *mixed))
    if not suite.entries:
        raise ConfigError("there are no GEMMs; add some below a line [[gemm]] or [[mixed]]", file)
    return suite


def _checked(entry: E, place: str) -> E:
    """An entry whose every queue can be simulated."""
    for queue in entry.queues():
        if not 2 <= len(queue.gemms) <= DEGREES[-1]:
            raise ConfigError(
                f"{len(queue.gemms)} GEMMs are queued; write 2 to {DEGREES[-1]}, so that there is something to choose",
                place,
            )
    return entry
