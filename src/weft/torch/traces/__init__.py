"""Recorded runs as graphs: traces of PyTorch's profiler, execution traces of Chakra and PyTorch."""

from pathlib import Path

from weft import graph
from weft.core.errors import ConfigError
from weft.graph import Graph
from weft.graph.kinds import file_kind
from weft.torch.traces.chakra import ExecutionTrace, read_execution_trace
from weft.torch.traces.distributed import DistributedTrace, RankTime, read_trace, read_traces
from weft.torch.traces.trace import Trace, TraceCoverage, WorkGroup

__all__ = [
    "DistributedTrace",
    "ExecutionTrace",
    "RankTime",
    "Trace",
    "TraceCoverage",
    "WorkGroup",
    "file_kind",
    "read_execution_trace",
    "read_graph",
    "read_trace",
    "read_traces",
]


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
