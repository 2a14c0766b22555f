"""Traces in Chrome's event format, one file for each rank, with the fields that PyTorch's profiler (Kineto) writes.

Perfetto opens them; HolisticTraceAnalysis reads a folder of them: kernels carry category "kernel", a stream and the
correlation of their launch, and names of communication kernels match its rule ``^nccl.*Kernel``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.core.files import check_writable, to_json, write_atomically

Event = dict[str, Any]
HOST_PID = 100_000
STREAMS = {"compute": 7, "communication": 20, "tp": 20, "cp": 21, "ep": 22, "dp": 23, "pp": 24, "track and trigger": 24}
"""Stream numbers by what runs on them."""
_FIRST_OTHER = 30
_FIRST_CORRELATION = 1 << 20
KERNELS = {
    "reduce_scatter": "ncclDevKernel_ReduceScatter_RING",
    "all_gather": "ncclDevKernel_AllGather_RING",
    "all_reduce": "ncclDevKernel_AllReduce_RING",
    "all_to_all": "ncclDevKernel_SendRecv",
    "send_recv": "ncclDevKernel_SendRecv",
    "broadcast": "ncclDevKernel_Broadcast_RING",
}
"""Names of the kernels of collectives."""


@dataclass(frozen=True)
class TraceKernel:
    """A kernel on a stream of one GPU [s].

    `stream` names what runs there, `number` is that of the stream where several have one name. The host launches it at
    `launched`, by default when it starts; kernels that are not `by_host` have no launch.
    """

    name: str
    stream: str
    start: float
    end: float
    args: dict[str, Any] = field(default_factory=dict)
    launched: float | None = None
    number: int | None = None
    category: str = "kernel"
    by_host: bool = True

    def shift(self, by: float, **more: Any) -> TraceKernel:
        """Return the same kernel, `by` seconds later and with more arguments."""
        return replace(self, start=self.start + by, end=self.end + by, args={**self.args, **more})

    def stretch(self, by: float) -> TraceKernel:
        """Return the same kernel, begun and ended `by` times later."""
        return self if by == 1.0 else replace(self, start=self.start * by, end=self.end * by)


@dataclass(frozen=True)
class RankTrace:
    """What one rank's file holds: its kernels, and other events below them; `about` is the answer as plain data."""

    rank: int
    gpu: str
    kernels: Sequence[TraceKernel]
    about: Mapping[str, Any]
    world_size: int = 1
    place: str = ""
    step: float | None = None
    """Length of the training step that the file holds [s]."""
    below: Sequence[Event] = ()


def write_traces(ranks: Sequence[RankTrace], path: str | Path) -> list[Path]:
    """Write traces to `path`, or to one file per rank ("_rank0" and so on) if there are several; returns the files.

    A path ending in ".gz" is compressed. Times are in microseconds from the start. Raises OutputError if a file cannot
    be written.
    """
    paths = [check_writable(rank_path(path, one.rank) if len(ranks) > 1 else path) for one in ranks]
    made = zip(map(trace_data, ranks), paths, strict=True)
    return [write_atomically(target, _encode_events(data, target)) for data, target in made]


def rank_path(path: str | Path, rank: int) -> Path:
    """Return the path of one rank's file: t.json becomes t_rank0.json, t.json.gz becomes t_rank0.json.gz."""
    target = Path(path)
    stem, dot, suffixes = target.name.partition(".")
    return target.with_name(f"{stem}_rank{rank}{dot}{suffixes}")


def trace_data(one: RankTrace) -> dict[str, Any]:
    """Return the trace of a rank as plain data."""
    host = HOST_PID + one.rank
    step = [] if one.step is None else [span("ProfilerStep#0", "user_annotation", host, 1, 0.0, one.step)]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": one.rank, "name": one.gpu}],
        "distributedInfo": {"backend": "nccl", "rank": one.rank, "world_size": one.world_size},
        "displayTimeUnit": "ns" if one.step is None else "ms",
        "baseTimeNanoseconds": 0,
        "weft": one.about,
        "traceEvents": [
            *name_events("process", one.rank, 0, f"GPU {one.rank}{one.place} ({one.gpu})", 0),
            *name_events("process", host, 0, f"host of GPU {one.rank}: launches", 1),
            *step,
            *_kernel_events(one.kernels, one.rank),
            *one.below,
        ],
    }


def _encode_events(data: dict[str, Any], target: Path) -> bytes:
    """JSON with one event per line: HolisticTraceAnalysis searches for the rank line by line."""
    about = to_json({key: value for key, value in data.items() if key != "traceEvents"})
    events = ",\n".join(to_json(event) for event in data["traceEvents"])
    text = f'{about[:-1]},\n"traceEvents": [\n{events}\n]}}\n'.encode()
    return gzip.compress(text, mtime=0) if target.name.endswith(".gz") else text


def _kernel_events(kernels: Sequence[TraceKernel], rank: int) -> Iterator[Event]:
    """Yield every kernel on its stream, its launch on the host, and the names of the streams."""
    known = dict(STREAMS)
    for kernel in kernels:
        known.setdefault(kernel.stream, _FIRST_OTHER + len(known))
    placed = [(kernel, known[kernel.stream] if kernel.number is None else kernel.number) for kernel in kernels]
    for number, what in sorted({number: kernel.stream for kernel, number in placed}.items()):
        yield from name_events("thread", rank, number, f"stream {number}: {what}", number)
    for correlation, (kernel, number) in enumerate(placed, _FIRST_CORRELATION):
        args = {"stream": number, "device": rank, "context": 1}
        if kernel.by_host:
            args["correlation"] = correlation
            launch = {"cbid": 211, "correlation": correlation}
            at = kernel.start if kernel.launched is None else kernel.launched, kernel.start
            yield span("cudaLaunchKernel", "cuda_runtime", HOST_PID + rank, 1, *at, **launch)
        yield span(kernel.name, kernel.category, rank, number, kernel.start, kernel.end, **args, **kernel.args)


def microseconds(seconds: float) -> float:
    """Return a time as traces hold it [us]."""
    return round(seconds * 1e6, 6)


def span(name: str, category: str, pid: int, tid: int, start: float, end: float, /, **args: Any) -> Event:
    """Return the event of something that lasts, from `start` to `end` [s]."""
    begin = microseconds(start)
    lasts = round(microseconds(end) - begin, 6)
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": lasts, "args": args}


def counter(name: str, pid: int, at: float, values: Mapping[str, float]) -> Event:
    """Return the event of values that hold from a moment [s]."""
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": microseconds(at), "args": values}


def instant(name: str, category: str, pid: int, tid: int, at: float) -> Event:
    """Return the event of a moment [s]."""
    return {"ph": "i", "s": "t", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": microseconds(at)}


def name_events(kind: str, pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    """Yield the metadata events that name a "process" or a "thread" and set its sort order."""
    for what, args in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}
