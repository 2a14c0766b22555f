"""What the pages of all studies share: the headline and its summary, notes, sections of pictures, and the machine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.hardware import Gpu
from weft.report.page import Figure, write_page
from weft.report.tables import amount, headline_table

if TYPE_CHECKING:
    from weft.studies.headline import HeadlineRow, PaperStudy


class Section(NamedTuple):
    """A part of a page: its title, its pictures, and a sentence before them. Without pictures it is left out."""

    title: str
    figures: Sequence[Figure]
    text: str = ""


@dataclass(frozen=True)
class Simulated:
    """How a study simulated its machine, as a `RunConfig` says it of a run: one GPU stands for all."""

    gpu: str
    changed: Sequence[str]
    request_bytes: int
    link_note: str = ""
    mode: str = "mirrored"


def study_page(
    template: str,
    study: PaperStudy,
    out_dir: str | Path,
    gpu: Gpu | None,
    *,
    summary: Sequence[str],
    sections: Sequence[Section],
    link_notes: Sequence[str] = (),
    **own: Any,
) -> Path:
    """Write `report.html` on a study to a folder and return its path; OutputError if it cannot be written.

    The template extends "study.html.j2" and is given what is the study's `own`. `gpu` is the machine; None where the
    catalogue does not know it. `link_notes` say what stands for its links, the first beside the machine.
    """
    link, *others = link_notes or ("",)
    return write_page(
        template,
        out_dir,
        gpu,
        study=study,
        summary=summary,
        headline=headline_table(study.headline()),
        notes=[f"{_begun(note)}." for note in (*study.notes, *(f"link: {note}" for note in others if note))],
        sections=sections,
        config=Simulated(study.gpu, study.changed, study.request_bytes, link),
        **own,
    )


def _begun(text: str) -> str:
    """Words as a sentence begins."""
    return f"{text[:1].upper()}{text[1:]}"


def told(rows: Sequence[HeadlineRow], ids: Collection[str]) -> list[str]:
    """Those of the headline's figures as sentences, in the order of `ids`; ones that are not there are left out."""
    found = {row.id: row for row in rows}
    return [_told(found[name]) for name in ids if name in found]


def _told(row: HeadlineRow) -> str:
    published = "" if row.published is None else f", {amount(row.published, row.unit)} published"
    return f"{_begun(row.what)}: {amount(row.weft, row.unit)} simulated{published}"
