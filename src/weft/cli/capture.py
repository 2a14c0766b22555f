"""`weft capture`: the operators of a PyTorch model's training step, as a graph in a file."""

from __future__ import annotations

from pathlib import Path

import click

import weft
from weft.capture import by_name
from weft.cli.options import examples, option

_EXAMPLE = "weft capture my_module:make_model --input tokens=1x4096:int64 --optimizer AdamW --out model.graph.jsonl.gz"


@click.command(epilog=examples(_EXAMPLE))
@click.argument("maker", metavar="MODULE:FUNCTION")
@option("--input", "An input, such as 8x3x224x224:float32 or, by keyword, input_ids=1x4096:int64; several in order.",
        metavar="[NAME=]SHAPE[:DTYPE]", multiple=True, name="inputs")  # fmt: skip
@option("--optimizer", "A class of torch.optim, such as AdamW.  [default: none]")
@option("--dtype", "Number format of the weights, such as bfloat16.  [default: as they are made]")
@option("--backward/--forward", "The backward pass, too, or the forward pass alone.", default=True)
@option("--out", "File for the graph; a name in .gz is compressed.", click.Path(path_type=Path),
        default=Path("model.graph.jsonl.gz"))  # fmt: skip
def capture(
    maker: str, inputs: tuple[str, ...], optimizer: str | None, dtype: str | None, backward: bool, out: Path
) -> None:
    """Capture a training step of the PyTorch model that FUNCTION of MODULE makes, without a GPU and without weights.

    'weft step' times the file that it writes.
    """
    graph = by_name(maker, inputs, optimizer, dtype, backward=backward)
    path = weft.write_graph(graph, out)
    peak = int(graph.labels["peak_bytes"]) / 1e9
    click.echo(f"{path}: {len(graph):,} operators of {graph}, {peak:,.2f} GB at their peak")
    if graph.labels["assumed"]:
        click.echo(f"note: {graph.labels['assumed']}")
