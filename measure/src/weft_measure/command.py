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
from weft.files import check_out_dir

if TYPE_CHECKING:
    from weft_measure import Summary


def _folder(context: click.Context, option: click.Parameter, path: Path) -> Path:
    return check_out_dir(path)


def _names(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """The names in "a,b,c"; None stays None."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"'{text}' names nothing; write names with commas between", context, option)
    return names


def _shape(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """The three whole numbers in "8192,8192,8192"; None stays None."""
    names = _names(context, option, text)
    if names is not None and (len(names) != 3 or not all(name.isdecimal() for name in names)):
        raise click.BadParameter(f"'{text}' is no shape; write M,N,K, like 8192,8192,8192", context, option)
    return names and tuple(map(int, names))


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
    callback=_names,
    metavar="A,B",
    help="Only these kinds: gemm, operator, copy, beside, probe.  [default: all]",
)
@click.option("--gemm", callback=_shape, metavar="M,N,K", help="One GEMM instead of the planned shapes.")
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    metavar="NAME",
    help="Data type of --gemm: fp64, fp32, tf32, fp16, bf16, fp8 or int8.",
)
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cuda: the GPU that PyTorch sees (also ROCm); cpu: only to try the measurement.",
)
@click.option("--gpu", metavar="NAME", help="Name of the GPU in the tables.  [default: found in the catalogue]")
@click.option("--quick", is_flag=True, help="A few small cases: does everything work here?")
def measure(
    folder: Path,
    only: tuple[str, ...] | None,
    gemm: tuple[int, ...] | None,
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
        m, n, k = gemm
        shapes = (Gemm(m, n, k, dtype.strip().lower()),)
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
