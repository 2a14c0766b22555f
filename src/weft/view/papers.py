"""Reports of lists that are tuned, values that are moved, validations, and studies of papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import InputError
from weft.report import Report
from weft.report.table import Table, number, text, texts, times_faster
from weft.view import looks, validation
from weft.view.error_tables import errors_table
from weft.view.figure import Figure, Lines, bars
from weft.view.words import headline_table, sentence

if TYPE_CHECKING:
    from weft.studies.headline import PaperStudy
    from weft.tune.perturb import Sensitivity
    from weft.validation import Validation


class SensitivityReport(Report["Sensitivity"]):
    """What figures become when assumed values are moved to the ends of their ranges."""

    def sentences(self) -> list[str]:
        """How far the first figure moves, and by which value most."""
        name, how = next(iter(self.answer.formats.items()))
        chosen, *moved = self.answer.rows
        base = chosen.figures[name]
        if not moved:
            return [f"{name} is {format(base, how)}; no value was moved."]
        most = max(moved, key=lambda row: abs(row.figures[name] - base))
        low, high = (format(end([base, *(row.figures[name] for row in moved)]), how) for end in (min, max))
        end = f"{format(most.figures[name], how)} at {most.setting}"
        return [f"{name} is {format(base, how)}, {low} to {high} at the ends; {most.what} moves it most, to {end}."]

    def tables(self) -> list[Table]:
        """A row per value: its range and the figures at both ends."""
        heads, rows = self.answer.table()
        return [Table(texts(heads), rows, f"{self.answer.study}: what the figures become at either end of each range")]

    def figures(self) -> Sequence[Figure]:
        """The first figure at both ends of each range."""
        return [sensitivity_figure(self.answer)]


def sensitivity_figure(answer: Sensitivity) -> Figure:
    """The first figure at both ends of each range, around its unmoved value."""
    name, how = next(iter(answer.formats.items()))
    chosen, *moved = answer.rows
    ends: dict[str, int] = {}
    rows = []
    for row in moved:
        end = ("low", "high")[min(ends.setdefault(row.what, 0), 1)]
        ends[row.what] += 1
        rows.append((row.what, end, row.figures[name], f"{row.setting}: {format(row.figures[name], how)}"))
    columns = [text("what", "value"), text("end"), number("figure", name, format_=how), text("said", " ")]
    return bars(
        f"What do uncertain values do to {name}?", Table(columns, rows), lane="what", offset="end",
        kind="end", end="figure", looks={"low": looks.SKY, "high": looks.RED}, start=chosen.figures[name], label="said",
    )  # fmt: skip


def validation_figure(answer: Validation) -> Figure:
    """Predicted over measured time of the first kind of rows."""
    kind, clouds = next(iter(answer.clouds().items()))
    return next(validation.figures(kind, clouds))


def validation_table(answer: Validation) -> Table:
    """The errors of each group of rows."""
    return errors_table(answer.to_dict()["groups"], "Errors of the models")


def validation_page(answer: Validation, folder: Path) -> Path:
    """Write the page of a validation to a folder and return its path."""
    return validation.validation_report(answer, folder)


def study_parts(answer: PaperStudy) -> list[Table | str]:
    """What a study found, its headline, and its notes."""
    found = map(sentence, answer.summary or (answer.lead,))
    return [*found, study_table(answer), *(f"note: {note}" for note in answer.notes)]


def study_table(answer: PaperStudy) -> Table:
    """Published figures beside Weft's."""
    return headline_table(answer.headline(), answer.title)


def study_figure(answer: PaperStudy) -> Figure:
    """Weft's ratios of the headline, with the published ones as marks."""
    ratios = [row for row in answer.headline() if row.unit == "ratio"]
    if not ratios:
        raise InputError(
            f"the study {answer.DECLARED.name} has no ratio to draw; save('study.html') shows what it found"
        )
    rows = [(row.id, row.what, "Weft", row.weft) for row in ratios]
    ends = [(row, row.published if isinstance(row.published, tuple) else (row.published,)) for row in ratios]
    marks = [(row.id, "published", end) for row, published in ends for end in published if end is not None]
    figures = [text("figure"), text("what"), text("whose"), times_faster("ratio", "ratio")]
    lines = Table([text("figure"), text("mark", " "), times_faster("ratio", "published")], marks)
    return bars(
        answer.title, Table(figures, rows), lane="figure", kind="whose", end="ratio", looks={"Weft": looks.BLUE},
        start=1.0, marks=Lines(lines, "ratio", "mark", "figure") if marks else None,
    )  # fmt: skip


def study_page(answer: PaperStudy, folder: Path) -> Path:
    """Write the page of a study to a folder and return its path."""
    return answer.page(folder)
