"""`weft models`: which models there are, their dimensions, and the sub-layers that they are studied with."""

from __future__ import annotations

import json
from typing import Any

import click

from weft import units
from weft.cli.options import examples
from weft.graph import Collective, Gemm, Graph
from weft.models import SUBLAYERS, Transformer, load_model, model_names
from weft.parallel import sublayer
from weft.view.table import Table, number, text
from weft.view.terminal import print_table
from weft.view.words import sourced_table

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
    sizes = [number(name, format_="d") for name in ("hidden", "layers", "tokens")]
    rows = [(m.name, m.title, m.hidden, m.layers, m.tokens, _degrees(m)) for m in known]
    print_table(Table([text("name"), text("title"), *sizes, number("tp", "TP", format_=str)], rows, "Models"))


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
    print_table(sourced_table(f"{model.name}: {model.title}", "dimension", values, model.provenance))
    columns = [
        text("tp", "TP"), text("sublayer", "sub-layer"), text("what"),
        *(number(size, size.upper(), format_="d") for size in "mnk"),
        number("gflop", "GFLOP", format_=".1f"), number("payload_bytes", "payload", format_=_size),
    ]  # fmt: skip
    print_table(Table(columns, list(map(_row, layers)), "Sub-layers, on each GPU"))


def _size(payload: int) -> str:
    return units.format_bytes(payload, digits=4)


def _parts(layer: Graph) -> tuple[str, Gemm, int]:
    """A sub-layer's name, its GEMM, and what its all-reduce adds up [bytes]."""
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


def _as_json(model: Transformer, layers: list[Graph]) -> dict[str, Any]:
    provenance = {key: found.model_dump() for key, found in model.provenance.items()}
    return _dimensions(model) | {"provenance": provenance, "sublayers": [_layer(layer) for layer in layers]}


def _layer(layer: Graph) -> dict[str, Any]:
    name, gemm, payload = _parts(layer)
    shape = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "dtype": gemm.dtype, "flops": gemm.flops}
    return {"tp": layer.ranks, "name": name, **shape, "payload_bytes": payload}
