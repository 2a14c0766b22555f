"""Reads what rocprofv3 recorded: kernel_trace.csv with memory_copy_trace.csv beside it, or the JSON of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError, InputError, reason
from weft.core.files import Rows, Unpacked, parse_json, read_unpacked, unpacked_lines
from weft.torch.traces.reader import Meeting, RankTrace, TraceReader, rank_in_name
from weft.torch.traces.recorded import MatchedWork, RecordedWork
from weft.torch.traces.trace import SENDS

_NS = 1e-9
_KERNELS, _COPIES = "kernel_trace.csv", "memory_copy_trace.csv"
_TOOL = "rocprofiler-sdk-tool"
_GPU_AGENT = 2
"""The type of an agent that is a GPU (rocprofiler_agent_type_t)."""
_AGAIN = "record again with 'rocprofv3 --kernel-trace --memory-copy-trace --output-format csv'"


class RocprofReader(TraceReader):
    """Reads rocprofv3's kernel trace: every GPU (agent) of a file is one rank."""

    tool = "rocprofv3"
    numbered = True

    def recognizes(self, path: Path, start: bytes) -> bool:
        """Return whether the file is a kernel trace as CSV, or rocprofv3's JSON."""
        head = start.splitlines()[0] if start else b""
        is_table = all(name in head for name in (b"Kernel_Name", b"Start_Timestamp", b"End_Timestamp"))
        return is_table or f'"{_TOOL}"'.encode() in start

    def read(self, path: str | Path) -> Iterator[RankTrace]:
        """Yield the GPUs in the order of their agents. Raises ConfigError for a file of another schema."""
        work = _Agents(str(path))
        try:
            with Unpacked(path) as file:
                is_json = file.read(1 << 10).lstrip()[:1] == b"{"
            _read_json(path, work) if is_json else _read_tables(Path(path), work)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            why = f"a record is not as rocprofv3 writes it ({type(error).__name__}: {reason(error)})"
            raise ConfigError(f"{why}; {_AGAIN}", str(path)) from None
        yield from work.ranks()


class _Agents:
    """The work of each GPU of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.work: dict[str, RecordedWork] = {}
        self.titles: dict[str, str] = {}

    def add(self, agent: str, name: str, kind: int, stream: object, correlation: int, start: int, end: int) -> None:
        """Keep a piece of work. Raises ConfigError for one that ends before it starts."""
        if end < start:
            raise ConfigError(f"'{name[:60]}' ends ({end}) before it starts ({start}); {_AGAIN}", self.path)
        work = self.work.setdefault(agent, RecordedWork())
        meeting = work.meetings[Meeting(name)] if kind == 0 and SENDS.search(name) else -1
        where = work.streams[agent, stream]
        work.gpu.add(work.names[name], where, correlation, -1, kind, meeting, start * _NS, (end - start) * _NS)
        work.count += 1

    def copy(self, source: str, target: str, direction: str, *rest: Any) -> None:
        """Keep a copy, with the GPU that sends it, or receives it from the host."""
        to_host, from_host = direction.endswith("TO_HOST"), "HOST_TO" in direction
        if to_host and from_host:
            return
        word = "DtoH" if to_host else "HtoD" if from_host else "PtoP" if source != target else "DtoD"
        self.add(target if from_host else source, f"Memcpy {word}", 1, "copies", *rest)

    def ranks(self) -> Iterator[RankTrace]:
        """Yield the GPUs that ran a kernel. Raises InputError if none did."""
        agents = sorted((agent for agent, work in self.work.items() if (work.gpu["kind"] == 0).any()), key=_number)
        if not agents:
            raise InputError(f"'{self.path}' has no kernel on a GPU; {_AGAIN}, on a machine with a GPU")
        rank = rank_in_name(Path(self.path)) if len(agents) == 1 else None
        for agent in agents:
            yield MatchedWork(self.work[agent]).of_rank(self.path, self.titles.get(agent, ""), rank, None, ())


def _number(agent: str) -> tuple[int, str]:
    digits = "".join(filter(str.isdigit, agent))
    return int(digits or 0), agent


def _read_tables(path: Path, work: _Agents) -> None:
    for row in _rows(path):
        stream = row.get("Stream_Id") or "0"
        where = f"stream {stream}" if stream != "0" else f"queue {row['Queue_Id']}"
        times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
        work.add(row["Agent_Id"], row["Kernel_Name"], 0, where, int(row["Correlation_Id"]), *times)
    beside = path.with_name(path.name.replace(_KERNELS, _COPIES))
    if beside != path and beside.exists():
        for row in _rows(beside):
            times = int(row["Start_Timestamp"]), int(row["End_Timestamp"])
            agents = row["Source_Agent_Id"], row["Destination_Agent_Id"]
            work.copy(*agents, row["Direction"], int(row["Correlation_Id"]), *times)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of any size by the names of its columns. Raises ConfigError for one that is cut off."""
    rows = Rows(unpacked_lines(path), path)
    head = next(rows, [])
    for row in rows:
        if not row:
            continue
        if len(row) != len(head):
            why = f"line {rows.line} has {len(row)} cells, and the head names {len(head)} columns: it is cut off"
            raise ConfigError(f"{why}; copy the file again", str(path))
        yield dict(zip(head, row, strict=True))


def _read_json(path: str | Path, work: _Agents) -> None:
    content = parse_json(read_unpacked(path), any_number=True)
    tools = content[_TOOL]
    for tool in tools if isinstance(tools, list) else [tools]:
        agents = {one["id"]["handle"]: one for one in tool["agents"]}
        names = {
            one["kernel_id"]: str(one.get("formatted_kernel_name") or one["kernel_name"])
            for one in tool["kernel_symbols"]
            if "kernel_id" in one
        }
        label = {handle: f"Agent {one.get('node_id', handle)}" for handle, one in agents.items()}
        work.titles |= {label[handle]: str(one.get("product_name", "")) for handle, one in agents.items()}
        records = tool["buffer_records"]
        for one in records.get("kernel_dispatch", ()):
            told = one["dispatch_info"]
            stream = (one.get("stream_id") or {}).get("handle") or 0
            where = f"stream {stream}" if stream else f"queue {told['queue_id']['handle']}"
            agent, name = label[told["agent_id"]["handle"]], names[told["kernel_id"]]
            work.add(agent, name, 0, where, *_times(one))
        for one in records.get("memory_copy", ()):
            source, target = (one[key]["handle"] for key in ("src_agent_id", "dst_agent_id"))
            is_gpu = [agents[handle]["type"] == _GPU_AGENT for handle in (source, target)]
            direction = "_TO_".join("DEVICE" if each else "HOST" for each in is_gpu)
            work.copy(label[source], label[target], direction, *_times(one))


def _times(record: Mapping[str, Any]) -> tuple[int, int, int]:
    correlation = record["correlation_id"]
    internal = correlation["internal"] if isinstance(correlation, dict) else correlation
    return int(internal), int(record["start_timestamp"]), int(record["end_timestamp"])
