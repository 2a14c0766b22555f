"""`weft rewrite`: cheaper graphs of a layer or a file, proven equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

import weft
from weft.cli.options import (
    as_run_options,
    clock_option,
    examples,
    on_machine,
    option,
    set_option,
)
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.values import COUNT, DTYPE, SYSTEM_NAME, Value, names
from weft.core.options import RunOptions
from weft.hardware import System
from weft.rewrite.rules import RULES

_LAYER = "weft rewrite llama-3-8b --system h100-sxm --sequence 4096 --out out/rewrite"
_SHARED = (
    "weft rewrite gpt-3 --system 8xa100 --tp 8 --sp --sequence 2048 --rules flash_attention,overlap_reduce_scatter"
)


@click.command(epilog=examples(_LAYER, _SHARED))
@click.argument("work", metavar="MODEL|FILE")
@option("--system", "The machine, such as h100-sxm or 8xh100, see 'weft hardware list'.", SYSTEM_NAME, required=True)
@option("--rules", "Rules to use.  [default: all]", Value("A,B", names, lambda: RULES))
@option("--tp", "GPUs that share the layer of a model.", COUNT)
@option("--sp/--no-sp", "Share the tokens between the GEMMs of --tp, too.", default=None)
@option("--micro-batch", "Sequences of a model's layer.", COUNT)
@option("--sequence", "Tokens of each sequence.  [default: the model's context]", COUNT)
@option("--dtype", "Data type of a model's GEMMs and activations.", DTYPE)
@option("--dropout/--no-dropout", "Whether a model's layer drops elements, as in training.", default=None)
@option("--launch", "Time from one launch by the host to the next.  [default: 1.8 us, of empty kernels]")
@option("--alpha", "Graphs of up to this multiple of the best time are looked at further.", float)
@option("--most", "Most graphs that are costed.", COUNT)
@set_option("every GPU, node or network")
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the steps as CSV.")
@folder_option(
    "Write report.html, rewrite.json and the rewritten model.graph.jsonl to this folder.",
    "rewrite.json",
    "model.graph.jsonl",
)
@as_run_options
@pass_outputs
@on_machine
def rewrite(outputs: Outputs, /, work: str, machine: System, options: RunOptions, **stated: Any) -> None:
    """Find the cheapest way to write the operators of MODEL's layer, or of a graph in FILE, and prove it equal.

    Rules fuse, merge and overlap operators; each step is listed with its gain. A model's layer begins as a framework
    without fused kernels writes it.
    """
    answer = weft.rewrite(work, machine, options=options, **stated)
    outputs.show(
        answer,
        files={"rewrite.json": json_of(answer), "model.graph.jsonl": partial(weft.write_graph, answer.rewritten)},
    )
