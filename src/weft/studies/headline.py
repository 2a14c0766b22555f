"""A paper's study and its headline: Weft's figures, the published ones beside them where those hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from weft.files import write_json

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


@dataclass(frozen=True, kw_only=True)
class PaperStudy(ABC):
    """A paper's study that was run on a machine, and its figures beside the published ones.

    `gpu` is the GPU's name, `changed` lists the machine's values that the user set, `request_bytes` is the size of a
    memory request [bytes], `wall_s` what the study took [s].
    """

    NAME: ClassVar[str]
    PAPER: ClassVar[str]
    """Where the published figures stand."""

    gpu: str
    changed: tuple[str, ...]
    request_bytes: int
    wall_s: float

    @property
    def comparable(self) -> bool:
        """Whether the published figures hold for what was simulated."""
        return self._unlike is None

    @property
    @abstractmethod
    def _unlike(self) -> str | None:
        """Why they do not, as a note; None where they do."""

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


def unlike(
    gpu: str, published_gpu: str, changed: Sequence[str] = (), declared_suite: bool = True
) -> str | None:
    """Why published figures cannot stand beside those of such a run, as a note; None where they can."""
    if gpu != published_gpu:
        why = f"the published ones are of {published_gpu}, these of {gpu}"
    elif changed:
        why = f"the machine was changed ({', '.join(changed)})"
    elif not declared_suite:
        why = "the suite is not the declared one"
    else:
        return None
    return f"no published figures stand beside these: {why}"
