"""The report of a result: its title, sentences, tables, figures, and their order on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from weft.core.report.table import Table


class Figure(Protocol):
    """A picture as data: a Vega-Lite specification over named tables, with title and caption."""

    @property
    def title(self) -> str:
        """The question that the figure answers."""

    @property
    def caption(self) -> str:
        """What the figure shows."""

    @property
    def data(self) -> Mapping[str, Table]:
        """The tables that the specification names."""

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification without rows."""

    def svg(self, name: str = "") -> str:
        """Return the picture as an SVG element, in which ids start with `name`."""


@dataclass(frozen=True)
class Section:
    """A part of a page below its title, or folded; an empty one is left out."""

    title: str
    parts: Sequence[Part]
    folded: bool = False


Part = str | Table | Figure | Section | Sequence[str]
"""A paragraph (several lines: as they are), a table, a figure, a section, or sentences as a list."""


T = TypeVar("T")


def drop_empty(*parts: T) -> list[T]:
    """Leave out tables without rows, and figures whose first table has none."""
    return [part for part in parts if not isinstance(table := _main_table(part), Table) or table.rows]


def _main_table(part: object) -> object:
    return next(iter(getattr(part, "data", {}).values()), part)


class Recorded(Protocol):
    """Something that is written as plain data."""

    def to_dict(self) -> dict[str, Any]:
        """It as plain data for JSON."""


class OnSystem(Recorded, Protocol):
    """Something computed for a system."""

    @property
    def system(self) -> Any:
        """The system."""


A = TypeVar("A", bound=Recorded)
S = TypeVar("S", bound=OnSystem)


class Report(Generic[A]):
    """What an answer shows: subclasses say it, `weft.view` renders it to terminals, pages, files and notebooks.

    Everything is computed when it is asked for, so that a terminal pays for no picture.
    """

    details_flag: str = "--details"
    """The flag of the command that prints the details on a terminal, too."""
    explained: str = ""
    """The entry of `view/explained.toml` at the end of the page."""

    def __init__(self, answer: A) -> None:
        self.answer = answer

    def title(self) -> str:
        """Return the title of the page; by default that of the first table."""
        return self.tables()[0].title

    def sentences(self) -> list[str]:
        """Return the conclusions; the first answers the question that was asked."""
        raise NotImplementedError

    def lead(self) -> str:
        """Return the first line of a page: by default the first conclusion."""
        return self.sentences()[0]

    def notes(self) -> list[str]:
        """Assumptions and limits, and last how sure the answer is."""
        return []

    def table(self) -> Table:
        """Return the main table."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """The tables that every renderer shows, by default the main one; the first is written to CSV and pandas."""
        return [self.table()]

    def on_terminal(self) -> Sequence[Table | str]:
        """Return the tables that a terminal has room for, and sentences about them; by default all tables."""
        return self.tables()

    def details(self) -> list[Table | str]:
        """Long tables, and sentences about them: on a terminal with `details_flag`, folded on a page."""
        return []

    def figure(self) -> Figure | None:
        """Return the main picture; None if there is nothing to draw."""
        return None

    def figures(self) -> Sequence[Figure]:
        """Return the pictures, by default the main one; a notebook draws the first."""
        return [figure] if (figure := self.figure()) else []

    def sections(self) -> list[Part]:
        """Return the page below the conclusions: by default figures, tables, and the details folded."""
        details = self.details()
        return [*self.figures(), *self.tables(), *([Section("Details", details, folded=True)] if details else [])]

    def appendix(self) -> list[Part]:
        """Return what follows the notes on a page, such as the machines that were simulated."""
        return []

    def record(self) -> dict[str, Any]:
        """Return what --json writes: the answer as plain data."""
        return self.answer.to_dict()

    def rows(self) -> list[dict[str, Any]]:
        """Return what --csv writes: the rows of the main table as objects."""
        return self.tables()[0].records()

    def gpu(self) -> Any:
        """Return the `weft.hardware.Gpu` whose values, with their sources, end the page; None for none."""
        return None


class SystemReport(Report[S]):
    """What an answer on a system shows; the values of its GPU, with their sources, end the page."""

    def gpu(self) -> Any:
        """Return the `weft.hardware.Gpu` of the system."""
        return self.answer.system.gpu
