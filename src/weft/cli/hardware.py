"""`weft hardware`: which machines there are, and where each of their values comes from."""

from __future__ import annotations

import json
from typing import Any

import click

from weft import hardware as machines
from weft.cli.tables import print_sourced, print_table
from weft.hardware import Gpu, Provenance


@click.group()
def hardware() -> None:
    """List and show GPUs, each value with its unit and source."""


@hardware.command("list", epilog="Example: weft hardware list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_machines(as_json: bool) -> None:
    """List the GPUs of the catalogue."""
    gpus = [machines.load(name) for name in machines.names()]
    if as_json:
        about = [{"name": gpu.name, "title": gpu.title, "description": gpu.description} for gpu in gpus]
        click.echo(json.dumps(about, indent=2))
        return
    print_table("GPUs", ["name", "description"], [[gpu.name, gpu.description] for gpu in gpus])


@hardware.command("show", epilog="Example: weft hardware show t3-paper")
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def show_machine(name: str, as_json: bool) -> None:
    """Show every value of a GPU: its path (for --set), unit, kind, plausible range and source."""
    gpu = machines.load(name)
    if as_json:
        click.echo(json.dumps(gpu_as_json(gpu), indent=2))
        return
    values = {path: gpu.text(path) for path in gpu.paths()}
    print_sourced(f"{gpu.name}: {gpu.description}", "path", values, gpu.provenance)


def gpu_as_json(gpu: Gpu) -> dict[str, Any]:
    """A GPU as plain data, every value with its base unit and provenance."""
    values = [_value_as_json(gpu, path, gpu.provenance.get(path)) for path in gpu.paths()]
    return {"name": gpu.name, "title": gpu.title, "description": gpu.description, "values": values}


def _value_as_json(gpu: Gpu, path: str, provenance: Provenance | None) -> dict[str, Any]:
    known = provenance.model_dump(exclude={"text"}) if provenance else {}
    unit = machines.quantities()[path].dimension.value
    return {"path": path, "value": gpu.value(path), "unit": unit, "text": gpu.text(path), **known}
