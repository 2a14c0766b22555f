"""The time of a graph of operators, such as a captured training step, on a rank of a system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from weft.core.errors import InputError, check_type
from weft.core.options import SUSTAINED, RunOptions
from weft.graph import Call, Collective, Driver, Graph, Node, Op, Opaque, Send
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.step.durations import DurationCache, Place
from weft.step.result.graph_step import BY_BYTES, OTHER_STREAMS, GraphStep, Share
from weft.step.result.step import Pass, exposed_part
from weft.step.spans import COMPUTE, CONTENTION, class_of, time_nodes
from weft.step.windows import Windows

_HOST = "the host is assumed to launch kernels ahead of the GPU, one kernel for each operator"
_BESIDE = (
    "while a collective runs, GEMMs slow down as their waves of tiles grow beside it; copies on streams of their own "
    "are assumed to slow nothing down"
)
_MAIN = "main"


def graph_step(graph: Graph, on: Described, options: RunOptions = SUSTAINED) -> GraphStep:
    """Return how long the operators of a graph take on one rank, in closed form; equal operators are timed once.

    Operators of one stream run in order, streams at once. Collectives run among as many GPUs of the system as their
    group has ranks; the graph's label "group STREAM" may list the ranks of the group of a stream. Raises
    UnknownNameError for an unknown system, InputError for a graph with more ranks than GPUs, or with messages.
    """
    check_type("the graph", graph, Graph, "give a weft.Graph, such as weft.capture answers")
    where = on if isinstance(on, System) else system(on)
    _check_ranks(graph, where)
    known, places = DurationCache(where, options), _places(graph, where)
    seconds = {node.name: _seconds(node, known, places) for node in graph}
    among = {(node.stream, node.op.ranks): places[node.id] for node in graph if isinstance(node.op, Collective)}
    windows = Windows(lambda stream, ranks: known.among(among[stream, ranks]), {}, "bf16", options, engine=False)
    found = time_nodes(
        graph.map(lambda node: replace(node, stream=COMPUTE) if node.stream == _MAIN else node),
        seconds,
        (lambda kernel, other: windows(kernel, other) if isinstance(other.op, Collective) else (1.0, 1.0))
        if among
        else None,
    )
    return GraphStep(graph, where.gpu, found.seconds, _shares(graph, seconds, found), _notes(graph, where), found.times)


def _check_ranks(graph: Graph, where: System) -> None:
    if any(isinstance(node.op, Send) or node.rank is not None for node in graph):
        raise InputError("ranks of the graph differ, or send messages; give a graph whose ranks all do the same")
    needed = max([graph.ranks, *(node.op.ranks for node in graph if isinstance(node.op, Collective))])
    if needed > where.gpus and needed > 1:
        raise InputError(
            f"the graph is of {needed} ranks, and the system has {where.gpus} GPU{'s' * (where.gpus > 1)}; choose one "
            f"with at least {needed}"
        )


def _places(graph: Graph, where: System) -> Mapping[str, Place]:
    """GPUs, nodes and their distance of the group of every collective, by node."""
    each = where.node.gpus_per_node if where.node else where.gpus
    found: dict[str, Place] = {}
    for node in graph:
        if isinstance(node.op, Collective):
            listed = [int(rank) for rank in graph.labels.get(f"group {node.stream}", "").split()]
            ranks = listed if len(listed) == node.op.ranks else range(node.op.ranks)
            held = sorted({rank // each for rank in ranks})
            thin = where.node and where.node.network.oversubscribed and len(held) > 1
            found[node.id] = node.op.ranks, len(held), held[1] - held[0] if thin else 1
    return found


def _seconds(node: Node, known: DurationCache, places: Mapping[str, Place]) -> float:
    if np.ndim(node.op.least_bytes):
        raise InputError(f"{node.name} has an array of sizes; a step times one of each, weft.estimate takes arrays")
    measured = node.op.seconds if isinstance(node.op, Opaque) else 0.0
    if not node.op.least_bytes and not node.op.flops:
        return measured
    return known.seconds((node.op, places.get(node.id), Driver.CU if node.id in places else None))


def _shares(graph: Graph, seconds: Mapping[str, float], found: Pass) -> tuple[Share, ...]:
    """Return the operators of the compute stream by phase and class, then what communication adds to them."""
    kernels: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
    others: defaultdict[str, list[Node]] = defaultdict(list)
    for node in graph:
        if node.stream in (_MAIN, COMPUTE):
            kernels[node.phase, _kind(node.op)].append(node)
        else:
            others[node.stream].append(node)
    shares = [
        _share(phase, kind, nodes, sum(seconds[node.name] for node in nodes))
        for (phase, kind), nodes in kernels.items()
    ]
    for stream, nodes in others.items():
        late = found.parts.get(exposed_part(stream), 0.0)
        shares.append(_share(OTHER_STREAMS, exposed_part(stream), nodes, late, found.hidden.get(stream, 0.0)))
    left = {name: found.parts[name] for name in (CONTENTION, "wait") if found.parts.get(name)}
    return (*shares, *(Share(OTHER_STREAMS, name, 0, spent, 0, 0) for name, spent in left.items()))


def _share(phase: str, kind: str, nodes: list[Node], seconds: float, hidden: float = 0.0) -> Share:
    flops = sum(node.op.flops for node in nodes if node.op.matrix_dtype)
    return Share(phase, kind, len(nodes), seconds, flops, sum(node.op.least_bytes for node in nodes), hidden)


def _kind(op: Op) -> str:
    """Return the class of an operator; calls without products are timed by their bytes."""
    if not isinstance(op, Call):
        return class_of(op)
    if not op.products:
        return BY_BYTES
    return "convolution" if "convolution" in op.name else "recurrent"


def _notes(graph: Graph, where: System) -> tuple[str, ...]:
    assumed = graph.labels.get("assumed", "")
    used = (
        (f"{graph.ranks} of {where.gpus} GPUs {'are' if graph.ranks > 1 else 'is'} used",)
        if where.gpus > graph.ranks
        else ()
    )
    beside = (_BESIDE,) if len(graph.streams) > 1 else ()
    return (*used, _HOST, *beside, *(assumed.split("; ") if assumed else ()))
