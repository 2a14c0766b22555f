"""Writes explanation/errors.md, the page of today's errors, from what `weft validate --bar --out` wrote, and the errors
that answers carry, `src/weft/estimate/model_errors.toml`.

Use: python docs/errors.py out/validate (`make validate` does). Needs nothing but Weft.
"""

import csv
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from weft.core.report.table import Table, number, text
from weft.lab.classes import SERVED_CLASSES
from weft.lab.error_tables import bar_table, errors_table, without_rows
from weft.lab.fitted import fitted_files, thin_sets
from weft.lab.page import PICTURES, TITLES

HERE = Path(__file__).parent / "explanation"
STEPS = Path(__file__).parents[1] / "src/weft/estimate/step_errors.toml"
FIGURES = "errors"
DRAWN = ("gemm", "collective", "step", "serving")
CLASSES = Path(__file__).parent.parent / "src/weft/estimate/model_errors.toml"
HEAD = """# Written by docs/errors.py (make validate), from what `weft validate --bar` finds; do not edit.
#
# 80 % interval of measured / predicted (two ends), rows and machines of each class, [] where no row is public.
# Residuals are of rows that fits left out. Classes of size lie below, between and from the bounds: GEMMs in bf16 and
# fp16 and pairs joined by software by time [s], collectives (one node, or `over_nodes`, the library's own test) by
# bytes. `left_out`: each machine predicted from its data sheet and the fits of the others. `beside`: the largest error
# of GEMMs beside a collective. `exchange`: MoE dispatch and combine by library, number of ranks left out; `attention`
# and the like: kernels of inference by library and what it runs, on the GPUs of `gpus`, and on others `gpu_left_out`;
# `serving`: served loads by framework, layers and quantity, model left out. `load_ratio`: half the 80 %
# interval of ln(measured / predicted) of the ratio of TPOT of two loads by what they differ in, pairs, rows, and of the
# pairs those that an interval of other models calls, of these right, and inside it. `kernels_alone`: TPOT and TTFT of
# served loads relative to the kernels of a framework or of the vendor; nothing is fitted. `corun`: makespans of
# simulated co-runs. `gain`: speedups of pairs over running them serially.
"""
INTRODUCTION = """# Accuracy: how far off Weft is today

<!--- Made by `make validate`: change docs/errors.py, not this page. -->

Predictions beside public measurements, by `weft validate`: {rows}.
"""
TERMS = """
An error is predicted / measured - 1; mean, median and p90 are of its absolute value, the bias keeps the sign, the
geometric mean weighs half and double alike. For your own machine:
[set the models beside measurements](../howto/validate.md). Rows belong to their authors and are not part of Weft:
ai-dynamo/aiconfigurator, microsoft/vidur, sitar-lab/NeuSight, ROCm/hipBLASLt, ROCm/rccl, Azure/AI-benchmarking-guide,
aws-samples/awsome-distributed-training, oracle-quickstart/oci-hpc, microsoft/nnscaler, microsoft/mscclpp,
openfabric-systems/simllm, PrincetonUniversity/LLMCompass, bytedance/flux and others."""
BAR = """
## What must be reached

{passed} of {all} lines pass. *Held out*: fitted to a random 70 % of a machine's rows, from what the other machines say,
and judged on the rest, over three splits. *Leave one out*: predicted from the data sheet and the other machines' fits.
*As shipped*: the catalogue as it is. *System* or *method left out*: software costs fitted to all others. {causes}
"""
SEEN = """
## Seen and left out

GEMM and collective [joined by software](joined.md): mean error, and share of right signs of win or loss. *As shipped*,
the rows were in-sample for the software costs; then every system, or every method, is left out of their fit. GEMMs and
collectives alone: the lines *leave one out* above.
"""
CARRIED = """
## The intervals that answers carry

Every answer states the 80 % interval of its class, relative to its prediction, from rows that the fits left out:
rows of its machine held out where it has any, else machines, systems, numbers of ranks, models or GPUs left out. It is
not symmetric where measured times lie on one side. A class of fewer than ten rows takes the wider of its interval
and that of its kind. Sizes are [classes](../howto/advise.md#read-it), the smallest first.
"""
FITTED = """
## What is fitted

{values:,} values in {files} files are fitted to measurements (`calibrated`, each with range and source beside it).
{pooled} more of the libraries' tables (`served.toml`) are `pooled`: the mean of other tables, as the rows of their own
are too few. Tables with fewer than five rows for each value of their own: {thin}.
"""
INTERVALS = """
## Intervals of training steps

A step's interval follows from the measured steps of its framework and of its GPU, each as far as such classes are
alike, and is wider the fewer there are; [how](step.md#intervals). Share of measured steps inside the 80 % interval that
leaves them out:
"""
RATIOS = """
Two steps beside each other (`--against`, `weft plan`) have the interval of their ratio, by pairs of measured steps that
differ in the same thing. A pair is called where the interval does not hold 1; {called} pairs are called, {right} of
them in the measured order. Each pair is judged by pairs of other models.
"""
WHAT_IFS = """
Steps that differ in a value of the machine, the loads of experts or an overlap method were not measured in pairs. Their
ratio may be off by {share:.2f} of what changes, the sum of the changes of all parts, as is the ratio of 80 % of the
{pairs} pairs above that differ in GPU, number of GPUs or precision: of these it calls {called}, {right} rightly, and
holds {inside}, each by pairs of other models.
"""
TRUST = """
Mean error of all public rows of a kind: how far to trust an answer of it. Rows that fits have seen count, too; those of
GPUs and models left out are [below](#what-must-be-reached).
"""
TRUSTED = (0.05, 0.1, 0.15, 0.2)
UNTOLD = ("step, nothing fitted",)
COVERAGE = """
Share of rows inside the 80 % interval of their class if the interval is made without them, of classes with 30 rows or
more. Without its GPU, a row's interval is from other GPUs alone, whose libraries differ: of narrow GEMMs, small
operators and collectives it then holds fewer rows than the 80 % it states, down to 8 % in one class.
"""
LOADS = """
### Ratios of served loads

Two served loads of clients beside each other have the interval of their ratio, too, by pairs of measured TPOT, with
predictions that leave their model out of the fit of the host:
"""
CAUSES = "Missed ([causes](../deviations.md#real-gpus)):"

