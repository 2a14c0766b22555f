"""A self-contained HTML page: a title, then sections of tables, pictures and sentences; the machine at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.files import check_out_dir, write_atomically
from weft.lower.machine import ring_note
from weft.report.tables import Table, assumed_table, machine_table
from weft.result import Timeline

if TYPE_CHECKING:
    from markupsafe import Markup

    from weft.hardware import Gpu
    from weft.report.plots import Picture

REPORT = "report.html"
T3 = ("How T3 works", "t3")


@dataclass(frozen=True)
class Figure:
    """A picture with the sentence that says what to see in it."""

    picture: Picture
    caption: str

    @property
    def svg(self) -> Markup:
        """The picture as an element of the page, named for those who cannot see it."""
        from markupsafe import Markup, escape

        named = f'<svg role="img" aria-label="{escape(self.caption)}" '
        return Markup(self.picture.svg().replace("<svg ", named, 1))  # matplotlib's, and an escaped label


@dataclass(frozen=True)
class Section:
    """A part of a page below its title, or folded behind it; an empty one is left out."""

    title: str
    parts: Sequence[Part]
    folded: bool = False


Part = str | Table | Figure | Section | Sequence[str]
"""A paragraph, a table, a picture, a section, or sentences as a list."""


def write_page(
    out_dir: str | Path, title: str, lead: str, parts: Sequence[Part], explained: tuple[str, str] = T3
) -> Path:
    """Write `report.html` in a folder, whole or not at all, and return its path; else OutputError.

    `lead` stands below the title. `explained` is the page of the documentation that explains it: its title and name.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    folder = check_out_dir(out_dir)
    environment = Environment(
        loader=PackageLoader("weft.report"), autoescape=select_autoescape(default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    template = environment.get_template("page.html.j2")
    return write_atomically(folder / REPORT, template.render(title=title, lead=lead, parts=parts, explained=explained))


def machine_section(gpu: Gpu, *said: Part, title: str = "The machine") -> Section:
    """What is `said`, then every value of the machine with its source."""
    values, assumed = machine_table(gpu), assumed_table(gpu)
    changes = [f"Changed by the user: {'; '.join(gpu.changes)}."] if gpu.changes else []
    return Section(
        title,
        [
            *said,
            f"{gpu.title} ({gpu.name}): {gpu.description}",
            Section(f"Published, derived and chosen values ({len(values.rows)})", [values], folded=True),
            Section(f"Assumed values and how far they could be off ({len(assumed.rows)})", [assumed], folded=True),
            *changes,
        ],
    )


def simulated_section(run: Timeline, *said: Part) -> Section:
    """What is `said`, and on which machine and how a run was simulated."""
    options, note = run.options, ring_note(run.system)
    link = [f"Link: {note}."] if note else []
    return machine_section(run.gpu, *said, *link, how(options.request_bytes, options.mode), title=SIMULATED)


SIMULATED = "What was simulated"


def how(request_bytes: int | None, mode: str = "mirrored") -> str:
    """How fine a run was simulated, and how many of its GPUs."""
    one = "one GPU was simulated and stands for all of them: what it sends is, after the link, what it receives"
    return f"Requests of {request_bytes} B; {one if mode == 'mirrored' else 'every GPU was simulated'}."
