"""Execution traces as graphs: Chakra's files, and those of PyTorch's ExecutionTraceObserver."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weft.core.errors import ConfigError, check_whole
from weft.graph import Graph, Node, Op, Opaque, Send, Storages, graph_of_lines
from weft.graph.collective import RANKS
from weft.torch.traces.calls import bare, collective, compute_op, groups, working
from weft.torch.traces.records import Kind, Records, TraceRecord, of_its_schema, read_records

OURS = "weft"
"""The attribute with which Weft writes what Chakra has no field for."""
_COMPUTES = (Kind.COMPUTE, Kind.LOAD, Kind.STORE)
_HOSTS = {"cpu", ""}
"""Where tensors of the host are; an undefined tensor is nowhere."""
_BACKWARD = 1
"""The scope of functions of the backward pass, as PyTorch numbers scopes."""
_NUMBERED = re.compile(r"(.*[._-])(\d+)((?:_et)?\.(?:et|json)(?:\.gz)?)")
"""A file that a rank wrote, by its name: what stands before and behind the rank's number."""


class Read(NamedTuple):
    """How much of an execution trace was understood.

    Of its `nodes`, those on the `host` only launch others. Of the `operators`, `unmapped` ones are known by name alone;
    `dangling` dependencies are on nodes that the file does not hold.
    """

    nodes: int
    host: int
    operators: int
    unmapped: int
    dangling: int


@dataclass(frozen=True)
class ExecutionTrace:
    """An execution trace: its operators as a graph, and by its node the time that each took [s], where recorded."""

    graph: Graph
    seconds: Mapping[str, float]
    read: Read


def read_execution_trace(path: str | Path, ranks: int | None = None) -> ExecutionTrace:
    """Read an execution trace of one rank: Chakra's .et or JSON, or what PyTorch's ExecutionTraceObserver wrote.

    Calls on the host are left out where the trace holds what they launched on a GPU. `ranks` is the number of GPUs of a
    collective whose group the trace does not describe (None: as many as there are files of ranks, else 8, which the
    graph's label "assumed" says). Raises ConfigError for a file that is cut off, of another version, or whose nodes
    wait for each other, InputError for a missing file, or an .et file without protobuf.
    """
    if ranks is not None:
        check_whole("the number of GPUs of a collective", ranks, 2, 8)
    records = read_records(path)
    if OURS in records.head:
        return _ours(records)
    with of_its_schema(path):
        return _GraphBuilder(records, ranks or _files(Path(path)), ranks is not None).trace()


def _ours(records: Records) -> ExecutionTrace:
    """Return the graph that Weft wrote."""
    told = [one for one in records.nodes.values() if OURS in one.attributes]
    lines = (*str(records.head[OURS]).splitlines(), *(str(one.attributes[OURS]) for one in told))
    graph = graph_of_lines(lines, records.path)
    seconds = {node.id: one.duration * 1e-6 for node, one in zip(graph, told, strict=True) if one.duration}
    return ExecutionTrace(graph, seconds, Read(len(records.nodes), 0, len(graph), 0, records.dangling))


def _files(path: Path) -> int:
    """Return how many ranks wrote a file beside this one; 0 if their names do not say."""
    found = _NUMBERED.fullmatch(path.name)
    if not found or not path.parent.is_dir():
        return 0
    others = (_NUMBERED.fullmatch(other.name) for other in path.parent.iterdir())
    numbers = {int(one[2]) for one in others if one and (one[1], one[3]) == (found[1], found[3])}
    return len(numbers) if len(numbers) > 1 and numbers == set(range(len(numbers))) else 0


