"""Tables, figures and sections of a study's page as its file declares them, filled from attributes of the study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.core.catalog import Part
from weft.core.report import Part as PagePart
from weft.core.report import Section
from weft.core.report.table import Column, Table
from weft.view import figure, looks
from weft.view.predictions import SIZES
from weft.view.words import percent

FORMATS = {"percent": percent}
"""Formats of cells by name that no format specification expresses."""
LABELS = {"sizes": SIZES}
"""Vega expressions of an axis' labels by name."""
LOOKS: Mapping[str, Callable[[Sequence[str]], looks.Looks]] = {
    "against_first": lambda labels: {labels[0]: looks.GREY, **looks.spread(labels[1:])},
    "overlaps": looks.overlap_looks,
    "spread": looks.spread,
    "strategies": lambda labels: looks.STRATEGIES,
}
"""Colours of a figure's labels by name, from the labels."""


class ShownColumn(Part):
    """A column of a declared table: its `key` in files, head, unit and format; it holds words without a format.

    A cell is the item's attribute at the path `value` (the key by default), called with `args` if it is a method, and
    `times` a number, or `per` one. `each` names an attribute of the study: the column stands once for each name that it
    lists, which fills the braces of key and head and is the argument of the method.
    """

    key: str
    head: str = ""
    unit: str = ""
    format: str = ""
    value: str = ""
    args: tuple[Any, ...] = ()
    times: float = 1
    per: float = 1
    each: str = ""
    spare: bool = False
    prose: bool = False

    def expanded(self, study: object) -> list[ShownColumn]:
        """The column itself, or one for every name that the study's attribute `each` lists."""
        if not self.each:
            return [self]
        return [
            self.model_copy(update={"key": self.key.format(name), "head": self.head.format(name), "args": (name,)})
            for name in path_value(study, self.each)
        ]

    def column(self, study: object, **words: Any) -> Column:
        """The column of the table; it holds numbers if it has a format."""
        head, unit = self.head.format(study=study, **words), self.unit
        form = FORMATS.get(self.format) or self.format or str
        return Column(self.key, head, unit, form, bool(self.format), self.spare, self.prose)

    def cell(self, item: object) -> Any:
        """The value of an item in this column."""
        value = path_value(item, self.value or self.key, *self.args)
        return value if self.times == self.per == 1 or value is None else value * self.times / self.per


def path_value(item: Any, path: str, *args: Any) -> Any:
    """The attribute or key of an item at a dotted path, called with `args` if it is a method; None below None."""
    for name in path.split("."):
        if item is None:
            return None
        item = item[name] if isinstance(item, Mapping) else getattr(item, name)
    return item(*args) if callable(item) else item


class ShownTable(Part):
    """A declared table: its rows are items of the study's attribute `rows`, each a plain tuple of cells or an object.

    In the title, braces hold attributes of the study and words that are given when the table is made.
    """

    columns: tuple[ShownColumn, ...]
    title: str = ""
    rows: str = ""

    def table(self, study: object, items: Iterable[Any], **words: Any) -> Table:
        """The table of these items."""
        columns = [one for column in self.columns for one in column.expanded(study)]
        rows = [_cells(columns, item) for item in items]
        return Table([one.column(study, **words) for one in columns], rows, self.title.format(study=study, **words))


def _cells(columns: Sequence[ShownColumn], item: Any) -> tuple[Any, ...]:
    """The cells of an item: a plain tuple as it is."""
    return item if type(item) is tuple else tuple(column.cell(item) for column in columns)


class ShownMarks(ShownTable):
    """Declared marks of a figure, as `weft.view.figure.Lines` describes them."""

    value: str
    label: str
    of: str | None = None


class ShownFigure(ShownTable):
    """A declared figure: the function of `weft.view.figure` that draws its table, with the arguments `given`.

    `looks` are colours by label (names of the palette or hexadecimal), "own" for those that the study's figures share,
    or how the labels get theirs; `marks` and `faint` are further rows, left out where there are none. Ticks given as
    the key of a column are its values.
    """

    draw: str
    given: Mapping[str, Any] = {}
    caption: str = ""
    looks: Mapping[str, str] | str = {}
    marks: ShownMarks | None = None
    faint: ShownTable | None = None

    def figure(
        self, study: Any, items: Iterable[Any], marks: Iterable[Any] | None = None, **words: Any
    ) -> figure.Figure:
        """The figure of these items, with these marks or the study's."""
        table, given = self.table(study, items, **words), dict(self.given)
        if isinstance(ticks := given.get("ticks"), str):
            given["ticks"] = sorted(table.distinct(ticks))
        if "labels" in given:
            given["labels"] = LABELS.get(given["labels"], given["labels"])
        if self.looks:
            labels = table.distinct(next(given[key] for key in _COLOURED if key in given))
            given["looks"] = _looks(study.DECLARED.looks if self.looks == "own" else self.looks, labels)
        if self.marks is not None:
            marked = self.marks.table(study, path_value(study, self.marks.rows) if marks is None else marks, **words)
            if marked.rows:
                given["marks"] = figure.Lines(marked, self.marks.value, self.marks.label, self.marks.of)
        if self.faint is not None:
            given["faint"] = self.faint.table(study, path_value(study, self.faint.rows), **words)
        drawn: figure.Figure = getattr(figure, self.draw)(table.title, _untitled(table), **given)
        return drawn.captioned(self.caption.format(study=study, **words))


def _looks(colours: Mapping[str, str] | str, labels: Sequence[str]) -> looks.Looks:
    """The colours of labels: declared ones, in the order of their declaration, or by name of how they are found."""
    if isinstance(colours, str):
        return LOOKS[colours](labels)
    return {name: getattr(looks, colour.upper(), colour) for name, colour in colours.items() if name in labels}


_COLOURED = ("kind", "part", "color", "series")
"""Arguments of figures that name the column of coloured labels."""


def _untitled(table: Table) -> Table:
    return Table(table.columns, table.rows)


class ShownSection(Part):
    """A declared section of a page.

    Its parts are "tables.NAME", "figures.NAME", "study.NAME" (a part or a list of parts that the study makes),
    "watched.NAME" (the same, from the runs that are shown over time), or a paragraph with attributes of the study.
    """

    title: str
    parts: tuple[str, ...]
    folded: bool = False

    def section(self, study: Any, watched: Any = None) -> Section:
        """The section; tables and figures without rows are left out."""
        return Section(self.title, [one for part in self.parts for one in _parts(study, part, watched)], self.folded)


def _parts(study: Any, part: str, watched: Any) -> Sequence[PagePart]:
    source, _, name = part.partition(".")
    if source == "tables":
        return [table] if (table := study.table(name)).rows else []
    if source == "figures":
        return [study.figure(name)] if any(True for _ in study.items("figures", name)) else []
    if source == "watched":
        return [] if watched is None else _listed(getattr(study, name)(watched))
    said = path_value(study, name) if source == "study" else part.format(study=study)
    return _listed(said) if said else []


def _listed(parts: PagePart | Sequence[PagePart]) -> Sequence[PagePart]:
    return parts if isinstance(parts, list) else [parts]  # type: ignore[list-item]
