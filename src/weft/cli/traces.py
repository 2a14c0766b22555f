"""`weft import`: a run that PyTorch's profiler recorded, alone or beside what a GPU would take."""

from __future__ import annotations

from functools import partial
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
@option("--graph", "Write the operators as a graph to this file, which 'weft step' times.",
        click.Path(path_type=Path), metavar="FILE")  # fmt: skip
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the operators as CSV.")
@folder_option("Write report.html with the pictures, and trace.json, to this folder.", "trace.json")
@pass_outputs
def import_(outputs: Outputs, /, trace: Path, compare: str | None, graph: Path | None) -> None:
    """Read TRACE, which PyTorch's profiler exported: where the time went, and where it need not have gone.

    Record it with record_shapes=True, so that kernels are known by what they compute. Files of any size are read.
    """
    from weft.view import recorded as shown

    found = weft.read_trace(trace)
    if graph is not None:
        weft.write_graph(found.graph, graph)
    if compare is None:
        rows, parts, page = shown.group_table(found), shown.trace_parts(found), partial(shown.trace_page, found)
        written = json_of(found)
    else:
        answer = weft.compare_trace(found, compare)
        rows, parts = shown.compared_table(answer), shown.comparison_parts(answer)
        written, page = json_of(answer), partial(shown.comparison_page, answer)
    outputs.show(parts, written, rows=rows.records(), files={"trace.json": written}, page=page)
