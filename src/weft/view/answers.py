"""The report of each kind of answer, and how reports become text, HTML for a notebook, and pages."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from weft.core.errors import InputError
from weft.core.extensions import find_report, load_target
from weft.core.report import Figure, Report, Table
from weft.view.page import report_page
from weft.view.terminal import table_text

if TYPE_CHECKING:
    from weft.core.answer import Answer

_ROWS_SHOWN = 40
"""Most rows of a table in a notebook."""


REPORTS = {
    "timeline": "run:TimelineReport",
    "comparison": "corun:comparison_report",
    "estimate": "estimates:EstimateReport",
    "sweep": "sweeps:SweepReport",
    "sensitivity": "sensitivity:SensitivityReport",
    "tuning": "tune:TuningReport",
    "advice": "advice:AdviceReport",
    "fuse advice": "fuse:FuseReport",
    "step": "step:StepReport",
    "memory": "memory:MemoryReport",
    "recomputation": "recompute:RecomputationReport",
    "scaling": "scale:ScalingReport",
    "schedule": "schedules:ScheduleReport",
    "graph step": "step:GraphStepReport",
    "roofline": "roofline:RooflineReport",
    "tiles": "tiles:TilesReport",
    "plans": "training_plans:PlansReport",
    "inference": "step:InferenceReport",
    "serving": "serving:ServingReport",
    "serving plans": "serving_plans:ServingPlansReport",
    "contrast": "contrast:ContrastReport",
}
"""The report of an answer by the `kind` of its class: "module:name" in this package, imported when one is shown; an
extension registers the reports of its answers."""


def report(answer: Answer) -> Report[Any]:
    """Return what an answer shows."""
    home = REPORTS.get(answer.kind)
    made: Report[Any] = load_target(f"weft.view.{home}" if home else find_report(answer.kind) or "")(answer)
    return made


def table(answer: Answer) -> Table:
    """Return the main table of an answer."""
    return report(answer).tables()[0]


def figure(answer: Answer) -> Figure:
    """Return the main figure of an answer; InputError for one with nothing to draw."""
    drawn = report(answer).figures()
    if not drawn:
        raise InputError(f"this {answer.kind} has nothing to draw; save it as .html, .csv or .json to see it")
    return drawn[0]


def page(answer: Answer) -> str:
    """Return the page of an answer, as HTML."""
    return report_page(report(answer))


def parts(shown: Report[Any], details: bool = True) -> list[Table | str]:
    """Return the parts of a report on a terminal: conclusions, tables, details if wanted, notes, expected error."""
    more = shown.details()
    titles = [part.title[:1].lower() + part.title[1:] for part in more if isinstance(part, Table)]
    folded = (
        []
        if details or not more
        else [f"{shown.details_flag} shows more: {', '.join(titles) or 'how figures are counted'}."]
    )
    return [*shown.sentences(), *shown.on_terminal(), *(more if details else []), *folded, *shown.notes()]


def words(answer: Answer) -> str:
    """Return an answer as text: its conclusions, the first rows of its main table, and how sure it is."""
    shown = report(answer)
    main = shown.tables()[0]
    first = table_text(replace(main, rows=main.rows[:_ROWS_SHOWN]))
    return "\n".join([*shown.sentences(), first, *_hidden_rows(main), *shown.notes()])


def html(answer: Answer) -> str:
    """Return an answer as HTML for a notebook: its conclusions, the first rows of its tables, and how sure it is."""
    shown = report(answer)
    return "".join(
        [*map(_paragraph, shown.sentences()), *map(_table_html, shown.tables()), *map(_paragraph, shown.notes())]
    )


def _paragraph(said: str) -> str:
    return f"<p>{escape(said)}</p>"


def _hidden_rows(shown: Table) -> list[str]:
    """Return how many rows of a table a notebook leaves out, in a sentence; empty if it shows all."""
    hidden = len(shown.rows) - _ROWS_SHOWN
    return [f"{hidden} more rows; to_pandas() holds them all"] if hidden > 0 else []


def _table_html(shown: Table) -> str:
    heads = _row("th", shown, shown.heads)
    body = "".join(_row("td", shown, cells) for cells in shown.cells()[:_ROWS_SHOWN])
    more = "".join(map(_paragraph, _hidden_rows(shown)))
    caption = f'<caption style="text-align: left">{escape(shown.title)}</caption>'
    style = "font-variant-numeric: tabular-nums"
    return f'<table style="{style}">{caption}<thead>{heads}</thead><tbody>{body}</tbody></table>{more}'


def _row(tag: str, shown: Table, cells: list[str]) -> str:
    sides = ("right" if column.is_number else "left" for column in shown.columns)
    written = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"