NOTES = {
    "gemm": "Rows are predicted as they were taken: in short runs, on the device or timed from the host.",
    "collective": "Libraries that Weft has no model of (MSCCL++, Triton-distributed) are left out.",
    "channels": "Protocol, channels and compute units are forced. The rate of a channel and NCCL 2.31 on this board "
    "are fitted to these rows; configurations that are left out of the fit are met within 1 point as well.",
    "tuning": "No measurement: what NCCL 2.27.5 states of its own model on H100, latency and rate by algorithm and "
    "protocol; the error of a choice is the share of sizes from 1 KiB to 16 GiB for which Weft chooses another one. "
    "Forms: [collectives](collective-model.md#several-nodes).",
    "layer": "That rig's A100s held their highest clock, 1410 MHz, and so does the prediction. In decode its times "
    "hold the framework's 48 µs per operator, which no model of the GPU has.",
    "overlap": "*Sequential* and async TP are in closed form, the rest is simulated where the engine can cut "
    "the shape; [software costs](joined.md) are added. Rows that state only a speedup are compared in that.",
    "exchange": "Kernels alone, without the host's wait; rows that state only a bandwidth count the copies or "
    "rows of their source. Forms: [collectives](collective-model.md#moe-dispatch-and-combine).",
    "attention": "Kernels alone, repeated, by library, phase and data types of queries and cache. "
    "Forms: [operators](operators.md#attention-by-libraries-of-inference).",
    "mla": "Kernels of latent attention, and the products that generation absorbs; whole blocks are left out. "
    "Forms: [operators](operators.md#attention-by-libraries-of-inference).",
    "all_reduce": "Kernels in one node, repeated, launched by a graph or eagerly by the host. "
    "Forms: [collectives](collective-model.md#all-reduce-of-servers).",
    "serving": "Closed loops of clients in their steady state; the host's time for each step is fitted, by framework, "
    "and what a request takes outside of steps by its version.",
    "energy": "Joules of GPUs in closed loops for each output token; two values of B200 are fitted to four loops of "
    "MiniMax-M2.5, the other rows are left out.",
    "disaggregated": "Closed loops of up to 128 clients, simulated request by request; nothing is fitted to them.",
    "small_operators": "Medians of vLLM's kernels, rounded to a microsecond by their source.",
    "experts": "One call of a library of inference, repeated, by library and format; loads of power laws are drawn as "
    "the source of the rows draws them, with other random numbers.",
    "gemm_lowbit": "Products with the conversion of A, repeated, by library and format; `bf16-int4` has weights of "
    "4 bits. Forms: [GEMMs](gemm-model.md#narrow-formats-by-libraries-of-inference).",
    "contention": "Loops of both on two streams, simulated request by request.",
}


