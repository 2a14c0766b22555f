"""`weft advise`, `tune` and `tiles`: how kernels share a GPU, whether to fuse them, and which kernels to run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click

import weft
from weft import hardware
from weft.cli.options import (
    as_run_options,
    clock_option,
    dtype_option,
    examples,
    many_options,
    option,
    run_options,
    set_option,
)
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs, print_path, shows
from weft.cli.progress import progress_bar
from weft.cli.values import COLLECTIVE, GPU, OVERLAPS, RANKS, SHAPE, SYSTEM_NAME, Value, m_range
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.files import written_together
from weft.core.options import Fidelity, RunOptions
from weft.core.store import Store
from weft.graph.collective import PairForm
from weft.hardware import Gpu

_FORMS_OF: Mapping[str, PairForm] = {
    "all_gather": "ag_gemm",
    "reduce_scatter": "gemm_rs",
    "all_reduce": "gemm_ar",
    "all_to_all": "gemm_a2a",
}
"""The usual form of a GEMM and each collective."""


class _AdviceGroup(click.Group):
    """The subcommands of `weft advise`; options without one are answered with the command to type."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the group; InputError for options before the subcommand."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names and not ctx.resilient_parsing:
            kind = "corun" if any(one.partition("=")[0] == "--corun" for one in args) else "fuse"
            raise InputError(
                "'weft advise' takes what to advise on before its options, corun or fuse; run: "
                f"{shlex.join(('weft', 'advise', kind, *args))}"
            )
        return super().parse_args(ctx, args)


@click.group(
    cls=_AdviceGroup,
    epilog=examples(
        "weft advise corun --gemm 8192,8192,8192 --corun all_gather:896MiB --gpu mi300x",
        "weft advise fuse --gemm 8192,28672,8192 --collective all_gather --gpu mi355x",
    ),
)
def advise() -> None:
    """Say how a GEMM and a collective should share a GPU, or whether to fuse them."""


@advise.command(
    "corun",
    short_help="A GEMM and an independent collective: co-run strategy, reserved CUs, gain.",
    epilog=examples(
        "weft advise corun --gemm 8192,8192,8192 --corun all_gather:896MiB --gpu mi300x",
        "weft advise corun --gemm 4096,14336,4096 --corun reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
    ),
)
@option("--gemm", "The GEMM that each GPU computes.", SHAPE, required=True)
@option(
    "--corun",
    "The collective, which does not depend on it, like all_gather:896MiB; SIZE is that of the whole buffer.",
    COLLECTIVE,
    required=True,
)
@option("--ranks", "GPUs of the collective.", RANKS, default=8)
@option(
    "--channels",
    "Channels of the collective where compute units drive it, each one workgroup.  [default: the library's own number; "
    "one for each reserved compute unit]",
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
def advise_corun(
    outputs: Outputs,
    gemm: tuple[int, int, int],
    corun: tuple[str, int],
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
    """Advise how a GEMM and an independent collective should share a GPU: co-run strategy, reserved CUs, gain.

    The machine's slowdown tables are simulated once and cached; then the best candidates are simulated to confirm them.
    """
    work = weft.Gemm(*gemm, dtype), weft.Collective(*corun, ranks, dtype)
    how: dict[str, Any] = {"spread": not quick, "jobs": jobs, "store": store, "channels": channels}
    with progress_bar("advise") as progress:
        advice = weft.advise(*work, gpu.replace(changes), options, progress=progress, **how)
    outputs.show(advice, files={"tables.json": advice.tables.save})


@advise.command(
    "fuse",
    short_help="A GEMM and the collective that it needs: serial, chunks that co-run, or fused.",
    epilog=examples(
        "weft advise fuse --gemm 8192,28672,8192 --collective all_gather --gpu mi355x",
        "weft advise fuse --gemm 8192,8192,28672 --collective reduce_scatter --gpu h100-sxm --m-range 256,32768 "
        "--out out/fuse",
    ),
)
@option(
    "--gemm",
    "The whole GEMM; the GPUs share N around an all-gather, K before a reduction, M before an all-to-all.",
    SHAPE,
    required=True,
)
@option("--collective", "The collective that the GEMM needs.", click.Choice([*_FORMS_OF]))
@option(
    "--form",
    "How both depend on each other, in place of --collective: the all-gather of A's rows before the GEMM (ag_gemm), or "
    "a collective of its output behind it: reduce-scatter (gemm_rs), all-reduce (gemm_ar), all-gather (gemm_ag), "
    "all-to-all (gemm_a2a).  [default: by --collective, an all-gather before the GEMM]",
    click.Choice(get_args(PairForm)),
)
@option("--tp", "GPUs that share the GEMM.", RANKS, default=8)
@dtype_option("the GEMM")
@option("--gpu", "The GPU: a name from 'weft hardware list', or a TOML file.", GPU)
@option("--system", "The system in place of --gpu, such as dgx-h100; --tp of its GPUs share the GEMM.", SYSTEM_NAME)
@set_option("the GPU, its node or its library")
@option(
    "--compare",
    "Overlap methods and co-run strategies beside sequential, see 'weft overlaps list'.  [default: all that "
    "today's hardware runs, and T3]",
    OVERLAPS,
    name="methods",
)
@option(
    "--fidelity",
    "What GEMMs and collectives that run at once cost each other: by the engine, or in closed form (estimate).",
    click.Choice(get_args(Fidelity)),
    default="windows",
)
@option("--m-range", "Also advise for M between these two, and draw where fusing pays.", Value("LOW,HIGH", m_range))
@option("--gemm-time", "Measured time of one GPU's GEMM alone by your own kernel, like 57us.", metavar="TIME")
@option(
    "--cuda-graph",
    "Both are replayed from one CUDA or HIP graph: without what a framework adds on two streams.",
    is_flag=True,
)
@clock_option()
@file_option("--json", "Write every option with its time, interval and verdict as JSON.")
@folder_option("Write report.html with the pictures to this folder.")
@as_run_options
@pass_outputs
def fuse(
    outputs: Outputs,
    /,
    gemm: tuple[int, int, int],
    collective: str | None,
    form: PairForm | None,
    tp: int,
    dtype: str,
    gpu: Gpu | None,
    system: str | None,
    changes: Mapping[str, str],
    cuda_graph: bool,
    options: RunOptions,
    **how: Any,
) -> None:
    """Advise whether to fuse a GEMM with the collective that it needs: time, 80 % interval and verdict of every way.

    Compared are the serial pair, chunks of rows whose collectives co-run with another chunk's GEMM, and methods that
    join the pair, such as Flux, async TP, MORI and T3. Beside them stands the rule of thumb: at most
    min(G, C) / (G + C) of the serial time can be saved.
    """
    if (collective is None) == (form is None):
        raise InputError("give either --collective, like --collective all_gather, or --form, like --form gemm_ag")
    if (gpu is None) == (system is None):
        raise InputError("give either --gpu, like --gpu mi355x, or --system, like --system dgx-h100")
    on = hardware.system(gpu or str(system), gpus=tp).replace(changes)
    found = weft.advise_fuse(
        form or _FORMS_OF[str(collective)], weft.Gemm(*gemm, dtype), tp, on, framework=not cuda_graph, options=options,
        **how,
    )  # fmt: skip
    outputs.show(found)


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
            print_path("kernels", done.library.save(outputs.out))
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
