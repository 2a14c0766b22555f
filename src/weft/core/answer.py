"""What every result offers: a report, plain data, a table for pandas, a figure, files, and a view in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from weft.core.errors import InputError, check_type
from weft.core.files import write_atomically, write_json

if TYPE_CHECKING:
    from weft.core.report import Report, Table


class Renderer(Protocol):
    """Writes answers for people: as text, HTML for a notebook, or a whole page."""

    def report(self, answer: Any) -> Report[Any]:
        """Return what an answer shows."""

    def table(self, answer: Any) -> Table:
        """Return the main table of an answer."""

    def figure(self, answer: Any) -> Any:
        """Return the main figure of an answer; InputError for one with nothing to draw."""

    def page(self, answer: Any) -> str:
        """Return the page of an answer, as HTML."""

    def words(self, answer: Any) -> str:
        """Return an answer as text, its tables cut off after some rows."""

    def html(self, answer: Any) -> str:
        """Return an answer as HTML for a notebook."""


class Record:
    """Something with a record as plain data: by default its fields; a class with more to tell overrides `to_dict`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object as plain data for JSON."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(cast("Any", self))}


def to_plain(**values: Any) -> dict[str, Any]:
    """Return the record of these values, each as plain data for JSON under its name."""
    return {key: plain(each) for key, each in values.items()}


def in_microseconds(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the times [s] by name in microseconds."""
    return {key: each * 1e6 for key, each in seconds.items()}


def plain(value: Any) -> Any:
    """Return a value as data for JSON: arrays and sequences as lists, records and named tuples by their fields."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "_fields") or is_dataclass(value):
        names = getattr(value, "_fields", None) or [each.name for each in fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None  # JSON has neither infinity nor NaN
    numbers = getattr(value, "tolist", None)  # of arrays, and of single numbers that numpy made
    return plain(numbers()) if numbers else value


def _renderer() -> Renderer:
    """The package that shows answers, imported when one is first shown: computing needs no library that draws."""
    return cast("Renderer", import_module("weft.view.answers"))


class Answer(Record):
    """Base of every result. `kind` is the key of its report in `weft.view.answers.REPORTS`."""

    kind: ClassVar[str]

    @property
    def launch_files(self) -> Mapping[str, str]:
        """Texts by the names of files that start what the result found; a folder of results holds them, too."""
        return {}

    def report(self) -> Report[Any]:
        """Return what the result shows: `sentences`, `tables`, `figures` and `notes`."""
        return _renderer().report(self)

    def to_pandas(self) -> Any:
        """Return the result's table as a pandas DataFrame, a column per value."""
        pandas = import_module("pandas")
        return pandas.DataFrame(_renderer().table(self).records())

    def plot(self) -> Any:
        """Return the result's figure, which notebooks draw; its `svg()` and `png()` return the picture.

        Raises InputError for a result with nothing to draw.
        """
        return _renderer().figure(self)

    def save(self, path: str | Path) -> Path:
        """Write the result to a file and return the path: .json holds all of it, .csv its table, .html a page.

        Raises InputError for another suffix, OutputError if the path cannot be written.
        """
        check_type("the path", path, (str, Path), "give one like 'result.json'")
        file = Path(path)
        match file.suffix.lower():
            case ".json":
                return self._save_json(file)
            case ".csv":
                return write_atomically(file, _renderer().table(self).csv())
            case ".html":
                return write_atomically(file, _renderer().page(self))
        raise InputError(f"'{path}' has no suffix that says what to write; end it in .json, .csv or .html")

    def _save_json(self, file: Path) -> Path:
        return write_json(file, self.to_dict())

    def __str__(self) -> str:
        return _renderer().words(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _renderer().html(self)
