"""Recorded runs of other tools as Weft's graphs: traces of PyTorch's profiler."""

from weft.traces.file import read_graph
from weft.traces.kineto import read_trace
from weft.traces.trace import Found, Group, Trace

__all__ = ["Found", "Group", "Trace", "read_graph", "read_trace"]
