"""`weft cache`: show and clear cached simulations, interrupted runs and the compiled engine."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import click

from weft.cli.options import examples, option
from weft.cli.values import Value
from weft.core.cache import cache_root
from weft.core.errors import OutputError
from weft.core.files import check_out_dir
from weft.core.report.table import Table, number, text
from weft.core.store import Store
from weft.core.store.records import checked_cache, checkpoints
from weft.core.units import format_bytes
from weft.view.terminal import print_table

_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(age: str) -> float:
    """Parse an age such as 30d, 12h or 4w into seconds; BadParameter for anything else."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", age.strip())
    if found is None:
        raise click.BadParameter(f"'{age}' is no age; write hours, days or weeks, like 12h, 30d or 4w")
    return float(found[1]) * _SECONDS[found[2]]


@click.group(epilog=examples("weft cache show", "weft cache clear --older-than 30d"))
def cache() -> None:
    """Show and clear the cache: simulated and interrupted runs, and the engine's machine code.

    The key of a run is everything that decides its result: inputs, Weft's sources and data, and library versions. If
    any of them changes, the run is simulated again; the old entry stays on disk until it is cleared. The folder is
    $WEFT_CACHE, or 'weft' in the user's cache folder.
    """


@cache.command("show", epilog=examples("weft cache show"))
def show() -> None:
    """Say where the cache is, what it holds and how large it is."""
    root, engines = _root(), _engines()
    kept = {"simulated runs": Store().contents(), "interrupted runs": checkpoints().contents()}
    rows = [
        *(
            (what, one.entries, one.bytes, f"{one.idle_s / 86400:.0f} days" if one.entries else "")
            for what, one in kept.items()
        ),
        ("engine, compiled", len(engines), sum(map(_size, engines)), ""),
    ]
    size = number("bytes", "size", format_=lambda bytes_: format_bytes(bytes_, 3))
    columns = [text("what"), number("entries", format_="d"), size, number("idle", "longest unused", format_=str)]
    print_table(Table(columns, rows, str(root)))


@cache.command(
    "clear",
    short_help="Remove the simulated runs that are kept.",
    epilog=examples("weft cache clear --older-than 30d", "weft cache clear --engine"),
)
@option("--older-than", "Only runs unused for 12h, 30d, 4w.", Value("AGE", _seconds), name="age", default="0h")
@option("--engine", "The engine's machine code too; the next run compiles it again.", is_flag=True)
def clear(age: float, engine: bool) -> None:
    """Remove cached simulations and interrupted runs; they are simulated again, or begin anew, when needed."""
    _root()
    for what, store in (("runs", Store()), ("interrupted runs", checkpoints())):
        removed = store.clear(age)
        click.echo(f"removed {removed.entries} {what}, {format_bytes(removed.bytes, 3)}")
    if engine:
        folders = _engines()
        size = sum(map(_size, folders))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        click.echo(f"removed {len(folders)} compiled engines, {format_bytes(size, 3)}")


def _root() -> Path:
    """Return the cache folder, which may not exist yet; OutputError if it cannot be read or created."""
    root = cache_root()
    if fault := _fault(root):
        raise OutputError(f"the cache '{root}' {fault}; set WEFT_CACHE to a folder of yours")
    return checked_cache()


def _fault(root: Path) -> str:
    """Return why the folder cannot serve as the cache; empty if it can."""
    try:
        if root.is_dir():
            return "" if os.access(root, os.R_OK | os.X_OK) else "cannot be read: its permissions forbid it"
        if root.exists():
            return "cannot be used: it is a file"
        check_out_dir(root)
    except OutputError:
        return "does not exist and cannot be made"
    except OSError as error:
        return f"cannot be reached: {(error.strerror or str(error)).lower()}"
    return ""


def _engines() -> list[Path]:
    """Return the folders of machine code of every engine version."""
    return sorted(cache_root().glob("engine-*"))


def _size(folder: Path) -> int:
    """Total size of the files in a folder [bytes]; files removed meanwhile by another process count as 0."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
