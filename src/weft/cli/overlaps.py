"""`weft overlaps`: the ways to run a GEMM and the collective of its output on the same GPUs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.overlap import Overlap


@click.group()
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


@overlaps.command("list", epilog="Example: weft overlaps list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_overlaps(as_json: bool) -> None:
    """List the overlaps: whether each is simulated, and who enters memory first under it."""
    from weft.overlap import OVERLAPS

    about = [_about(overlap) for overlap in OVERLAPS.values()]
    if as_json:
        click.echo(json.dumps(about, indent=2))
        return
    columns = ["name", "title", "kind", "arbiter", "summary"]
    print_table("Overlaps", columns, [[entry[column] or "" for column in columns] for entry in about])


def _about(overlap: Overlap) -> dict[str, str | None]:
    from weft.overlap import Simulated

    simulated = isinstance(overlap, Simulated)
    return {
        "name": overlap.name,
        "title": overlap.title,
        "kind": "simulated" if simulated else "ideal",
        "arbiter": overlap.policy.name if isinstance(overlap, Simulated) else None,
        "summary": overlap.summary,
    }
