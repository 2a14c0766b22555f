"""`weft export`: a graph in the files of other tools."""

from __future__ import annotations

from pathlib import Path

import click

import weft
from weft.cli.options import examples, option
from weft.cli.output import Outputs, file_option, pass_outputs
from weft.files import write_json
from weft.units import format_bytes

_EXAMPLE = "weft export llama.graph.jsonl.gz --chakra out/chakra --ranks 8 --system h100-sxm"


@click.command(epilog=examples(_EXAMPLE))
@click.argument("graph", type=click.Path(path_type=Path))
@option("--chakra", "Folder for workload.RANK.et, one file for each rank, as ASTRA-sim reads them.",
        click.Path(path_type=Path, file_okay=False), metavar="FOLDER", required=True)  # fmt: skip
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
