"""A list of independent GEMMs in a CSV file: sizes, data type, and how many of each wait together."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.tuning.kernels import DEGREES
from weft.workload import Gemm

COLUMNS = ("m", "n", "k", "dtype", "count")
"""Columns that a list must have; a column "name" may stand beside them."""


@dataclass(frozen=True)
class Wanted:
    """A line of the list: `count` GEMMs of one shape that are queued together, and what people call them."""

    name: str
    gemm: Gemm
    count: int


def read_gemms(path: str | Path) -> tuple[Wanted, ...]:
    """The lines of a CSV file with the columns m, n, k, dtype, count and, if wanted, name.

    Raises InputError that names file and line: for a file that cannot be read, missing or unknown columns, sizes that
    are no whole numbers above zero, data types that nobody knows, and counts beyond what runs together.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise InputError(
            f"the file '{file}' cannot be read ({reason}); check the path and its rights"
        ) from None
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    _check_columns(file, [name.strip() for name in reader.fieldnames or ()])
    wanted = [_wanted(file, reader.line_num, row) for row in reader if any(row.values())]
    if not wanted:
        raise InputError(f"{file}: there is no GEMM below the heads; add lines such as 512,1024,1024,fp16,8")
    return tuple(wanted)


def _check_columns(file: Path, found: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    unknown = [name for name in found if name not in (*COLUMNS, "name")]
    if missing or unknown:
        wrong = f"misses {', '.join(missing)}" if missing else f"has the unknown column '{unknown[0]}'"
        raise InputError(
            f"{file}, line 1: the list {wrong}; its heads are {','.join(COLUMNS)} and maybe name"
        )


def _wanted(file: Path, line: int, row: Mapping[str | None, str | None]) -> Wanted:
    place = f"{file}, line {line}"
    cells = {
        (key or "").strip(): (value or "").strip() for key, value in row.items() if isinstance(value, str)
    }
    if None in row or any(not cells.get(name) for name in COLUMNS):
        raise InputError(
            f"{place}: the line has not one cell for each of the heads; write {','.join(COLUMNS)}"
        )
    m, n, k, count = (_whole(place, name, cells[name]) for name in ("m", "n", "k", "count"))
    if count > DEGREES[-1]:
        raise InputError(
            f"{place}: count is {count}; at most {DEGREES[-1]} GEMMs are tried together, write that"
        )
    try:
        gemm = Gemm(m, n, k, cells["dtype"].lower())
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return Wanted(cells.get("name") or f"{m}x{n}x{k}", gemm, count)


def _whole(place: str, name: str, text: str) -> int:
    if not text.isdecimal() or int(text[:12]) < 1 or len(text) > 9:
        raise InputError(f"{place}: {name} is '{text}'; it must be a whole number above zero")
    return int(text)
