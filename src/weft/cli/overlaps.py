"""`weft overlaps`: the ways to run a GEMM and a collective, its own or an independent one, on the same GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from weft.cli.options import examples
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.overlap import Overlap, Strategy


@click.group()
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


@overlaps.command("list", epilog=examples("weft overlaps list"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_overlaps(as_json: bool) -> None:
    """List the overlaps of a sub-layer, then those of a GEMM and a collective that do not depend on each other."""
    from weft.overlap import OVERLAPS, STRATEGIES

    joined = [_about(overlap) for overlap in OVERLAPS.values()]
    shared = [_about_strategy(strategy) for strategy in STRATEGIES.values()]
    if as_json:
        click.echo(json.dumps([*joined, *shared], indent=2))
        return
    _print(
        "A GEMM and the collective of its own output", ["name", "title", "kind", "arbiter", "summary"], joined
    )
    columns = ["name", "title", "driver", "units apart", "summary"]
    _print("A GEMM and an independent collective: weft simulate --gemm ... --beside ...", columns, shared)


def _print(title: str, columns: list[str], about: Sequence[Mapping[str, str | None]]) -> None:
    print_table(
        title, columns, [[entry[column.replace(" ", "_")] or "" for column in columns] for entry in about]
    )


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


def _about_strategy(strategy: Strategy) -> dict[str, str | None]:
    return {
        "name": strategy.name,
        "title": strategy.title,
        "kind": "strategy",
        "driver": strategy.driver,
        "units_apart": "yes" if strategy.partition else None,
        "summary": strategy.summary,
    }
