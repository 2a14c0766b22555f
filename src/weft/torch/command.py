"""`weft capture`, `import` and `export`: your own programs and traces."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

import weft
from weft.cli.options import examples, option
from weft.cli.output import Outputs, file_option, pass_outputs, shows
from weft.cli.progress import progress_bar
from weft.cli.values import Value
from weft.core.answer import Answer
from weft.core.errors import InputError, show_value
from weft.core.files import write_json
from weft.core.units import format_bytes

_CAPTURE = "weft capture my_module:make_model --input tokens=1x4096:int64 --optimizer AdamW --out model.graph.jsonl.gz"
_COMPARE = "weft import trace.json.gz --compare h100-sxm --out out/trace"
_RANKS = "weft import profiles/iteration_10 --out out/ranks"
_GRAPH = "weft import trace.json.gz --graph step.graph.jsonl.gz"
_EXPORT = "weft export llama.graph.jsonl.gz --chakra out/chakra --ranks 8 --system h100-sxm"


@click.command(epilog=examples(_CAPTURE))
@click.argument("maker", metavar="MODULE:FUNCTION")
@option(
    "--input",
    "An input, such as 8x3x224x224:float32 or, by keyword, input_ids=1x4096:int64; several in order.",
    metavar="[NAME=]SHAPE[:DTYPE]",
    multiple=True,
    name="inputs",
)
@option("--optimizer", "A class of torch.optim, such as AdamW.  [default: none]")
@option("--dtype", "Number format of the weights, such as bfloat16.  [default: as they are made]")
@option("--backward/--forward", "The backward pass, too, or the forward pass alone.", default=True)
@option(
    "--out",
    "File for the graph; a name in .gz is compressed.",
    click.Path(path_type=Path),
    default=Path("model.graph.jsonl.gz"),
)
def capture(
    maker: str, inputs: tuple[str, ...], optimizer: str | None, dtype: str | None, backward: bool, out: Path
) -> None:
    """Capture a training step of the PyTorch model that FUNCTION of MODULE makes, without a GPU and without weights.

    'weft step' times the file that it writes.
    """
    from weft.torch.capture import by_name

    graph = by_name(maker, inputs, optimizer, dtype, backward=backward)
    path = weft.write_graph(graph, out)
    peak = int(graph.labels["peak_bytes"]) / 1e9
    click.echo(f"{path}: {len(graph):,} operators of {graph}, {peak:,.2f} GB at their peak")
    if graph.labels["assumed"]:
        click.echo(f"note: {graph.labels['assumed']}")


_MOST_RANKS = 1 << 20


def _rank_numbers(words: str) -> frozenset[int]:
    """Return the numbers of a list such as "0,1,8-15"."""
    found: set[int] = set()
    for word in words.split(","):
        first, dash, last = word.strip().partition("-")
        ends = [int(end) for end in (first, last if dash else first) if end.isdecimal() and len(end) < 8]
        if len(ends) < 2 or not ends[0] <= ends[1] < _MOST_RANKS:
            raise InputError(f"--ranks has {show_value(word)}; give numbers and ranges from 0, such as 0,1,8-15")
        found.update(range(ends[0], ends[1] + 1))
    return frozenset(found)


@click.command("import", epilog=examples(_COMPARE, _RANKS, _GRAPH))
@click.argument("trace", type=click.Path(path_type=Path))
@option("--compare", "Time the operators on this GPU or system, too.", metavar="SYSTEM")
@option(
    "--graph",
    "Write the operators as a graph to this file (.jsonl or .jsonl.gz), which 'weft step' times.",
    click.Path(path_type=Path),
    metavar="FILE",
)
@option(
    "--ranks", "Read these ranks of a folder, such as 0,1,8.  [default: all of the run]", Value("LIST", _rank_numbers)
)
@shows(
    "trace.json",
    csv="Write the operators, or the ranks, as CSV.",
    out="Write report.html with the pictures, and trace.json, to this folder.",
)
def import_(trace: Path, compare: str | None, graph: Path | None, ranks: tuple[int, ...] | None) -> Answer:
    """Read TRACE, what a profiler recorded: where the time went, and where it need not have gone.

    TRACE is a file of torch.profiler (record_shapes=True names what kernels compute), of Nsight Systems (nsys export
    --type sqlite) or of rocprofv3 (kernel_trace.csv or JSON), or a folder with a file for each rank: then also how much
    communication each rank exposes, and which rank the others wait for. Files of any size are read.
    """
    from weft.torch.traces import Trace

    with progress_bar("import") as progress:
        timed = None if compare is None else partial(weft.compare_trace, on=weft.system(compare))
        found = weft.read_traces(trace, ranks, timed, progress)
    if not isinstance(found, Trace):
        if graph is not None:
            raise InputError(
                f"'{trace}' holds {len(found.ranks)} ranks, and --graph writes one; name the file of a rank"
            )
        return found
    if graph is not None:
        weft.write_graph(found.graph, graph)
    return found if compare is None else weft.compare_trace(found, compare)


@click.command(epilog=examples(_EXPORT))
@click.argument("graph", type=click.Path(path_type=Path))
@option(
    "--chakra",
    "Folder for workload.RANK.et, one file for each rank, as ASTRA-sim reads them.",
    click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    required=True,
)
@option("--ranks", "GPUs, a multiple of the graph's.  [default: as many as the graph has]", click.IntRange(1))
@option("--system", "GPU or system on which operators are timed.  [default: no times]")
@file_option("--json", "Write what was exported as JSON.")
@pass_outputs
def export(outputs: Outputs, /, graph: Path, chakra: Path, ranks: int | None, system: str | None) -> None:
    """Write GRAPH, a file that 'weft capture' or 'weft import' wrote or a trace, as Chakra's execution traces.

    Nodes state operations, bytes and messages; with --system, also how long they take there.
    """
    made = weft.write_chakra(weft.read_graph(graph), chakra, ranks, system)
    size = sum(path.stat().st_size for path in made.files)
    answer = {
        "files": [str(path) for path in made.files],
        "groups": made.groups and str(made.groups),
        "nodes": list(made.nodes),
        "bytes": size,
    }
    said = f"{sum(made.nodes):,} nodes of {len(made.files)} ranks, {format_bytes(size, 3)}: {chakra}/workload.*.et"
    groups = [f"Groups of ranks: {made.groups}"] if made.groups else []
    outputs.show([said, *groups], lambda file: write_json(file, answer))
