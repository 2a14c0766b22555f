"""Parse the cases of `weft predict`: shapes, files of shapes, sizes of collectives, dimensions of operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import InputError, UnknownNameError
from weft.core.files import Rows, read_text
from weft.core.units import Dimension, parse, shorten_digits
from weft.estimate.answer import FloatArray
from weft.graph import DTYPE_BYTES, Graph, Routing, experts
from weft.graph.routing import check_groups, gpus_reached

_SIZES = ("m", "n", "k", "batch")
_COLUMNS = (*_SIZES, "dtype")
_LARGEST_BUFFER = 2.0**50
"""Largest buffer of a collective [bytes]: 1 PiB, more than any GPU will hold."""

Shapes = Mapping[str, Any]
"""GEMMs as columns: m, n, k, batch [whole numbers] and dtype."""


def as_columns(rows: Iterable[tuple[int, int, int, int, str]]) -> Shapes:
    """Transpose GEMMs (M, N, K, batch, dtype) into columns."""
    return {name: np.array(column) for name, column in zip(_COLUMNS, zip(*rows, strict=True), strict=True)}


def read_shapes(path: Path, batch: int, dtype: str, refused: Callable[[str], None] = lambda name: None) -> Shapes:
    """Read GEMMs from a CSV file with columns m, n, k and optionally batch and dtype; other columns are ignored.

    `batch` and `dtype` are those of rows that state none; `refused` is called with the name of one that every row
    states. Raises InputError that names the file and the line of an invalid row.
    """
    rows = Rows(read_text(path), path, spaces=True)
    names = [name.strip().lower() for name in next(rows, [])]
    _check_columns(path, names)
    found, blank = [], set()
    for cells in filter(None, rows):
        row = dict(zip(names, cells, strict=False))
        if len(cells) > len(names):
            raise InputError(f"{path}, line {rows.line}: the line has more cells than the heads; write a cell for each")
        blank |= {name for name in ("batch", "dtype") if not row.get(name, "").strip()}
        found.append(_row(path, rows.line, row, batch, dtype))
    if not found:
        raise InputError(f"{path} has no rows; give each GEMM a line, like 8192,8192,8192")
    for name in ("batch", "dtype"):
        if name not in blank:
            refused(name)
    return as_columns(found)


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise InputError(f"{path} is empty; its first line must name the columns, like m,n,k")
    twice = [name for name in names if name in _COLUMNS and names.count(name) > 1]
    if twice:
        raise InputError(f"{path} has the column '{twice[0]}' twice; name each column once")
    missing = [name for name in ("m", "n", "k") if name not in names]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'; its first line must name m, n and k, like m,n,k")


def _row(path: Path, line: int, row: Mapping[str, str], batch: int, dtype: str) -> tuple[int, int, int, int, str]:
    place = f"{path}, line {line}"
    texts = {name: row.get(name, "").strip() for name in _COLUMNS}
    texts["batch"] = texts["batch"] or str(batch)
    if missing := [name for name in _SIZES if not texts[name]]:
        raise InputError(f"{place}: {missing[0]} is missing; each row needs m, n and k, like 8192,8192,8192")
    from weft.plan.tune.lists import whole_size

    m, n, k, count = (whole_size(place, name, texts[name]) for name in _SIZES)
    named = (texts["dtype"] or dtype).lower()
    if named not in DTYPE_BYTES:
        raise InputError(f"{place}: {UnknownNameError('dtype', named, DTYPE_BYTES)}")
    return m, n, k, count, named


def collective_sizes(text: str) -> tuple[str, FloatArray]:
    """Parse the name and sizes [bytes] of "all_reduce:256MiB", a list "...:1MiB,8MiB" or a range "...:1MiB..1GiB".

    A range is its first size, every doubling below its last, and its last. Raises InputError for anything else.
    """
    name, colon, sizes = text.partition(":")
    if not (name.strip() and colon and sizes.strip()):
        raise InputError(f"'{text}' is no collective with a size; write it like all_reduce:256MiB")
    return name.strip(), np.array([size for part in sizes.split(",") for size in _range(part.strip())])


def _range(text: str) -> Iterator[float]:
    first, dots, last = text.partition("..")
    if last.startswith(".") or ".." in last:
        raise InputError(f"'{text}' is no range of sizes; write it with two dots, like 1MiB..1GiB")
    start = _buffer(first)
    end = _buffer(last) if dots else start
    if start > end:
        raise InputError(f"'{text}' is no range of sizes; write the smaller first, like 1MiB..1GiB")
    while start < end:
        yield start
        start *= 2
    yield end


def _buffer(text: str) -> float:
    size = parse(text, Dimension.BYTES)
    if size < 1:
        raise InputError(f"'{text.strip()}' is too small; a size must be at least 1 B")
    if size > _LARGEST_BUFFER:
        raise InputError(f"'{text.strip()}' is too large; a size must be at most 1 PiB")
    if size != int(size):
        raise InputError(f"'{text.strip()}' is {size:.10g} bytes; a size must be a whole number of them")
    return size


def dimensions(assignments: Sequence[str]) -> dict[str, int]:
    """Parse dimensions from ("rows=4096", "columns=2048"); InputError unless each assigns a whole number."""
    sizes: dict[str, int] = {}
    for text in assignments:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value.isdecimal()):
            raise InputError(f"'{text}' gives no dimension a whole number; write it like rows=4096,columns=2048")
        if len(value) > 15:
            raise InputError(f"{name} is {shorten_digits(value)}; it must have at most 15 digits")
        if name in sizes:
            raise InputError(f"{name} is given twice; give each dimension once")
        sizes[name] = int(value)
    return sizes


_REACH = r"(?:,reach(\d+)(?:/(\d+))?)?"
_EXPERTS = re.compile(r"(\d+)x(\d+)x(\d+),top(\d+)/(\d+)" + _REACH)


def layer_of_experts(text: str) -> dict[str, int]:
    """Parse experts "4096x7168x2048,top8/256": tokens of each rank, hidden size, inner width, top 8 of 256 experts.

    With ",reach4/8" those of a token are of 4 out of 8 groups (group-limited routing), with ",reach4" on 4 GPUs.
    """
    found = _EXPERTS.fullmatch(text.replace(" ", ""))
    if not found:
        raise InputError(
            f"'{shorten_digits(text)}' is no layer of experts; write tokens of each rank x hidden size x inner width, "
            "and "
            "top-k / experts, like 4096x7168x2048,top8/256, or ...,reach4/8 if those of a token are of 4 of 8 groups"
        )
    names = ("tokens", "hidden", "ffn", "top_k", "experts", "reach", "groups")
    return dict(zip(names, map(int, found.groups(default="0")), strict=True))


def parse_routing(sizes: Mapping[str, int], ranks: int, of: float | tuple[float, ...] | None) -> Routing:
    """Return how tokens reach experts under loads as `loads_of` parses them; evenly if none are given."""
    what = dict(sizes)
    if groups := what.pop("groups", 0):
        check_groups(what["top_k"], what["experts"], what["reach"], groups)
        what["reach"] = gpus_reached(what["reach"], groups, ranks, what["top_k"])
    return Routing.under(of or (), **what, ranks=ranks)


def routed_graph(layer: Mapping[str, int], ranks: int, of: float | tuple[float, ...] | None, dtype: str) -> Graph:
    """The layer of experts that `layer_of_experts` parsed on `ranks` GPUs, with loads as `loads_of` parsed them."""
    sizes = dict(layer)
    hidden, ffn = sizes.pop("hidden"), sizes.pop("ffn")
    return experts(parse_routing(sizes, ranks, of), hidden, ffn, dtype)


_EXCHANGE = re.compile(r"(\w+):(\d+)x(\d+),top(\d+)/(\d+)" + _REACH)


def parse_exchange(text: str) -> dict[str, Any]:
    """Parse an exchange "dispatch:4096x7168,top8/256": tokens of each rank, hidden size, and top 8 of 256 experts.

    With ",reach4/8" those of a token are of 4 out of 8 groups (group-limited routing), with ",reach4" on 4 nodes.
    """
    found = _EXCHANGE.fullmatch(text.replace(" ", ""))
    if not found:
        raise InputError(
            f"'{shorten_digits(text)}' is no exchange; write tokens of each rank x hidden size, and top-k / experts, "
            "like "
            "dispatch:4096x7168,top8/256"
        )
    operation, *numbers, few, groups = found.groups()
    sizes = dict(zip(("tokens", "hidden", "top_k", "experts"), map(int, numbers), strict=True))
    reach = (int(few), int(groups)) if groups else int(few) if few else None
    return {"operation": operation, **sizes, "reach": reach}
