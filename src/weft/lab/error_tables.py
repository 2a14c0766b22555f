"""Tables of a validation's errors, demands and worst rows, from its plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.report.table import Shown, Table, number, text

Row = Mapping[str, Any]

STATISTICS = ("rows", "mean_abs_err", "median_abs_err", "p90_abs_err", "bias", "geomean_err", "max_abs_err")
_CLOSE = 0.001
_ALSO = ("machine", *STATISTICS)
_CASE = ("gpu", "system", "collective", "pattern", "op", "ranks", "bytes", "dtype", "m", "n", "k")


def errors_table(groups: Sequence[Row], title: str = "") -> Table:
    """Groups and their errors; keys that are the same for all groups have no column."""
    names = [name for name in dict.fromkeys(name for group in groups for name in group) if _tells(groups, name)]
    keys = ("rows", "mean_abs_err", "median_abs_err", "p90_abs_err", "bias", "geomean_err")
    rows = [
        (*("" if group.get(name) is None else str(group[name]) for name in names), *(group[key] for key in keys))
        for group in groups
    ]
    heads = ("rows", "mean", "median", "p90", "bias", "geomean")
    formats = {"rows": ",", "bias": "+.1%"}
    errors = [number(key, head, format_=formats.get(key, ".1%")) for key, head in zip(keys, heads, strict=True)]
    return Table([*map(text, names), *errors], rows, title)


def _tells(groups: Sequence[Row], name: str) -> bool:
    return name not in _ALSO and any(group.get(name) not in (None, "") for group in groups)


def without_rows(lines: Sequence[Row]) -> str:
    """Return how many demands have no rows and are left out, as a sentence; empty if none."""
    silent = sum(not line["rows"] for line in lines)
    if not silent:
        return ""
    which = "are left out: no row is about them" if silent > 1 else "is left out: no row is about it"
    return f"{silent} of {len(lines)} demands {which}"


def bar_table(lines: Sequence[Row]) -> Table:
    """Each demand that has rows: its limit, the value reached, and the verdict."""
    rows = [
        (
            line["what"],
            line["protocol"],
            f"{line['statistic']} {'>=' if line['at_least'] else '<='} {line['limit']:.1%}",
            Shown(line["reached"], _value_words(line)),
            line["rows"],
            line["verdict"],
        )
        for line in lines
        if line["rows"]
    ]
    columns = [
        text("what"), text("protocol", "rows counted"), text("limit", "must be"), number("reached", "is"),
        number("rows"), text("verdict", prose=True),
    ]  # fmt: skip
    return Table(columns, rows, "What must be reached")


def _value_words(line: Row) -> str:
    """The value reached, with enough digits to distinguish it from the limit."""
    close = abs(line["reached"] - line["limit"]) < _CLOSE
    return f"{line['reached']:.{2 if close else 1}%}"


def streams_table(streams: Sequence[Row]) -> Table:
    """Bandwidth and mean read latency of each stream of memory requests: the engine's and each simulator's."""
    values = ("weft", *dict.fromkeys(name for row in streams for name in row if name not in _STREAM))
    scale = {"bandwidth": 1e-9, "read latency": 1e9}
    unit = {"bandwidth": "GB/s", "read latency": "ns"}
    rows = [
        (
            row["stream"],
            row["requests"],
            f"{row['quantity']}, {unit[row['quantity']]}",
            *(row[name] * scale[row["quantity"]] if name in row else None for name in values),
        )
        for row in streams
    ]
    columns = [text("stream"), text("requests"), text("quantity"), *(number(name, format_=",.2f") for name in values)]
    return Table(columns, rows, "Memory requests on one channel")


_STREAM = ("stream", "requests", "quantity", "weft")


def worst_table(worst: Sequence[Row]) -> Table:
    """The worst rows, with their place in the file."""
    rows = [
        (
            f"{row['file']}:{row['line']}",
            " ".join(str(row[name]) for name in _CASE if row.get(name) not in (None, "")),
            row["measured_s"] * 1e6,
            row["predicted_s"] * 1e6,
            row["error"],
        )
        for row in worst
    ]
    columns = [
        text("row"), text("case"), number("measured_us", "measured", "µs", ",.4g"),
        number("predicted_us", "predicted", "µs", ",.4g"), number("error", format_="+.0%"),
    ]  # fmt: skip
    return Table(columns, rows, "Rows that are furthest off")
