"""`weft overlaps`: the ways to run a GEMM and a collective, its own or an independent one, on the same GPUs."""

from __future__ import annotations

import json

import click

from weft.cli.options import examples
from weft.view.table import Table, texts
from weft.view.terminal import print_table

_JOINED = ("name", "title", "kind", "arbiter", "summary")
_SHARED = ("name", "title", "driver", "units apart", "summary")


@click.group()
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


@overlaps.command("list", epilog=examples("weft overlaps list"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_overlaps(as_json: bool) -> None:
    """List the overlaps of a sub-layer, then those of a GEMM and a collective that do not depend on each other."""
    from weft.schedule import PASSES, Ideal, Sharing

    joined, shared = [], []
    for one in PASSES.values():
        about: dict[str, str | None] = {"name": one.name, "title": one.title}
        if isinstance(one, Sharing):
            apart = "yes" if one.partition else None
            about |= {"kind": "strategy", "driver": one.driver, "units_apart": apart}
            shared.append(about | {"summary": one.summary})
        else:
            ideal = isinstance(one, Ideal)
            about |= {
                "kind": "ideal" if ideal else "simulated",
                "arbiter": None if ideal else one.arbiter.name,
            }
            joined.append(about | {"summary": one.summary})
    if as_json:
        click.echo(json.dumps([*joined, *shared], indent=2))
        return
    for title, heads, rows in (
        ("A GEMM and the collective of its own output", _JOINED, joined),
        ("A GEMM and an independent collective: weft simulate --gemm ... --beside ...", _SHARED, shared),
    ):
        columns = texts(heads)
        print_table(Table(columns, [[row[column.key] or "" for column in columns] for row in rows], title))
