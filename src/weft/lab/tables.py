"""Tables of measurements in CSV files: the columns of each kind, and a reader that reports every wrong row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from weft.core.catalog import broken_rule, read_toml
from weft.core.errors import ConfigError, InputError, nearest
from weft.core.files import HOW_TO_GET_DATA, Rows, read_bytes
from weft.lab.problems import Problem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Kind = Literal[
    "gemm",
    "collective",
    "channels",
    "tuning",
    "overlap",
    "contention",
    "corun",
    "corun_nodes",
    "compute_units",
    "fused",
    "layer",
    "kernel",
    "operator",
    "rnn",
    "conv",
    "exchange",
    "attention",
    "mla",
    "all_reduce",
    "gemm_lowbit",
    "experts",
    "expert_layers",
    "expert_trace",
    "small_operators",
    "serving",
    "step",
    "memory",
    "dram",
]
"""The kind of measurements in a file; "memory" is in files of steps."""

LARGEST_MIB = 256
"""Size of the largest file that is read [MiB]: about two million rows, a hundred times the public ones."""
_ALIKE = 0.5  # share of a kind's columns from which a file counts as of that kind


def _whole(value: float) -> float:
    if value != int(value):
        raise broken_rule("this must be a whole number")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above zero: a time [µs, in columns that end in _us, else s], a ratio."""
Whole = Annotated[Positive, AfterValidator(_whole)]
"""A number of things, or bytes, as a float."""
Dtype = Annotated[str, StringConstraints(to_lower=True)]
"""A data type, in upper or lower case."""


class Table(BaseModel):
    """A line of a table, column by column, as parsed from text.

    A column without a default is required; its cells may be blank if `None` is allowed, which reads as NaN. Undeclared
    columns are ignored.
    """

    model_config = ConfigDict(frozen=True)
    file: ClassVar[str]
    """The usual file name."""
    named: ClassVar[tuple[str, ...]] = ("system",)
    """Columns whose names Weft must know."""
    others: ClassVar[Mapping[str, str]] = {}
    """Other headings of columns, with their names here."""
    source: str = ""
    notes: str = ""

    @classmethod
    def of_header(cls, head: Sequence[str]) -> type[Table]:
        """The table type of a file with this header, if it is of this kind."""
        return cls

    @classmethod
    def own(cls, head: Sequence[str]) -> list[str]:
        """The header with this type's names of columns."""
        return [cls.others.get(name, name) for name in head]

    @classmethod
    def columns(cls, *, needed: bool = True) -> dict[str, type]:
        """The required columns, or all, each with the type of its cells: `str` or a number."""
        return {
            name: str if about.annotation is str else float
            for name, about in cls.model_fields.items()
            if about.is_required() or not needed
        }


class MeasuredLayers(Table):
    """An operator of a Transformer layer, with a time [s] for each phase, batch and length that was measured."""

    file = "gpt3_layer_tp4.csv"
    system: str
    op: str

    @classmethod
    def of_header(cls, head: Sequence[str]) -> type[Table]:
        """The table type with the header's columns of times, such as prefill_bs8_seq2048_s."""
        times: dict[str, Any] = {name: (Positive, ...) for name in head if _LAYER_TIME.fullmatch(name)}
        return create_model("MeasuredLayers", __base__=cls, **times)


class Steps(Table):
    """A training step of a model on a number of GPUs: shapes, degrees of parallelism, and seconds or peak memory.

    Blank cells are not stated; vTrain's files have their own headings, and milliseconds.
    """

    file = "iterations.csv"
    named = ("gpu",)
    id: str = ""
    task: str = "pretrain"
    framework: str = "vTrain"
    model: str = "GPT"
    gpu: str = "A100-SXM-80GB"
    network: str = ""
    precision: str = ""
    recompute: str = ""
    overlap_or_schedule: str = ""
    mem_kind: str = ""
    layers: str
    kv_heads: str = ""
    hidden: Whole | None
    ffn: Whole | None = None
    heads: Whole | None
    vocab: Whole | None = None
    experts: Whole | None = None
    topk: Whole | None = None
    seq_len: Whole | None
    gpus: Whole
    tp: Whole | None
    pp: Whole | None
    dp: Whole | None
    vp: Whole | None = None
    cp: Whole | None = None
    ep: Whole | None = None
    zero_stage: Annotated[float, Field(ge=0)] | None = None
    mbs_seq: Whole | None
    gbs_seq: Whole | None
    step_time_s: Positive | None
    peak_mem_gb: Positive | None = None

    @classmethod
    def of_header(cls, head: Sequence[str]) -> type[Table]:
        """The table type for seconds, for vTrain's milliseconds, or for steps by who exchanges tokens."""
        return VTrainSteps if _MILLISECONDS in head else DispatcherSteps if "dispatcher" in head else cls


