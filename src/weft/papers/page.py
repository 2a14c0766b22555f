"""The page of any study: summary, headline, own sections, machine; and what moved values make of its figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.report import Part, Report, Section
from weft.core.report.table import Table, text, times_faster
from weft.papers.headline_table import amount, headline_table
from weft.view import looks
from weft.view.figure import Color, Figure, Lines, bars
from weft.view.page import SIMULATED, how, machine_section
from weft.view.words import sentence

if TYPE_CHECKING:
    from weft.papers.headline import HeadlineRow, PaperStudy


def as_sentences(rows: Sequence[HeadlineRow], ids: Collection[str]) -> list[str]:
    """Return the headline's figures with those `ids` as sentences; missing ones are left out."""
    found = {row.id: row for row in rows}
    return [_sentence(found[name]) for name in ids if name in found]


def _sentence(row: HeadlineRow) -> str:
    published = "" if row.published is None else f", {amount(row.published, row.unit)} published"
    return f"{row.what[:1].upper()}{row.what[1:]}: {amount(row.weft, row.unit)} simulated{published}"


class StudyReport(Report["PaperStudy"]):
    """A study: its findings, the headline beside published figures, and its own sections.

    `watched` is what the study's `watch` returned, if its runs are to be shown over time.
    """

    def __init__(self, answer: PaperStudy, watched: Any = None) -> None:
        super().__init__(answer)
        self.watched, self.explained = watched, answer.DECLARED.explained[1]

    def title(self) -> str:
        """Return the title of the study."""
        return self.answer.title

    def sentences(self) -> list[str]:
        """Return what was found, and hardware that cannot be bought."""
        study = self.answer
        found = study.summary or (study.lead,)
        return [sentence(each) for each in (*found, *filter(None, [study.hypothetical]))]

    def lead(self) -> str:
        """Return the first finding, after hardware that cannot be bought."""
        needed = self.answer.hypothetical
        return " ".join([*([sentence(needed)] if needed else []), self.sentences()[0]])

    def notes(self) -> list[str]:
        """Return what must be known, and what represents the links."""
        study = self.answer
        notes = (f"note: {note}" for note in study.notes if note != study.hypothetical)
        return [*notes, *(f"link: {note}" for note in study.links if note)]

    def table(self) -> Table:
        """Return the headline: published figures against Weft's."""
        return headline_table(self.answer.headline(), self.answer.title)

    def on_terminal(self) -> list[Table]:
        """Return the study's own tables, and the headline."""
        study, declared = self.answer, self.answer.DECLARED
        title = "Published figures beside Weft's" if _is_published(study) else study.elsewhere
        against = ", " * bool(declared.against) + declared.against
        return [*study.tables(), headline_table(study.headline(), f"{title}{against}")]

    def figures(self) -> Sequence[Figure]:
        """Weft's ratios of the headline; none if it has no ratio."""
        return _ratio_figure(self.answer)

    def sections(self) -> list[Part]:
        """Return what was run, the headline, and the study's own sections; these first if nothing is published."""
        study, paper = self.answer, self.answer.DECLARED
        published = f" Published figures: {paper.called}, {paper.paper}." if _is_published(study) else ""
        if all(claim.published is None for claim in paper.claims.values()):
            every = Section("All figures", [headline_table(study.headline())], folded=True)
            return [study.lead, *study.sections(self.watched), every]
        headline = Section("Headline", [headline_table(study.headline())])
        return [study.lead + published, headline, *study.sections(self.watched)]

    def appendix(self) -> list[Part]:
        """Return the machine that was simulated."""
        said = [self.answer.work, how(self.answer.request_bytes)]
        return [machine_section(self.answer.machine, *said, title=SIMULATED)]


def _is_published(study: PaperStudy) -> bool:
    """Return whether published figures stand beside any of a study's."""
    return any(row.published is not None for row in study.headline())


def _ratio_figure(answer: PaperStudy) -> list[Figure]:
    """Weft's ratios of the headline, with the published ones as marks; empty if the headline has no ratio."""
    ratios = [row for row in answer.headline() if row.unit == "ratio"]
    if not ratios:
        return []
    rows = [(row.id, row.what, "Weft", row.weft) for row in ratios]
    ends = [(row, row.published if isinstance(row.published, tuple) else (row.published,)) for row in ratios]
    marks = [(row.id, "published", end) for row, published in ends for end in published if end is not None]
    figures = [text("figure"), text("what"), text("whose"), times_faster("ratio", "ratio")]
    lines = Table([text("figure"), text("mark", " "), times_faster("ratio", "published")], marks)
    drawn = bars(
        answer.title, Table(figures, rows), lane="figure", end="ratio", color=Color("whose", {"Weft": looks.BLUE}),
        start=1.0, over=[Lines(lines, "ratio", "mark", "figure") if marks else None],
    )  # fmt: skip
    return [drawn]
