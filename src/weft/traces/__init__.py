"""Recorded runs of other tools as Weft's graphs: traces of PyTorch's profiler, and execution traces."""

import re
from pathlib import Path
from typing import Literal

from weft import graph
from weft.errors import ConfigError
from weft.files import beginning, check_path
from weft.graph import Graph
from weft.traces.chakra import ExecutionTrace, read_execution_trace
from weft.traces.kineto import read_trace
from weft.traces.messages import is_messages
from weft.traces.trace import Found, Group, Trace

__all__ = [
    "ExecutionTrace",
    "Found",
    "Group",
    "Trace",
    "file_kind",
    "read_execution_trace",
    "read_graph",
    "read_trace",
]

FileKind = Literal["graph", "trace", "execution trace", "model", ""]
"""What a file holds: a graph of Weft's, a trace of PyTorch's profiler, an execution trace, a model, something else."""

_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\[|\{\s*["}])')
_MARKS: tuple[tuple[FileKind, tuple[bytes, ...]], ...] = (
    ("graph", (b'"format"', b'"weft-graph"')),
    ("trace", (b'"traceEvents"',)),
    ("trace", (b'"schemaVersion"',)),
    ("trace", (b'"ph"',)),
    ("model", (b'"model_type"',)),
    ("execution trace", (b'"workload_graph"',)),
    ("execution trace", (b'"schema"', b'"nodes"')),
)
"""Words that the beginning of a file in JSON holds, all of them, by what the file is; the first row that fits."""


def file_kind(path: str | Path) -> FileKind:
    """What a file holds, by its content; "" for something else and for what is no regular file."""
    check_path(path)
    if not Path(path).is_file():
        return ""
    start = beginning(path)
    if not _JSON.match(start):
        return "execution trace" if is_messages(start) else ""
    return next((kind for kind, marks in _MARKS if all(mark in start for mark in marks)), "")


def read_graph(path: str | Path) -> Graph:
    """Read a graph that `write_graph` wrote, a trace of PyTorch's profiler, or an execution trace; its content tells.

    Raises ConfigError for a file of something else, of another version, or cut off, InputError for a missing file.
    """
    kind = file_kind(path)
    if kind == "trace":
        return read_trace(path).graph
    if kind == "model":
        raise ConfigError("this is the configuration of a model; weft.step and weft.load_model take it", str(path))
    return read_execution_trace(path).graph if kind == "execution trace" else graph.read_graph(path)
