"""Writes reference/catalogue.md when the documentation is built: every machine and model, value by value.

Also makes the directives `assumed-values`, a table of the values of a machine that are assumed, and
`measurement-columns`, a table of the files of measured rows, and adds the declared fields of a dataclass to its
reference.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from weft import hardware
from weft.core.fields import describe_fields
from weft.hardware import Provenance
from weft.models import load_model, model_names

INTRODUCTION = """# Machines and models

What Weft knows, made from `src/weft/hardware/catalog` and
`src/weft/models/catalog`. A *peak* value is a data sheet's, a *published* one a paper's or the maker's, an
*achieved* or *measured* one somebody's measurement, a *calibrated* one fitted to measurements, a *derived* one
follows from others, and an *assumed* one is plausible within its range. `--set PATH=VALUE`,
`Gpu.replace` and `System.replace` change values by path.
"""
SOURCES = Path(__file__).parents[1]
COLUMNS = ("value", "kind", "plausible range", "source")


class AssumedValues(SphinxDirective):
    """The assumed values of a machine, with their ranges and reasons."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found = nodes.Element()
        lines = StringList(list(assumed(self.arguments[0])), source="the catalogue")
        self.state.nested_parse(lines, self.content_offset, found)
        return found.children


class MeasurementColumns(SphinxDirective):
    """The files of measured rows that `weft validate` reads, with their columns."""

    def run(self) -> list[nodes.Node]:
        found = nodes.Element()
        lines = StringList(list(measurement_columns()), source="src/weft/lab/tables.toml")
        self.state.nested_parse(lines, self.content_offset, found)
        return found.children


def measurement_columns() -> Iterator[str]:
    """A table with a row for each file: what a row of it is, and its columns; those in brackets may be missing."""
    yield from ("| file | a row is | columns |", "|---|---|---|")
    for kind in tomllib.loads((SOURCES / "src/weft/lab/tables.toml").read_text(encoding="utf-8")).values():
        names = (f"[{name}]" if "optional" in cell else name for name, cell in kind["columns"].items())
        yield f"| `{kind['file']}` | {kind['about']} | {', '.join(names)} |"


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls: the page is written before the pages are read."""
    app.add_directive("assumed-values", AssumedValues)
    app.add_directive("measurement-columns", MeasurementColumns)
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "reference" / "catalogue.md"))
    app.connect("builder-inited", lambda app: forget_modules(Path(app.srcdir) / "reference" / "api"), priority=1)
    app.connect("autodoc-process-docstring", add_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def add_fields(app: Any, what: str, name: str, owner: Any, options: Any, lines: list[str]) -> None:
    """Add the declared fields of a dataclass to what its docstring says."""
    if what == "class" and is_dataclass(owner):
        lines += field_lines(owner)


def field_lines(owner: Any) -> Iterator[str]:
    """A list of the declared fields of a dataclass: what each means, its default, and its option."""
    for one in describe_fields(owner).values():
        about = one.declared
        default = about.default or ("" if one.value is None else f"`{one.value!r}`")
        said = (
            about.help.replace("{names}", ", ".join(one.choices))
            if one.takes_names
            else about.help.replace(": {names}", "")
        )
        flag = f"--{one.name.replace('_', '-')}"
        yield f"* `{one.name}` (`{flag}`): {said}" + f" Default: {default}." * bool(default)
    yield ""


def write(page: Path) -> None:
    text = INTRODUCTION + "\n".join([*machines(), *models()]) + "\n"
    if not page.exists() or page.read_text() != text:  # else Sphinx would read it again
        page.write_text(text)


def forget_modules(pages: Path) -> None:
    """Remove the pages of modules that are no more, before autosummary reads what it wrote the last time."""
    for page in pages.glob("*.rst"):
        path = page.stem.replace(".", "/")
        roots = (SOURCES / room for room in ("src", "measure/src"))
        if not any((root / f"{path}.py").exists() or (root / path).is_dir() for root in roots):
            page.unlink()


def machines() -> Iterator[str]:
    for name in hardware.gpu_names():
        gpu = hardware.gpu(name)
        yield f"\n## GPU `{name}`\n\n{gpu.title}. {gpu.description}{also_known(gpu.aliases)}\n"
        yield from table("path", {path: gpu.text(path) for path in gpu.rules()}, gpu.provenance)
    for node in hardware.known_nodes():
        about = f"{node.title}. {node.description} Its GPU: `{node.gpu.name}`.{also_known(node.aliases)}"
        yield f"\n## System `{node.name}`\n\n{about}\n"
        yield from table("path", {path: node.text(path) for path in node.provenance}, node.provenance)


def also_known(aliases: tuple[str, ...]) -> str:
    """A sentence with the other names of a machine."""
    return f" Also known as {', '.join(f'`{alias}`' for alias in aliases)}." if aliases else ""


def assumed(name: str) -> Iterator[str]:
    """A table of what is assumed about a machine."""
    gpu = hardware.gpu(name)
    known = {path: about for path, about in gpu.provenance.items() if about.kind == "assumed"}
    yield from table("path", {path: gpu.text(path) for path in gpu.rules() if path in known}, known, without="kind")


def models() -> Iterator[str]:
    for name in model_names():
        model = load_model(name)
        yield f"\n## Model `{name}`\n\n{model.title}.\n"
        yield from table("dimension", {key: known.text for key, known in model.provenance.items()}, model.provenance)


def table(
    key: str, values: Mapping[str, str], provenance: Mapping[str, Provenance], without: str = ""
) -> Iterator[str]:
    columns = [column for column in COLUMNS if column != without]
    yield row([key, *columns])
    yield row(["---"] * (1 + len(columns)))
    for name, value in values.items():
        known = provenance.get(name)
        reach = f"{known.low} to {known.high}" if known and known.low is not None else ""
        about = (value, known.kind, reach, known.source) if known else (value, "", "", "")
        shown = dict(zip(COLUMNS, about, strict=True))
        yield row([f"`{name}`", *(shown[column] for column in columns)])


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
