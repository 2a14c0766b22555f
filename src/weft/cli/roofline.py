"""`weft roofline`: a model's operators on the roofline of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import weft
from weft.cli.options import as_run_options, clock_option, examples, given
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.step import plan_options
from weft.cli.values import MODEL_NAME
from weft.options import RunOptions


@click.command(epilog=examples("weft roofline llama-3-70b --system 8xh100 --tp 8 --out out/roofline"))
@click.argument("model", type=MODEL_NAME)
@plan_options
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the table as CSV.")
@folder_option("Write report.html with the picture, and roofline.json, to this folder.", "roofline.json")
@as_run_options
@pass_outputs
def roofline(
    outputs: Outputs, /, model: str, system: str, changes: Mapping[str, str], options: RunOptions, **stated: Any
) -> None:
    """Show the operators of a layer of MODEL on the roofline of a GPU: intensity, attained rate, bound.

    Forward and backward, as one rank of the plan computes them. MODEL is a name of 'weft models list', or a file.
    """
    answer = weft.roofline(model, weft.system(system).replace(changes), options=options, **given(**stated))
    outputs.show(answer, files={"roofline.json": json_of(answer)})
