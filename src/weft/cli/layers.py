"""Predicted layers: on which system with which GPU, as a table, as JSON and as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from weft.cli.bounds import notes
from weft.cli.options import machine
from weft.cli.predictions import Predicted, answer, where
from weft.cli.tables import print_table
from weft.hardware import SystemMatch, find_system, parse_assignment
from weft.predict.layer import LayerPrediction
from weft.units import format_time


def system_with(name: str, gpu: str | None, assignments: tuple[str, ...]) -> SystemMatch:
    """The system of that name, with another GPU in the place of its own, or with changed values of it."""
    found = find_system(name)
    if gpu is not None:
        return SystemMatch(found.machine.with_gpu(machine(gpu, assignments)), found.gpus, found.nodes)
    changed = found.gpu.with_values(dict(map(parse_assignment, assignments)))
    return SystemMatch(found.machine.with_gpu(changed), found.gpus, found.nodes)


def print_layer(layer: LayerPrediction) -> None:
    """Print a layer operator by operator, with each one's share, and what to know about it."""
    rows = []
    for entry in layer.operators:
        one = Predicted(entry.name, {}, entry.prediction)
        share = f"{entry.seconds / layer.seconds:.1%}"
        rows.append([entry.name, entry.about, *answer(one, 0), share, where(one, 0)])
    rows.append(["total", "", format_time(layer.seconds, digits=4), "", "", ""])
    columns = ["operator", "what", "time", "bound", "share", "where the time goes"]
    print_table(layer.title, columns, rows, numbers=("time", "share"))
    for line in notes([(entry.prediction, 0) for entry in layer.operators]):
        click.echo(line)
    for note in layer.notes:
        click.echo(f"note: {note}")


def records(layers: Mapping[str, LayerPrediction]) -> list[dict[str, Any]]:
    """The record of each layer with its system."""
    return [{"system": name, **layer.record()} for name, layer in layers.items()]
