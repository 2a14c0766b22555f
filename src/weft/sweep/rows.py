"""Rows of a matrix as a CSV or Parquet file, written one part after the other: memory does not grow with the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from weft.core.errors import InputError, join_or
from weft.core.files import write_csv, written_whole

SUFFIXES = (".csv", ".parquet", ".json", ".html")
"""Endings of the files that a sweep is written to."""
Row = Mapping[str, Any]
_PART = 4096
"""Rows of a Parquet row group."""


@dataclass
class Columns:
    """The columns of rows with the Python types of their values, by name, in the order of the rows.

    Rows may be seen in any order.
    """

    types: dict[str, set[type]] = field(default_factory=dict)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The first row that has the column, and where."""

    def see(self, number: int, row: Row) -> None:
        """Take note of the row of that number."""
        for at, (name, value) in enumerate(row.items()):
            types = self.types.setdefault(name, set())
            if value is not None:
                types.add(type(value))
            self.places[name] = min(self.places.get(name, (number, at)), (number, at))

    @property
    def names(self) -> list[str]:
        """The columns, those of the first row first."""
        return sorted(self.types, key=self.places.__getitem__)

    def kind(self, name: str) -> type:
        """Return the one type that holds every value of a column: bool, int, float or str."""
        types = self.types[name]
        if types <= {bool}:
            return bool if types else str
        if types <= {int}:
            return int
        return float if types <= {int, float} else str


def check_format(path: Path) -> None:
    """Raise InputError for another suffix than those of `SUFFIXES`, or if Parquet's library is missing."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"'{path}' has no suffix that says what to write; end it in {join_or(SUFFIXES)}")
    if path.suffix.lower() == ".parquet":
        _arrow()


def write_rows(path: Path, rows: Iterable[Row], columns: Columns) -> Path:
    """Write rows to a .csv or .parquet file, whole or not at all; missing values are empty.

    Raises OutputError if the file cannot be written, and what `check_format` raises.
    """
    check_format(path)
    write = _write_parquet if path.suffix.lower() == ".parquet" else _write_csv
    with written_whole(path) as part:
        write(part, rows, columns)
    return path


def _write_csv(part: Path, rows: Iterable[Row], columns: Columns) -> None:
    with part.open("w", newline="", encoding="utf-8") as file:
        write_csv(file, rows, columns.names)


def _write_parquet(part: Path, rows: Iterable[Row], columns: Columns) -> None:
    arrow, parquet = _arrow()
    types = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    kinds = {name: columns.kind(name) for name in columns.names}
    schema = arrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    with parquet.ParquetWriter(part, schema) as writer:
        for several in _parts(rows):
            values = {name: [_as(kind, row.get(name)) for row in several] for name, kind in kinds.items()}
            writer.write_table(arrow.table(values, schema))


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while part := list(islice(left, _PART)):
        yield part


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError("Parquet needs pyarrow; run pip install 'weft[parquet]', or write a .csv file") from None
    return pa, pq
