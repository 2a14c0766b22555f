"""Execution traces node by node: Chakra's `.et` and JSON files, and those of PyTorch's observer, as one record."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.errors import ConfigError, reason
from weft.core.files import beginning, parse_json, read_unpacked
from weft.graph.kinds import is_messages
from weft.torch.traces import messages

_OF_CHAKRA = tuple(f"{version}-chakra.0.0.4" for version in ("1.0.2", "1.0.3", "1.0.4", "1.1.0", "1.1.1"))
_SCHEMAS = ("1.0.1", *_OF_CHAKRA, "1.1.1-chakra.1.0.0")
"""Versions of the traces of PyTorch's ExecutionTraceObserver that are read."""
_TENSOR = re.compile(r"\[\d+, (\d+), \d+, (\d+), (\d+), '([^']*)'\]")
"""A tensor among recorded values: its id, storage, offset, elements, bytes of each, and device."""


class Kind(IntEnum):
    """What a node does, by the numbers of Chakra's schema."""

    INVALID = 0
    METADATA = 1
    LOAD = 2
    STORE = 3
    COMPUTE = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class Arguments(NamedTuple):
    """Values, shapes and types of what a node reads or writes, each a list written as a text."""

    values: str = "[]"
    shapes: str = "[]"
    types: str = "[]"

    @property
    def storages(self) -> dict[str, str]:
        """The storages of its tensors, each with its device."""
        return {storage: device for storage, _, _, device in _TENSOR.findall(self.values)}

    @property
    def bytes(self) -> int:
        """What its tensors hold, in all [bytes]."""
        return sum(int(count) * int(size) for _, count, size, _ in _TENSOR.findall(self.values))


_NONE = Arguments()


@dataclass(frozen=True)
class TraceRecord:
    """A node of an execution trace: what it waits for (`data`), and what it lies inside or is launched by (`parents`).

    Times in microseconds; those that were not recorded are 0. `host` is True for a call on the CPU.
    """

    id: int
    name: str
    kind: Kind
    parents: tuple[int, ...] = ()
    data: tuple[int, ...] = ()
    start: int = 0
    duration: int = 0
    inputs: Arguments = _NONE
    outputs: Arguments = _NONE
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> bool:
        """Whether the CPU ran it; nodes that do not say so are taken for a GPU's."""
        return bool(self.attributes.get("is_cpu_op", False))


@dataclass(frozen=True)
class Records:
    """A whole trace: what the file says of itself, and its nodes by id. `nested` calls lie inside each other."""

    path: str
    head: Mapping[str, Any]
    nodes: Mapping[int, TraceRecord]
    nested: bool = False

    @property
    def dangling(self) -> int:
        """How many dependencies are on nodes that the file does not hold."""
        waits = ((*one.parents, *one.data) for one in self.nodes.values())
        return sum(other not in self.nodes for every in waits for other in every)

    def in_order(self) -> Iterator[TraceRecord]:
        """Yield the nodes, each behind those that it waits for or lies inside, otherwise by their start and id.

        Raises ConfigError if some wait for each other. Of traces whose calls do not lie inside each other, parents only
        say what launched a node: the official converter's are at times of a later one.
        """
        waits: dict[int, int] = {}
        leads: dict[int, list[int]] = {}
        for one in self.nodes.values():
            before = {other for other in self._before(one) if other in self.nodes}
            waits[one.id] = len(before)
            for other in before:
                leads.setdefault(other, []).append(one.id)
        ready = [(self.nodes[id_].start, id_) for id_, count in waits.items() if not count]
        heapq.heapify(ready)
        while ready:
            id_ = heapq.heappop(ready)[1]
            del waits[id_]
            yield self.nodes[id_]
            for after in leads.get(id_, ()):
                waits[after] -= 1
                if not waits[after]:
                    heapq.heappush(ready, (self.nodes[after].start, after))
        if waits:
            raise ConfigError(self._cycle(waits), self.path)

    def _before(self, one: TraceRecord) -> tuple[int, ...]:
        return (*one.parents, *one.data) if self.nested else one.data

    def _cycle(self, stuck: Mapping[int, int]) -> str:
        """Return a sentence on nodes that wait for each other, of those that never became ready."""
        way: list[int] = []
        at = next(iter(stuck))
        while at not in way:
            way.append(at)
            at = next(one for one in self._before(self.nodes[at]) if one in stuck)
        loop = [f"{id_} '{self.nodes[id_].name[:40]}'" for id_ in (*way[way.index(at) :], at)]
        shown = " waits for ".join(loop if len(loop) < 5 else (*loop[:3], "... which", loop[-1]))
        return f"nodes of the trace wait for each other: {shown}; convert the trace again without this cycle"


