"""The page of any study: what it found first, its headline, its own sections, and the machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.view.page import SIMULATED, Part, Section, how, machine_section, write_page
from weft.view.words import amount, headline_table, sentence

if TYPE_CHECKING:
    from weft.studies.headline import HeadlineRow, PaperStudy


def study_page(study: PaperStudy, out_dir: str | Path, sections: Sequence[Part]) -> Path:
    """Write `report.html` on a study to a folder and return its path; OutputError if it cannot be written."""
    link, *others = study.links or ("",)
    notes = [sentence(note) for note in (*study.notes, *(f"link: {note}" for note in others if note))]
    paper = study.DECLARED
    published = f" Published figures: {paper.called}, {paper.paper}." if study.comparable else ""
    said = [study.work, *([f"Link: {link}."] if link else []), how(study.request_bytes)]
    first, *more = study.summary or (study.lead,)
    hypothetical = f"{sentence(study.hypothetical)} " if study.hypothetical else ""
    return write_page(
        out_dir,
        study.title,
        f"{hypothetical}{sentence(first)}",
        [
            study.lead + published,
            more,
            Section("Headline", [headline_table(study.headline()), notes]),
            *sections,
            machine_section(study.machine, *said, title=SIMULATED),
        ],
        paper.explained[1],
    )


def told(rows: Sequence[HeadlineRow], ids: Collection[str]) -> list[str]:
    """Those of the headline's figures as sentences, in the order of `ids`; ones that are not there are left out."""
    found = {row.id: row for row in rows}
    return [_told(found[name]) for name in ids if name in found]


def _told(row: HeadlineRow) -> str:
    published = "" if row.published is None else f", {amount(row.published, row.unit)} published"
    return f"{row.what[:1].upper()}{row.what[1:]}: {amount(row.weft, row.unit)} simulated{published}"