class _GraphBuilder:
    """A graph in the making from the records of a rank."""

    def __init__(self, records: Records, ranks: int, given: bool) -> None:
        self.records, self.ranks, self.given = records, ranks or RANKS, given
        self.every = records.nodes
        self.sizes, self.call = groups(self.every), _calls(self.every)
        self.chosen = self._choose_nodes()
        self.main = _busiest([_stream(self.every[id_]) for id_ in self.chosen if self.every[id_].kind in _COMPUTES])
        self.phases = _phases(self.every) if records.nested else {}
        self.nodes: list[Node] = []
        self.seconds: dict[str, float] = {}
        self.unmapped = self.assumed = 0
        self.storages: Storages[str, str] = Storages()
        self.longest = self._longest()

    def trace(self) -> ExecutionTrace:
        """Return the trace. Raises ConfigError for one without any operator."""
        ordered = list(self.records.in_order())
        if self.records.nested:
            for id_ in self.chosen:
                self._add(self.every[id_], {})
        else:
            self._add_all(ordered)
        if not self.nodes:
            raise ConfigError(
                f"none of the trace's {len(self.every)} nodes is an operator; record a whole training step",
                self.records.path,
            )
        notes = "; ".join(self._notes())
        ranks, title = max(getattr(node.op, "ranks", 1) for node in self.nodes), Path(self.records.path).name
        graph = Graph(tuple(self.nodes), ranks, f"execution trace {title}", {"assumed": notes} if notes else {})
        count = len(self.nodes)
        read = Read(len(self.every), len(self.every) - count, count, self.unmapped, self.records.dangling)
        return ExecutionTrace(graph, self.seconds, read)

    def _add_all(self, ordered: Iterable[TraceRecord]) -> None:
        """Make the chosen nodes operators, which wait for the last ones of each stream that others lead to."""
        chosen = set(self.chosen)
        before: dict[int, dict[str, int]] = {}
        for one in ordered:
            latest: dict[str, int] = {}
            for other in one.data:
                for stream, place in before.get(other, {}).items():
                    latest[stream] = max(latest.get(stream, -1), place)
            if one.id in chosen:
                latest[self._add(one, latest)] = len(self.nodes) - 1
            before[one.id] = latest

    def _choose_nodes(self) -> list[int]:
        """Return the nodes that become operators: work on a GPU where the trace holds any, else calls on the host."""
        told = [id_ for id_, one in self.every.items() if one.kind not in (Kind.INVALID, Kind.METADATA)]
        if not self.records.nested:
            on_gpu = [id_ for id_ in told if not self.every[id_].host]
            return on_gpu or [id_ for id_ in told if self.call[id_] == id_]
        found = working(self.every)
        return [id_ for id_ in found if _devices(self.every[id_]) - _HOSTS] or found

    def _add(self, one: TraceRecord, latest: Mapping[str, int]) -> str:
        """Make a record the next node; returns its stream."""
        op, stream = self._op(one)
        name = f"{re.split(r'[(<]', bare(one.name))[0].strip()[-40:] or 'node'}#{one.id}"
        self.unmapped += op is None
        waits = {self.nodes[place].name for place in latest.values()} | self._data(one, name)
        after, phase = tuple(sorted(waits)), self.phases.get(one.id, "")
        self.nodes.append(Node(op or Opaque(one.name), name, after=after, stream=stream, phase=phase))
        if one.duration:
            self.seconds[name] = one.duration * 1e-6
        return stream

    def _op(self, one: TraceRecord) -> tuple[Op | None, str]:
        """Return a record's operator, None if it is not known, and its stream."""
        stream = _stream(one)
        told = "main" if stream == self.main else f"stream {stream}"
        size = int(one.attributes.get("comm_size") or 0)
        if one.kind in (Kind.COLLECTIVE, Kind.SEND, Kind.RECEIVE) or one.name == "record_param_comms":
            if one.kind == Kind.SEND and size:
                op: Op | None = Send(size, int(one.attributes.get("comm_dst", 0)) - _rank(one, self.records.path))
                group, known = "", True
            elif one.kind == Kind.RECEIVE:
                op, group, known = Opaque("receive", 0, size, size), "", True
            else:
                op, group, known = collective(one, self.sizes, self.ranks)
            self.assumed += not known and op is not None and not self.given
            return op, told if stream else f"communication {group}".strip()
        source = self.call.get(one.id, one.id)
        if one.host or self.records.nested:
            return compute_op(one, one), "main"
        return compute_op(one, self.every[source] if self.longest.get(source) == one.id else None), told

    def _longest(self) -> dict[int, int]:
        """Of each call, the kernel that takes the longest: it stands for all that the call computes."""
        found: dict[int, int] = {}
        for id_ in sorted(self.chosen):
            source = self.call.get(id_, id_)
            if self.every[id_].kind == Kind.COMPUTE:
                found[source] = max(found.get(source, id_), id_, key=lambda one: self.every[one].duration)
        return found

    def _data(self, one: TraceRecord, name: str) -> set[str]:
        """Return the nodes that a node waits for because of the memory that it reads and writes."""
        source = self.every[self.call.get(one.id, one.id)]
        reads, writes = {**source.inputs.storages, **one.inputs.storages}, source.outputs.storages
        if one.name == "record_param_comms":
            around = [self.every[id_] for id_ in one.parents if id_ in self.every]
            for call in around:
                if call.name.startswith("c10d::"):
                    writes = {**call.inputs.storages, **call.outputs.storages}
        return self.storages.touch(name, reads, writes)

    def _notes(self) -> Iterator[str]:
        if self.unmapped:
            yield f"{self.unmapped:,} of {len(self.nodes):,} operators are known by name alone and count nothing"
        if self.records.dangling:
            yield f"{self.records.dangling:,} dependencies are on nodes that the trace does not hold, and are left out"
        if self.assumed:
            yield f"the trace does not say how many GPUs {self.assumed:,} collectives have: {self.ranks} are taken"


