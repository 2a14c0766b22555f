"""`weft overlaps`: the ways to run a GEMM and a collective, its own or an independent one, on the same GPUs."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.options import examples
from weft.cli.output import json_or_tables
from weft.schedule import PASSES, Ideal, Pass, Sharing
from weft.view.table import Table, texts

_DEPENDENT = "A GEMM and the collective of its own output", ("name", "title", "kind", "arbiter", "summary")
_INDEPENDENT = (
    "A GEMM and an independent collective: weft simulate --gemm ... --beside ...",
    ("name", "title", "driver", "units apart", "summary"),
)


@click.group(epilog=examples("weft overlaps list"))
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


@overlaps.command("list", epilog=examples("weft overlaps list"))
@json_or_tables
def list_overlaps() -> tuple[Any, list[Table]]:
    """List the overlaps of a sub-layer, then those of a GEMM and a collective that do not depend on each other."""
    dependent = [_entry(one) for one in PASSES.values() if not isinstance(one, Sharing)]
    independent = [_entry(one) for one in PASSES.values() if isinstance(one, Sharing)]
    tables = []
    for (title, heads), entries in ((_DEPENDENT, dependent), (_INDEPENDENT, independent)):
        columns = texts(heads)
        tables.append(Table(columns, [[entry[column.key] or "" for column in columns] for entry in entries], title))
    return [*dependent, *independent], tables


def _entry(one: Pass) -> dict[str, str | None]:
    """An overlap as plain data."""
    if isinstance(one, Sharing):
        how = {"kind": "strategy", "driver": one.driver, "units_apart": "yes" if one.partition else None}
    elif isinstance(one, Ideal):
        how = {"kind": "ideal", "arbiter": None}
    else:
        how = {"kind": "simulated", "arbiter": one.arbiter.name}
    return {"name": one.name, "title": one.title, **how, "summary": one.summary}