def _seconds(milliseconds: float) -> float:
    return milliseconds * 1e-3


_MILLISECONDS = "iteration time (ms)"


class VTrainSteps(Steps):
    """A training step as vTrain's authors write it.

    Their configuration recomputes every layer and has 50,257 words (VIA-Research/vTrain @f8dda84, src/config.py).
    """

    others = {
        "# GPUs": "gpus",
        "global batch": "gbs_seq",
        "micro batch": "mbs_seq",
        "hidden size": "hidden",
        "attention heads": "heads",
        "# layers": "layers",
        "sequence length": "seq_len",
        "tensor parallelism": "tp",
        "data parallelism": "dp",
        "pipeline parallelism": "pp",
        _MILLISECONDS: "step_time_s",
    }
    recompute: str = "full"
    vocab: Whole | None = 50257.0
    step_time_s: Annotated[Positive, AfterValidator(_seconds)]


class DispatcherSteps(Steps):
    """A training step of a mixture of the catalogue, whose shapes it has, by the library that exchanged its tokens."""

    others = {"vpp": "vp"}
    file = "moe_steps.csv"
    dispatcher: str
    overlap_ep: str = ""
    routing: str = ""
    notes: str = ""
    layers: str = ""
    hidden: Whole | None = None
    heads: Whole | None = None


_LAYER_TIME = re.compile(r"(prefill|decode)_bs(\d+)_(?:seq|ctx)(\d+)_s")
_CELLS: Mapping[str, Any] = {
    "text": str,
    "word": Dtype,
    "positive": Positive,
    "whole": Whole,
    "zero": Annotated[float, Field(ge=0)],
}
"""The types of cells by their word in tables.toml."""


def _declare_table(kind: str, about: Mapping[str, Any]) -> type[Table]:
    """The table type that tables.toml declares for a kind."""
    fields: dict[str, Any] = {}
    for name, words in about["columns"].items():
        cell = words.removeprefix("optional ").removesuffix(" or blank")
        of = _CELLS[cell] | None if words.endswith(" or blank") else _CELLS[cell]
        fields[name] = (of, ... if not words.startswith("optional ") else "" if cell == "text" else None)
    table: type[Table] = create_model(f"Measured_{kind}", __base__=Table, **fields)
    table.file, table.named, table.others = about["file"], tuple(about["named"]), about.get("others", {})
    return table


_DECLARED = {
    kind: _declare_table(kind, about) for kind, about in read_toml(Path(__file__).with_suffix(".toml")).items()
}
_TYPES: Mapping[str, type[Table]] = {**_DECLARED, "layer": MeasuredLayers, "step": Steps}
TABLES: Mapping[Kind, type[Table]] = {kind: _TYPES[kind] for kind in get_args(Kind) if kind in _TYPES}
"""The table type of every kind of file; streams of requests to a DRAM are read by `streams`."""


class Measurements:
    """Rows of one file that count, as a DataFrame by line number, and the problems of the file and of other rows.

    Numbers are floats (NaN if blank), texts are unchanged, and the header is line 1. `kind` is None, and no row is
    there, if the file cannot be used.
    """

    def __init__(self, kind: Kind | None, file: str, rows: pd.DataFrame, problems: Iterable[Problem] = ()) -> None:
        self.kind, self.file, self.rows, self.problems = kind, file, rows, list(problems)

    def some(self, rows: pd.DataFrame) -> Measurements:
        """Some rows of the same file, without problems."""
        return Measurements(self.kind, self.file, rows)

    def drop(self, *problems: Iterable[Problem]) -> None:
        """Add problems, and drop the rows that they exclude."""
        found = [problem for each in problems for problem in each]
        bad = [line for problem in found if not problem.used for line in problem.lines]
        self.rows = self.rows[~self.rows.index.isin(bad)]
        self.problems += found

    def problem(self, which: Any, rule: str, column: str = "", value: str = "") -> Iterator[Problem]:
        """One problem of the rows selected by a mask, if there are any."""
        lines = tuple(self.rows.index[np.asarray(which, dtype=bool)].tolist())
        if lines:
            yield Problem(self.file, lines, column, value, rule)

    def by_value(self, which: Any, column: str, rule: Callable[[str], str] | str) -> Iterator[Problem]:
        """A problem for each value, in alphabetical order, that a column has in the rows selected by a mask."""
        values = self.rows[column]
        for value in sorted(set(values[np.asarray(which, dtype=bool)])):
            said = rule if isinstance(rule, str) else rule(value)
            yield from self.problem(np.asarray(which & (values == value)), said, column, value)


