"""`weft predict`: closed-form times of GEMMs, collectives, operators and whole layers, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import (
    SIZE,
    clock_option,
    comma_list,
    dtype_option,
    examples,
    file_option,
    folder_option,
    given,
    machine,
    set_option,
    whole_numbers,
)
from weft.cli.output import write_tables
from weft.cli.tables import print_table
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.hardware import Gpu


@click.group()
def predict() -> None:
    """Predict times in closed form: vectorised, with the bound that was hit and where the time goes."""


_gpus = click.option(
    "--gpu",
    "names",
    default="h100-sxm",
    show_default=True,
    callback=comma_list,
    metavar="A,B",
    help="GPUs to set side by side: names from 'weft hardware list', or TOML files.",
)
_set = set_option("every GPU")
_clock = clock_option("short")
_json = file_option("--json", "json_file", "Write the predictions as JSON.")
_csv = file_option("--csv", "csv_file", "Write the predictions as CSV.")


@predict.command(
    "gemm",
    epilog=examples(
        "weft predict gemm 8192,8192,8192 --gpu h100-sxm,mi300x",
        "weft predict gemm --shapes shapes.csv --csv times.csv",
    ),
)
@click.argument("shape", required=False, callback=whole_numbers, metavar="M,N,K")
@dtype_option("bf16", "A and B")
@click.option("--batch", type=SIZE, default=1, show_default=True, metavar="N", help="GEMMs in one launch.")
@click.option(
    "--shapes",
    "shapes_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A CSV file with the columns m, n and k (also batch and dtype) instead of M,N,K.",
)
@_gpus
@_set
@_clock
@_json
@_csv
def gemm(
    shape: tuple[int, ...] | None,
    dtype: str,
    batch: int,
    shapes_file: Path | None,
    names: tuple[str, ...],
    assignments: tuple[str, ...],
    clock: Any,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Predict C[M,N] = A[M,K] B[K,N] on one or several GPUs, for one shape or a file of them."""
    from weft.cli import cases, predictions

    if shape is not None and len(shape) != 3:
        raise InputError(f"the shape has {len(shape)} dimensions; write M,N,K, like 8192,8192,8192")
    if shapes_file is not None and shape is None:
        shapes = cases.read_shapes(shapes_file, batch, dtype)
    elif shapes_file is None and shape is not None:
        shapes = cases.one_shape(shape, batch, dtype)
    else:
        raise InputError("give either a shape, like 8192,8192,8192, or --shapes FILE")
    done = [predictions.predict_gemms(gpu, shapes, clock) for gpu in _machines(names, assignments)]
    predictions.print_gemms(done)
    rows = predictions.rows(done)
    write_tables(json_file, {"predictions": rows}, csv_file, rows)


@predict.command(
    "collective",
    epilog=examples(
        "weft predict collective all_reduce:256MiB --ranks 8 --system dgx-h100",
        "weft predict collective reduce_scatter:1MiB..1GiB --ranks 8 --system dgx-a100 --out out/rs",
    ),
)
@click.argument("what", metavar="NAME:SIZES")
@click.option(
    "--ranks", type=click.IntRange(2, SIZE.max), required=True, metavar="N", help="GPUs that take part."
)
@click.option(
    "--system",
    "systems",
    required=True,
    callback=comma_list,
    metavar="A,B",
    help="Systems to set side by side, see 'weft hardware list'.",
)
@click.option(
    "--algorithm",
    metavar="NAME",
    help="One algorithm instead of the library's choice, perhaps with its protocol: ring, nvls, ring-ll128.",
)
@click.option(
    "--nodes",
    type=SIZE,
    metavar="N",
    help="Nodes that they stand on.  [default: as few as hold them]",
)
@click.option(
    "--library",
    "profile",
    metavar="NAME|FILE",
    help="A profile of the library, as 'weft calibrate --system' writes it.  [default: by the system]",
)
@click.option("--dma", is_flag=True, help="By copy engines instead of compute units (without reduction).")
@_json
@_csv
@folder_option("Write report.html with a plot of time and bandwidth to this folder.")
def collective(
    what: str,
    ranks: int,
    systems: tuple[str, ...],
    algorithm: str | None,
    nodes: int | None,
    profile: str | None,
    dma: bool,
    json_file: Path | None,
    csv_file: Path | None,
    folder: Path | None,
) -> None:
    """Predict a collective for one size or many: all_reduce:256MiB, all_gather:1MiB,8MiB, all_reduce:1MiB..1GiB.

    A size is the whole buffer, as nccl-tests counts it; a range takes its first size, every doubling of it, and
    its last.
    """
    from weft.cli import cases, predictions

    name, sizes = cases.collective_sizes(what)
    options = given(algorithm=algorithm, nodes=nodes, dma=dma, profile=_profile(profile))
    done = [predictions.predict_collectives(name, sizes, ranks, system, options) for system in systems]
    predictions.print_collectives(done)
    rows = predictions.rows(done)
    write_tables(json_file, {"predictions": rows}, csv_file, rows)
    if folder is not None:
        click.echo(f"report:  {predictions.write_collective_report(done, folder)}")


