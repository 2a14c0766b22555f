"""`weft validate` and `calibrate`: the models against measured rows, and machines fitted to their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from weft.cli.options import data_option, examples, option, refuse_given
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs, print_path
from weft.cli.progress import progress_bar
from weft.cli.values import GPU_NAME, GPU_NAMES, NAMES, SYSTEM_NAME
from weft.core.errors import check_name
from weft.core.files import write_json, written_together
from weft.core.report.table import Table, number, text
from weft.lab import catalog, run
from weft.lab.bar import judge_demands, predicted_by
from weft.lab.calibration import Calibrated, Fitted
from weft.lab.catalog import Target, show_parameter
from weft.lab.classes import class_coverage, class_errors
from weft.lab.error_tables import errors_table
from weft.lab.page import ValidationReport, write_validation
from weft.lab.step_classes import step_classes
from weft.lab.subjects import Predicted
from weft.lab.tables import Kind

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
    lines = [line.to_dict() for line in judge_demands(by)] if by else []
    save = json_of(done, **({"bar": lines, **_of_left_out(by)} if by else {}))
    report = ValidationReport(done, lines)
    outputs.show(report, save, files={"validation.json": save}, page=partial(write_validation, report))


def _of_left_out(by: Mapping[Any, Sequence[Predicted]]) -> dict[str, Any]:
    """Return what rows that fits left out say of errors to come: intervals, their coverage, and any training steps."""
    found = {"classes": class_errors(by), "coverage": class_coverage(by)}
    timed = any(part.subject.kind == "step" for parts in by.values() for part in parts)
    return {**found, "steps": step_classes(by)} if timed else found


def _kinds(names: tuple[str, ...] | None) -> list[Kind] | None:
    for name in names or ():
        check_name("kind of measurement", name, KINDS, listed=True)
    return None if names is None else [kind for kind in KINDS if kind in names]


_FITTED = {"start": "start", "fitted": "fitted", "low": "95 % low", "high": "high"}


@click.command("calibrate", epilog=examples("weft calibrate --data gemm.csv --gpu h100-sxm --out my-gpu.toml"))
@data_option
@option("--gpu", "Fit this GPU to its GEMMs.", GPU_NAME)
@option("--system", "Fit the collective library of this system to its collectives.", SYSTEM_NAME)
@option(
    "--holdout",
    "Share of the rows that the fit does not see.",
    click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.3,
    metavar="SHARE",
)
@option("--seed", "Which rows are held out.", click.IntRange(min=0), default=0)
@file_option("--out", "Write the fitted GPU or library profile to this TOML file.")
@file_option("--json", "Write the parameters and the errors as JSON.")
@pass_outputs
def calibrate(
    outputs: Outputs, data: Path | None, gpu: str | None, system: str | None, holdout: float, seed: int
) -> None:
    """Fit a machine's physical parameters to measured rows, and report the remaining error.

    Only parameters of a closed list are fitted, each within plausible bounds; one that ends at a bound is marked.
    Errors, before and after the fit, are those of held-out rows.
    """
    if (gpu is None) == (system is None):
        raise click.UsageError("name either a --gpu or a --system to calibrate")
    _check_place(gpu, outputs.out)
    found = catalog.calibrate(data, gpu=gpu, system=system, holdout=holdout, seed=seed)
    with written_together():
        outputs.show(_parts(found.done, found.target), lambda file: write_json(file, found.to_dict()))
        if outputs.out is not None:
            print_path("fitted", found.write(outputs.out))


def _check_place(gpu: str | None, out: Path | None) -> None:
    """Raise BadParameter if --out would replace the file of --gpu, which the fitted file extends."""
    if gpu is None or out is None or not gpu.endswith(".toml") or Path(gpu).resolve() != out.resolve():
        return
    raise click.BadParameter(
        f"'{out}' is the file of --gpu, which the fitted file extends; write to another file",
        param_hint="'--out'",
    )


def _parts(done: Calibrated, target: Target) -> Iterator[Table | str]:
    """Tables of the fitted parameters and of the errors before and after the fit, with notes on how to read them."""
    yield _parameters(done)
    if silent := [found.parameter.path for found in done.fit.parameters if found.state == "no rows"]:
        yield f"no row depends on {', '.join(silent)}: kept as they were"
    errors = (("before", done.before), ("after", done.after))
    rows = [{"rows held out": when, **asdict(one)} for when, one in errors]
    yield errors_table(rows, "Errors on the rows that the fit did not see")
    if done.after.mean_abs_err > done.before.mean_abs_err:
        yield (
            f"note: after the fit the rows held out are further off ({done.before.mean_abs_err:.1%} before, "
            f"{done.after.mean_abs_err:.1%} after): keep {target.extends} as it is, or fit more rows"
        )
    if target.fitted_before:
        yield (
            f"note: values of {target.extends} were calibrated before, perhaps to these very rows: 'before' need not "
            "be the error on rows that nothing has seen"
        )
    yield from (f"problem: {problem}" for problem in target.complaints)


def _parameters(done: Calibrated) -> Table:
    columns = [
        text("parameter"),
        *(number(key, head, format_=str) for key, head in _FITTED.items()),
        number("rows"),
        text("bounds"),
        text("state"),
        text("about", "what it is", prose=True),
    ]
    title = f"{done.subject.machine}: {done.fitted_rows} rows fitted, {len(done.held_out.subject)} held out"
    return Table(columns, [_row(found) for found in done.fit.parameters if found.state != "no rows"], title)


def _row(found: Fitted) -> list[Any]:
    parameter, state = found.parameter, found.state
    start, value, low, high, least, most = (
        show_parameter(v, parameter)
        for v in (found.start, found.value, found.low, found.high, parameter.low, parameter.high)
    )
    if state == "too few rows":
        value = low = high = "–"
        state = f"{state}, needs {parameter.needs_rows}"
    fitted = (start, value, low, high, found.rows)
    return [parameter.path, *fitted, f"{least} to {most}", state, parameter.about]
