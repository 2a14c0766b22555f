"""A self-contained HTML page: a summary sentence, then sections of tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.files import check_out_dir, packaged_toml, to_json, write_atomically
from weft.core.report import Figure, Part, Report, Section, Table
from weft.core.report.table import plain
from weft.view.words import assumed_table, link_note, machine_table, sentence

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.simulate.result import Timeline

REPORT = "report.html"
SIMULATED = "What was simulated"
_DIGITS = 7
"""Significant digits of a figure's values in a page: finer than a screen resolves."""


def write_report(report: Report[Any], out_dir: str | Path) -> Path:
    """Write the page of a report, `report.html`, to a folder and return its path; OutputError if that fails."""
    folder = check_out_dir(out_dir)
    return write_atomically(folder / REPORT, report_page(report))


def report_page(report: Report[Any]) -> str:
    """Return the page of a report: title, conclusions, sections, notes, and the values of its machine."""
    lead, more = conclusions(report)
    gpu = report.gpu()
    machine = [machine_section(gpu)] if gpu is not None else []
    return page_text(report.title(), lead, [more, *_below(report), *report.appendix(), *machine], report.explained)


def conclusions(report: Report[Any]) -> tuple[str, list[str]]:
    """Return the first line of a report's page, and the conclusions that follow it."""
    lead = _typeset(report.lead())
    return lead, [said for said in map(_typeset, report.sentences()) if said not in lead]


def _below(report: Report[Any]) -> list[Part]:
    """Return what follows the conclusions of a report: sections, and notes."""
    # A note of several lines is a file, which the page shows among its sections.
    notes = [sentence(_typeset(note)) for note in report.notes() if "\n" not in note]
    return [*report.sections(), *([Section("Notes and expected errors", [notes])] if notes else [])]


def _typeset(words: str) -> str:
    """Return a sentence with the signs that a page has and a terminal lacks."""
    return f"{words.rstrip('.')}.".replace(" x ", " × ").replace(" us ", " µs ").replace(" us;", " µs;")


def page_text(title: str, told: str, parts: Sequence[Part], explained: str = "") -> str:
    """Return a self-contained page as HTML.

    `told` is the summary sentence. `explained` names the entries of `explained.toml` at the end of the page.
    """
    drawn, titled = list(_figures(parts)), list(_sections(parts))
    number_of = _numbers([*drawn, *titled])
    return render(
        "weft.view",
        "page.html.j2",
        title=title,
        told=told,
        parts=parts,
        explained=explanations(explained),
        plain=plain,
        number_of=number_of,
        contents=titled,
        figures={f"figure-{number_of(figure)}": _embed_figure(figure) for figure in drawn},
        script=javascript() if drawn else "",
        drawn_already=True,
        prefix="",
    )


def fragment(report: Report[Any], prefix: str) -> str:
    """Return what follows the conclusions of a report's page, for a page that draws the figures by `javascript`.

    Ids begin with the `prefix`.
    """
    parts = _below(report)
    drawn = list(_figures(parts))
    number_of = _numbers([*drawn, *_sections(parts)])
    figures = {f"{prefix}figure-{number_of(figure)}": _embed_figure(figure) for figure in drawn}
    return render(
        "weft.view", "fragment.html.j2", parts=parts, plain=plain, number_of=number_of, figures=figures,
        drawn_already=False, prefix=prefix,
    )  # fmt: skip


def render(package: str, template: str, **values: Any) -> str:
    """Return a template of a package with its values, each of which is escaped; an undefined one is an error."""
    text: str = _environment(package).get_template(template).render(**values)
    return text


@cache
def _environment(package: str) -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def explanations(name: str) -> list[str]:
    """Return the sentences of `explained.toml` for the end of the page `name`, then those of every page."""
    known = packaged_toml("weft.view", "explained.toml")
    missing = [f"Nothing explains '{name}': view/explained.toml lacks a sentence of that name."] * bool(name)
    return [*known.get(name, missing), *known["always"]]


def _figures(parts: Sequence[Part]) -> Iterator[Figure]:
    for part in parts:
        if isinstance(part, Section):
            yield from _figures(part.parts)
        elif not isinstance(part, str | Table | Sequence):
            yield part


def _sections(parts: Sequence[Part]) -> Iterator[Section]:
    """Yield the sections of a page's contents: those with a heading."""
    for part in parts:
        if isinstance(part, Section) and not part.folded and part.parts:
            yield part
            yield from _sections(part.parts)


def _numbers(parts: Sequence[Part]) -> Any:
    """Return the number of each figure and section on a page."""
    ids = {id(part): number for number, part in enumerate(parts, 1)}
    return lambda part: ids[id(part)]


def _embed_figure(figure: Figure) -> str:
    """Return a figure's specification and rows as JSON, escaped so that no text can close the script element."""
    data = {name: {"keys": table.keys, "columns": _columns(table)} for name, table in figure.data.items()}
    text = to_json({"title": figure.title, "spec": figure.spec, "data": data}, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _columns(table: Table) -> list[list[Any]]:
    return [list(map(_short, column)) for column in zip(*table.values(), strict=True)]


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which `make vega` builds from pinned versions."""
    return Path(__file__).with_name("vega.js").read_text(encoding="utf-8")


def machine_section(gpu: Gpu, *said: Part, title: str = "The machine") -> Section:
    """Return the sentences `said`, then every value of the machine with its source."""
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
    """Return the sentences `said`, then the machine, request size and mode of a run."""
    options, note = run.options, link_note(run)
    link = [f"Link: {note}."] if note else []
    simulated = how(options.request_bytes, options.mode, options.memory)
    return machine_section(run.gpu, *said, *link, simulated, title=SIMULATED)


def how(request_bytes: int | None, mode: str = "mirrored", memory: str = "banks") -> str:
    """Return the request size of a run, the detail of its DRAM, and the number of simulated GPUs, in words."""
    detail = "" if memory == "banks" else ", memory channels of one server without banks"
    one = "one GPU was simulated and represents all: what it sends returns, a link latency later, as what it receives"
    return f"Requests of {request_bytes} B{detail}; {one if mode == 'mirrored' else 'every GPU was simulated'}."