@predict.command(
    "op", epilog=examples("weft predict op softmax --shape rows=16384,columns=4096 --gpu a100-sxm-80gb")
)
@click.argument("name", metavar="NAME")
@click.option(
    "--shape",
    callback=comma_list,
    metavar="A=1,B=2",
    help="Its dimensions, see 'weft predict ops'.",
)
@dtype_option("fp16", "its tensors")
@_gpus
@_set
@_clock
@_json
@_csv
def operator(
    name: str,
    shape: tuple[str, ...] | None,
    dtype: str,
    names: tuple[str, ...],
    assignments: tuple[str, ...],
    clock: Any,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Predict a memory-bound operator or attention; 'weft predict ops' lists them."""
    from weft.cli import cases, predictions

    sizes = cases.dimensions(shape or ())
    done = [
        predictions.predict_operator(name, gpu, dtype, clock, sizes) for gpu in _machines(names, assignments)
    ]
    predictions.print_operators(done)
    rows = predictions.rows(done)
    write_tables(json_file, {"predictions": rows}, csv_file, rows)


@predict.command("ops", epilog=examples("weft predict ops"))
def operators() -> None:
    """List the operators and their dimensions, in brackets those that have a default."""
    from weft.predict.operators import OPERATORS

    rows = [[entry.name, entry.usage, entry.about] for entry in OPERATORS.values()]
    print_table("Operators", ["name", "dimensions", "what it is"], rows)


@predict.command(
    "layer",
    epilog=examples("weft predict layer --model gpt-3 --tp 4 --batch 8 --sequence 2048 --system hgx-a100-4"),
)
@click.option("--model", required=True, metavar="NAME|FILE", help="A model, see 'weft models list'.")
@click.option(
    "--system",
    "systems",
    required=True,
    callback=comma_list,
    metavar="A,B",
    help="Systems, a table each, see 'weft hardware list'.",
)
@click.option(
    "--gpu",
    metavar="NAME|FILE",
    help="Another GPU in the place of the systems' own, such as a calibrated one.",
)
@_set
@click.option("--tp", type=SIZE, default=1, show_default=True, metavar="N", help="GPUs that share it.")
@click.option("--batch", type=SIZE, default=1, show_default=True, metavar="N", help="Sequences.")
@click.option(
    "--sequence",
    type=SIZE,
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of each sequence (decode: tokens that are looked back at).",
)
@click.option("--phase", type=click.Choice(["prefill", "decode"]), default="prefill", show_default=True)
@click.option("--attention", type=click.Choice(["batched", "fused"]), default="batched", show_default=True)
@click.option(
    "--timed",
    type=click.Choice(["device", "host"]),
    default="device",
    show_default=True,
    help="Kernels follow each other on the device, or the host waits for each.",
)
@dtype_option("fp16", "its tensors")
@clock_option("short", ("boost",), "; boost: held throughout, where power allows it")
@_json
@_csv
def layer(
    model: str,
    systems: tuple[str, ...],
    gpu: str | None,
    assignments: tuple[str, ...],
    tp: int,
    batch: int,
    sequence: int,
    phase: Any,
    attention: Any,
    timed: Any,
    dtype: str,
    clock: Any,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Predict one layer's forward pass, operator by operator, on each GPU of a tensor-parallel group."""
    from weft.cli import layers
    from weft.predict.layer import layer as predict_layer

    how: Any = {"batch": batch, "sequence": sequence, "phase": phase, "dtype": dtype}
    how |= {"attention": attention, "clock": clock, "timed": timed}
    done = {
        name: predict_layer(model, layers.system_with(name, gpu, assignments), tp, **how) for name in systems
    }
    for found in done.values():
        layers.print_layer(found)
    told = layers.records(done)
    rows = [{"system": one["system"], **row} for one in told for row in one["operators"]]
    write_tables(json_file, told[0] if len(told) == 1 else {"layers": told}, csv_file, rows)


def _machines(names: tuple[str, ...], assignments: tuple[str, ...]) -> list[Gpu]:
    return [machine(name, assignments) for name in names]


def _profile(name: str | None) -> Any:
    from weft.hardware.libraries import load_library

    return None if name is None else load_library(name)
