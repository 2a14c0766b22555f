"""Tables of measurements in CSV files: the columns of each kind, and a reader that reports every wrong row."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, create_model

from weft.catalog import broken_rule
from weft.errors import InputError, nearest
from weft.files import read_bytes
from weft.validation.problems import Problem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Kind = Literal[
    "gemm",
    "collective",
    "channels",
    "overlap",
    "contention",
    "layer",
    "kernel",
    "rnn",
    "conv",
    "step",
    "memory",
    "dram",
]
"""The kind of measurements in a file; "memory" is in files of steps."""

LARGEST_MIB = 256
"""Size of the largest file that is read [MiB]: about two million rows, a hundred times the public ones."""
HOW_TO_GET_DATA = (
    "put measurements (gemm.csv, collectives.csv, ...) into a folder and name it with --data or WEFT_DATA; "
    "docs/howto/validate.md describes the columns"
)
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


class Gemms(Table):
    """C[m,n] = A[m,k] B[k,n] on one GPU."""

    file = "gemm.csv"
    named = ("gpu",)
    gpu: str
    dtype: Dtype
    m: Whole
    n: Whole
    k: Whole
    time_us: Positive


class Collectives(Table):
    """A collective; `bytes` are of the whole buffer, as nccl-tests counts them."""

    file = "collectives.csv"
    named = ("system", "collective")
    system: str
    collective: str
    ranks: Whole
    bytes: Whole
    time_us: Positive
    protocol: str = ""
    channels: str = ""


class Channels(Table):
    """A ring collective with a number of channels, in all or on `sms` compute units (blank: all)."""

    file = "nccl_channels.csv"
    named = ("system", "collective")
    system: str
    collective: str
    library: str
    protocol: str
    ranks: Whole
    channels: Whole
    sms: Whole | None
    bytes: Whole
    time_us: Positive


class Overlaps(Table):
    """A GEMM before or after a collective: alone, one after the other, and overlapped."""

    file = "overlap.csv"
    system: str
    collective: str
    pattern: str
    dtype: Dtype
    ranks: Whole | None
    m: Whole | None
    n: Whole | None
    k: Whole | None
    gemm_us: Positive | None
    comm_us: Positive | None
    sequential_us: Positive | None
    overlap_us: Positive | None
    speedup: Positive | None = None


class Contentions(Table):
    """A loop of GEMMs beside a loop of collectives: each alone, both at once, and until both have ended."""

    file = "contention.csv"
    named = ("system", "collective")
    system: str
    dtype: Dtype
    collective: str
    m: Whole
    n: Whole
    k: Whole
    gemms: Whole
    bytes: Whole
    collectives: Whole
    gemm_alone_us: Positive
    gemm_concurrent_us: Positive
    collective_alone_us: Positive
    collective_concurrent_us: Positive
    makespan_us: Positive


class Kernels(Table):
    """A kernel on `m` rows of `n` elements, or a product of `batch` times m x n x k, on one GPU.

    Blank: an operator of other dimensions.
    """

    file = "v100_kernels.csv"
    named = ("gpu",)
    gpu: str
    dtype: Dtype
    op: str
    batch: Whole | None = None
    m: Whole | None
    n: Whole | None
    k: Whole | None = None
    time_us: Positive
    kernel: str


class RecurrentLayers(Table):
    """A recurrent layer in one direction, its input GEMM skipped: passes over all `timesteps` (blank: not measured)."""

    file = "rnn.csv"
    named = ("gpu",)
    gpu: str
    dtype: Dtype
    cell: Annotated[str, StringConstraints(to_lower=True)]
    hidden: Whole
    batch: Whole
    timesteps: Whole
    forward_us: Positive | None
    backward_data_us: Positive | None
    backward_weights_us: Positive | None


class Convolutions(Table):
    """A convolution of images: whole passes (blank: not measured), and the algorithm of the forward pass."""

    file = "conv.csv"
    named = ("gpu",)
    gpu: str
    dtype: Dtype
    batch: Whole
    in_channels: Whole
    height: Whole
    width: Whole
    out_channels: Whole
    filter_height: Whole
    filter_width: Whole
    pad_height: Annotated[float, Field(ge=0)]
    pad_width: Annotated[float, Field(ge=0)]
    stride_height: Whole
    stride_width: Whole
    forward_us: Positive | None
    backward_data_us: Positive | None
    backward_weights_us: Positive | None
    forward_algorithm: str


class Layers(Table):
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
        """The table type for seconds, or for vTrain's milliseconds."""
        return VTrainSteps if _MILLISECONDS in head else cls


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


