"""The report of each kind of answer, and how reports become text, HTML for a notebook, and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.report import Figure, Report, Table
from weft.view.page import report_page
from weft.view.page import write_report as page_of_report
from weft.view.terminal import table_text

if TYPE_CHECKING:
    from weft.answer import Answer

_ROWS_SHOWN = 40
"""Most rows of a table in a notebook."""


@dataclass(frozen=True)
class Functions:
    """A report made by functions of a module: its table, its figure, and what a terminal and a page show.

    `parts` answers sentences, tables and notes in the order of a terminal; `page` writes a page to a folder; `also`
    names functions of further tables.
    """

    module: str
    table: str
    figure: str
    page: str = ""
    parts: str = ""
    also: tuple[str, ...] = ()

    def __call__(self, answer: Answer) -> Report[Any]:
        """The report of an answer."""
        return _ByFunctions(answer, self)


class _ByFunctions(Report[Any]):
    def __init__(self, answer: Answer, names: Functions) -> None:
        super().__init__(answer)
        self.module, self.names = import_module(f"weft.view.{names.module}"), names

    def _call(self, name: str, *more: Any) -> Any:
        return getattr(self.module, name)(self.answer, *more)

    def _parts(self) -> list[Table | str]:
        if self.names.parts:
            return list(self._call(self.names.parts))
        table = self.tables()[0]
        return [f"{len(table.rows)} rows.", table]

    def sentences(self) -> list[str]:
        parts = self._parts()
        first = next((at for at, part in enumerate(parts) if isinstance(part, Table)), len(parts))
        return [part for part in parts[:first] if isinstance(part, str)]

    def notes(self) -> list[str]:
        said = [part for part in self._parts() if isinstance(part, str)]
        return said[len(self.sentences()) :]

    def tables(self) -> list[Table]:
        return [self._call(name) for name in (self.names.table, *self.names.also)]

    def figures(self) -> Sequence[Figure]:
        return [self._call(self.names.figure)]


REPORTS: dict[str, str | Functions] = {
    "timeline": "run:TimelineReport",
    "comparison": "corun:comparison_report",
    "estimate": "estimates:EstimateReport",
    "sweep": "sweeps:SweepReport",
    "trace": "recorded:TraceReport",
    "trace comparison": "recorded:TraceComparisonReport",
    "sensitivity": "papers:SensitivityReport",
    "study": Functions("papers", "study_table", "study_figure", "study_page", "study_parts"),
    "tuning": "tune:TuningReport",
    "validation": Functions("papers", "validation_table", "validation_figure", "validation_page"),
    "advice": "advice:AdviceReport",
    "step": "step:StepReport",
    "memory": Functions("memory", "holder_table", "holders", "memory_page", "memory_parts"),
    "recomputation": "recompute:RecomputationReport",
    "sample": "sample:SampleReport",
    "scaling": "scale:ScalingReport",
    "schedule": "schedules:ScheduleReport",
    "rewriting": "rewrite:RewritingReport",
    "graph step": "step:GraphStepReport",
    "roofline": Functions("roofline", "operator_table", "dots", "roofline_page", "roofline_parts"),
    "tiles": "tiles:TilesReport",
    "plans": "planner:PlansReport",
    "inference": "step:InferenceReport",
}
"""The report of an answer by the `kind` of its class: "module:name" in this room, imported when one is shown."""


def report(answer: Answer) -> Report[Any]:
    """What an answer shows."""
    known = REPORTS[answer.kind]
    if isinstance(known, Functions):
        return known(answer)
    module, _, name = known.partition(":")
    made: Report[Any] = getattr(import_module(f"weft.view.{module}"), name)(answer)
    return made


def table(answer: Answer) -> Table:
    """The main table of an answer."""
    return report(answer).tables()[0]


def figure(answer: Answer) -> Figure:
    """The main figure of an answer; InputError for one with nothing to draw."""
    drawn = report(answer).figures()
    if not drawn:
        raise InputError(f"this {answer.kind} has nothing to draw; save it as .html, .csv or .json to see it")
    return drawn[0]


def page(answer: Answer) -> str:
    """The page of an answer, as HTML."""
    shown = report(answer)
    if not isinstance(shown, _ByFunctions):
        return report_page(shown)
    with TemporaryDirectory() as folder:
        return write_report(shown, folder).read_text(encoding="utf-8")


def write_report(shown: Report[Any], folder: str | Path) -> Path:
    """Write the page of a report to a folder and return its path; OutputError if that fails."""
    if isinstance(shown, _ByFunctions) and shown.names.page:
        written: Path = shown._call(shown.names.page, folder)
        return written
    return page_of_report(shown, folder)


def write_page(answer: Answer, folder: str | Path) -> Path:
    """Write the page of an answer to a folder and return its path; OutputError if that fails."""
    return write_report(report(answer), folder)


def parts(shown: Report[Any]) -> list[Table | str]:
    """What a terminal shows of a report: conclusions, tables, details, notes, and last how sure it is."""
    if isinstance(shown, _ByFunctions) and shown.names.parts:
        return shown._parts()
    return [*shown.sentences(), *shown.on_terminal(), *shown.details(), *shown.notes()]


def words(answer: Answer) -> str:
    """An answer as text: its conclusions, the first rows of its main table, and how sure it is."""
    shown = report(answer)
    main = shown.tables()[0]
    first = table_text(replace(main, rows=main.rows[:_ROWS_SHOWN]))
    return "\n".join([*shown.sentences(), first, *_hidden(main), *shown.notes()])


def html(answer: Answer) -> str:
    """An answer as HTML for a notebook: its conclusions, the first rows of its tables, and how sure it is."""
    shown = report(answer)
    return "".join(
        [*map(_paragraph, shown.sentences()), *map(_table_html, shown.tables()), *map(_paragraph, shown.notes())]
    )


def _paragraph(said: str) -> str:
    return f"<p>{escape(said)}</p>"


def _hidden(shown: Table) -> list[str]:
    """How many rows of a table a notebook leaves out, in a sentence; empty if it shows all."""
    hidden = len(shown.rows) - _ROWS_SHOWN
    return [f"{hidden} more rows; to_pandas() holds them all"] if hidden > 0 else []


def _table_html(shown: Table) -> str:
    heads = _row("th", shown, shown.heads)
    body = "".join(_row("td", shown, cells) for cells in shown.cells()[:_ROWS_SHOWN])
    more = "".join(map(_paragraph, _hidden(shown)))
    caption = f'<caption style="text-align: left">{escape(shown.title)}</caption>'
    style = "font-variant-numeric: tabular-nums"
    return f'<table style="{style}">{caption}<thead>{heads}</thead><tbody>{body}</tbody></table>{more}'


def _row(tag: str, shown: Table, cells: list[str]) -> str:
    sides = ("right" if column.is_number else "left" for column in shown.columns)
    written = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"
