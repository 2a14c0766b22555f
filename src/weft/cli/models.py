"""`weft models`: which models there are, their dimensions, and the sub-layers that they are studied with."""

from __future__ import annotations

import json
from typing import Any

import click

from weft import units
from weft.cli.options import examples
from weft.cli.tables import print_sourced, print_table
from weft.graph import Collective, Gemm, Graph
from weft.models import SUBLAYERS, Transformer, load_model, model_names
from weft.parallel import sublayer
from weft.report.tables import Table

_DIMENSIONS = ("hidden", "layers", "sequence_length", "batch", "ffn_multiple")


@click.group()
def models() -> None:
    """List and show models and their sub-layers."""


@models.command("list", epilog=examples("weft models list"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_models(as_json: bool) -> None:
    """List the models of the catalogue."""
    known = [load_model(name) for name in model_names()]
    if as_json:
        click.echo(json.dumps([_dimensions(model) for model in known], indent=2))
        return
    heads = ("name", "title", "hidden", "layers", "tokens", "TP")
    rows = [[m.name, m.title, f"{m.hidden}", f"{m.layers}", f"{m.tokens}", _degrees(m)] for m in known]
    print_table(Table(heads, rows, text_columns=2, title="Models"))


@models.command("show", epilog=examples("weft models show t-nlg"))
@click.argument("name", metavar="NAME|FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def show_model(name: str, as_json: bool) -> None:
    """Show a model's dimensions with their sources, and its sub-layers as one GPU computes them."""
    model = load_model(name)
    layers = [sublayer(model, kind, tp) for tp in model.tensor_parallel for kind in SUBLAYERS]
    if as_json:
        click.echo(json.dumps(_as_json(model, layers), indent=2))
        return
    values = {key: str(getattr(model, key)) for key in _DIMENSIONS}
    values |= {"heads": str(model.attention_heads), "tensor_parallel": _degrees(model)}
    print_sourced(f"{model.name}: {model.title}", "dimension", values, model.provenance)
    heads = ("TP", "sub-layer", "what", "M", "N", "K", "GFLOP", "payload")
    rows = [_row(layer) for layer in layers]
    print_table(Table(heads, rows, text_columns=3, title="Sub-layers, on each GPU"))


def _parts(layer: Graph) -> tuple[str, Gemm, int]:
    """A sub-layer's name, its GEMM, and what its all-reduce adds up [bytes]."""
    gemm, moved = layer["gemm"].op, layer["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return layer.labels["sublayer"], gemm, moved.bytes


def _row(layer: Graph) -> list[str]:
    name, gemm, payload = _parts(layer)
    shape = map(str, (gemm.m, gemm.n, gemm.k))
    size = units.format_bytes(payload, digits=4)
    return [str(layer.ranks), name, layer.labels["title"], *shape, f"{gemm.flops / 1e9:.1f}", size]


def _degrees(model: Transformer) -> str:
    return ", ".join(map(str, model.tensor_parallel))


def _dimensions(model: Transformer) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude={"provenance"}) | {"tokens": model.tokens}


def _as_json(model: Transformer, layers: list[Graph]) -> dict[str, Any]:
    provenance = {key: found.model_dump() for key, found in model.provenance.items()}
    return _dimensions(model) | {"provenance": provenance, "sublayers": [_layer(layer) for layer in layers]}


def _layer(layer: Graph) -> dict[str, Any]:
    name, gemm, payload = _parts(layer)
    shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "flops": gemm.flops}
    return {"tp": layer.ranks, "name": name, **shape, "payload_bytes": payload}
