"""Problems of measured rows, by file and line, in one sentence each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_LINES_SHOWN = 5
_VALUES_SHOWN = 3


@dataclass(frozen=True)
class Problem:
    """A rule that rows of a file break: the lines, the column, the first value, the rule, and what to do.

    `lines` is empty if the whole file is meant; the header is line 1. `column` is empty if the rule names it. `used`
    says whether the rows count nevertheless; `more` how many further values a problem of many rows has.
    """

    file: str
    lines: tuple[int, ...]
    column: str
    value: str
    rule: str
    used: bool = False
    more: str = ""

    def __str__(self) -> str:
        what = f" {self.column} '{self.value}'{self.more}:" if self.column else ""
        return f"{self.file}{self._place()}:{what} {self.rule}{self._fate()}"

    def to_dict(self) -> dict[str, object]:
        """The problem as plain data for JSON."""
        lines = {"line": self.lines[0] if self.lines else None, "lines": list(self.lines), "rows": len(self.lines)}
        about = {name: getattr(self, name) for name in ("column", "value", "rule", "used")}
        return {"file": self.file, **lines, **about, "message": str(self)}

    def _place(self) -> str:
        if not self.lines:
            return ""
        shown = ", ".join(map(str, self.lines[:_LINES_SHOWN]))
        more = len(self.lines) - _LINES_SHOWN
        return f" line{'s' if len(self.lines) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"

    def _fate(self) -> str:
        what = "these rows are" if len(self.lines) > 1 else "the row is" if self.lines else "the file is"
        return "" if self.used else f"; {what} left out"


def merge_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Merge problems by file, column, rule and whether the rows are used, in the order of files and lines."""
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for problem in problems:
        key = (problem.file, problem.column, problem.rule, problem.used, not problem.lines)
        groups.setdefault(key, []).append(problem)
    files = list(dict.fromkeys(str(key[0]) for key in groups))
    merged = map(_merge_group, groups.values())
    return sorted(merged, key=lambda problem: (files.index(problem.file), problem.lines[:1]))


def _merge_group(group: Sequence[Problem]) -> Problem:
    lines = tuple(sorted({line for problem in group for line in problem.lines}))
    values = list(dict.fromkeys(problem.value for problem in group))
    more = f" and {len(values) - _VALUES_SHOWN} more" if len(values) > _VALUES_SHOWN else ""
    return replace(group[0], lines=lines, value="', '".join(values[:_VALUES_SHOWN]), more=more)


def consistent(problems: Sequence[Problem]) -> list[Problem]:
    """The problems without the note "counts as well" for rows that another problem drops."""
    out = {(problem.file, line) for problem in problems if not problem.used for line in problem.lines}

    def counted(problem: Problem) -> Problem:
        return replace(problem, lines=tuple(line for line in problem.lines if (problem.file, line) not in out))

    kept = (counted(problem) if problem.used else problem for problem in problems)
    return [problem for problem in kept if problem.lines or not problem.used]
