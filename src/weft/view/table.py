"""The tables of `weft.report`, under their earlier name."""

from weft.report.table import (
    NONE,
    Column,
    Shown,
    Table,
    csv_text,
    key_of,
    microseconds,
    number,
    plain,
    text,
    texts,
    times_faster,
)

__all__ = [
    "NONE",
    "Column",
    "Shown",
    "Table",
    "csv_text",
    "key_of",
    "microseconds",
    "number",
    "plain",
    "text",
    "texts",
    "times_faster",
]
