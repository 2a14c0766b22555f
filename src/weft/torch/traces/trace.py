"""What a profiler recorded on GPUs: pieces of work on streams, what each computes, and what it waits for."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.answer import Answer
from weft.graph import Call, Collective, Graph, Node, Op, Opaque, Send
from weft.graph.graph import earliest

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PHASES = ("forward", "backward", "optimizer")
SENDS = re.compile("nccl|rccl|nvshmem|deep_ep", re.IGNORECASE)
"""Names of kernels that send data between GPUs."""
_PEER_COPIES = re.compile("Memcpy (PtoP|P2P)", re.IGNORECASE)
"""Copies between GPUs, by name."""
_HOST_COPIES = re.compile("Memcpy (HtoD|DtoH)", re.IGNORECASE)
"""Copies from or to the memory of the host, by name."""


class TraceCoverage(NamedTuple):
    """How much of a trace was understood, in numbers of events, kernels and pairs of them.

    Of the `kernels`, `in_calls` were launched inside a recorded call, `with_shapes` in one with tensors' shapes, and
    `mapped` have an operator that Weft can time; of those that multiply matrices (`products`), `products_mapped`
    have one with its sizes. `launches` counts work, copies included,
    whose launch was recorded. Waits between streams were `recorded` or else `inferred`; those that contradict the
    clock were `dropped`.
    """

    events: int
    kernels: int
    copies: int
    launches: int
    in_calls: int
    with_shapes: int
    mapped: int
    products: int
    products_mapped: int
    recorded: int
    inferred: int
    dropped: int


class WorkGroup(NamedTuple):
    """All work of one operator and phase: its `count` of calls, `kernels`, and measured time [s]."""

    name: str
    op: Op | None
    phase: str
    calls: int
    kernels: int
    seconds: float


@dataclass(frozen=True, repr=False, eq=False)
class Trace(Answer):
    """What a profiler recorded on a GPU: a row for each piece of work (kernel, copy, memset), by its start.

    `name`, `stream` and `operator` index `names`, `streams` and `operators` (-1: unknown), `phase` indexes PHASES, and
    `call` is the number of the call that launched it. `start`, `seconds` and `launched`, when the host asked for it
    (nan: not recorded), are in seconds since the first start. `edges` has a row for each pair of pieces on different
    streams of which the second waits for the first. `device` is the GPU's name as the profiler wrote it.
    """

    kind = "trace"

    path: str
    device: str
    names: tuple[str, ...]
    streams: tuple[str, ...]
    operators: tuple[Op | None, ...]
    name: Ints
    stream: Ints
    operator: Ints
    call: Ints
    phase: Ints
    start: Floats
    seconds: Floats
    launched: Floats
    edges: Ints
    found: TraceCoverage

    def __len__(self) -> int:
        return len(self.name)

    @property
    def makespan(self) -> float:
        """From the first start to the last end [s]."""
        return float((self.start + self.seconds).max())

    @property
    def busy(self) -> float:
        """Time in which at least one piece of work runs [s]."""
        return self._covered(np.ones(len(self), dtype=bool))

    @cached_property
    def communicates(self) -> NDArray[np.bool_]:
        """Whether each piece of work moves data between GPUs: collectives, messages, copies from peer to peer."""
        operators = np.array([*(isinstance(op, (Collective, Send)) for op in self.operators), False])
        named = np.array([bool(SENDS.search(name) or _PEER_COPIES.search(name)) for name in self.names], dtype=bool)
        communicates: NDArray[np.bool_] = operators[self.operator] | named[self.name]
        return communicates

    @property
    def communication(self) -> float:
        """Time in which at least one piece of work moves data between GPUs [s]."""
        return self._covered(self.communicates)

    @cached_property
    def computes(self) -> NDArray[np.bool_]:
        """Whether each piece of work computes: it neither communicates nor copies from or to the host."""
        host = np.array([bool(_HOST_COPIES.search(name)) for name in self.names], dtype=bool)[self.name]
        computes: NDArray[np.bool_] = ~self.communicates & ~host
        return computes

    @property
    def exposed(self) -> float:
        """Communication during which the GPU computes nothing [s].

        By the intervals of the pieces of work on all streams, not by sums of their times. Copies from and to the host
        are no compute.
        """
        return self._covered(self.communicates | self.computes) - self._covered(self.computes)

    def _covered(self, counted: NDArray[np.bool_]) -> float:
        """Return the length of the union of some pieces of work [s]."""
        return covered(self.start[counted], (self.start + self.seconds)[counted])

    def op(self, piece: int) -> Op | None:
        """Return the operator of a piece of work; None if it is not known."""
        number = int(self.operator[piece])
        return self.operators[number] if number >= 0 else None

    def replay(self, seconds: Floats | None = None, *, host: bool = True) -> float:
        """Return the makespan if every piece takes `seconds` instead [s]; None: what was measured.

        A piece starts when the one before it on its stream and those on other streams that it waits for have ended, and
        not before its launch was recorded (with `host`). Whether a piece waited for what no trace records (the copy
        engine, a full queue) is not known: with the measured times, it starts no earlier than it did.
        """
        took = self.seconds if seconds is None else seconds
        least = self.start if seconds is None else np.nan_to_num(self.launched, nan=0.0)
        needs: list[list[tuple[int, float]]] = [[] for _ in range(len(self))]
        for before, after in self.edges.tolist():
            needs[after].append((before, 0.0))
        last: dict[int, int] = {}
        for piece, stream in enumerate(self.stream.tolist()):
            if stream in last:
                needs[piece].append((last[stream], 0.0))
            last[stream] = piece
        bounds = (least if host or seconds is None else np.zeros(len(self))).tolist()
        start, end = earliest(range(len(self)), needs, took.tolist(), bounds)
        return float(max(end) - min(start))

    @cached_property
    def groups(self) -> tuple[WorkGroup, ...]:
        """Work by operator and phase, that with the most time first; unknown work by its kernel's name."""
        key = np.where(self.operator >= 0, self.operator, -2 - self.name) * len(PHASES) + self.phase
        _, first, where = np.unique(key, return_index=True, return_inverse=True)
        time, count = np.bincount(where, self.seconds), np.bincount(where)
        calls = np.bincount(where[np.unique(np.stack([where, self.call]), axis=1, return_index=True)[1]])
        launches = np.where(self.call[first] >= 0, calls, count)
        names = ((self.label(piece), self.op(piece), PHASES[self.phase[piece]]) for piece in first.tolist())
        totals = zip(launches.tolist(), count.tolist(), time.tolist(), strict=True)
        listed = (WorkGroup(*name, *total) for name, total in zip(names, totals, strict=True))
        return tuple(sorted(listed, key=lambda group: -group.seconds))

    def label(self, piece: int) -> str:
        """Return the operator of a piece of work in words; the name of its kernel if that is not known."""
        op = self.op(piece)
        if op is None:
            return str(self.names[self.name[piece]])
        if not isinstance(op, Call) or not op.inputs:
            return str(op)
        largest = max(op.inputs, key=lambda one: one.bytes)
        return f"{op.name} of {' x '.join(map(str, largest.shape))} {largest.dtype}"

    @cached_property
    def graph(self) -> Graph:
        """Return the calls as a graph, each stream in its order; unmapped pieces of work keep their measured time.

        The kernels of a call that follow each other on a stream are one node, and the operator of a call is counted
        once: kernels of it that run elsewhere hold no work. The stream with the most operators that Weft can time is
        called "main", as in other graphs of one GPU.
        """
        main = int(np.bincount(self.stream, self.operator >= 0).argmax())
        streams = ["main" if number == main else f"stream {name}" for number, name in enumerate(self.streams)]
        waits = defaultdict(list)
        for before, after in self.edges.tolist():
            waits[after].append(before)
        nodes: list[Node] = []
        counted: dict[tuple[int, int, int], str] = {}
        node_of: list[str] = []
        last: dict[int, str] = {}
        rows = zip(self.name.tolist(), self.stream.tolist(), self.operator.tolist(), self.phase.tolist(), strict=True)
        for piece, (name, stream, operator, phase) in enumerate(rows):
            call = int(self.call[piece])
            first = counted.get((operator, phase, call)) if operator >= 0 and call >= 0 else None
            if first is not None and first == last.get(stream) and piece not in waits:
                node_of.append(first)
                continue
            node_of.append(f"work{piece}")
            last[stream] = node_of[piece]
            op = None if first is not None else self.op(piece)
            if op is None:
                op = Opaque(self.names[name], seconds=0.0 if first is not None else float(self.seconds[piece]))
            else:
                counted[operator, phase, call] = node_of[piece]
            after = tuple(dict.fromkeys(node_of[before] for before in waits.get(piece, ())))
            nodes.append(Node(op, node_of[piece], after=after, stream=streams[stream], phase=PHASES[phase]))
        unknown = int((self.operator < 0).sum())
        assumed = {"assumed": f"{unknown:,} of {len(self):,} pieces of work are unmapped and keep their measured time"}
        return Graph(tuple(nodes), title=f"trace {Path(self.path).name}", labels=assumed if unknown else {})

    def to_dict(self) -> dict[str, Any]:
        """Return what was found, times, and the groups as plain data."""
        return {
            "path": self.path,
            "device": self.device,
            "makespan_s": self.makespan,
            "busy_s": self.busy,
            "communication_s": self.communication,
            "exposed_s": self.exposed,
            "found": self.found._asdict(),
            "groups": [
                {"name": name, "mapped": op is not None, **dict(zip(WorkGroup._fields[2:], totals, strict=True))}
                for name, op, *totals in self.groups
            ],
        }


def covered(start: Floats, end: Floats) -> float:
    """Return the length of the union of intervals [s], which are in the order of their starts."""
    if not len(start):
        return 0.0
    before = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(start, before), 0.0).sum())
