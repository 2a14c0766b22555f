"""Graphs as files: a line of JSON for the graph, one for each tensor, and one for each node."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import ConfigError, InputError, check_name, check_type, reason
from weft.core.files import parse_json, read_unpacked, to_json, write_atomically
from weft.graph.attention import Attention
from weft.graph.choice import KERNEL_CLASSES, KernelChoice
from weft.graph.collective import Collective, Copy, Send
from weft.graph.convolution import Convolution, Pooling
from weft.graph.gemm import Gemm, Gemv, GroupedGemm
from weft.graph.graph import Edge, Graph, Node
from weft.graph.named import Constant, Joined, View
from weft.graph.op import Op, Opaque, Tensor
from weft.graph.recurrent import Ctc, Recurrent
from weft.graph.routing import Routing
from weft.graph.scan import Scan
from weft.graph.streaming import Call, Streaming

FORMAT, VERSION = "weft-graph", 2
_COMPUTE = (Gemm, GroupedGemm, Gemv, Convolution, Pooling, Recurrent, Ctc, Attention, Scan, Streaming)
_OTHERS = (Collective, Send, Copy, Opaque, Call)
KINDS: Mapping[str, type[Op]] = {each.kind: each for each in (*_COMPUTE, *_OTHERS)}
"""Every kind of operator by the name that files and tables use."""
_CLASSES: Mapping[str, type] = {
    each.__name__: each
    for each in (*KINDS.values(), *KERNEL_CLASSES, Constant, Joined, KernelChoice, Routing, Tensor, View)
}


def write_graph(graph: Graph, path: str | Path) -> Path:
    """Write a graph to a file, whole or not at all, and return the path; a name that ends in .gz is compressed.

    Nothing is lost: `read_graph` returns an equal graph. Raises InputError for what JSON cannot hold, such as a tiling,
    OutputError if the path cannot be written.
    """
    check_type("the graph", graph, Graph, "give a weft.Graph, such as weft.capture answers")
    text = "".join(f"{line}\n" for line in graph_lines(graph))
    packed = str(path).endswith(".gz")
    return write_atomically(path, gzip.compress(text.encode(), mtime=0) if packed else text)


def graph_lines(graph: Graph) -> Iterator[str]:
    """Return the lines of a graph's file: of the graph, of each tensor, and then of each node in its order.

    Raises InputError for what JSON cannot hold.
    """
    return (to_json(line, separators=(",", ":")) for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[dict[str, Any]]:
    about = {"title": graph.title, "ranks": graph.ranks, "labels": dict(graph.labels), "results": list(graph.results)}
    yield {"format": FORMAT, "version": VERSION, **about, "tensors": len(graph.tensors), "nodes": len(graph.nodes)}
    for name, tensor in graph.tensors.items():
        yield {"tensor": name, **_plain(tensor)}
    for node in graph.nodes:
        yield {"node": _fields(node)}


def _plain(value: Any) -> Any:
    """Return a value as JSON-compatible data; objects by their class, with dtype and what is not its default."""
    if isinstance(value, Edge):
        return [value.node, value.by]
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if is_dataclass(value):
        name = type(value).__name__
        if name not in _CLASSES:
            raise InputError(f"a graph's file holds no {name}; leave it to the library, or choose it after reading")
        return {name: _fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


def _fields(value: Any) -> dict[str, Any]:
    stated = ((field, getattr(value, field.name)) for field in fields(value))
    return {
        field.name: _plain(inner) for field, inner in stated if field.name == "dtype" or not _is_default(inner, field)
    }


def _is_default(value: Any, field: Field[Any]) -> bool:
    if field.default_factory is not MISSING:
        return bool(value == field.default_factory())
    return not isinstance(value, np.ndarray) and type(value) is type(field.default) and bool(value == field.default)


def read_graph(path: str | Path) -> Graph:
    """Read the graph that `write_graph` wrote; compressed or not is seen from the content.

    Raises ConfigError that names the line for a file of something else, of another version, or cut off, InputError for
    a graph that contradicts itself or a missing file.
    """
    return graph_of_lines([line for line in _text(path).split("\n") if line.strip()], path)


def graph_of_lines(lines: Sequence[str], path: str | Path) -> Graph:
    """The graph of the lines that `graph_lines` made, which the file at `path` held; errors as of `read_graph`."""
    records = [_record(path, number, line) for number, line in enumerate(lines, 1)]
    head = records[0] if records else {}
    _check_head(path, head, len(records))
    tensors: dict[str, Any] = {}
    nodes: list[Node] = []
    for number, record in enumerate(records[1:], 2):
        try:
            if "node" in record:
                nodes.append(_node(record["node"]))
            else:
                name = record.pop("tensor")
                tensors[name] = _make_value(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _broken(path, number, f"does not describe a node or a tensor ({reason(error)})") from None
        except InputError as error:
            raise _broken(path, number, str(error)) from None
    labels, results = dict(head["labels"]), tuple(head["results"])
    return Graph(tuple(nodes), head["ranks"], head["title"], labels, tensors, results)


def _text(path: str | Path) -> str:
    try:
        return read_unpacked(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("this is no graph; write one with weft.graph.write_graph", str(path)) from None


def _record(path: str | Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
    except ValueError:
        raise _broken(path, number, "is no JSON") from None
    if not isinstance(record, dict):
        raise _broken(path, number, "is no JSON object")
    return record


def _check_head(path: str | Path, head: Mapping[str, Any], lines: int) -> None:
    """Raise ConfigError unless the first line announces a graph of this version with `lines` lines."""
    if head.get("format") != FORMAT:
        raise _broken(path, 1, f'does not announce a graph ("format": "{FORMAT}")')
    if head.get("version") != VERSION:
        raise _broken(path, 1, f"is of version {head.get('version')}, and this Weft reads {VERSION}")
    kinds = {"title": str, "ranks": int, "labels": dict, "results": list, "tensors": int, "nodes": int}
    for name, kind in kinds.items():
        if not isinstance(head.get(name), kind):
            raise _broken(path, 1, f"lacks '{name}'")
    announced = 1 + head["tensors"] + head["nodes"]
    if lines != announced:
        raise _broken(path, lines, f"is the last, but the first line announces {announced} lines")


def _broken(path: str | Path, number: int, why: str) -> ConfigError:
    return ConfigError(f"line {number} {why}; write the file with weft.graph.write_graph", str(path))


def _node(content: Mapping[str, Any]) -> Node:
    given = {name: _make_value(value) for name, value in content.items()}
    given["after"] = tuple(Edge(*one) if isinstance(one, tuple) else one for one in given.get("after", ()))
    return Node(**given)


def _make_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_make_value(inner) for inner in value)
    if not isinstance(value, Mapping):
        return value
    ((name, content),) = value.items()
    if name == "array":
        return np.array(content, dtype=np.float64)
    check_name("class of a graph's file", name, _CLASSES)
    return _CLASSES[name](**{field: _make_value(inner) for field, inner in content.items()})
