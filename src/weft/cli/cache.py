"""`weft cache`: the simulated runs and the compiled engine that Weft keeps, and how to remove them."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import click

from weft.cli.options import examples, option
from weft.cli.values import Value
from weft.engine.jit import cache_root
from weft.errors import OutputError
from weft.files import check_out_dir
from weft.run.sweep import Store
from weft.run.sweep.store import checked_cache
from weft.units import format_bytes
from weft.view.table import Table, number, text
from weft.view.terminal import print_table

_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(age: str) -> float:
    """An age like 30d, 12h or 4w [s]; BadParameter for anything else."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", age.strip())
    if found is None:
        raise click.BadParameter(f"'{age}' is no age; write hours, days or weeks, like 12h, 30d or 4w")
    return float(found[1]) * _SECONDS[found[2]]


@click.group(epilog=examples("weft cache show", "weft cache clear --older-than 30d"))
def cache() -> None:
    """Show and clear what Weft keeps for later: simulated runs, and the engine's machine code.

    A run is kept under everything that decides it: its inputs, Weft's sources and data, and the libraries. Where one of
    them changes, the run is simulated again; the older one is never used for it, and stays until it is cleared. The
    folder is $WEFT_CACHE, or 'weft' among the user's caches.
    """


@cache.command("show", epilog=examples("weft cache show"))
def show() -> None:
    """Say where the cache is, what it holds and how large it is."""
    root, runs, engines = _root(), Store().contents(), _engines()
    idle = f"{runs.idle_s / 86400:.0f} days" if runs.entries else ""
    rows = [
        ("simulated runs", runs.entries, runs.bytes, idle),
        ("engine, compiled", len(engines), sum(map(_size, engines)), ""),
    ]
    size = number("bytes", "size", format_=lambda bytes_: format_bytes(bytes_, 3))
    columns = [text("what"), number("entries", format_="d"), size, number("idle", "longest unused", format_=str)]
    print_table(Table(columns, rows, str(root)))


@cache.command("clear", epilog=examples("weft cache clear --older-than 30d", "weft cache clear --engine"))
@option("--older-than", "Only runs unused for 12h, 30d, 4w.", Value("AGE", _seconds), name="age", default="0h")
@option("--engine", "The engine's machine code too; the next run compiles it again.", is_flag=True)
def clear(age: float, engine: bool) -> None:
    """Remove the simulated runs that are kept; they are simulated again when they are needed."""
    _root()
    removed = Store().clear(age)
    click.echo(f"removed {removed.entries} runs, {format_bytes(removed.bytes, 3)}")
    if engine:
        folders = _engines()
        size = sum(map(_size, folders))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        click.echo(f"removed {len(folders)} compiled engines, {format_bytes(size, 3)}")


def _root() -> Path:
    """The cache's folder, which may not exist yet; OutputError if it can be neither read nor made."""
    root = cache_root()
    if fault := _fault(root):
        raise OutputError(f"the cache '{root}' {fault}; set WEFT_CACHE to a folder of yours")
    return checked_cache()


def _fault(root: Path) -> str:
    """Why that folder cannot hold a cache; empty if it can."""
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
    """The folders of machine code, of all versions."""
    return sorted(cache_root().glob("engine-*"))


def _size(folder: Path) -> int:
    """The size of all files in a folder [bytes]; files that another process has just removed count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
