"""Graphs as Chakra's `.et` files, one for each rank, as other simulators read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import InputError, check_type, check_whole
from weft.core.files import write_atomically, write_json, written_together
from weft.graph import Collective, Graph, Node, Send, graph_lines
from weft.torch.traces.chakra import OURS
from weft.torch.traces.messages import VERSIONS, attribute, packed_messages, schema
from weft.torch.traces.operators import TABLES
from weft.torch.traces.records import Kind

_COMM_TYPE = {known["name"]: known["chakra"][0] for known in TABLES["collectives"] if known["chakra"]}
"""Chakra's numbers of collectives."""
NAME = "workload"
"""What the files of the ranks are called before the rank's number."""
GROUPS = "comm_group.json"
"""The file that lists the ranks of each group, by the number that collectives name."""


class Exported(NamedTuple):
    """What was written: a file for each rank, the file of groups (None: every collective has all ranks), and nodes."""

    files: tuple[Path, ...]
    groups: Path | None
    nodes: tuple[int, ...]


_MOST_RANKS = 65536
"""Most ranks of an export: each is a file."""


def write_chakra(
    graph: Graph, folder: str | Path, ranks: int | None = None, seconds: Mapping[str, float] | None = None
) -> Exported:
    """Write a graph as Chakra traces `workload.RANK.et` to a folder, for `ranks` GPUs (None: as many as it has).

    A node of Chakra's states what the operator computes and moves (`num_ops`, `tensor_size`), the collective and its
    bytes on a rank, or the message; its duration is that of `seconds` by node, and 0 without. Its dependencies are
    those of the node and the one before it on its stream. `read_graph` returns what a rank runs with nothing lost. More
    ranks than the graph has are copies of it, in groups of their own. Raises InputError for what Chakra has no node
    for, and without protobuf; OutputError if the folder cannot be written.
    """
    check_type("the graph", graph, Graph, "give a weft.Graph, such as weft.capture answers")
    count = graph.ranks if ranks is None else ranks
    check_whole("the number of ranks", count, 1, graph.ranks)
    if count > _MOST_RANKS:
        raise InputError(f"{count} ranks are a file each; give at most {_MOST_RANKS}")
    if count % graph.ranks:
        raise InputError(
            f"{count} ranks are no multiple of the graph's {graph.ranks}; give {graph.ranks}, or a multiple of it"
        )
    _check(graph)
    groups = _groups(graph, count)
    listed = {str(number): list(group) for group, number in groups.items()}
    written, nodes = [], []
    with written_together():
        for rank in range(count):
            content, size = _File(graph, rank, groups, seconds or {}).content()
            written.append(write_atomically(Path(folder) / f"{NAME}.{rank}.et", content))
            nodes.append(size)
        described = write_json(Path(folder) / GROUPS, listed) if listed else None
    return Exported(tuple(written), described, tuple(nodes))


def _check(graph: Graph) -> None:
    """Raise InputError for a graph that says what Chakra cannot."""
    ranks = {node.id: node.rank for node in graph}
    sends = {node.id for node in graph if isinstance(node.op, Send)}
    for node in graph:
        for edge in node.edges:
            if edge.by == "tile":
                raise InputError(
                    f"node '{node.id}' waits for tiles of '{edge.node}', and Chakra's nodes wait for whole ones; "
                    "export the graph with overlap 'sequential'"
                )
            other = ranks[edge.node]
            if other is not None and other != node.rank and edge.node not in sends:
                where = "every rank" if node.rank is None else f"rank {node.rank}"
                raise InputError(
                    f"node '{node.id}' on {where} waits for '{edge.node}' on rank {other}, and in Chakra's traces only "
                    "messages join ranks; put a weft.graph.Send between them"
                )
        if node.rank is not None and isinstance(node.op, Send) and not 0 <= node.rank + node.op.offset < graph.ranks:
            raise InputError(
                f"node '{node.id}' sends from rank {node.rank} to rank {node.rank + node.op.offset}, and the ranks are "
                f"0 to {graph.ranks - 1}; change its offset"
            )


def _group(graph: Graph, node: Node, rank: int) -> tuple[int, ...]:
    """The ranks of a collective's group that a rank is in.

    The graph's label "group STREAM" lists the group of rank 0; without one, its ranks follow each other.
    """
    size = int(node.op.ranks) if isinstance(node.op, Collective) else graph.ranks
    label = [int(one) for one in graph.labels.get(f"group {node.stream}", "").split()]
    step = label[1] - label[0] if len(label) == size else 1
    if len(label) == size and label != [label[0] + place * step for place in range(size)]:
        raise InputError(
            f"the ranks {label} of '{node.id}' are not evenly spaced, so that the groups of other ranks are not known; "
            "export a graph of regular groups"
        )
    first = rank // (step * size) * step * size + rank % step
    return tuple(first + place * step for place in range(size))


def _groups(graph: Graph, count: int) -> dict[tuple[int, ...], int]:
    """The groups of collectives that have not all ranks, with their numbers from 1 on."""
    found: dict[tuple[int, ...], int] = {}
    distinct = {(node.stream, node.op.ranks): node for node in graph if isinstance(node.op, Collective)}
    for (_, size), node in distinct.items():
        if count % size:
            raise InputError(
                f"the collective '{node.id}' has {size} ranks, of which {count} are no multiple; give a number of "
                "ranks that all groups divide"
            )
        if size < count:
            for rank in range(count):
                found.setdefault(_group(graph, node, rank), len(found) + 1)
    return found