def seconds_of(rows: pd.DataFrame) -> FloatArray:
    """The measured time of each row [s]; for kinds with one time."""
    return np.asarray(rows["time_us"] * 1e-6, dtype=np.float64)


def figure_of(rows: pd.DataFrame) -> FloatArray:
    """The measured figure of each row: of its column "measured" [base unit], else its time [s]."""
    return rows["measured"].to_numpy(np.float64) if "measured" in rows else seconds_of(rows)


def layer_times(rows: pd.DataFrame) -> Iterator[tuple[str, int, int, FloatArray]]:
    """Phase, batch, sequence length and measured seconds per operator of each time column of a layer's file."""
    for name in rows:
        if match := _LAYER_TIME.fullmatch(name):
            yield match[1], int(match[2]), int(match[3]), rows[name].to_numpy()


def read_folder(place: Path, kinds: Sequence[Kind] | None = None) -> list[Measurements]:
    """Read every table of a folder (or one file), of these kinds; files without rows that can be used hold problems.

    Files are recognised by their columns, not their names. Raises InputError if nothing can be read.
    """
    files = [*sorted(place.glob("*.csv")), *_below(place)] if place.is_dir() else [place]
    if not files:
        raise InputError(f"the folder '{place}' has no .csv file; {HOW_TO_GET_DATA}")
    read = list(map(read_file, files))
    wanted = [one for one in read if one.kind is None or not kinds or one.kind in kinds]
    if any(one.kind for one in wanted):
        return wanted
    if kinds and len(wanted) < len(read):
        others = " and ".join(dict.fromkeys(one.kind for one in read if one.kind))
        tables = {kind: TABLES[kind] for kind in kinds if kind in TABLES}
        needs = "; ".join(f"{kind} rows need the columns {', '.join(of.columns())}" for kind, of in tables.items())
        raise InputError(f"'{place}' holds {others} rows only; {needs}")
    problems = [problem for one in wanted for problem in one.problems]
    reason = f": {problems[0]}" if problems else ""
    raise InputError(f"'{place}' holds no measurements that can be used{reason}; {HOW_TO_GET_DATA}")


def _below(place: Path) -> list[Path]:
    """Tables by their usual names in the folders of a folder, also packed by gzip."""
    tables: list[type[Table]] = [*TABLES.values(), DispatcherSteps]
    names = {f"{table.file}{ending}" for table in tables for ending in ("", ".gz")}
    return sorted(file for file in place.glob("*/*.csv*") if file.name in names)


class _LeftOut(Exception):
    """A file that cannot be used; the arguments are its Problems."""


def _of_file(file: str, rule: str, column: str = "", value: str = "") -> Problem:
    return Problem(file, (), column, value, rule)


def read_file(file: Path) -> Measurements:
    """Rows and problems of one file; InputError if it cannot be opened."""
    try:
        lines = Rows(_text(file), file.name)
        head = [cell.strip() for cell in next(lines, [])]
        kind, table = _table_of(head, file.name)
        return _rows(kind, table, table.own(head), file.name, lines)
    except _LeftOut as left_out:
        problems = left_out.args
    except ConfigError as error:
        problems = (_of_file(file.name, error.message),)
    return Measurements(None, file.name, pd.DataFrame(), problems)


