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


def thin_sources() -> dict[str, tuple[int, int]]:
    """Return values and rows by file and source where a file's values have fewer than `LEAST_ROWS` rows each.

    Values of one table that name the same rows are fitted together. Sources that name no number of rows do not count.
    """
    found = {}
    for name, file in _files(resources.files("weft"), ""):
        for place, table in _tables(read_toml(file), ""):
            sources = [str(one.get("source", "")) for one in table]
            for source in sorted(set(sources)):
                values, rows = sources.count(source), _rows_of(source)
                if 0 < rows < LEAST_ROWS * values:
                    found[f"{name}, {place}: {source}"] = values, rows
    return found


def _tables(table: Any, place: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the calibrated values of each table by its place."""
    if isinstance(table, Mapping):
        own = [one for one in table.values() if isinstance(one, Mapping) and one.get("kind") == "calibrated"]
        yield place, own
        for name, one in table.items():
            if isinstance(one, Mapping) and one.get("kind") is None:
                yield from _tables(one, f"{place}.{name}".removeprefix("."))


def _rows_of(source: str) -> int:
    found = _ROWS.search(source)
    return int(found[1].replace(",", "")) if found else 0


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
    rows = sum(map(_rows_of, sources))
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
