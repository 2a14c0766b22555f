"""`weft tiles`: the kernels that could run a GEMM, pruned and timed."""

from __future__ import annotations

from collections.abc import Mapping

import click

import weft
from weft.cli.options import as_run_options, clock_option, dtype_option, examples, option, set_option
from weft.cli.output import Outputs, file_option, pass_outputs
from weft.cli.values import GPU, SHAPE
from weft.hardware import Gpu
from weft.options import RunOptions


@click.command(epilog=examples("weft tiles 128,4096,4096 --gpu h100-sxm"))
@click.argument("shape", type=SHAPE)
@option("--gpu", "The GPU, see 'weft hardware list'.", GPU, default="h100-sxm")
@dtype_option("A and B")
@set_option("the GPU")
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the fastest kernels as CSV.")
@as_run_options
@pass_outputs
def tiles(
    outputs: Outputs, shape: tuple[int, int, int], gpu: Gpu, dtype: str, changes: Mapping[str, str], options: RunOptions
) -> None:
    """Time every kernel of a template for C[M,N] = A[M,K] B[K,N]: the best, and what was pruned why."""
    answer = weft.tiles(weft.Gemm(*shape, dtype), gpu.replace(changes), options=options)
    outputs.show(answer)
