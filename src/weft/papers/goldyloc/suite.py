"""Suites of independent GEMMs: the declared one, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from pydantic import Field

from weft.core.errors import InputError
from weft.graph import Gemm
from weft.papers import suites
from weft.papers.headline import read_declaration
from weft.plan.tune.queues import DEGREES, Queue

DECLARED = read_declaration(__file__)
Shape = tuple[int, int, int]


class _Queued(suites.SuiteCase):
    """Independent GEMMs of a `layer` of a `network`."""

    network: str
    layer: str
    dtype: str = "fp16"

    def queues(self) -> Iterator[Queue]:
        """Return the queues to simulate."""
        raise NotImplementedError

    def checked(self) -> Self:
        """Return the entry; InputError if one of its queues cannot be simulated."""
        for queue in self.queues():
            if not 2 <= len(queue.gemms) <= DEGREES[-1]:
                queued = f"{len(queue.gemms)} GEMMs are queued"
                raise InputError(f"{queued}; write 2 to {DEGREES[-1]}, so that there is something to choose")
        return self


class SuiteEntry(_Queued):
    """A GEMM, M x N x K; each number in `queued` is the length of one queue of equal GEMMs."""

    NOUN = "GEMM"

    gemm: Shape
    queued: tuple[int, ...] = Field(min_length=1)

    @property
    def product(self) -> Gemm:
        """The GEMM."""
        return Gemm(*self.gemm, self.dtype)

    def queues(self) -> Iterator[Queue]:
        """Return the queues of the entry."""
        return (Queue((self.product,) * count) for count in self.queued)


class Mixed(_Queued):
    """GEMMs of several shapes, in the order in which they are queued."""

    NOUN = "mixed set"

    gemms: tuple[Shape, ...] = Field(min_length=1)

    def queues(self) -> Iterator[Queue]:
        """Yield the one queue of the set."""
        yield Queue(tuple(Gemm(*shape, self.dtype) for shape in self.gemms))


class QueueSuite(suites.Suite):
    """Queues of equal (`gemm`) and of `mixed` GEMMs, and the source of each network, `networks`."""

    KINDS: ClassVar = {"gemm": SuiteEntry, "mixed": Mixed}
    OWN = DECLARED.cases

    networks: dict[str, str] = Field(default_factory=dict)
    gemm: tuple[SuiteEntry, ...]
    mixed: tuple[Mixed, ...]

    @property
    def entries(self) -> tuple[SuiteEntry | Mixed, ...]:
        """Every entry, equal GEMMs first."""
        return (*self.gemm, *self.mixed)

    @property
    def shapes(self) -> tuple[Gemm, ...]:
        """Every distinct GEMM that is queued beside equal ones."""
        return tuple(dict.fromkeys(entry.product for entry in self.gemm))

    def longest(self) -> QueueSuite:
        """Return the suite with each entry's longest queue only."""
        longest = (entry.model_copy(update={"queued": (max(entry.queued),)}) for entry in self.gemm)
        return self.model_copy(update={"gemm": tuple(longest)})
