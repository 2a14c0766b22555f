"""`weft models`: which models there are, their dimensions, and the sub-layers that studies run."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from weft.cli.options import examples
from weft.cli.output import json_or_tables
from weft.cli.values import MODEL_NAME
from weft.graph import Collective, Gemm, Graph
from weft.models import SUBLAYERS, Transformer, load_model, model_names
from weft.parallel import sublayer
from weft.report.table import Table, number, text
from weft.units import format_bytes
from weft.view.words import sourced_table

_SIZES = {"layers": "layers", "hidden": "hidden", "sequence_length": "context"}
_COLUMNS = (
    text("tp", "TP"),
    text("sublayer", "sub-layer"),
    text("what"),
    *(number(size, size.upper(), format_="d") for size in "mnk"),
    number("gflop", "GFLOP", format_=".1f"),
    number("payload_bytes", "payload", format_=partial(format_bytes, digits=4)),
)


@click.group(epilog=examples("weft models show t-nlg"))
def models() -> None:
    """List and show models and their sub-layers."""


@models.command("list", epilog=examples("weft models list"))
@json_or_tables
def list_models() -> tuple[Any, list[Table]]:
    """List the models of the catalogue."""
    known = [load_model(name) for name in model_names()]
    billions = [number(name, f"{name} [billion]", format_=".4g") for name in ("parameters", "active")]
    sizes = [number(name, title, format_="d") for name, title in _SIZES.items()]
    columns = [text("name"), text("title"), *billions, *sizes]
    rows = [(m.name, m.title, m.parameters / 1e9, m.active_parameters / 1e9, *_sizes(m)) for m in known]
    return list(map(_dimensions, known)), [Table(columns, rows, "Models")]


@models.command(
    "show", short_help="Show dimensions, with sources, and sub-layers.", epilog=examples("weft models show t-nlg")
)
@click.argument("name", type=MODEL_NAME)
@json_or_tables
def show_model(name: str) -> tuple[Any, list[Table]]:
    """Show a model's dimensions with their sources, and its sub-layers as one GPU computes them."""
    model = load_model(name)
    layers = [sublayer(model, kind, tp) for tp in model.tensor_parallel for kind in SUBLAYERS]
    provenance = {key: found.model_dump() for key, found in model.provenance.items()}
    values = {key: found.text for key, found in model.provenance.items()}
    values.setdefault("heads", str(model.attention_heads))
    title = f"{model.name}: {model.title}, {_counted(model)}"
    tables = [sourced_table(title, "dimension", values, model.provenance)]
    if layers:
        tables.append(Table(_COLUMNS, list(map(_row, layers)), "Sub-layers, on each GPU"))
    return _dimensions(model) | {"provenance": provenance, "sublayers": list(map(_layer, layers))}, tables


def _counted(model: Transformer) -> str:
    """How many parameters a model has, in words."""
    each = f", {model.active_parameters / 1e9:.1f} billion of them for each token" if model.experts else ""
    digits = 1 if model.parameters > 1e10 else 3
    return f"{model.parameters / 1e9:.{digits}f} billion parameters{each}"


def _sizes(model: Transformer) -> tuple[int, ...]:
    return tuple(getattr(model, name) for name in _SIZES)


def _parts(layer: Graph) -> tuple[str, Gemm, int]:
    """Name, GEMM and all-reduce size [bytes] of a sub-layer."""
    gemm, moved = layer["gemm"].op, layer["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return layer.labels["sublayer"], gemm, moved.bytes


def _row(layer: Graph) -> tuple[Any, ...]:
    name, gemm, payload = _parts(layer)
    return layer.ranks, name, layer.labels["title"], gemm.m, gemm.n, gemm.k, gemm.flops / 1e9, payload


def _dimensions(model: Transformer) -> dict[str, Any]:
    counts = {"tokens": model.tokens, "parameters": model.parameters, "active_parameters": model.active_parameters}
    return model.model_dump(mode="json", exclude={"provenance"}) | counts


def _layer(layer: Graph) -> dict[str, Any]:
    name, gemm, payload = _parts(layer)
    shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "flops": gemm.flops}
    return {"tp": layer.ranks, "name": name, **shape, "payload_bytes": payload}
