"""`weft hardware`: which GPUs and systems there are, and where each of their values comes from."""

from __future__ import annotations

from typing import Any

import click

from weft import hardware as machines
from weft.cli.options import examples
from weft.cli.output import json_or_tables
from weft.cli.values import MACHINE_NAME
from weft.errors import UnknownNameError
from weft.hardware import Gpu, Node, Provenance
from weft.report.table import Table, number, text
from weft.units import format_bytes, format_rate
from weft.view.words import sourced_table


def _bytes_per_s(rate: float) -> str:
    return format_rate(rate, 3)


_GPU_COLUMNS = (
    text("name"), text("title", spare=True), number("compute_units", "units", format_="d"),
    number("bf16_tflops", "bf16 TFLOP/s", format_=".0f"), number("memory_bytes", "memory", format_=format_bytes),
    number("memory_bytes_per_s", "memory rate", format_=_bytes_per_s, spare=True),
    number("cache_bytes", "cache", format_=format_bytes, spare=True), number("links", "links, one way", format_=str),
)  # fmt: skip
_SYSTEM_COLUMNS = (
    text("name"), text("title", spare=True), text("gpu", "GPU"), number("gpus", "GPUs"), text("topology", "joined by"),
    text("network", "network per GPU", prose=True),
)  # fmt: skip


@click.group(epilog=examples("weft hardware show h100-sxm"))
def hardware() -> None:
    """List and show GPUs and systems, each value with its unit and source."""


@hardware.command("list", epilog=examples("weft hardware list"))
@json_or_tables
def list_machines() -> tuple[Any, list[Table]]:
    """List the GPUs of the catalogue and the systems that hold them."""
    gpus = [machines.gpu(name) for name in machines.gpu_names()]
    systems = machines.known_nodes()
    return [*map(_gpu_entry, gpus), *map(_system_entry, systems)], [
        Table(_GPU_COLUMNS, list(map(_gpu_row, gpus)), "GPUs"),
        Table(_SYSTEM_COLUMNS, list(map(_system_row, systems)), "Systems"),
    ]


@hardware.command(
    "show", short_help="Show every value, with its unit and source.", epilog=examples("weft hardware show t3-paper")
)
@click.argument("name", type=MACHINE_NAME)
@json_or_tables
def show_machine(name: str) -> tuple[Any, list[Table]]:
    """Show every value of a GPU or system: its path (for --set), unit, kind, plausible range and source.

    A "peak" value is a data sheet's, an "achieved" one was measured under load, a "calibrated" one was fitted.
    """
    found = _find(name)
    texts = {path: found.text(path) for path in (found.rules() if isinstance(found, Gpu) else found.provenance)}
    entry = _gpu_entry(found) if isinstance(found, Gpu) else _system_entry(found)
    values = [_value_entry(found, path, found.provenance.get(path)) for path in texts]
    return {**entry, "values": values}, [sourced_table(_headline(found), "path", texts, found.provenance)]


def _find(name: str) -> Gpu | Node:
    """The GPU or node with that name or file, or the node that "8xH100" means; UnknownNameError suggests others."""
    if name not in machines.node_names():
        try:
            return machines.gpu(name)
        except UnknownNameError as error:
            if error.kind != "GPU" or error.name != name:
                raise
    found = machines.system(name)
    return found.node or found.gpu


def _headline(found: Gpu | Node) -> str:
    also = f" Also known as {', '.join(found.aliases)}." if found.aliases else ""
    gpu = f" Its GPU: {found.gpu.name}." if isinstance(found, Node) else ""
    return f"{found.name}: {found.description}{gpu}{also}"


def _gpu_row(gpu: Gpu) -> tuple[Any, ...]:
    link = f"{gpu.link.links} x, " if gpu.link.links else "PCIe, "
    rate = gpu.matrix_rate("bf16") / 1e12 if gpu.supports("bf16") else None
    memory, links = gpu.memory, link + _bytes_per_s(gpu.link.bandwidth)
    amounts = (rate, memory.capacity, memory.bandwidth, gpu.cache.capacity)
    return gpu.name, gpu.title, gpu.compute.compute_units, *amounts, links


def _system_row(system: Node) -> tuple[Any, ...]:
    joined = system.topology + (", which reduces" if system.switch_reduces else "")
    network = f"{_bytes_per_s(system.network.bandwidth)}, {system.network.kind}"
    return system.name, system.title, system.gpu.name, system.gpus_per_node, joined, network


def _gpu_entry(gpu: Gpu) -> dict[str, Any]:
    return {
        **_about("gpu", gpu),
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "compute_units": gpu.compute.compute_units,
        "peak_flops": {dtype: gpu.matrix_rate(dtype) for dtype in machines.DTYPES if gpu.supports(dtype)},
        "memory_bytes": gpu.memory.capacity,
        "memory_bandwidth": gpu.memory.bandwidth,
        "cache_bytes": gpu.cache.capacity,
        "links": gpu.link.links,
        "link_bandwidth": gpu.link.bandwidth,
    }


def _system_entry(system: Node) -> dict[str, Any]:
    return {
        **_about("system", system),
        "gpu": system.gpu.name,
        "gpus_per_node": system.gpus_per_node,
        "topology": system.topology,
        "switch_reduces": system.switch_reduces,
        "network": system.network.model_dump(),
    }


def _about(kind: str, found: Gpu | Node) -> dict[str, Any]:
    names = {"name": found.name, "title": found.title, "description": found.description}
    return {"kind": kind, **names, "aliases": list(found.aliases)}


def _value_entry(found: Gpu | Node, path: str, provenance: Provenance | None) -> dict[str, Any]:
    """A value in its base unit, with its provenance."""
    known = provenance.model_dump(exclude={"text"}) if provenance else {}
    rule = found.rules()[path]
    unit = rule.dimension.value if rule else ""
    return {"path": path, "value": found.value(path), "unit": unit, "text": found.text(path), **known}
