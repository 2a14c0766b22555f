"""Measurements in the documented schema: where they lie, and how each kind of file is read."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from weft.errors import InputError, nearest
from weft.validation.problems import Problem

FloatArray = npt.NDArray[np.float64]
Kind = Literal["gemm", "collective", "overlap", "contention", "layer"]
"""What a file holds measurements of."""
Cell = Literal["text", "count", "positive", "maybe count", "maybe positive"]
"""What a column holds; a "maybe" column may be blank, which reads as NaN."""

HOW_TO_GET_DATA = (
    "put measurements (gemm.csv, collectives.csv, ...) into a folder and name it with --data or WEFT_DATA; "
    "docs/howto/validate.md describes the columns"
)
_ENVIRONMENT = "WEFT_DATA"
_ALIKE = 0.5  # a file with this share of a kind's columns is meant to be of that kind


def _cells(cell: Cell, *names: str) -> dict[str, Cell]:
    return dict.fromkeys(names, cell)


@dataclass(frozen=True)
class Schema:
    """The columns that a kind of file must have and may have, what they hold, and its customary file name."""

    file: str
    columns: Mapping[str, Cell]
    optional: Mapping[str, Cell] = field(default_factory=lambda: _cells("text", "source", "notes"))


_SHAPE: dict[str, Cell] = _cells("count", "m", "n", "k")
_OVERLAP_TIMES = ("gemm_us", "comm_us", "sequential_us", "overlap_us")
_CONTENTION_TIMES = ("gemm_alone_us", "gemm_concurrent_us", "collective_alone_us", "collective_concurrent_us")

SCHEMAS: Mapping[Kind, Schema] = {
    "gemm": Schema("gemm.csv", {"gpu": "text", "dtype": "text", **_SHAPE, "time_us": "positive"}),
    "collective": Schema(
        "collectives.csv",
        {"system": "text", "collective": "text", "ranks": "count", "bytes": "count", "time_us": "positive"},
        _cells("text", "source", "notes", "protocol", "channels"),
    ),
    "overlap": Schema(
        "overlap.csv",
        _cells("text", "system", "collective", "pattern", "dtype")
        | _cells("maybe count", "ranks", "m", "n", "k")
        | _cells("maybe positive", *_OVERLAP_TIMES),
        {**_cells("text", "source", "notes"), "speedup": "maybe positive"},
    ),
    "contention": Schema(
        "contention.csv",
        _cells("text", "system", "dtype", "collective")
        | {**_SHAPE, **_cells("count", "gemms", "bytes", "collectives")}
        | _cells("positive", *_CONTENTION_TIMES, "makespan_us"),
    ),
    "layer": Schema("gpt3_layer_tp4.csv", {"system": "text", "op": "text"}),
}
"""Every kind of file that can be read."""

_LAYER_TIME = re.compile(r"(prefill|decode)_bs(\d+)_(?:seq|ctx)(\d+)_s")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one file by column: numbers as floats (NaN if blank), texts as they stand; `line` counts from 1."""

    kind: Kind
    file: str
    line: npt.NDArray[np.int64]
    numbers: Mapping[str, FloatArray]
    texts: Mapping[str, npt.NDArray[np.str_]]

    def __len__(self) -> int:
        return len(self.line)

    def take(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Rows:
        """The rows of a mask, or at some positions."""
        numbers = {name: column[which] for name, column in self.numbers.items()}
        texts = {name: column[which] for name, column in self.texts.items()}
        return replace(self, line=self.line[which], numbers=numbers, texts=texts)

    @property
    def seconds(self) -> FloatArray:
        """The measured time of each row [s]; for kinds with one time."""
        return self.numbers["time_us"] * 1e-6


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder (or file) with measurements: `given`, else WEFT_DATA, else ../shared/data beside the project.

    Raises InputError if there is none.
    """
    named = given if given is not None else os.environ.get(_ENVIRONMENT)
    if named:
        if not Path(named).exists():
            raise InputError(f"the folder of measurements '{named}' does not exist; {HOW_TO_GET_DATA}")
        return Path(named)
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    if not beside.is_dir():
        raise InputError(f"there are no measurements here; {HOW_TO_GET_DATA}")
    return beside


def read_folder(place: Path, kinds: Sequence[Kind] | None = None) -> tuple[list[Rows], list[Problem]]:
    """Every readable file of a folder (or the one file), and what is wrong with files and cells.

    Files are known by their columns, whatever their names. Raises InputError if nothing can be read.
    """
    files = sorted(place.glob("*.csv")) if place.is_dir() else [place]
    if not files:
        raise InputError(f"the folder '{place}' has no .csv file; {HOW_TO_GET_DATA}")
    found: list[Rows] = []
    problems: list[Problem] = []
    others: dict[Kind, None] = {}
    for file in files:
        rows, wrong = read_file(file)
        if rows is not None and kinds and rows.kind not in kinds:
            others[rows.kind] = None
            continue
        problems += wrong
        found += [rows] if rows is not None else []
    if not found and others and kinds:
        raise InputError(_other_kinds(place, list(others), kinds))
    if not found:
        reason = f": {problems[0]}" if problems else ""
        raise InputError(f"'{place}' holds no measurements that can be used{reason}; {HOW_TO_GET_DATA}")
    return found, problems


def _other_kinds(place: Path, found: Sequence[Kind], wanted: Sequence[Kind]) -> str:
    needs = "; ".join(f"{kind} rows need the columns {', '.join(SCHEMAS[kind].columns)}" for kind in wanted)
    return f"'{place}' holds {' and '.join(found)} rows only; {needs}"


def read_file(file: Path) -> tuple[Rows | None, list[Problem]]:
    """The rows of one file, None if it cannot be used, and what is wrong with it."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return None, [Problem(file.name, (), "", "", "this is no text in UTF-8; export it as CSV in UTF-8")]
    except OSError as error:
        raise InputError(f"the file '{file}' cannot be read ({error.strerror}); check it and its rights") from None
    if not text.strip():
        return None, [Problem(file.name, (), "", "", "this file is empty; write a line of column names and rows")]
    lines = csv.reader(io.StringIO(text, newline=""))
    head = [cell.strip() for cell in next(lines, [])]
    if separator := _wrong_separator(head):
        rule = f"the cells of this file are parted by {separator}; export it with commas, and points in numbers"
        return None, [Problem(file.name, (), "", "", rule)]
    kind = _kind_of(head, file.name)
    if kind is None:
        files = ", ".join(schema.file for schema in SCHEMAS.values())
        rule = f"no kind of measurements has these columns; docs/howto/validate.md says which {files} have"
        return None, [Problem(file.name, (), "columns", ",".join(head), rule)]
    columns = _columns_of(kind, head)
    missing = [name for name in columns if name not in head]
    if missing:
        return None, [_missing(file.name, name, head) for name in missing]
    return _read(kind, file.name, head, columns, lines)


def _wrong_separator(head: Sequence[str]) -> str:
    """What parts the columns of a header that has no commas, in words; empty if nothing known does."""
    names = {";": "semicolons", "\t": "tabs", "|": "bars"}
    return next((name for sign, name in names.items() if len(head) == 1 and sign in head[0]), "")


def _kind_of(head: Sequence[str], name: str) -> Kind | None:
    """The kind whose columns a file has; else the one that its name or most of its columns suggest."""
    if {"system", "op"} <= set(head) and any(map(_LAYER_TIME.fullmatch, head)):
        return "layer"
    candidates = [kind for kind in SCHEMAS if kind != "layer"]
    whole = [kind for kind in candidates if set(SCHEMAS[kind].columns) <= set(head)]
    if whole:
        return max(whole, key=lambda kind: len(SCHEMAS[kind].columns))
    named = [kind for kind in candidates if SCHEMAS[kind].file == name]
    shares = {kind: _share(SCHEMAS[kind], head) for kind in candidates}
    likely = max(candidates, key=lambda kind: shares[kind])
    return named[0] if named else likely if shares[likely] > _ALIKE else None


def _share(schema: Schema, head: Sequence[str]) -> float:
    return len(set(schema.columns) & set(head)) / len(schema.columns)


def _columns_of(kind: Kind, head: Sequence[str]) -> dict[str, Cell]:
    columns = dict(SCHEMAS[kind].columns)
    if kind == "layer":
        columns |= dict.fromkeys(filter(_LAYER_TIME.fullmatch, head), "positive")
    return columns


def _missing(file: str, name: str, head: Sequence[str]) -> Problem:
    close = nearest(name, head)
    hint = f"; is it '{close[0]}'?" if close else ""
    return Problem(file, (), "column", name, f"this column is missing{hint}")


def _read(
    kind: Kind, file: str, head: Sequence[str], columns: Mapping[str, Cell], lines: Any
) -> tuple[Rows | None, list[Problem]]:
    wanted = {**columns, **{name: cell for name, cell in SCHEMAS[kind].optional.items() if name in head}}
    at = {name: head.index(name) for name in wanted}
    cells: dict[str, list[str | float]] = {name: [] for name in wanted}
    numbers: list[int] = []
    problems: list[Problem] = []
    for line in lines:
        number = lines.line_num
        if not any(cell.strip() for cell in line):
            continue
        wrong, parsed = _parsed(file, number, line, len(head), at, wanted)
        if wrong is not None:
            problems.append(wrong)
            continue
        numbers.append(number)
        for name, value in parsed.items():
            cells[name].append(value)
    if not numbers and not problems:
        return None, [Problem(file, (), "", "", "this file has a header only; add rows")]
    texts = {name: np.array(cells[name], dtype=np.str_) for name, cell in wanted.items() if cell == "text"}
    floats = {name: np.array(cells[name], dtype=np.float64) for name, cell in wanted.items() if cell != "text"}
    for name, cell in SCHEMAS[kind].optional.items():
        if cell == "text":
            texts.setdefault(name, np.full(len(numbers), "", dtype="<U1"))
        else:
            floats.setdefault(name, np.full(len(numbers), np.nan))
    return Rows(kind, file, np.array(numbers, dtype=np.int64), floats, texts), problems


def _parsed(
    file: str, number: int, line: Sequence[str], width: int, at: Mapping[str, int], wanted: Mapping[str, Cell]
) -> tuple[Problem | None, dict[str, str | float]]:
    if len(line) != width:
        rule = f"this row has {len(line)} cells, but the header has {width}; quote commas inside cells"
        return Problem(file, (number,), "", "", rule), {}
    values: dict[str, str | float] = {}
    for name, cell in wanted.items():
        text = line[at[name]].strip()
        value, rule = _value(text, cell)
        if rule:
            return Problem(file, (number,), name, text, rule), {}
        # Data types are told apart by their letters, not by their case.
        values[name] = text.lower() if name == "dtype" else value
    return None, values


def _value(text: str, cell: Cell) -> tuple[str | float, str]:
    """The value of a cell, and the rule that it breaks, if any."""
    if cell == "text":
        return text, ""
    if not text:
        return float("nan"), "" if cell.startswith("maybe") else "a number is missing here"
    try:
        value = float(text)
    except ValueError:
        return 0.0, "this is no number; write it plainly, like 12.5, without a unit"
    if not np.isfinite(value):
        return 0.0, "this is no finite number"
    if value <= 0:
        return 0.0, "this must be greater than zero"
    if cell.endswith("count") and value != int(value):
        return 0.0, "this must be a whole number"
    return value, ""


def layer_times(rows: Rows) -> Iterator[tuple[str, int, int, FloatArray]]:
    """Phase, batch, sequence length and measured seconds per operator of each time column of a layer's file."""
    for name, seconds in rows.numbers.items():
        match = _LAYER_TIME.fullmatch(name)
        if match:
            yield match[1], int(match[2]), int(match[3]), seconds