_LAYER_TIME = re.compile(r"(prefill|decode)_bs(\d+)_(?:seq|ctx)(\d+)_s")
TABLES: Mapping[Kind, type[Table]] = {
    "gemm": Gemms,
    "collective": Collectives,
    "channels": Channels,
    "overlap": Overlaps,
    "contention": Contentions,
    "layer": Layers,
    "kernel": Kernels,
    "rnn": RecurrentLayers,
    "conv": Convolutions,
    "step": Steps,
}
"""The table type of every kind of file; streams of requests to a DRAM are read by `streams`."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one file by column: numbers as floats (NaN if blank), texts unchanged; `line` counts from 1."""

    kind: Kind
    file: str
    line: IntArray
    columns: Mapping[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row as plain values by column."""
        columns = [column.tolist() for column in self.columns.values()]
        return (dict(zip(self.columns, cells, strict=True)) for cells in zip(*columns, strict=True))

    def take(self, which: npt.NDArray[np.bool_] | IntArray) -> Rows:
        """The rows selected by a mask or by indices."""
        columns = {name: column[which] for name, column in self.columns.items()}
        return replace(self, line=self.line[which], columns=columns)

    def lines(self, which: npt.NDArray[np.bool_] | IntArray) -> tuple[int, ...]:
        """The line numbers of the rows selected by a mask or by indices."""
        return tuple(self.line[which].tolist())

    @property
    def seconds(self) -> FloatArray:
        """The measured time of each row [s]; for kinds with one time."""
        return np.asarray(self["time_us"] * 1e-6, dtype=np.float64)


def positions_by(keys: Iterable[Hashable]) -> dict[Any, IntArray]:
    """Indices of each key's occurrences, keys in order of first occurrence."""
    members: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    return {key: np.array(positions, dtype=np.int64) for key, positions in members.items()}


def layer_times(rows: Rows) -> Iterator[tuple[str, int, int, FloatArray]]:
    """Phase, batch, sequence length and measured seconds per operator of each time column of a layer's file."""
    for name, seconds in rows.columns.items():
        if match := _LAYER_TIME.fullmatch(name):
            yield match[1], int(match[2]), int(match[3]), seconds


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder (or file) with measurements: `given`, else WEFT_DATA, else ../shared/data beside the project.

    Raises InputError if there is none.
    """
    named = given if given is not None else os.environ.get("WEFT_DATA")
    if named:
        if not Path(named).exists():
            raise InputError(f"the folder of measurements '{named}' does not exist; {HOW_TO_GET_DATA}")
        return Path(named)
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    if not beside.is_dir():
        raise InputError(f"there are no measurements here; {HOW_TO_GET_DATA}")
    return beside


def read_folder(place: Path, kinds: Sequence[Kind] | None = None) -> tuple[list[Rows], list[Problem]]:
    """Read every table of a folder (or one file), and report problems of files and cells.

    Files are recognised by their columns, not their names. Raises InputError if nothing can be read.
    """
    files = sorted(place.glob("*.csv")) if place.is_dir() else [place]
    if not files:
        raise InputError(f"the folder '{place}' has no .csv file; {HOW_TO_GET_DATA}")
    read = list(map(read_file, files))
    wanted = [(rows, wrong) for rows, wrong in read if rows is None or not kinds or rows.kind in kinds]
    found = [rows for rows, _ in wanted if rows is not None]
    problems = [problem for _, wrong in wanted for problem in wrong]
    if not found and kinds and len(wanted) < len(read):
        others = " and ".join(dict.fromkeys(rows.kind for rows, _ in read if rows is not None))
        tables = {kind: TABLES[kind] for kind in kinds if kind in TABLES}
        needs = "; ".join(f"{kind} rows need the columns {', '.join(of.columns())}" for kind, of in tables.items())
        raise InputError(f"'{place}' holds {others} rows only; {needs}")
    if not found:
        reason = f": {problems[0]}" if problems else ""
        raise InputError(f"'{place}' holds no measurements that can be used{reason}; {HOW_TO_GET_DATA}")
    return found, problems


class _LeftOut(Exception):
    """A file that cannot be used; the arguments are its Problems."""


def _of_file(file: str, rule: str, column: str = "", value: str = "") -> Problem:
    return Problem(file, (), column, value, rule)


def read_file(file: Path) -> tuple[Rows | None, list[Problem]]:
    """Rows of one file (None if it cannot be used), and its problems; InputError if it cannot be opened."""
    try:
        lines = csv.reader(io.StringIO(_text(file), newline=""))
        head = [cell.strip() for cell in next(lines, [])]
        kind, table = _table_of(head, file.name)
        return _rows(kind, table, table.own(head), file.name, lines)
    except _LeftOut as left_out:
        return None, list(left_out.args)
    except csv.Error as error:
        return None, [_of_file(file.name, f"this is no CSV ({error}); check its quotes, and export it again")]


def _text(file: Path) -> str:
    try:
        large = file.stat().st_size > LARGEST_MIB << 20
        content = b"" if large else read_bytes(file, LARGEST_MIB << 20)
        text = content.decode("utf-8-sig")
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
    if _MILLISECONDS in head:
        return "step"
    shares = {
        kind: len(table.columns().keys() & set(head)) / len(table.columns())
        for kind, table in TABLES.items()
        if kind != "layer"
    }
    if whole := [kind for kind, share in shares.items() if share == 1]:
        return max(whole, key=lambda kind: len(TABLES[kind].columns()))
    if named := [kind for kind in shares if TABLES[kind].file == file]:
        return named[0]
    likely = max(shares, key=lambda kind: shares[kind])
    return likely if shares[likely] > _ALIKE else None


def _rows(kind: Kind, table: type[Table], head: Sequence[str], file: str, lines: Any) -> tuple[Rows, list[Problem]]:
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
            problems.append(Problem(file, (lines.line_num,), "", "", rule))
            continue
        named = {name: cell for name, cell in zip(head, cells, strict=True) if name in columns}
        try:
            found.append(table.model_validate({name: cell or _BLANK[columns[name]] for name, cell in named.items()}))
            numbers.append(lines.line_num)
        except ValidationError as error:
            wrong = [(str(each["loc"][0]), _RULES.get(each["type"], each["msg"])) for each in error.errors()]
            problems += [Problem(file, (lines.line_num,), name, named[name], rule) for name, rule in wrong]
    if not found and not problems:
        raise _LeftOut(_of_file(file, "this file has a header only; add rows"))
    values: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(row, name) for row in found], dtype=of) for name, of in columns.items()
    }
    return Rows(kind, file, np.array(numbers, dtype=np.int64), values), problems


_BLANK: Mapping[type, str | None] = {str: "", float: None}
_RULES = {
    "float_type": "a number is missing here",
    "float_parsing": "this is no number; write it plainly, like 12.5, without a unit",
    "finite_number": "this is no finite number",
    "greater_than": "this must be greater than zero",
}
"""pydantic's errors, reworded for users."""
