"""A paper's study, its claims as data, and its headline: Weft's figures beside the published ones where those hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from weft.files import write_json
from weft.hardware import Gpu

T = TypeVar("T")

Published = float | tuple[float, float]
"""A published figure, or the range that is published, low and high end."""


@dataclass(frozen=True)
class HeadlineRow:
    """Weft's figure and the published one or range, both in `unit`; None where nothing is published for the machine.

    `unit` is "ratio", "fraction" (a change, told with its sign), "share" (of a whole), or what is counted ("CUs").
    """

    id: str
    what: str
    published: Published | None
    weft: float
    unit: str

    @property
    def difference(self) -> float | None:
        """How far Weft's figure lies above the published one, or outside of the range; None without one."""
        if self.published is None:
            return None
        low, high = self.published if isinstance(self.published, tuple) else (self.published, self.published)
        return self.weft - min(max(self.weft, low), high)

    def as_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {**asdict(self), "difference": self.difference}


@dataclass(frozen=True)
class Claim(Generic[T]):
    """A figure as data: what is published (None: nothing), and how Weft's is taken from what was found for its cases.

    `cases` are those that the published figure was taken over (None: all that were run).
    """

    id: str
    what: str
    published: Published | None
    unit: str
    measure: Callable[[Sequence[T]], float | None]
    cases: Sequence[Hashable] | None = None

    def row(self, found: Mapping[Any, T], comparable: bool = True) -> HeadlineRow | None:
        """The claim beside what was found by case, saying so if that is a part of its cases; None without any.

        Where the published figure does not hold for what was run (not `comparable`), Weft's stands alone.
        """
        wanted = list(found) if self.cases is None else self.cases
        known = [found[case] for case in wanted if case in found]
        weft = self.measure(known) if known else None
        if weft is None:
            return None
        part = "" if len(known) == len(wanted) else f" ({len(known)} of {len(wanted)})"
        return HeadlineRow(self.id, self.what + part, self.published if comparable else None, weft, self.unit)


def rows(claims: Iterable[Claim[T]], found: Mapping[Any, T], comparable: bool = True) -> list[HeadlineRow]:
    """The claims that there is anything to be said of, as rows."""
    made = (claim.row(found, comparable) for claim in claims)
    return [row for row in made if row is not None]


@dataclass(frozen=True, kw_only=True)
class PaperStudy(ABC):
    """A paper's study that was run on a machine, and its figures beside the published ones.

    `machine` is the GPU, `request_bytes` the size of a memory request [bytes], `wall_s` what the study took [s].
    """

    NAME: ClassVar[str]
    PAPER: ClassVar[str]
    """Where the published figures stand."""
    PAPER_GPU: ClassVar[str]
    """The GPU that they hold for."""

    machine: Gpu
    request_bytes: int
    wall_s: float

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.machine.name

    @property
    def changed(self) -> tuple[str, ...]:
        """The values of the GPU that the user set."""
        return self.machine.changes

    @property
    def comparable(self) -> bool:
        """Whether the published figures hold for what was simulated."""
        return self.unlike is None

    @property
    def unlike(self) -> str | None:
        """Why they do not, as a note; None where they do."""
        if self.gpu != self.PAPER_GPU:
            why = f"the published ones are of {self.PAPER_GPU}, these of {self.gpu}"
        elif self.changed:
            why = f"the machine was changed ({', '.join(self.changed)})"
        else:
            why = self._other_than_published()
        return f"no published figures stand beside these: {why}" if why else None

    def _other_than_published(self) -> str:
        """What else differs from what was published; empty if nothing does."""
        return ""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""

    @abstractmethod
    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""

    @abstractmethod
    def own(self) -> dict[str, Any]:
        """What only this study found, as plain data."""

    def as_json(self) -> dict[str, Any]:
        """The study as plain data: what was run, notes and headline, and what is its own."""
        return {
            "study": self.NAME,
            "published": self.PAPER,
            "gpu": self.gpu,
            "changed": list(self.changed),
            "notes": list(self.notes),
            "request_bytes": self.request_bytes,
            "wall_s": self.wall_s,
            "headline": [row.as_json() for row in self.headline()],
            **self.own(),
        }

    def save(self, path: str | Path) -> Path:
        """Write the study as JSON; OutputError if the path cannot be written."""
        return write_json(path, self.as_json())

    def __str__(self) -> str:
        lines = (f"{row.id:<40} {row.weft:9.3f}  published: {row.published}" for row in self.headline())
        return "\n".join((f"{self.NAME} study on {self.gpu}", *lines))
