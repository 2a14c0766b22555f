"""How many values are fitted to measurements: by file, with their rows, so that a page can state the total."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from weft.core.catalog import read_toml
from weft.kernels.library import served

LEAST_ROWS = 5
"""Rows that a fitted value of a library's table needs."""
_ROWS = re.compile(r"([\d,]+) (?:public |dense )?(?:rows|steps|runs)")


class FittedFile(NamedTuple):
    """Values of a file that are fitted, rows they name where they name any, and values pooled from other sets."""

    file: str
    values: int
    rows: int
    pooled: int = 0


def fitted_files() -> list[FittedFile]:
    """Return every file of the package with values fitted to measurements, those with the most first.

    Rows are those that sources name; values that are fitted together name the same rows, which count once.
    """
    found = [FittedFile(name, *_calibrated(read_toml(file))) for name, file in _files(resources.files("weft"), "")]
    sets = served.fitted_sets().values()
    known = [one for one in sets if one.rows]
    values, rows = sum(len(one.own) for one in known), sum(one.rows for one in known)
    tables = FittedFile("kernels/library/served.toml", values, rows, sum(len(one.pooled) for one in sets))
    return sorted([*(one for one in found if one.values), tables], key=lambda one: -one.values)


def thin_sets() -> dict[str, served.FittedSet]:
    """Return the tables of libraries that have fewer than `LEAST_ROWS` rows for each value of their own."""
    return {
        place: one for place, one in served.fitted_sets().items() if one.rows and one.rows < LEAST_ROWS * len(one.own)
    }


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for one in folder.iterdir():
        path = f"{name}/{one.name}".removeprefix("/")
        if one.is_dir():
            yield from _files(one, path)
        elif one.name.endswith(".toml"):
            yield path, one


def _calibrated(table: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many values are calibrated in a table, and the rows that their sources name, each source once."""
    leaves = list(_leaves(table))
    sources = {str(one.get("source", "")) for one in leaves}
    rows = sum(int(found[1].replace(",", "")) for one in sources if (found := _ROWS.search(one)))
    return len(leaves), rows


def _leaves(table: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(table, Mapping):
        if table.get("kind") == "calibrated":
            yield table
        else:
            for one in table.values():
                yield from _leaves(one)
    elif isinstance(table, list):
        for one in table:
            yield from _leaves(one)
