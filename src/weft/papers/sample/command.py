"""`weft sample`: iterations that stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

import weft
from weft.cli.options import examples, option
from weft.cli.output import shows
from weft.cli.values import Value, names
from weft.core.answer import Answer
from weft.papers.sample import read_log
from weft.papers.sample.estimators import Method

_PLAN = "weft sample lengths.csv --half-width 0.01 --csv measure.csv"
_TOTAL = "weft sample log.csv --time v100_ms,a100_ms --iterations 20 --out out/sample"


@click.command(epilog=examples(_PLAN, _TOTAL))
@click.argument("log", type=click.Path(path_type=Path))
@option("--length", "Column of lengths.  [default: length, seq_len, tokens, ...]")
@option(
    "--time",
    "Columns of times, in seconds or as _ms, _us say.  [default: time, time_ms, ...]",
    Value("A,B", names),
    name="times",
)
@option("--iterations", "How many iterations to choose.  [default: as many as --half-width takes]", click.INT)
@option("--half-width", "Half of the interval that is wanted, as a fraction of the total.", click.FLOAT, default=0.01)
@option("--method", "What estimates the total.", click.Choice(get_args(Method)), default="automatic")
@option("--noise", "How much times of one length vary, as a fraction.", click.FLOAT, default=0.01)
@option(
    "--again", "How much whole runs vary, as a fraction, if the claim is about another run.", click.FLOAT, default=0.0
)
@option("--skip", "Iterations at the start to leave out, where the program warms up.", click.INT, default=0)
@option("--seed", "Seed of the random choice.", click.INT, default=0)
@shows(
    "sample.json",
    csv="Write the chosen iterations as CSV.",
    out="Write report.html with the picture, and sample.json, to this folder.",
)
def sample(log: Path, length: str | None, times: Sequence[str] | None, **stated: Any) -> Answer:
    """Choose iterations of LOG that stand for all, and total them.

    LOG is a CSV file with a row for each iteration of an epoch: its padded length, and its time on one machine or
    several where it was measured. Without times, the answer is which iterations to measure.
    """
    return weft.sample(read_log(log, length, times or ()), **stated)
