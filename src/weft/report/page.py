"""A self-contained HTML page from a template, pictures inline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from weft.errors import InputError
from weft.files import check_out_dir, write_atomically
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.hardware.gpu import parse_assignment
from weft.report.plots import Picture
from weft.report.tables import assumed_table, machine_table
from weft.result import RunConfig

REPORT = "report.html"


@dataclass(frozen=True)
class Figure:
    """A picture with the sentence that says what to see in it."""

    picture: Picture
    caption: str

    @property
    def svg(self) -> Markup:
        """The picture as an element of the page, named for those who cannot see it."""
        label = escape(self.caption)
        return Markup(  # the SVG is matplotlib's and the label is escaped
            self.picture.svg().replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        )


def write_page(template: str, out_dir: str | Path, gpu: Gpu | None = None, **content: Any) -> Path:
    """Fill a template and write it as `report.html` in a folder, whole or not at all; else OutputError.

    `gpu` is the machine, whose values the page tells; None where it is unknown or no page of a machine.
    """
    folder = check_out_dir(out_dir)
    if gpu is not None:
        content |= {"machine": machine_table(gpu), "assumed": assumed_table(gpu)}
    environment = Environment(
        loader=PackageLoader("weft.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return write_atomically(folder / REPORT, environment.get_template(template).render(gpu=gpu, **content))


def machine_of(config: RunConfig) -> Gpu | None:
    """The catalogue's GPU with the values that the user changed; None if the catalogue does not know it."""
    try:
        return load_gpu(config.gpu).with_values(dict(map(parse_assignment, config.changed)))
    except InputError:
        return None
