"""`weft predict`: closed-form times of GEMMs, collectives, operators and whole layers, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import (
    SIZE,
    assigned,
    clock_option,
    comma_list,
    dtype_option,
    examples,
    file_option,
    folder_option,
    given,
    machine,
    refuse_given,
    run_options,
    set_option,
    whole_numbers,
)
from weft.cli.output import write_tables
from weft.errors import InputError
from weft.options import RunOptions
from weft.view.table import Table, texts
from weft.view.terminal import print_parts, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weft.cli.cases import Shapes
    from weft.estimate import Harness
    from weft.hardware import Gpu, System
    from weft.view.predictions import Predicted


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
@run_options
def gemm(
    shape: tuple[int, ...] | None,
    dtype: str,
    batch: int,
    shapes_file: Path | None,
    names: tuple[str, ...],
    assignments: tuple[str, ...],
    json_file: Path | None,
    csv_file: Path | None,
    options: RunOptions,
) -> None:
    """Predict C[M,N] = A[M,K] B[K,N] on one or several GPUs, for one shape or a file of them."""
    from weft.cli import cases
    from weft.view.predictions import gemm_parts

    if shape is not None and len(shape) != 3:
        raise InputError(f"the shape has {len(shape)} dimensions; write M,N,K, like 8192,8192,8192")
    if shapes_file is not None and shape is None:
        shapes = cases.read_shapes(shapes_file, batch, dtype)
    elif shapes_file is None and shape is not None:
        shapes = cases.one_shape(shape, batch, dtype)
    else:
        raise InputError("give either a shape, like 8192,8192,8192, or --shapes FILE")
    done = [_gemms(machine(name, assignments), shapes, options) for name in names]
    _finish(done, gemm_parts(done), json_file, csv_file)


def _gemms(gpu: Gpu, shapes: Shapes, options: RunOptions) -> Predicted:
    """The GEMMs on a GPU, with the rate that they reach [TFLOP/s]."""
    import numpy as np

    from weft.estimate import Estimate, estimate
    from weft.graph import Gemm
    from weft.lower.fit import check_held
    from weft.view.predictions import Predicted

    dtypes = shapes["dtype"]
    seconds, bound = np.empty(dtypes.size), np.empty(dtypes.size, dtype="<U7")
    parts: dict[str, Any] = {}
    for dtype in dict.fromkeys(dtypes.tolist()):
        chosen = dtypes == dtype
        m, n, k, batch = (shapes[name][chosen] for name in ("m", "n", "k", "batch"))
        work = Gemm(m, n, k, dtype, batch)
        check_held(work, gpu)
        found = estimate(work, gpu, options)
        seconds[chosen], bound[chosen] = found.seconds, found.bound
        for name, part in found.parts.items():
            parts.setdefault(name, np.zeros(dtypes.size))[chosen] = part
    flops = 2.0 * shapes["m"] * shapes["n"] * shapes["k"] * shapes["batch"]
    columns = {"gpu": gpu.name, **shapes, "clock": options.clock}
    return Predicted(gpu.name, columns, Estimate(seconds, bound, parts), {"tflops": flops / seconds / 1e12})


@predict.command(
    "collective",
    epilog=examples(
        "weft predict collective all_reduce:256MiB --ranks 8 --system dgx-h100",
        "weft predict collective reduce_scatter:1MiB..1GiB --ranks 8 --system dgx-a100 --out out/rs",
    ),
)
@click.argument("what", metavar="NAME:SIZES")
@click.option("--ranks", type=click.IntRange(2, SIZE.max), required=True, metavar="N", help="GPUs that take part.")
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
    from weft.cli import cases
    from weft.estimate import Harness
    from weft.view.predictions import collective_parts, collective_report

    if dma:
        refuse_given("beside --dma: the library is not asked", "algorithm", "profile")
    name, sizes = cases.collective_sizes(what)
    how: Any = given(algorithm=algorithm, driver="dma" if dma else None, profile=_profile(profile))
    harness = Harness(**how)
    done = [_collectives(name, sizes, ranks, system, nodes, harness) for system in systems]
    _finish(done, collective_parts(done), json_file, csv_file)
    if folder is not None:
        click.echo(f"report:  {collective_report(done, folder)}")


def _collectives(name: str, sizes: Any, ranks: int, system: str, nodes: int | None, harness: Harness) -> Predicted:
    """A collective on a system, who carries it out, and its bandwidth as nccl-tests counts it [GB/s]."""
    from weft import hardware
    from weft.estimate import estimate
    from weft.graph import Collective
    from weft.library.collectives import canonical, volume
    from weft.view.predictions import Predicted

    proper, found = canonical(name), hardware.system(system)
    if nodes is not None:
        found = found.with_gpus(ranks, nodes)
    prediction = estimate(Collective(proper, sizes, ranks), found, harness=harness)
    rate = sizes / prediction.seconds / 1e9
    rates = {"algbw_gbs": rate, "busbw_gbs": rate * volume(proper, ranks)}
    columns = {"system": system, "collective": proper, "ranks": ranks, "bytes": sizes.astype("int64")}
    return Predicted(system, {**columns, "by": prediction.by}, prediction, rates)


@predict.command("op", epilog=examples("weft predict op softmax --shape rows=16384,columns=4096 --gpu a100-sxm-80gb"))
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
@run_options
def operator(
    name: str,
    shape: tuple[str, ...] | None,
    dtype: str,
    names: tuple[str, ...],
    assignments: tuple[str, ...],
    json_file: Path | None,
    csv_file: Path | None,
    options: RunOptions,
) -> None:
    """Predict a memory-bound operator or attention; 'weft predict ops' lists them."""
    from weft.cli import cases
    from weft.view.predictions import operator_parts

    sizes = cases.dimensions(shape or ())
    done = [_operator(name, machine(gpu, assignments), dtype, sizes, options) for gpu in names]
    _finish(done, operator_parts(done), json_file, csv_file)


def _operator(name: str, gpu: Gpu, dtype: str, sizes: Mapping[str, int], options: RunOptions) -> Predicted:
    """An operator on a GPU, with its least traffic in its time [GB/s], and what it computes if it multiplies."""
    import numpy as np

    from weft.estimate import estimate
    from weft.graph import operator
    from weft.lower.fit import check_held
    from weft.view.predictions import Predicted

    op = operator(name, dtype, **sizes)
    check_held(op, gpu)
    found = estimate(op, gpu, options)
    seconds = np.ravel(found.seconds)
    rates = {"gbs": op.least_bytes / seconds / 1e9}
    if op.matrix_dtype is not None:
        rates["tflops"] = op.flops / seconds / 1e12
    columns = {"gpu": gpu.name, "operator": name, "dtype": dtype, **sizes, "clock": options.clock}
    return Predicted(gpu.name, columns, found, rates)


@predict.command("ops", epilog=examples("weft predict ops"))
def operators() -> None:
    """List the operators and their dimensions, in brackets those that have a default."""
    from weft.graph import OPERATORS

    rows = [[entry.name, entry.usage, entry.about] for entry in OPERATORS.values()]
    print_table(Table(texts(("name", "dimensions", "what it is")), rows, "Operators"))


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
@run_options
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
    json_file: Path | None,
    csv_file: Path | None,
    options: RunOptions,
) -> None:
    """Predict one layer's forward pass, operator by operator, on each GPU of a tensor-parallel group."""
    from weft.estimate import Harness, estimate
    from weft.models import load_model
    from weft.view.predictions import layer_parts, layer_record

    work = load_model(model).layer(tp=tp, batch=batch, sequence=sequence, phase=phase, attention=attention, dtype=dtype)
    told = []
    for name in systems:
        where = _system(name, gpu, assignments)
        title = f"{work.title} on {where.name}, {options.clock} clock"
        found = estimate(work, where, options, Harness(timed=timed))
        print_parts(layer_parts(title, work, found))
        told.append(layer_record(name, title, work, found))
    rows = [{"system": one["system"], **row} for one in told for row in one["operators"]]
    write_tables(json_file, told[0] if len(told) == 1 else {"layers": told}, csv_file, rows)


def _system(name: str, gpu: str | None, assignments: tuple[str, ...]) -> System:
    """The system of that name, with another GPU in the place of its own, or with changed values."""
    from weft.hardware import system

    found = system(name)
    if gpu is not None:
        return found.with_gpu(machine(gpu, assignments))
    return found.replace(assigned(assignments))


def _profile(name: str | None) -> Any:
    from weft.library.profiles import load_library

    return None if name is None else load_library(name)


def _finish(
    done: Sequence[Predicted], parts: Sequence[Table | str], json_file: Path | None, csv_file: Path | None
) -> None:
    """Print the tables, and write every case."""
    print_parts(parts)
    rows = [row for one in done for row in one.records()]
    write_tables(json_file, {"predictions": rows}, csv_file, rows)
