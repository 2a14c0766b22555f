"""A run as a trace in Chrome's event format, with the fields that PyTorch's profiler (Kineto) writes.

Perfetto opens it; HolisticTraceAnalysis reads it: kernels carry category "kernel" and a stream, and names of
communication kernels match its rule ``^nccl.*Kernel``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.files import check_writable, write_atomically
from weft.graph import Collective, Gemm, Node
from weft.result import Residency, Span, Timeline
from weft.result.metrics import owned_bytes
from weft.view.units import held_stretches

Event = dict[str, Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

US_PER_FS = 1e-9
HOST_PID = 100_000
COMPUTE_STREAM, COMMUNICATION_STREAM, FUSED_STREAM = 7, 20, 24
_FIRST_QUEUE, _QUEUES = 30, 64
"""Streams of independent GEMMs: each queue has its own, as far as there are any."""
_FIRST_TRACK = 100
_FIRST_CORRELATION = 1 << 20
_KERNELS = {
    "reduce_scatter": "ncclDevKernel_ReduceScatter_RING",
    "all_gather": "ncclDevKernel_AllGather_RING",
    "all_reduce": "ncclDevKernel_AllReduce_RING",
    "all_to_all": "ncclDevKernel_SendRecv",
}
FUSED = "ncclTrackTriggerKernel_ReduceScatter"
"""The reduce-scatter that track-and-trigger runs without a kernel of its own."""
GROUP = 16
"""Compute units of one counter where a GPU has no parts of its own."""
OWNERS = ("gemm", "collective")


def write_trace(run: Timeline, path: str | Path) -> list[Path]:
    """Write a run's trace: to `path`, or to one file per GPU ("_rank0" and so on) if several were simulated.

    Returns the files. A path that ends in ".gz" is compressed. Times are in microseconds from the run's start.
    Raises InputError for an ideal, which has no events, and OutputError if a file cannot be written.
    """
    if not run.spans:
        raise InputError(
            f"'{run.overlap}' has no trace: it is an ideal, nothing ran; trace a simulated overlap instead"
        )
    gpus = sorted({span.gpu for span in run.spans})
    paths = [check_writable(rank_path(path, gpu) if len(gpus) > 1 else path) for gpu in gpus]
    return [
        write_atomically(target, _encoded(trace(run, gpu), target)) for gpu, target in zip(gpus, paths, strict=True)
    ]


def rank_path(path: str | Path, rank: int) -> Path:
    """The path of one rank's file: t.json becomes t_rank0.json, t.json.gz becomes t_rank0.json.gz."""
    target = Path(path)
    stem, dot, suffixes = target.name.partition(".")
    return target.with_name(f"{stem}_rank{rank}{dot}{suffixes}")


def trace(run: Timeline, gpu: int = 0) -> dict[str, Any]:
    """The trace of one GPU as plain data."""
    tracks = _Tracks(gpu)
    events = [
        *_process(gpu, f"GPU {gpu} ({run.gpu.name})", 0),
        *_process(HOST_PID + gpu, f"host of GPU {gpu}: launches", 1),
        *_kernels(run, gpu),
        *_fused(run, gpu),
        *_stages(run, gpu, tracks),
        *_chunks(run, gpu, tracks),
        *_dmas(run, gpu, tracks),
        *_counters(run, gpu),
        *_sharing(run, gpu),
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": gpu, "name": run.gpu.name}],
        "distributedInfo": {"backend": "nccl", "rank": gpu, "world_size": run.graph.ranks},
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": 0,
        "weft": run.to_dict(),
        "traceEvents": [*events, *tracks.names],
    }


def _encoded(data: dict[str, Any], target: Path) -> bytes:
    """JSON with a line per event: HolisticTraceAnalysis seeks the rank line by line."""
    about = json.dumps({key: value for key, value in data.items() if key != "traceEvents"})
    events = ",\n".join(json.dumps(event) for event in data["traceEvents"])
    text = f'{about[:-1]},\n"traceEvents": [\n{events}\n]}}\n'.encode()
    return gzip.compress(text, mtime=0) if target.name.endswith(".gz") else text


def _us(fs: int) -> float:
    return round(fs * US_PER_FS, 6)


def _span(name: str, category: str, pid: int, tid: int, start_fs: int, end_fs: int, **args: Any) -> Event:
    start = _us(start_fs)
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start,
        "dur": round(_us(end_fs) - start, 6), "args": args,
    }  # fmt: skip


