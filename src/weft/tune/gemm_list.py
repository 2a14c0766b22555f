"""Read a list of independent GEMMs from CSV: sizes, data type, and how many of each are queued."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.files import read_text
from weft.graph import Gemm
from weft.tune.kernels import DEGREES
from weft.units import LARGEST_COUNT

COLUMNS = ("m", "n", "k", "dtype", "count")
"""Required columns of a list; a column "name" is optional."""
_EXAMPLE = "512,1024,1024,fp16,8"
_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Wanted:
    """A line of the list: `count` GEMMs of one shape that are queued together, and their name."""

    name: str
    gemm: Gemm
    count: int


def read_gemms(path: str | Path) -> tuple[Wanted, ...]:
    """Read a CSV file with the columns m, n, k, dtype, count and optionally name, in any order and case.

    Raises InputError that names file and line: for an unreadable file, missing or unknown columns, sizes that are no
    whole numbers above zero, unknown data types, and counts above the limit of co-running GEMMs.
    """
    file = Path(path)
    reader = csv.reader(io.StringIO(read_text(file)), skipinitialspace=True)
    try:
        heads = [name.strip().lower() for name in next(reader, [])]
        _check_heads(file, heads)
        rows = ((reader.line_num, [cell.strip() for cell in row]) for row in reader)
        wanted = [_wanted(file, line, heads, row) for line, row in rows if any(row)]
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num + 1}: this is no CSV ({error}); write {_EXAMPLE}") from None
    if not wanted:
        raise InputError(f"{file}: there is no GEMM below the heads; add lines such as {_EXAMPLE}")
    return tuple(wanted)


def _check_heads(file: Path, found: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    unknown = [name for name in found if name not in (*COLUMNS, "name")]
    twice = [name for name in found if found.count(name) > 1]
    if len(found) == 1 and (separator := next((mark for mark in ";\t|" if mark in found[0]), None)):
        wrong = f"is separated by {_MARKS[separator]}; separate cells by commas"
    elif missing:
        wrong = f"misses {', '.join(missing)}"
    elif unknown:
        wrong = f"has the unknown column '{unknown[0]}'"
    elif twice:
        wrong = f"has the column '{twice[0]}' twice"
    else:
        return
    raise InputError(f"{file}, line 1: the list {wrong}; its heads are {','.join(COLUMNS)} and maybe name")


def _wanted(file: Path, line: int, heads: Sequence[str], row: Sequence[str]) -> Wanted:
    place = f"{file}, line {line}"
    if len(row) != len(heads):
        raise InputError(f"{place}: the line has {len(row)} cells, the heads are {len(heads)}; write {','.join(heads)}")
    cells = dict(zip(heads, row, strict=True))
    empty = [name for name in COLUMNS if not cells[name]]
    if empty:
        raise InputError(f"{place}: {empty[0]} is empty; write {','.join(heads)}")
    m, n, k, count = (whole_size(place, name, cells[name]) for name in ("m", "n", "k", "count"))
    if count > DEGREES[-1]:
        raise InputError(f"{place}: count is {count}; at most {DEGREES[-1]} GEMMs are tried together, write that")
    try:
        gemm = Gemm(m, n, k, cells["dtype"].lower())
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return Wanted(cells.get("name") or f"{m}x{n}x{k}", gemm, count)


def whole_size(place: str, name: str, text: str) -> int:
    """Parse a size from 1 to 2^31 - 1 from a cell; InputError with its `place` and `name` for anything else."""
    shown = text if len(text) <= 24 else f"{text[:8]}... ({len(text)} characters)"
    if not text.isdecimal() or not text.strip("0"):
        raise InputError(f"{place}: {name} is '{shown}'; it must be a whole number above zero")
    if len(text) > len(str(LARGEST_COUNT)) or int(text) > LARGEST_COUNT:
        raise InputError(f"{place}: {name} is {shown}; it must be at most {LARGEST_COUNT}")
    return int(text)
