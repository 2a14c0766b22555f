"""The time of a graph of operators, such as a captured training step, on one GPU."""

from __future__ import annotations

from collections import defaultdict

from weft.errors import InputError, check_type
from weft.estimate import estimate
from weft.graph import Call, Collective, Graph, Node, Op, Send
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.options import SUSTAINED, RunOptions
from weft.result.graph_step import BY_BYTES, GraphStep, Share
from weft.run.step.prices import BETWEEN_OTHERS, ROOM
from weft.run.step.spans import class_of

_HOST = "the host is assumed to launch kernels ahead of the GPU, one kernel for each operator"


def graph_step(graph: Graph, on: Described, options: RunOptions = SUSTAINED) -> GraphStep:
    """How long the operators of a graph take on one GPU of a system, in closed form; each distinct one is timed once.

    Raises UnknownNameError for an unknown system, InputError for a graph that communicates.
    """
    check_type("the graph", graph, Graph, "give a weft.Graph, such as weft.capture answers")
    where = on if isinstance(on, System) else system(on)
    if any(isinstance(node.op, Collective | Send) for node in graph):
        raise InputError("the graph sends data between GPUs, and a graph is timed on one; capture the model unsharded")
    roomy = where.replace({"memory.capacity": ROOM})
    known: dict[Op, float] = {}
    for node in graph:
        if node.op not in known:
            known[node.op] = _seconds(node.op, roomy, options)
    ends = graph.critical_path({node.name: known[node.op] for node in graph})
    whole = float(max(end for _, end in ends.values()))
    return GraphStep(graph, where.gpu, whole, _shares(graph, known), _notes(graph, where), ends)


def _seconds(op: Op, roomy: System, options: RunOptions) -> float:
    if not op.least_bytes and not op.flops:
        return 0.0
    return float(estimate(op, roomy, options=options, harness=BETWEEN_OTHERS).seconds)


def _shares(graph: Graph, known: dict[Op, float]) -> tuple[Share, ...]:
    found: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in graph:
        found[node.phase, _kind(node.op)].append(node)
    return tuple(
        Share(
            phase, kind, len(nodes), sum(known[node.op] for node in nodes),
            sum(node.op.flops for node in nodes if node.op.matrix_dtype), sum(node.op.least_bytes for node in nodes),
        )
        for (phase, kind), nodes in found.items()
    )  # fmt: skip


def _kind(op: Op) -> str:
    """The class of an operator; calls without products are timed by their bytes."""
    if not isinstance(op, Call):
        return class_of(op)
    if not op.products:
        return BY_BYTES
    return "convolution" if "convolution" in op.name else "recurrent"


def _notes(graph: Graph, where: System) -> tuple[str, ...]:
    assumed = graph.labels.get("assumed", "")
    one = (f"one GPU of {where.gpus} is used",) if where.gpus > 1 else ()
    return (*one, _HOST, *(assumed.split("; ") if assumed else ()))