def main(folder: Path) -> None:
    data = json.loads((folder / "validation.json").read_text())
    kinds = list(dict.fromkeys(group["kind"] for group in data["groups"]))
    copy_pictures(folder)
    (HERE / "errors.md").write_text("\n".join([*lines(data, kinds), ""]))
    STEPS.write_text(step_toml(data["steps"]))
    CLASSES.write_text(classes_toml(data["classes"]))


STEP_HEAD = """# Written by docs/errors.py (make validate), from what `weft validate --bar` finds; do not edit.
#
# Training steps: how ln(measured / predicted) spreads. `spread`: standard deviations between frameworks, GPUs, both,
# and kinds of work in a class, and the ends of 80 % intervals in standard deviations, of a class that was measured
# (`known`) or not (`new`). `coverage`: share of rows inside intervals that leave out their kind of work, framework or
# GPU, rows, and the share if the ends leave them out, too. `ratio`: half the 80 % interval of ln(measured / predicted)
# of the ratio of two steps by what they differ in, pairs, rows; for what-ifs, as a share of what changes. `called`:
# pairs, pairs that the interval calls, of those right, and pairs inside it, each by pairs of other models.
# `traits`: rows of plans with each format, axis and schedule. `classes`: mean ln(measured / predicted), rows, kinds of
# work (model and number of GPUs), least and most GPUs, by GPU and framework.
"""


def step_toml(found: Mapping[str, Any]) -> str:
    """The classes of training steps as TOML."""
    parts = [STEP_HEAD]
    for table, layers in found.items():
        for kind, values in layers.items():
            nested = table == "classes"
            parts.append(f"[{table}.{kind}]")
            for name, value in values.items():
                parts += (
                    [f"{name}.{one} = {json.dumps(of)}" for one, of in value.items()]
                    if nested
                    else [f"{name if name.isidentifier() else json.dumps(name)} = {json.dumps(value)}"]
                )
            parts.append("")
    return "\n".join(parts)