def read_records(path: str | Path) -> Records:
    """Read Chakra's .et or JSON, or a trace of PyTorch's ExecutionTraceObserver; its content says which.

    Raises ConfigError for a file that is cut off, of another version, or of something else, InputError for a missing
    one.
    """
    start = beginning(path)
    if is_messages(start):
        head, nodes = messages.read_messages(path)
        return _records(path, messages.attributes(head), map(_of_message, nodes))
    content = _json(path)
    if isinstance(content.get("workload_graph"), list):
        return _make_records(path, content, "workload_graph", _of_feeder)
    version = content.get("schema")
    if version not in _SCHEMAS or not isinstance(content.get("nodes"), list):
        what = f"states the schema '{version}'" if version else "states no schema"
        raise ConfigError(
            f"this execution trace {what}, and Weft reads {', '.join(_SCHEMAS)}; record it with such a PyTorch",
            str(path),
        )
    return _make_records(path, content, "nodes", _of_flat if version == "1.0.1" else _of_nested, nested=True)


def _json(path: str | Path) -> dict[str, Any]:
    try:
        content = parse_json(read_unpacked(path), any_number=True)
    except ValueError as error:
        raise ConfigError(f"this is no whole execution trace ({reason(error)}); record it again", str(path)) from None
    return content if isinstance(content, dict) else {}


def _make_records(path: str | Path, content: dict[str, Any], key: str, make: Any, nested: bool = False) -> Records:
    listed = content.pop(key)
    with of_its_schema(path):
        return _records(path, content, map(make, listed), nested)


@contextmanager
def of_its_schema(path: str | Path) -> Iterator[None]:
    """Raise ConfigError for a trace at `path` whose values are of other types than its schema states."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"a node of the trace is not of the stated schema ({reason(error)})"
        raise ConfigError(f"{why}; record or convert it again", str(path)) from None


def _records(path: str | Path, head: Mapping[str, Any], nodes: Iterable[TraceRecord], nested: bool = False) -> Records:
    found: dict[int, TraceRecord] = {}
    for one in nodes:
        if one.id in found:
            raise ConfigError(f"two nodes of the trace have the id {one.id}; convert it again", str(path))
        found[one.id] = one
    if not found:
        raise ConfigError("the trace has no node; record or convert it again", str(path))
    return Records(str(path), head, found, nested)


def _of_message(node: Any) -> TraceRecord:
    waits, times = (tuple(node.ctrl_deps), tuple(node.data_deps)), (node.start_time_micros, node.duration_micros)
    inputs, outputs = _arguments(node.inputs), _arguments(node.outputs)
    return TraceRecord(
        node.id, node.name, _kind(node.type), *waits, *times, inputs, outputs, attributes=messages.attributes(node)
    )


def _kind(number: int) -> Kind:
    return Kind(number) if 0 <= number <= max(Kind) else Kind.INVALID


def _arguments(message: Any) -> Arguments:
    return Arguments(message.values or "[]", message.shapes or "[]", message.types or "[]")


def _of_feeder(node: Mapping[str, Any]) -> TraceRecord:
    """Return a node of Chakra's JSON, whose keys besides the named ones are attributes."""
    id_, parents = int(node["Id"]), tuple(map(int, node.get("ctrl_deps", node.get("ctrlDeps", ()))))
    waits, took = tuple(map(int, node.get("data_deps", ()))), int(node.get("runtime", 0))
    return TraceRecord(id_, str(node["Name"]), _kind(node["NodeType"]), parents, waits, duration=took, attributes=node)


def _of_flat(node: Mapping[str, Any]) -> TraceRecord:
    inputs, outputs = (
        Arguments(str(node[f"{way}s"]), str(node[f"{way}_shapes"]), str(node[f"{way}_types"]))
        for way in ("input", "output")
    )
    return _of_call(node, node["parent"], inputs, outputs, node)


def _of_nested(node: Mapping[str, Any]) -> TraceRecord:
    inputs, outputs = (
        Arguments(*(str(node[way][name]) for name in ("values", "shapes", "types"))) for way in ("inputs", "outputs")
    )
    stated = {one["name"]: one["value"] for one in node["attrs"]}
    return _of_call(node, node["ctrl_deps"], inputs, outputs, stated)


def _of_call(
    node: Mapping[str, Any], parent: int, inputs: Arguments, outputs: Arguments, stated: Mapping[str, Any]
) -> TraceRecord:
    kind = Kind.METADATA if "process_group:init" in node["name"] else Kind.COMPUTE
    id_, parents = int(node["id"]), () if parent in (0, node["id"]) else (int(parent),)
    kept = {"is_cpu_op": True, **{name: stated[name] for name in _KEPT if name in stated}}
    return TraceRecord(id_, node["name"], kind, parents, inputs=inputs, outputs=outputs, attributes=kept)


_KEPT = ("op_schema", "scope", "tid", "pg_name", "pg_size", "kernel_backend")
"""Attributes of PyTorch's calls that are used."""
