"""The folder in which Weft keeps machine code and records for later, and who else could write to it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path


def cache_root() -> Path:
    """Return the folder of all caches of Weft: $WEFT_CACHE, or `weft` in the user's cache folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("WEFT_CACHE") or caches / "weft")


def open_to_others(paths: Iterable[Path]) -> str:
    """Return why a user other than root could have written a file or folder of `paths`; empty if none could."""
    for path in paths:
        try:
            found = path.stat()
        except OSError:  # gone since, or never there
            continue
        if found.st_uid not in (os.geteuid(), 0):
            return f"'{path}' belongs to user {found.st_uid}, and you are user {os.geteuid()}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to '{path}'"
    return ""
