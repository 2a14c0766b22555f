"""What every result offers: plain data, a table for pandas, a figure, a file, and a view in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from weft.errors import InputError, check_type
from weft.files import write_atomically, write_json


class Answer(ABC):
    """A result. `kind` names the entry of `weft.view.answers.HOW` that says how results of its class are shown."""

    kind: ClassVar[str]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""

    def to_pandas(self) -> Any:
        """The result's table as a pandas DataFrame, a column per value; InputError without pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError(
                "to_pandas needs pandas, which is not installed; run pip install 'weft[pandas]', or save a .csv file"
            ) from None
        return pandas.DataFrame(_view().table(self).records())

    def plot(self) -> Any:
        """The result's figure, which notebooks draw; its `svg()` and `png()` return the picture.

        Raises InputError for a result with nothing to draw.
        """
        return _view().figure(self)

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
                return write_atomically(file, _view().table(self).csv())
            case ".html":
                return write_atomically(file, _view().page(self))
        raise InputError(f"'{path}' has no suffix that says what to write; end it in .json, .csv or .html")

    def _save_json(self, file: Path) -> Path:
        return write_json(file, self.to_dict())

    def _repr_html_(self) -> str:
        return str(_view().html(self))


def _view() -> ModuleType:
    """The room that shows results, imported when one is shown: results are computed without it."""
    from weft.view import answers

    return answers
