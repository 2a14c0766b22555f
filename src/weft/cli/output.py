"""Where a command may write: option callbacks that check while the command line is read, before any work.

Use: `@click.option("--json", "json_file", type=click.Path(path_type=Path), callback=writable_file)`.
"""

from __future__ import annotations

from pathlib import Path

import click

from weft.files import check_out_dir, check_writable, write_atomically

__all__ = ["check_out_dir", "check_writable", "writable_file", "writable_folder", "write_atomically"]


def writable_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The file that a command will write (None stays None), refused at once if it cannot be written there."""
    return None if path is None else check_writable(path)


def writable_folder(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The folder that a command will write to (None stays None), refused at once if that cannot work."""
    return None if path is None else check_out_dir(path)
