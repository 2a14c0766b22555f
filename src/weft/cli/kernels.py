"""`weft advise`, `tune`, `tiles` and `rewrite`: how kernels share a GPU, and which kernels to run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import weft
from weft.cli.options import (
    as_run_options,
    clock_option,
    dtype_option,
    examples,
    many_options,
    on_machine,
    option,
    run_options,
    set_option,
)
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs, shows, written
from weft.cli.progress import progress_bar
from weft.cli.values import COLLECTIVE, COUNT, DTYPE, GPU, RANKS, SHAPE, SYSTEM_NAME, Value, names
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.files import written_together
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.hardware import Gpu, System

_LAYER = "weft rewrite llama-3-8b --system h100-sxm --sequence 4096 --out out/rewrite"
_SHARED = (
    "weft rewrite gpt-3 --system 8xa100 --tp 8 --sp --sequence 2048 --rules flash_attention,overlap_reduce_scatter"
)


@click.command(
    epilog=examples(
        "weft advise --gemm 8192,8192,8192 --beside all_gather:896MiB --gpu mi300x",
        "weft advise --gemm 4096,14336,4096 --beside reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
    )
)
@option("--gemm", "The GEMM that each GPU computes.", SHAPE, required=True)
@option(
    "--beside",
    "The collective, which does not depend on it, like all_gather:896MiB; SIZE is that of the whole buffer.",
    COLLECTIVE,
    required=True,
)
@option("--ranks", "GPUs of the collective.", RANKS, default=8)
@option(
    "--channels",
    "Channels of the collective where compute units drive it, each one workgroup.  [default: the library's own number; "
    "one for each compute unit set apart]",
    int,
    metavar="N",
)
@dtype_option("the GEMM")
@run_options()
@option("--quick", "Leave out what the assumed values of the machine could change.", is_flag=True)
@file_option("--json", "Write the advice and every number behind it as JSON.")
@folder_option(
    "Write report.html with the pictures, and tables.json that a runtime can choose from, to this folder.",
    "tables.json",
)
@many_options
@pass_outputs
def advise(
    outputs: Outputs,
    gemm: tuple[int, int, int],
    beside: tuple[str, int],
    ranks: int,
    gpu: Gpu,
    changes: Mapping[str, str],
    dtype: str,
    channels: int | None,
    quick: bool,
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Say how a GEMM and a collective should share a GPU: which strategy, how many compute units, what gain.

    The machine's slowdown tables are simulated once and cached; then the best candidates are simulated to confirm them.
    """
    work = weft.Gemm(*gemm, dtype), weft.Collective(*beside, ranks, dtype)
    how: dict[str, Any] = {"spread": not quick, "jobs": jobs, "store": store, "channels": channels}
    with progress_bar("advise") as progress:
        advice = weft.advise(*work, gpu.replace(changes), options, progress=progress, **how)
    outputs.show(advice, files={"tables.json": advice.tables.save})


@click.command(
    epilog=examples("weft tune gemms.csv --gpu mi100", "weft tune gemms.csv --gpu mi300x --page out/tune"),
)
@click.argument("gemms", type=click.Path(path_type=Path), metavar="FILE")
@run_options(requests=None)
@file_option("--out", "Write the kernel library, for a runtime to load, to this JSON file.")
@folder_option("Write report.html, with the compute units of each GEMM over time, to this folder.", flag="--page")
@file_option("--trace", "Write a trace for Perfetto of the line that gains most: the first batch that runs together.")
@file_option("--json", "Write every line's degree, kernel and gains as JSON.")
@many_options
@pass_outputs
def tune(
    outputs: Outputs,
    gemms: Path,
    gpu: Gpu,
    changes: Mapping[str, str],
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Tune independent GEMMs for a GPU that runs several of them together.

    FILE is a CSV with the columns m, n, k, dtype, count and optionally name; `count` GEMMs of that shape are queued.
    The answer per line: how many to run at once, with which kernel, and the gain over (1) all at once with the kernel
    that is fastest alone and (2) one after another. Ranges show what uncertain values of the machine do to the gain.
    """
    from weft.plan.tune import lists

    wanted, machine = lists.read_gemms(gemms), gpu.replace(changes)
    if outputs.trace is not None and all(line.count < 2 for line in wanted):
        raise InputError("--trace needs a line with a count of 2 or more: nothing else runs together")
    with progress_bar("tuning") as progress:
        done = lists.tune(wanted, machine, options, jobs=jobs, progress=progress, store=store)
    with written_together():
        outputs.show(done)
        if outputs.out is not None:
            written("kernels", done.library.save(outputs.out))
        if outputs.trace is not None:
            (queue,) = done.watch(most=1)
            outputs.write_trace(queue.chosen[0], f" ({queue.title})")


@click.command(epilog=examples("weft tiles 128,4096,4096 --gpu h100-sxm"))
@click.argument("shape", type=SHAPE)
@option("--gpu", "The GPU, see 'weft hardware list'.", GPU, default="h100-sxm")
@dtype_option("A and B")
@set_option("the GPU")
@clock_option()
@shows(csv="Write the fastest kernels as CSV.")
@as_run_options
def tiles(shape: tuple[int, int, int], gpu: Gpu, dtype: str, changes: Mapping[str, str], options: RunOptions) -> Answer:
    """Time every kernel of a template for C[M,N] = A[M,K] B[K,N]: the best, and what was pruned why."""
    return weft.tiles(weft.Gemm(*shape, dtype), gpu.replace(changes), options=options)


@click.command(epilog=examples(_LAYER, _SHARED))
@click.argument("work", metavar="MODEL|FILE")
@option("--system", "The machine, such as h100-sxm or 8xh100, see 'weft hardware list'.", SYSTEM_NAME, required=True)
@option("--rules", "Rules to use.  [default: all]", Value("A,B", names, lambda: import_module("weft.rewrite").RULES))
@option("--tp", "GPUs that share the layer of a model.", COUNT)
@option("--sp/--no-sp", "Share the tokens between the GEMMs of --tp, too.", default=None)
@option("--micro-batch", "Sequences of a model's layer.", COUNT)
@option("--sequence", "Tokens of each sequence.  [default: the model's context]", COUNT)
@option("--dtype", "Data type of a model's GEMMs and activations.", DTYPE)
@option("--dropout/--no-dropout", "Whether a model's layer drops elements, as in training.", default=None)
@option("--launch", "Time from one launch by the host to the next.  [default: 1.8 us, of empty kernels]")
@option("--alpha", "Graphs of up to this multiple of the best time are looked at further.", float)
@option("--most", "Most graphs that are costed.", COUNT)
@set_option("every GPU, node or network")
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the steps as CSV.")
@folder_option(
    "Write report.html, rewrite.json and the rewritten model.graph.jsonl to this folder.",
    "rewrite.json",
    "model.graph.jsonl",
)
@as_run_options
@pass_outputs
@on_machine
def rewrite(outputs: Outputs, /, work: str, machine: System, options: RunOptions, **stated: Any) -> None:
    """Find the cheapest way to write the operators of MODEL's layer, or of a graph in FILE, and prove it equal.

    Rules fuse, merge and overlap operators; each step is listed with its gain. A model's layer begins as a framework
    without fused kernels writes it.
    """
    answer = weft.rewrite(work, machine, options=options, **stated)
    outputs.show(
        answer,
        files={"rewrite.json": json_of(answer), "model.graph.jsonl": partial(weft.write_graph, answer.rewritten)},
    )
