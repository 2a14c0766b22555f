"""`weft overlaps`: every overlap method, what it joins, where it applies, what it needs and what times it."""

from __future__ import annotations

from typing import Any

import click

from weft.cli.options import examples, option
from weft.cli.output import json_or_tables
from weft.report.table import Table, texts
from weft.schedule import OVERLAPS, Ideal, Overlap, Sharing
from weft.schedule.methods import PLACES

_EXAMPLES = "weft overlaps list", "weft overlaps list --axis tp"
_SENTENCES = ("name", "timed by", "summary")
_USES = ("name", "joins", "applies to", "forms", "needs")


@click.group(epilog=examples(*_EXAMPLES))
def overlaps() -> None:
    """List the ways to overlap compute and communication."""


@overlaps.command("list", short_help="List the overlaps, each in a sentence.", epilog=examples(*_EXAMPLES))
@option(
    "--axis",
    "Only those of one place: an axis of a training step, or a sub-layer, a pair that co-runs, or a program.",
    click.Choice(PLACES),
    name="place",
)
@json_or_tables
def list_overlaps(place: Any) -> tuple[Any, list[Table]]:
    """List the overlap methods by the names that simulate, predict overlap, step, plan, scale and sweeps take."""
    chosen = [one for one in OVERLAPS.values() if place is None or one.applies(place)]
    title = "Overlap methods" if place is None else f"Overlap methods of {place}"
    sentences = [(one.name, one.timed, one.summary) for one in chosen]
    uses = [(one.name, one.joins, *map(", ".join, (one.places, one.forms, one.needs))) for one in chosen]
    tables = [Table(texts(_SENTENCES), sentences, title), Table(texts(_USES), uses, "What they join, and where")]
    return [_entry(one) for one in chosen], tables


def _entry(one: Overlap) -> dict[str, Any]:
    """An overlap as plain data."""
    ran = one.simulation
    return {
        "name": one.name,
        "summary": one.summary,
        "joins": one.joins,
        "applies_to": list(one.places),
        "forms": list(one.forms),
        "timed_by": one.timed,
        "needs": list(one.needs),
        "kind": "ideal" if isinstance(ran, Ideal) else "simulated" if ran else "closed form",
        "arbiter": None if ran is None or isinstance(ran, Ideal) else ran.arbiter.name,
        "driver": ran.driver if isinstance(ran, Sharing) else None,
        "units_apart": isinstance(ran, Sharing) and ran.partition,
    }