def _calls(every: Mapping[int, TraceRecord]) -> dict[int, int]:
    """Of each node the call behind it: of a piece of a call, the first; of a kernel, the call that launched it.

    The converter lists what launched a kernel as the last call that it waits for.
    """
    found: dict[int, int] = {}
    first: dict[str, int] = {}
    for id_ in sorted(every):
        one, name = every[id_], bare(every[id_].name)
        if one.host:
            if name == one.name or one.name.endswith("(0)"):
                first[name] = id_
            found[id_] = first.get(name, id_)
    for id_, one in every.items():
        if not one.host:
            calls = [other for other in (*one.data, *one.parents) if other < id_ and other in found]
            found[id_] = found[max(calls)] if calls and every[max(calls)].host else id_
    return found


def _stream(one: TraceRecord) -> str:
    """Return the stream of work on a GPU; "" if it is not recorded."""
    if one.host:
        return ""
    return str(one.attributes.get("stream", one.attributes.get("tid", "")))


def _busiest(streams: Iterable[str]) -> str:
    return max(Counter(streams).items(), key=lambda one: one[1], default=("", 0))[0]


def _devices(one: TraceRecord) -> set[str]:
    return {*one.inputs.storages.values(), *one.outputs.storages.values()}


def _rank(one: TraceRecord, path: str) -> int:
    """Return the rank that wrote a trace, by what it says or by its file's name."""
    found = _NUMBERED.fullmatch(Path(path).name)
    return int(one.attributes.get("comm_src", found[2] if found else 0))


def _phases(every: Mapping[int, TraceRecord]) -> dict[int, str]:
    """Return the phase of each call, by the calls around it."""
    found: dict[int, str] = {}
    for id_ in sorted(every):
        name = every[id_].name
        around = next((found[one] for one in every[id_].parents if one in found), "forward")
        if name.startswith("Optimizer.step"):
            around = "optimizer"
        elif name.startswith("autograd::engine") or every[id_].attributes.get("scope") == _BACKWARD:
            around = "backward"
        found[id_] = around
    return found
