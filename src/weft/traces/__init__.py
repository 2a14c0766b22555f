"""Recorded runs of other tools as Weft's graphs: traces of PyTorch's profiler, and execution traces."""

from weft.traces.chakra import ExecutionTrace, read_execution_trace
from weft.traces.file import read_graph
from weft.traces.kineto import read_trace
from weft.traces.trace import Found, Group, Trace

__all__ = ["ExecutionTrace", "Found", "Group", "Trace", "read_execution_trace", "read_graph", "read_trace"]
