"""A graph from whatever file holds one: Weft's own, a trace of PyTorch's profiler, or an execution trace."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from weft import graph
from weft.errors import ConfigError, InputError
from weft.graph import Graph
from weft.traces.chakra import read_execution_trace
from weft.traces.events import opened
from weft.traces.kineto import read_trace
from weft.traces.messages import is_messages

_LOOKED_AT = 1 << 16
"""Bytes at the start of a file that say what it is."""


def read_graph(path: str | Path) -> Graph:
    """Read a graph that `write_graph` wrote, a trace of PyTorch's profiler, or an execution trace; its content tells.

    Raises ConfigError for a file of something else, of another version, or cut off, InputError for a missing file.
    """
    start = _start(path)
    if b'"traceEvents"' in start or b'"schemaVersion"' in start or b'"ph"' in start:
        return read_trace(path).graph
    if b'"model_type"' in start:
        raise ConfigError("this is the configuration of a model; weft.step and weft.load_model take it", str(path))
    return read_execution_trace(path).graph if _is_execution(start) else graph.read_graph(path)


def _is_execution(start: bytes) -> bool:
    if b'"workload_graph"' in start or (b'"schema"' in start and b'"nodes"' in start):
        return True
    return not start.lstrip().startswith((b'{"', b"[")) and is_messages(start)


def _start(path: str | Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read(_LOOKED_AT)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return b""
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}); give the file of a graph or a trace") from None
