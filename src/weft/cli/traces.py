"""`weft import`: a run that PyTorch's profiler recorded, alone or beside what a GPU would take."""

from __future__ import annotations

from pathlib import Path

import click

import weft
from weft.cli.options import examples, option
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs

_COMPARE = "weft import trace.json.gz --compare h100-sxm --out out/trace"
_GRAPH = "weft import trace.json.gz --graph step.graph.jsonl.gz"


@click.command("import", epilog=examples(_COMPARE, _GRAPH))
@click.argument("trace", type=click.Path(path_type=Path))
@option("--compare", "Time the operators on this GPU or system, too.", metavar="SYSTEM")
@option("--graph", "Write the operators as a graph to this file (.jsonl or .jsonl.gz), which 'weft step' times.",
        click.Path(path_type=Path), metavar="FILE")  # fmt: skip
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the operators as CSV.")
@folder_option("Write report.html with the pictures, and trace.json, to this folder.", "trace.json")
@pass_outputs
def import_(outputs: Outputs, /, trace: Path, compare: str | None, graph: Path | None) -> None:
    """Read TRACE, which PyTorch's profiler exported: where the time went, and where it need not have gone.

    Record it with record_shapes=True, so that kernels are known by what they compute. Files of any size are read.
    """
    found = weft.read_trace(trace)
    if graph is not None:
        weft.write_graph(found.graph, graph)
    answer = found if compare is None else weft.compare_trace(found, compare)
    outputs.show(answer, files={"trace.json": json_of(answer)})