def _of_rank(graph: Graph, rank: int) -> Graph:
    """Return what one rank of a graph runs; dependencies on messages of other ranks are left out."""
    mine = {node.id for node in graph if node.rank is None or node.rank == rank}
    if len(mine) == len(graph):
        return graph
    if not mine:
        raise InputError(f"no operator of the graph runs on rank {rank}; give a graph in which every rank works")
    nodes = (
        replace(node, after=tuple(edge for edge in node.edges if edge.node in mine))
        for node in graph
        if node.id in mine
    )
    return replace(graph, nodes=tuple(nodes))


@dataclass
class _File:
    """The file of one rank in the making."""

    graph: Graph
    rank: int
    groups: Mapping[tuple[int, ...], int]
    seconds: Mapping[str, float]
    nodes: list[Any] = field(default_factory=list)

    def content(self) -> tuple[bytes, int]:
        """Return the content of the file, and the number of its nodes."""
        mine = _of_rank(self.graph, self._local)
        lines = list(graph_lines(mine))
        tensors = len(lines) - len(mine)
        of_nodes = {node.id: line for node, line in zip(mine, lines[tensors:], strict=True)}
        ids: dict[str, tuple[int, ...]] = {}
        last: dict[str, tuple[int, ...]] = {}
        for number, node in enumerate(self.graph):
            before = {id_ for edge in node.edges for id_ in ids.get(edge.node, ())}
            before.update(last.get(node.stream, ()) if node.id in of_nodes else ())
            ids[node.id] = self._make_nodes(node, number, of_nodes.get(node.id, ""), sorted(before))
            if node.id in of_nodes:
                last[node.stream] = ids[node.id]
        metadata = schema()["GlobalMetadata"](version=VERSIONS[-1])
        stated = attribute("rank", "int64", self.rank), attribute(OURS, "string", "\n".join(lines[:tensors]))
        metadata.attr.extend(stated)
        return packed_messages((metadata, *self.nodes)), len(self.nodes)

    @property
    def _local(self) -> int:
        """The rank of the graph that this one is, or is a copy of."""
        return self.rank % self.graph.ranks

    def _make_nodes(self, node: Node, number: int, line: str, before: list[int]) -> tuple[int, ...]:
        """Add Chakra's nodes for a node, none if it does not concern this rank; returns their ids."""
        op = node.op
        if isinstance(op, Send):
            return self._message(node, number, line, before, int(op.bytes), op.offset, self.graph.ranks)
        if not line:
            return ()
        if isinstance(op, Collective):
            if op.name == "send_recv":
                return self._message(node, number, line, before, int(op.bytes), 1, int(op.ranks))
            size = int(op.share if op.name == "all_gather" else op.bytes)
            sent: list[tuple[str, str, Any]] = [
                ("comm_type", "int64", _COMM_TYPE[op.name]),
                ("comm_size", "int64", size),
            ]
            if group := self.groups.get(_group(self.graph, node, self.rank)):
                sent.append(("pg_name", "string", str(group)))
            return (self._add(node, Kind.COLLECTIVE, line, before, *sent),)
        if np.ndim(op.flops) or np.ndim(op.least_bytes):
            raise InputError(
                f"'{node.id}' states several sizes at once, and a node of Chakra's one; give a node for each"
            )
        stated = [("num_ops", "int64", int(op.flops)), ("tensor_size", "uint64", int(op.least_bytes))]
        return (self._add(node, Kind.COMPUTE, line, before, *stated),)

    def _message(
        self, node: Node, number: int, line: str, before: list[int], size: int, offset: int, among: int
    ) -> tuple[int, ...]:
        """Add a message to the rank `offset` away among `among` ranks, and the message from the opposite side."""
        base = self.rank // among * among
        to, whence = (base + (self.rank - base + step) % among for step in (offset, -offset))
        told = ("comm_size", "int64", size), ("comm_tag", "int32", number)
        ends = ("comm_src", "int32"), ("comm_dst", "int32")
        made = []
        if line:
            pair = zip(ends, (self.rank, to), strict=True)
            made.append(self._add(node, Kind.SEND, line, before, *((*end, rank) for end, rank in pair), *told))
        if node.rank is None or (node.rank + offset) % among == self._local:
            pair = zip(ends, (whence, self.rank), strict=True)
            made.append(self._add(node, Kind.RECEIVE, "", before, *((*end, rank) for end, rank in pair), *told))
        return tuple(made)

    def _add(self, node: Node, kind: Kind, line: str, before: list[int], *stated: tuple[str, str, Any]) -> int:
        made = schema()["Node"](id=len(self.nodes) + 1, name=node.id, type=int(kind), data_deps=before)
        took = self.seconds.get(node.id, 0.0)
        made.duration_micros = max(round(took * 1e6), 1) if took else 0
        every = (("is_cpu_op", "bool", False), *stated, *([(OURS, "string", line)] if line else []))
        made.attr.extend(attribute(*one) for one in every)
        self.nodes.append(made)
        return len(self.nodes)