def _process(pid: int, name: str, order: int) -> Iterator[Event]:
    for what, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": what, "pid": pid, "tid": 0, "ts": 0, "args": args}


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    for what, args in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": tid})):
        yield {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


@dataclass
class _Tracks:
    """Tracks below the streams; spans that overlap get a lane each: in one track they would nest."""

    gpu: int
    names: list[Event] = field(default_factory=list)
    next_tid: int = _FIRST_TRACK

    def add(self, name: str) -> int:
        tid = self.next_tid
        self.next_tid += 1
        self.names.extend(_thread(self.gpu, tid, name))
        return tid

    def spans(self, track: str, category: str, spans: Iterable[tuple[str, int, int, Event]]) -> Iterator[Event]:
        lanes: list[tuple[int, int]] = []
        for name, start, end, args in sorted(spans, key=lambda span: span[1:3]):
            lane = next((i for i, (_, free) in enumerate(lanes) if free <= start), len(lanes))
            if lane == len(lanes):
                lanes.append((self.add(track if lane == 0 else f"{track} ({lane + 1})"), 0))
            tid = lanes[lane][0]
            lanes[lane] = (tid, end)
            yield _span(name, category, self.gpu, tid, start, end, **args)


def _kernels(run: Timeline, gpu: int) -> Iterator[Event]:
    """Every kernel from its first workgroup to its end, and its launch, tied by their correlation."""
    nodes = {node.name: node for node in run.graph}
    mine = [(span, _stream(run, span, nodes)) for span in run.spans if span.gpu == gpu]
    for correlation, (span, stream) in enumerate(mine, start=_FIRST_CORRELATION):
        args = {"stream": stream, "device": gpu, "context": 1, "correlation": correlation}
        begin = span.first_workgroup_fs
        category = "kernel" if span.workgroups else "gpu_memcpy"
        yield _span(
            _kernel_name(span, nodes.get(span.operator)), category, gpu, stream, begin, span.end_fs, **args,
            workgroups=span.workgroups, iteration=span.iteration,
        )  # fmt: skip
        yield _span(
            "cudaLaunchKernel", "cuda_runtime", HOST_PID + gpu, 1, span.start_fs, begin, cbid=211,
            correlation=correlation,
        )  # fmt: skip
    for stream in sorted({stream for _, stream in mine} or {COMPUTE_STREAM}):
        what = "communication" if stream == COMMUNICATION_STREAM else "compute"
        yield from _thread(gpu, stream, f"stream {stream}: {what}")


def _stream(run: Timeline, span: Span, nodes: Mapping[str, Node]) -> int:
    if span.operator in nodes and isinstance(nodes[span.operator].op, Collective):
        return COMMUNICATION_STREAM
    queued = len(run.graph.gemms) > 1 and not run.graph.collectives
    return _FIRST_QUEUE + span.stream % _QUEUES if queued else COMPUTE_STREAM


def _kernel_name(span: Span, node: Node | None) -> str:
    if node is not None and isinstance(node.op, Collective):
        if not span.workgroups:
            return f"Memcpy PtoP ({node.op.name} by DMA engines)"
        return _KERNELS[node.op.name]
    first = span.operator if span.iteration == 0 else f"{span.operator}.{span.iteration}"
    part = span.operator + span.kernel.removeprefix(first).replace(" ", "_")  # a loop's kernels share a name
    if node is None or not isinstance(node.op, Gemm):
        return part
    return f"{part}_{node.op.dtype}_{node.op.m}x{node.op.n}x{node.op.k}"


def _fused(run: Timeline, gpu: int) -> Iterator[Event]:
    """A reduce-scatter without a kernel: from the first byte sent or received to the last complete chunk."""
    output = [chunk for chunk in run.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [t for c in output for t in (c.first_sent_fs, c.first_remote_fs) if t is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    tracked = any(node.choice.driver == "tracker" for node in run.graph)
    if not starts or not ends or not tracked:
        return
    args = {"stream": FUSED_STREAM, "device": gpu, "context": 1}
    yield _span(FUSED, "kernel", gpu, FUSED_STREAM, min(starts), max(ends), **args)
    yield from _thread(gpu, FUSED_STREAM, f"stream {FUSED_STREAM}: track and trigger")


def _stages(run: Timeline, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    for kernel in dict.fromkeys(stage.kernel for stage in run.stages if stage.gpu == gpu):
        spans = (
            (f"{kernel} stage {s.index}", s.start_fs, s.end_fs, {"workgroups": s.workgroups})
            for s in run.stages
            if s.gpu == gpu and s.kernel == kernel
        )
        yield from tracks.spans(f"stages of {kernel}", "stage", spans)


def _chunks(run: Timeline, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    """When chunks were written here, arrived, and left; a mark when the tracker saw one complete."""
    mine = [chunk for chunk in run.chunks if chunk.gpu == gpu]
    for what, verb in (("local", "written here"), ("remote", "arriving"), ("sent", "sent by DMA")):
        spans = (
            (
                f"{c.buffer} chunk {c.position} {verb}", getattr(c, f"first_{what}_fs"),
                getattr(c, f"last_{what}_fs"), {"bytes": c.bytes},
            )
            for c in mine
            if getattr(c, f"first_{what}_fs") is not None
        )  # fmt: skip
        yield from tracks.spans(f"chunks {verb}", "chunk", spans)
    done = [(chunk, chunk.complete_fs) for chunk in mine if chunk.complete_fs is not None]
    if not done:
        return
    tid = tracks.add("tracker: chunks complete")
    for chunk, moment in done:
        yield {
            "ph": "i", "s": "t", "cat": "tracker", "name": f"{chunk.buffer} chunk {chunk.position} complete",
            "pid": gpu, "tid": tid, "ts": _us(moment),
        }  # fmt: skip


def _dmas(run: Timeline, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    mine = [dma for dma in run.dmas if dma.gpu == gpu]
    for engine in sorted({dma.engine for dma in mine}):
        spans = (
            (f"dma chunk {d.position}", d.start_fs, d.end_fs,
             {"bytes": d.bytes, "tile": d.tile, "waited_us": round(_us(d.start_fs) - _us(d.ready_fs), 6)})
            for d in mine
            if d.engine == engine
        )  # fmt: skip
        yield from tracks.spans(f"DMA engine {engine}", "dma", spans)


def _counters(run: Timeline, gpu: int) -> Iterator[Event]:
    """DRAM traffic by cause and egress link traffic [GB/s], one value wherever it changes."""
    if run.series is None:
        return
    series = run.series
    rates = {f"DRAM {' '.join(cause)} [GB/s]": series.rate(cause, gpu) for cause in series.traffic}
    rates["link out [GB/s]"] = series.link[gpu] / (series.bin_fs * 1e-15)
    for name, rate in rates.items():
        yield from _changes(name, gpu, rate / 1e9, series.bin_fs)


def _sharing(run: Timeline, gpu: int) -> Iterator[Event]:
    """Compute units that GEMMs and collectives hold, part by part, and what DRAM moves for each [GB/s]."""
    if run.residency is None:
        return
    yield from _held(run, run.residency, gpu)
    if run.series is not None:
        width = run.series.bin_fs
        for owner in OWNERS:
            read, written = (owned_bytes(run, owner == "gemm", writes, gpu) for writes in (False, True))
            yield from _changes(f"DRAM for {owner} [GB/s]", gpu, (read + written) / (width * 1e-6), width)


def _changes(name: str, gpu: int, values: Floats, width_fs: int) -> Iterator[Event]:
    """A counter's value wherever it changes, from one value per `width_fs`; zero behind the last."""
    shown = np.append(np.round(values, 3), 0.0)
    for at in np.flatnonzero(np.diff(shown, prepend=-1.0)):
        yield _count(name, gpu, int(at) * width_fs, {"value": float(shown[at])})


def _count(name: str, gpu: int, fs: int, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": gpu, "tid": 0, "ts": _us(fs), "args": dict(values)}


def _held(run: Timeline, held: Residency, gpu: int) -> Iterator[Event]:
    """How many compute units of each part of the GPU an owner's workgroups run on, wherever that changes."""
    gemms = {node.name for node in run.graph.gemms}
    of = {
        owner: {span.kernel for span in run.spans if (span.operator in gemms) is (owner == "gemm")} for owner in OWNERS
    }
    for name, (low, high) in unit_groups(held.units, run.gpu.dies).items():
        found = [_steps(*held.of(gpu, of[owner]), low, high) for owner in OWNERS]
        times = np.unique(np.concatenate([[0], *(moments for moments, _ in found)]))
        series = [_at(times, moments, counts) for moments, counts in found]
        for at, *counts in zip(times.tolist(), *(values.tolist() for values in series), strict=True):
            yield _count(f"{name}: held units", gpu, at, dict(zip(OWNERS, counts, strict=True)))


def unit_groups(units: int, parts: int) -> dict[str, tuple[int, int]]:
    """The compute units from and to (exclusive) of each XCD, or of each `GROUP` in a GPU that has no parts."""
    if parts > 1:
        edges = [-(-part * units // parts) for part in range(parts + 1)]
        return {f"XCD {part}": (edges[part], edges[part + 1]) for part in range(parts)}
    groups = ((low, min(low + GROUP, units)) for low in range(0, units, GROUP))
    return {f"CUs {low} to {high - 1}": (low, high) for low, high in groups}


def _steps(units: Ints, starts: Ints, ends: Ints, low: int, high: int) -> tuple[Ints, Ints]:
    """When the number of held units of a group changes [fs], and what it is from then on."""
    mine = (units >= low) & (units < high)
    begin, over = held_stretches(units[mine], starts[mine], ends[mine])
    times, where = np.unique(np.append(begin, over), return_inverse=True)
    change = np.bincount(where, weights=np.repeat([1, -1], len(begin)), minlength=len(times))
    return times, np.cumsum(change).astype(np.int64)


def _at(times: Ints, moments: Ints, counts: Ints) -> Ints:
    """The counts at other times."""
    place = np.searchsorted(moments, times, side="right")
    return np.append(0, counts)[place]
