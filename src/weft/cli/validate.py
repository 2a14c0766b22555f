"""`weft validate`: compare the models with measured rows, your own or public ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import get_args

import click

from weft.cli.options import data_option, examples, option, refuse_given
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.progress import progress_bar
from weft.cli.values import GPU_NAMES, NAMES
from weft.errors import check_name
from weft.validation import run
from weft.validation.bar import judged, predicted_by
from weft.validation.classes import class_errors
from weft.validation.tables import Kind
from weft.view.validation import ValidationReport, write_validation

KINDS: tuple[Kind, ...] = get_args(Kind)


@click.command("validate", epilog=examples("weft validate --data measurements --gpu h100-sxm --out out/validate"))
@data_option
@option("--gpu", "Only rows of these GPUs: names or TOML files.", GPU_NAMES, name="gpus")
@option(
    "--library",
    "Profiles of collective libraries, as 'weft calibrate --system' writes them.",
    NAMES,
    name="libraries",
    metavar="FILE,...",
)
@option("--kinds", f"Only these kinds of measurements, of {', '.join(KINDS)}.", NAMES)
@option(
    "--bar", "Also fit to 70 % of the rows and to the other machines, and say line by line what holds.", is_flag=True
)
@file_option("--json", "Write the errors, the worst rows and every problem as JSON.")
@folder_option("Write report.html with the pictures, and validation.json, to this folder.", "validation.json")
@pass_outputs
def validate(
    outputs: Outputs,
    data: Path | None,
    gpus: tuple[str, ...] | None,
    libraries: tuple[str, ...] | None,
    kinds: tuple[str, ...] | None,
    bar: bool,
) -> None:
    """Report how far the models are off: predictions for the catalogue's machines against measured rows.

    Errors are per GPU and data type, and per system and collective, over every physically possible row; impossible rows
    are listed and left out.
    """
    if kinds is not None and not {"collective", "channels", "overlap", "contention", "layer"} & {*kinds}:
        refuse_given("where --kinds leaves out every collective", "libraries")
    with progress_bar("validation") as progress:
        done = run.validate(data, gpus=gpus or (), libraries=libraries or (), kinds=_kinds(kinds), progress=progress)
        by = predicted_by(done, progress) if bar else {}
    lines = [line.to_dict() for line in judged(by)] if by else []
    more = (
        {"bar": lines, "classes": class_errors(by["as shipped"], by["leave one out"], by["system left out"])}
        if by
        else {}
    )
    save = json_of(done, **more)
    report = ValidationReport(done, lines)
    outputs.show(report, save, files={"validation.json": save}, page=partial(write_validation, report))


def _kinds(names: tuple[str, ...] | None) -> list[Kind] | None:
    for name in names or ():
        check_name("kind of measurement", name, KINDS)
    return None if names is None else [kind for kind in KINDS if kind in names]
