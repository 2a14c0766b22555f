"""`weft scale`: a model's training step on machines of the future."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import click

import weft
from weft.cli.options import as_run_options, clock_option, examples, given, option
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.step import plan_options
from weft.cli.values import FACTORS, MODEL_NAME, Value, names
from weft.options import Fidelity, RunOptions

_EXAMPLE = "weft scale llama-3-70b --system 64xh100 --tp 8 --pp 4 --compute 1,2,4 --network 1,2"
_T3 = "weft scale llama-3-70b --system 8xh100 --tp 8 --compute 4 --network 2 --overlap framework,t3-mca --out out/scale"


@click.command(epilog=examples(_EXAMPLE, _T3))
@click.argument("model", type=MODEL_NAME)
@plan_options
@option("--compute", "Rates of computing, as multiples of today's.", FACTORS, default=(1.0, 2.0, 4.0))
@option("--network", "Rates of links and network, as multiples of today's.", FACTORS, default=(1.0,))
@option("--memory", "Rates of memory, as multiples of today's.  [default: as --compute]", FACTORS, name="rates")
@option(
    "--overlap", "Methods for tensor parallelism to compare, see 'weft overlaps list --axis tp', and framework: as it "
    "does by itself.  [default: sequential,framework]",
    Value("A,B", names), name="methods",
)  # fmt: skip
@option(
    "--fidelity",
    "What kernels and collectives that run at once cost each other: nothing (estimate), or by the engine (windows).",
    click.Choice(get_args(Fidelity)),
    default="estimate",
)
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the table as CSV.")
@folder_option("Write report.html with the maps, and scale.json, to this folder.", "scale.json")
@as_run_options
@pass_outputs
def scale(
    outputs: Outputs, /, model: str, system: str, changes: Mapping[str, str], options: RunOptions,
    rates: Sequence[float] | None, **stated: Any,
) -> None:  # fmt: skip
    """Time a training step of MODEL on machines that compute faster, and whose links carry more.

    Shows the share of communication that is exposed and hidden on every machine, and what methods of overlap change,
    with the range in which the answer may lie. MODEL is a name of 'weft models list', or a file.
    """
    answer = weft.scale(model, weft.system(system).replace(changes), options=options, memory=rates, **given(**stated))
    outputs.show(answer, files={"scale.json": json_of(answer)})