def _text(file: Path) -> str:
    try:
        large = file.stat().st_size > LARGEST_MIB << 20
        content = b"" if large else read_bytes(file, LARGEST_MIB << 20)
        text = content.decode("utf-8-sig")
    except ConfigError as error:
        raise _LeftOut(_of_file(file.name, error.message)) from None
    except OSError as error:
        raise InputError(f"the file '{file}' cannot be read ({error.strerror}); check its permissions") from None
    except UnicodeDecodeError:
        text = "\0"
    if large:
        rule = f"this file is larger than {LARGEST_MIB} MiB; split it into files of fewer rows"
    elif content.startswith((b"\xff\xfe", b"\xfe\xff")):
        rule = "this is text in UTF-16; export it as CSV in UTF-8"
    elif "\0" in text:
        rule = "this is no text in UTF-8; export it as CSV in UTF-8"
    elif not text.strip():
        rule = "this file is empty; write a line of column names and rows"
    else:
        return text
    raise _LeftOut(_of_file(file.name, rule))


def _table_of(head: Sequence[str], file: str) -> tuple[Kind, type[Table]]:
    """The table type of a file with this header, and the columns to read."""
    if len(head) == 1 and (mark := next((mark for mark in _MARKS if mark in head[0]), "")):
        rule = f"the cells of this file are parted by {_MARKS[mark]}; export it with commas, and points in numbers"
        raise _LeftOut(_of_file(file, rule))
    kind = _kind_of(head, file)
    if kind is None:
        files = ", ".join(table.file for table in TABLES.values())
        rule = f"no kind of measurements has these columns; docs/howto/validate.md says which {files} have"
        raise _LeftOut(_of_file(file, rule, "columns", ",".join(head)))
    table = TABLES[kind].of_header(head)
    head = table.own(head)
    twice = [name for name in table.columns(needed=False) if head.count(name) > 1]
    wrong = [_of_file(file, "this column is there more than once; keep one", "column", name) for name in twice]
    for name in (name for name in table.columns() if name not in head):
        hint = "".join(f"; is it '{close}'?" for close in nearest(name, head)[:1])
        wrong.append(_of_file(file, f"this column is missing{hint}", "column", name))
    if wrong:
        raise _LeftOut(*wrong)
    return kind, table


_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def _kind_of(head: Sequence[str], file: str) -> Kind | None:
    """The kind whose columns a file has; else the one that its name or most of its columns suggest."""
    if {"system", "op"} <= set(head) and any(map(_LAYER_TIME.fullmatch, head)):
        return "layer"
    if _MILLISECONDS in head or "dispatcher" in head:
        return "step"
    shares = {
        kind: len(table.columns().keys() & set(table.own(head))) / len(table.columns())
        for kind, table in TABLES.items()
        if kind != "layer"
    }
    if whole := [kind for kind, share in shares.items() if share == 1]:
        return max(whole, key=lambda kind: len(TABLES[kind].columns()))
    if named := [kind for kind in shares if TABLES[kind].file == file]:
        return named[0]
    likely = max(shares, key=lambda kind: shares[kind])
    return likely if shares[likely] > _ALIKE else None


def _rows(kind: Kind, table: type[Table], head: Sequence[str], file: str, lines: Rows) -> Measurements:
    found: list[Table] = []
    numbers: list[int] = []
    problems: list[Problem] = []
    columns = table.columns(needed=False)
    for line in lines:
        cells = [cell.strip() for cell in line]
        if not any(cells):
            continue
        if len(cells) != len(head):
            rule = f"this row has {len(cells)} cells, but the header has {len(head)}; quote commas inside cells"
            problems.append(Problem(file, (lines.line,), "", "", rule))
            continue
        named = {name: cell for name, cell in zip(head, cells, strict=True) if name in columns}
        try:
            found.append(table.model_validate({name: cell or _BLANK[columns[name]] for name, cell in named.items()}))
            numbers.append(lines.line)
        except ValidationError as error:
            wrong = [(str(each["loc"][0]), _RULES.get(each["type"], each["msg"])) for each in error.errors()]
            problems += [Problem(file, (lines.line,), name, named[name], rule) for name, rule in wrong]
    if not found and not problems:
        raise _LeftOut(_of_file(file, "this file has a header only; add rows"))
    values = {name: pd.Series([getattr(row, name) for row in found], numbers, of) for name, of in columns.items()}
    return Measurements(kind, file, pd.DataFrame(values), problems)


_BLANK: Mapping[type, str | None] = {str: "", float: None}
_RULES = {
    "float_type": "a number is missing here",
    "float_parsing": "this is no number; write it plainly, like 12.5, without a unit",
    "finite_number": "this is no finite number",
    "greater_than": "this must be greater than zero",
}
"""pydantic's errors, reworded for users."""
