"""`weft measure`: time the GPU at hand and write tables that `weft validate` and `weft calibrate` read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import __version__
from weft.cli.options import comma_list, dtype_option, examples, folder_option, whole_numbers

if TYPE_CHECKING:
    from weft.measure import Summary


@click.command(epilog=examples("weft measure --out data/my-gpu --only gemm,probe"))
@folder_option("Folder of the tables; rows already there are kept and not measured again.", required=True)
@click.option(
    "--only",
    callback=comma_list,
    metavar="A,B",
    help="Only these kinds: gemm, operator, copy, beside, probe.  [default: all]",
)
@click.option(
    "--gemm", callback=whole_numbers, metavar="M,N,K", help="One GEMM instead of the planned shapes."
)
@dtype_option("bf16", "--gemm")
@click.option(
    "--device",
    type=click.Choice(["cuda", "cpu"]),
    default="cuda",
    show_default=True,
    help="cuda: the GPU that PyTorch sees (also ROCm); cpu: only to try the measurement.",
)
@click.option(
    "--gpu", metavar="NAME", help="Name of the GPU in the tables.  [default: found in the catalogue]"
)
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
    from weft.errors import InputError
    from weft.measure import KINDS, suite
    from weft.measure.torch_device import open_device
    from weft.workload import Gemm

    if gemm is not None and len(gemm) != 3:
        raise InputError(f"--gemm has {len(gemm)} dimensions; write M,N,K, like 8192,8192,8192")
    shapes = (Gemm(*gemm, dtype=dtype),) if gemm is not None else None
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
