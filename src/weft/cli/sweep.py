"""`weft sweep`: run a question of a file under every combination of values, and merge shards of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import weft
from weft.cli.options import examples, option, refuse_given
from weft.cli.output import Outputs, file_option, pass_outputs, print_path
from weft.cli.progress import progress_bar
from weft.cli.values import Value
from weft.core.errors import InputError

if TYPE_CHECKING:
    from weft.sweep.answer import Sweep

_EXAMPLE = "weft sweep step.toml --vary tp=1,2,4,8 --vary link.bandwidth='300 GB/s,450 GB/s' --out table.csv"
_RUN = _EXAMPLE.replace("sweep", "sweep run", 1)
_SHARD = "weft sweep step.toml --vary batch=64:1024:x2 --shard 1/2 --out one"
_MERGE = "weft sweep merge one two --out table.parquet"


def _shard(text: str) -> tuple[int, int]:
    """Parse "3/16" into the shard and their number; InputError for anything else."""
    index, _, shards = (part.strip() for part in text.partition("/"))
    if not (index.isdecimal() and shards.isdecimal()):
        raise InputError(f"'{text}' is no shard; write its number and how many there are, like 3/16")
    return int(index), int(shards)


def _axes(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Parse the values of --vary by name; InputError for a name given twice."""
    from weft.sweep.matrix import axis_of

    axes: dict[str, tuple[Any, ...]] = {}
    for name, values in map(axis_of, texts):
        if name in axes:
            raise InputError(f"--vary gives {name} twice; give all of its values once, like {name}=1,2")
        axes[name] = values
    return axes


class _FileFirst(click.Group):
    """A group in which what is no command is the file of the command `run`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, or `run` with all of them."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


@click.group(
    cls=_FileFirst, context_settings={"ignore_unknown_options": True}, epilog=examples(_EXAMPLE, _SHARD, _MERGE)
)
def sweep() -> None:
    """Run a question of a file under every combination of values: `weft sweep FILE.toml --vary ...`.

    That is short for `weft sweep run`, whose help lists the options. A sweep that is interrupted resumes where it
    stopped.
    """


_out = option(
    "--out",
    "Write every row to a .csv, .parquet or .json file, or a page with a picture to .html.",
    click.Path(path_type=Path),
    metavar="FILE",
)


@sweep.command("run", epilog=examples(_RUN))
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.toml")
@click.option(
    "--vary", multiple=True, callback=_axes, metavar="NAME=VALUES",
    help="Values of a key, a field of the plan or a path of the system: tp=1,2,4, batch=64:1024:x2, "
    "link.bandwidth='300 GB/s,450 GB/s', gemm='8192,8192,8192;4096,4096,4096'; repeatable.",
)  # fmt: skip
@option("--jobs", "Processes that run at the same time.", click.IntRange(min=1), default=2, metavar="N")
@option("--dask", "Run on the workers of the Dask scheduler there, like tcp://10.0.0.1:8786.", metavar="ADDRESS")
@option("--shard", "Run the I-th of N parts; --out is then a folder for 'weft sweep merge'.", Value("I/N", _shard))
@click.option("--no-cache", is_flag=True, help="Run everything anew, and keep nothing.")
@file_option("--json", "Write every row as JSON.")
@option(
    "--out",
    "Write every row to .csv, .parquet or .json, a page with a picture to .html, all records and a page to a folder.",
    click.Path(path_type=Path),
    metavar="FILE|DIR",
)
@pass_outputs
def run(outputs: Outputs, /, file: Path, no_cache: bool, shard: tuple[int, int] | None, **stated: Any) -> None:
    """Run the question of FILE.toml under every combination of the values that vary, and tabulate the answers.

    A combination that does not work is a row with the reason. What has been run before is not run again.
    """
    if stated["dask"] is not None:
        refuse_given("with --dask, whose workers run everything", "jobs")
    with progress_bar("sweep") as progress:
        answer = weft.sweep_file(file, shard=shard or (1, 1), cache=not no_cache, progress=progress, **stated)
    _show(outputs, answer, stated["out"])
    if stated["out"] is not None and stated["out"].is_dir() and shard is None:
        print_path("page", answer.save(stated["out"] / "report.html"))


@sweep.command("merge", epilog=examples(_MERGE))
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@file_option("--json", "Write every row as JSON.")
@_out
@pass_outputs
def merge(outputs: Outputs, /, folders: tuple[Path, ...], out: Path | None) -> None:
    """Merge the folders of shards into one table, once all of their runs are there.

    Shards of different questions or of different versions of Weft are refused.
    """
    from weft.sweep.shards import merge_shards

    _show(outputs, merge_shards(folders, out), out)


def _show(outputs: Outputs, answer: Sweep, out: Path | None) -> None:
    outputs.show(answer)
    if out is not None:
        print_path({"": "records", ".html": "page"}.get(out.suffix.lower(), "table"), out)
