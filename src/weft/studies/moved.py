"""What a study's figures become when a value that they rest on goes to either end of its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.files import write_json


@dataclass(frozen=True)
class Row:
    """A value at one end of its range, `setting`, and the figures then; the first row of all is as chosen."""

    what: str
    setting: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Sensitivity:
    """The rows, the cases that their figures are means over, and how each figure is written, as a format."""

    study: str
    cases: Sequence[object]
    rows: Sequence[Row]
    formats: Mapping[str, str]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of text: per value its range, and the figures at both ends."""
        cells = [["as chosen", "", *(self._ends(self.rows[:1], name) for name in self.formats)]]
        for what in dict.fromkeys(row.what for row in self.rows[1:]):
            ends = [row for row in self.rows if row.what == what]
            settings = " / ".join(row.setting for row in ends)
            cells.append([what, settings, *(self._ends(ends, name) for name in self.formats)])
        return ["value", "low / high", *self.formats], cells

    def _ends(self, rows: Sequence[Row], name: str) -> str:
        return " / ".join(format(row.figures[name], self.formats[name]) for row in rows)

    def save(self, path: str | Path) -> Path:
        """Write the rows as JSON; OutputError if the path cannot be written."""
        rows = [asdict(row) for row in self.rows]
        return write_json(path, {"study": f"{self.study} sensitivity", "cases": self.cases, "rows": rows})
