"""`weft measure`: time the GPU at hand and write tables that `weft validate` and `weft calibrate` read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from weft import __version__
from weft.cli.values import DTYPE, GPU_NAME, NAMES, SHAPE
from weft.core.files import check_out_dir

if TYPE_CHECKING:
    from weft_measure import Summary


def _folder(context: click.Context, option: click.Parameter, path: Path) -> Path:
    return check_out_dir(path)


@click.command(epilog="Example: weft measure --out data/my-gpu --only gemm,probe")
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    callback=_folder,
    help="Folder of the tables; rows already there are kept and not measured again.",
)
@click.option(
    "--only",
    type=NAMES,
    help="Only these kinds: gemm, operator, copy, beside, probe.  [default: all]",
)
@click.option("--gemm", type=SHAPE, help="One GEMM instead of the planned shapes.")
@click.option(
    "--dtype",
    type=DTYPE,
    default="bf16",
    show_default=True,
    help="Data type of --gemm: fp64, fp32, tf32, fp16, bf16, fp8 or int8.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cuda: the GPU that PyTorch sees (also ROCm); cpu: only to try the measurement.",
)
@click.option(
    "--gpu", type=GPU_NAME, metavar="NAME", help="Name of the GPU in the tables.  [default: found in the catalogue]"
)
@click.option("--quick", is_flag=True, help="A few small cases: does everything work here?")
def measure(
    folder: Path,
    only: tuple[str, ...] | None,
    gemm: tuple[int, int, int] | None,
    dtype: str,
    device: str,
    gpu: str | None,
    quick: bool,
) -> None:
    """Time GEMMs, memory-bound operators, copies and GEMMs beside copies on this machine, and probe it.

    Needs PyTorch. An interrupted run goes on where it stopped.
    """
    from weft.graph import Gemm
    from weft_measure import KINDS, suite
    from weft_measure.torch_device import open_device

    chosen = click.get_current_context().get_parameter_source("dtype") is ParameterSource.COMMANDLINE
    if gemm is None and chosen:
        raise click.UsageError("--dtype says nothing without --gemm; leave it out")
    if gemm is not None and only is not None and "gemm" not in only:
        raise click.UsageError("--gemm says nothing where --only leaves out gemm; leave out one of both")
    shapes = None
    if gemm is not None:
        shapes = (Gemm(*gemm, dtype),)
    kinds = only or (("gemm",) if shapes else tuple(KINDS))
    opened = open_device(device, gpu)
    source = f"weft {__version__} measure, {dt.datetime.now(dt.UTC).date().isoformat()}"
    try:
        with _progress() as watch:
            done = suite.measure(opened, folder, kinds, source=source, quick=quick, gemms=shapes, watch=watch)
    finally:
        opened.close()
    _say(opened.name, done)


def _say(name: str, done: Summary) -> None:
    added = ", ".join(f"{count} {kind}" for kind, count in done.added.items())
    click.echo(f"{name}: rows added: {added}; already there: {done.present}")
    for reason, count in sorted(done.refused.items(), key=lambda item: -item[1]):
        click.echo(f"left out: {count} ({reason})")
    for path in done.files:
        click.echo(f"table:    {path}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """What to call with kind, number and count: a line on stderr on a terminal, else nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("measuring") as line:
        yield lambda kind, number, count: line.update(f"measuring: {kind} {number} of {count}")
