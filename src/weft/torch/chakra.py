"""Graphs as Chakra's traces, with the time that each operator takes on a GPU."""

from __future__ import annotations

from pathlib import Path

from weft.core.errors import check_type
from weft.core.options import SUSTAINED, RunOptions
from weft.graph import Collective, Graph, Send
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.step.durations import DurationCache
from weft.torch.traces.export import Exported
from weft.torch.traces.export import write_chakra as write


def write_chakra(
    graph: Graph,
    folder: str | Path,
    ranks: int | None = None,
    on: Described | None = None,
    options: RunOptions = SUSTAINED,
) -> Exported:
    """Write a graph to a folder as Chakra traces `workload.RANK.et`, one for each of `ranks` GPUs (None: the graph's).

    With `on`, a GPU or system, each node that computes states how long it takes there, in closed form [us]; without,
    nodes state their operations and bytes alone. Groups smaller than all ranks are listed in `comm_group.json`. Raises
    InputError for what Chakra has no node for, and without protobuf; UnknownNameError for an unknown system.
    """
    check_type("the graph", graph, Graph, "give a weft.Graph, such as weft.capture answers")
    if on is None:
        return write(graph, folder, ranks)
    known = DurationCache(on if isinstance(on, System) else system(on), options)
    seconds = {
        node.id: known.seconds((node.op, None, None))
        for node in graph
        if not isinstance(node.op, Collective | Send) and (node.op.least_bytes or node.op.flops)
    }
    return write(graph, folder, ranks, seconds)