def lines(data: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[str]:
    yield INTRODUCTION.format(rows=f"{data['rows_used']:,} of {data['rows_read']:,} rows have a prediction")
    yield from trusted(data["overall"])
    yield from markdown(errors_table(data["overall"]))
    yield TERMS
    if data.get("bar"):
        yield from bar(data["bar"])
        yield from seen_and_left_out(data["bar"])
        yield CARRIED
        yield from kept("classes", "Intervals by class", class_table(data["classes"]))
        yield COVERAGE
        yield from markdown(coverage_table(data["coverage"]))
        yield from fitted()
        yield from intervals(data["steps"])
        yield from load_ratios(data["classes"]["load_ratio"])
    yield "\n## Machine by machine, as shipped"
    for kind in kinds:
        yield f"\n### {TITLES.get(kind, kind)}\n"
        if kind in NOTES:
            yield f"{NOTES[kind]}\n"
        told = [{k: v for k, v in one.items() if k != "kind"} for one in data["summary"] if one["kind"] == kind]
        yield from kept(kind.replace(", ", "-").replace(" ", "-"), f"{len(told)} lines", errors_table(told))
        for name in PICTURES if kind in DRAWN else ():
            yield f"\n![{TITLES[kind]}, {name}]({FIGURES}/{kind}-{name}.png)"


def trusted(overall: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which kinds of predictions to trust how far, by their mean error on public rows."""
    ordered = sorted(overall, key=lambda one: float(one["mean_abs_err"]))
    yield TRUST
    for least, most in pairwise((0.0, *TRUSTED, math.inf)):
        kinds = [one for one in ordered if least < one["mean_abs_err"] <= most and one["kind"] not in UNTOLD]
        limit = (
            f"more than {least:.0%}"
            if math.isinf(most)
            else f"{least:.0%} to {most:.0%}"
            if least
            else f"at most {most:.0%}"
        )
        if kinds:
            said = "; ".join(f"{TITLES.get(one['kind'], one['kind'])} ({one['mean_abs_err']:.1%})" for one in kinds)
            yield f"* **{limit}**: {said}"
    yield ""


def coverage_table(coverage: Mapping[str, Any]) -> Table:
    """How many rows of each kind lie inside the intervals that leave them out."""
    rows = [(TITLES.get(kind, kind), what, *found) for kind, each in coverage.items() for what, found in each.items()]
    columns = [
        text("kind"), text("left out with a row"), number("inside", format_=".0%"), number("rows"), number("classes"),
        number("least class", format_=".0%"), number("largest", format_=".0%"),
    ]  # fmt: skip
    return Table(columns, rows)


def load_ratios(ratios: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """How far ratios of served loads are off, by what the loads differ in."""
    rows = [
        (name, pairs, called, right, inside / pairs, math.expm1(width))
        for name, (width, pairs, _, called, right, inside) in ratios.items()
    ]
    columns = [
        text("loads differ in"), number("pairs"), number("called"), number("of these right"),
        number("inside", format_=".0%"), number("80 % within", format_=".0%"),
    ]  # fmt: skip
    yield LOADS
    yield from markdown(Table(columns, rows))


def bar(demands: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines that are missed, and where all lines are."""
    table = bar_table(demands)
    passed = [row for row in table.rows if row[-1] == "pass"]
    missed = [row for row in table.rows if row[-1] != "pass"]
    yield BAR.format(passed=len(passed), all=len(table.rows), causes=CAUSES if missed else "")
    if missed:
        yield from markdown(without_verdict(table, missed))
        yield ""
    yield from kept("bar", f"All {len(table.rows)} lines", table)
    if silent := without_rows(demands):
        yield f"\n{silent}."


def seen_and_left_out(demands: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Errors of pairs joined by software: all rows, and with each system or method left out of the fits."""
    protocols = ("as shipped", "system left out", "method left out")
    reached = {(one["what"], one["protocol"]): one for one in demands if one["what"].startswith("overlap: ")}
    names = list(dict.fromkeys(what for what, _ in reached))
    if not any(reached[name, "as shipped"]["rows"] for name in names):
        return
    rows = [
        (name.removeprefix("overlap: "), *(reached[name, protocol]["reached"] for protocol in protocols))
        for name in names
    ]
    yield SEEN
    yield from markdown(Table([text("rows"), *(number(one, format_=".1%") for one in protocols)], rows))


def class_table(classes: Mapping[str, Any]) -> Table:
    """The interval of each class that has rows, with its rows and machines."""
    rows = [
        (" ".join(where), f"{place + 1} of {len(sizes)}", found[0] - 1, found[1] - 1, *found[2:])
        for where, sizes in classes_in(classes)
        for place, found in enumerate(sizes)
        if found
    ]
    rows += [
        (f"{kind} {name}", "", found[0] - 1, found[1] - 1, *found[2:])
        for kind in ("exchange", *SERVED_CLASSES, "kernels_alone", "corun")
        for name, found in classes[kind].items()
    ]
    rows += [
        (f"speedup by {method}", "", found["left_out"][0] - 1, found["left_out"][1] - 1, *found["left_out"][2:])
        for method, found in classes["gain"].items()
    ]
    columns = [
        text("class"),
        text("size"),
        number("80 % from", format_="+.1%"),
        number("to", format_="+.1%"),
        number("rows"),
        number("machines"),
    ]
    return Table(columns, rows)


def step_class_table(steps: Mapping[str, Any]) -> Table:
    """Each class of training steps: bias of measured against predicted, rows, kinds of work, GPUs."""
    rows = [
        (layers, gpu, framework, math.expm1(found[0]), *found[1:])
        for layers, each in steps["classes"].items()
        for gpu, of in each.items()
        for framework, found in of.items()
    ]
    columns = [
        text("models"), text("GPU"), text("framework"), number("measured beyond predicted", format_="+.1%"),
        number("rows"), number("kinds of work"), number("GPUs from"), number("to"),
    ]  # fmt: skip
    return Table(columns, rows)


def fitted() -> Iterator[str]:
    """How many values are fitted to measurements, in which files."""
    files = fitted_files()
    pooled = sum(one.pooled for one in files)
    yield FITTED.format(values=sum(one.values for one in files), files=len(files), pooled=pooled, thin=len(thin_sets()))
    columns = [text("file of src/weft"), number("values"), number("pooled"), number("rows that it names")]
    rows = [(one.file, one.values, one.pooled, one.rows or None) for one in files]
    yield from kept("fitted", "Fitted values by file", Table(columns, rows))


LEFT = {"work": "its model and number of GPUs", "framework": "its framework", "gpu": "its GPU"}


def intervals(steps: Mapping[str, Any]) -> Iterator[str]:
    """How many measured steps lie inside their interval, and how often a ratio's interval calls the faster of two."""
    rows = [
        (kind, LEFT[name], share, rows, nested)
        for kind, each in steps["coverage"].items()
        for name, (share, rows, nested) in each.items()
    ]
    columns = [text("steps of models"), text("left out with a row"), number("inside", format_=".0%"), number("rows"),
               number("ends without them, too", format_=".0%")]  # fmt: skip
    yield INTERVALS
    yield from markdown(Table(columns, rows))
    calls = [
        (kind, name, of[0], steps["called"][kind][name][1], steps["called"][kind][name][2],
         math.expm1(steps["ratio"][kind][name][0]))
        for kind, each in steps["called"].items()
        for name, of in each.items()
        if kind != "what-if"
    ]  # fmt: skip
    columns = [text("models"), text("differ in"), number("pairs"), number("called"), number("of these right"),
               number("80 % within", format_=".0%")]  # fmt: skip
    yield RATIOS.format(called=sum(one[3] for one in calls), right=sum(one[4] for one in calls))
    yield from markdown(Table(columns, calls))
    (share, *_), (pairs, called, right, inside) = (steps[of]["what-if"]["moved"] for of in ("ratio", "called"))
    yield WHAT_IFS.format(share=share, pairs=pairs, called=called, right=right, inside=inside)
    yield from kept("step-classes", "Steps by class", step_class_table(steps))


def classes_in(classes: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[list[float]]]]:
    """The path of each list of classes by size, and the list."""
    for name in ("gemm", "collective", "over_nodes", "left_out", "joined"):
        for first, found in classes[name].items():
            if isinstance(found, Mapping):
                yield from (((name, first, second), sizes) for second, sizes in found.items())
            else:
                yield (name, first), found


def classes_toml(classes: Mapping[str, Any]) -> str:
    """The classes as TOML: a line for each list of classes by size."""
    parts = [HEAD]
    tabled = [kind for kind in SERVED_CLASSES if kind != "serving"]
    nested = [
        (f"{table}.{kind}", classes[table].get(kind, {})) for table in ("gpu_left_out", "gpus") for kind in tabled
    ]
    nested += [(f"gain.{method}", found) for method, found in classes["gain"].items()]
    single = ("bounds", "beside", "exchange", *SERVED_CLASSES, "load_ratio", "kernels_alone", "corun")
    flat = [(table, classes[table]) for table in single]
    for table, values in (*flat, *nested):
        parts += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    last: tuple[str, ...] = ()
    for path, sizes in classes_in(classes):
        if path[:-1] != last:
            last = path[:-1]
            parts += ["", f"[{'.'.join(last)}]"] if parts[-1] else [f"[{'.'.join(last)}]"]
        parts.append(f"{path[-1]} = {json.dumps(sizes)}")
    return "\n".join([*parts, ""])


def without_verdict(table: Table, rows: Sequence[Sequence[Any]]) -> Table:
    return replace(table, rows=rows).without(["verdict"])


def kept(name: str, summary: str, table: Table) -> Iterator[str]:
    """Write the rows of a table, in the page's own words, to errors/NAME.csv, and link it by its summary."""
    file = HERE / FIGURES / f"{name}.csv"
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n").writerows([table.heads, *table.cells()])
    yield f"[{summary}]({FIGURES}/{file.name})."


def markdown(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.heads)} |"
    sides = ["---:" if column.is_number else "---" for column in table.columns]
    yield f"| {' | '.join(sides)} |"
    yield from (f"| {' | '.join(row)} |" for row in table.cells())


def copy_pictures(folder: Path) -> None:
    (HERE / FIGURES).mkdir(exist_ok=True)
    for kind in DRAWN:
        for name in PICTURES:
            picture = folder / f"{kind}-{name}.png"
            if picture.exists():
                shutil.copyfile(picture, HERE / FIGURES / picture.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
