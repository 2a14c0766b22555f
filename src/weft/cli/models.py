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
from weft.units import format_bytes
from weft.view.table import Table, number, text
from weft.view.words import sourced_table

_DIMENSIONS = ("hidden", "layers", "sequence_length", "batch", "ffn_multiple")
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
    sizes = [number(name, format_="d") for name in ("hidden", "layers", "tokens")]
    columns = [text("name"), text("title"), *sizes, number("tp", "TP", format_=str)]
    rows = [(m.name, m.title, m.hidden, m.layers, m.tokens, _degrees(m)) for m in known]
    return list(map(_dimensions, known)), [Table(columns, rows, "Models")]


@models.command("show", epilog=examples("weft models show t-nlg"))
@click.argument("name", type=MODEL_NAME)
@json_or_tables
def show_model(name: str) -> tuple[Any, list[Table]]:
    """Show a model's dimensions with their sources, and its sub-layers as one GPU computes them."""
    model = load_model(name)
    layers = [sublayer(model, kind, tp) for tp in model.tensor_parallel for kind in SUBLAYERS]
    provenance = {key: found.model_dump() for key, found in model.provenance.items()}
    values = {key: str(getattr(model, key)) for key in _DIMENSIONS}
    values |= {"heads": str(model.attention_heads), "tensor_parallel": _degrees(model)}
    return _dimensions(model) | {"provenance": provenance, "sublayers": list(map(_layer, layers))}, [
        sourced_table(f"{model.name}: {model.title}", "dimension", values, model.provenance),
        Table(_COLUMNS, list(map(_row, layers)), "Sub-layers, on each GPU"),
    ]


def _parts(layer: Graph) -> tuple[str, Gemm, int]:
    """A sub-layer's name, its GEMM, and the buffer of its all-reduce [bytes]."""
    gemm, moved = layer["gemm"].op, layer["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return layer.labels["sublayer"], gemm, moved.bytes


def _row(layer: Graph) -> tuple[Any, ...]:
    name, gemm, payload = _parts(layer)
    return layer.ranks, name, layer.labels["title"], gemm.m, gemm.n, gemm.k, gemm.flops / 1e9, payload


def _degrees(model: Transformer) -> str:
    return ", ".join(map(str, model.tensor_parallel))


def _dimensions(model: Transformer) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude={"provenance"}) | {"tokens": model.tokens}


def _layer(layer: Graph) -> dict[str, Any]:
    name, gemm, payload = _parts(layer)
    shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "flops": gemm.flops}
    return {"tp": layer.ranks, "name": name, **shape, "payload_bytes": payload}
