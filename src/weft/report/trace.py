"""A run as a trace in Chrome's event format, with the fields that PyTorch's profiler (Kineto) writes.

Perfetto opens it; HolisticTraceAnalysis reads it: kernels carry category "kernel" and a stream, and names of
communication kernels match its rule ``^nccl.*Kernel``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.files import check_writable, write_atomically
from weft.report.trace_sharing import changes, sharing_counters
from weft.result import KernelSpan, Result
from weft.result.loops import is_gemm, loop_of, number_of

Event = dict[str, Any]

US_PER_FS = 1e-9
HOST_PID = 100_000
COMPUTE_STREAM, COMMUNICATION_STREAM, FUSED_STREAM = 7, 20, 24
_FIRST_QUEUE, _QUEUES = 30, 64
"""Streams of independent GEMMs: each has its own, as far as there are any."""
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


def write_trace(result: Result, path: str | Path) -> list[Path]:
    """Write a run's trace: to `path`, or to one file per GPU ("_rank0" and so on) if several were simulated.

    Returns the files. A path that ends in ".gz" is compressed. Times are in microseconds from the run's start.
    Raises InputError for an ideal, which has no events, and OutputError if a file cannot be written.
    """
    if not result.kernels:
        name = result.config.overlap
        raise InputError(
            f"'{name}' has no trace: it is an ideal, nothing ran; trace a simulated overlap instead"
        )
    gpus = sorted({kernel.gpu for kernel in result.kernels})
    paths = [check_writable(rank_path(path, gpu) if len(gpus) > 1 else path) for gpu in gpus]
    return [
        write_atomically(target, _encoded(trace(result, gpu), target))
        for gpu, target in zip(gpus, paths, strict=True)
    ]


def rank_path(path: str | Path, rank: int) -> Path:
    """The path of one rank's file: t.json becomes t_rank0.json, t.json.gz becomes t_rank0.json.gz."""
    target = Path(path)
    stem, dot, suffixes = target.name.partition(".")
    return target.with_name(f"{stem}_rank{rank}{dot}{suffixes}")


def trace(result: Result, gpu: int = 0) -> dict[str, Any]:
    """The trace of one GPU as plain data."""
    tracks = _Tracks(gpu)
    events = [
        *_process(gpu, f"GPU {gpu} ({result.config.gpu})", 0),
        *_process(HOST_PID + gpu, f"host of GPU {gpu}: launches", 1),
        *_kernels(result, gpu),
        *_fused(result, gpu),
        *_stages(result, gpu, tracks),
        *_chunks(result, gpu, tracks),
        *_dmas(result, gpu, tracks),
        *_counters(result, gpu),
        *sharing_counters(result, gpu),
    ]
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": gpu, "name": result.config.gpu}],
        "distributedInfo": {"backend": "nccl", "rank": gpu, "world_size": result.config.tp},
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": 0,
        "weft": asdict(result.config),
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

    def spans(
        self, track: str, category: str, spans: Iterable[tuple[str, int, int, Event]]
    ) -> Iterator[Event]:
        lanes: list[tuple[int, int]] = []
        for name, start, end, args in sorted(spans, key=lambda span: span[1:3]):
            lane = next((i for i, (_, free) in enumerate(lanes) if free <= start), len(lanes))
            if lane == len(lanes):
                lanes.append((self.add(track if lane == 0 else f"{track} ({lane + 1})"), 0))
            tid = lanes[lane][0]
            lanes[lane] = (tid, end)
            yield _span(name, category, self.gpu, tid, start, end, **args)


def _kernels(result: Result, gpu: int) -> Iterator[Event]:
    """Every kernel from its first workgroup to its end, and its launch, tied by their correlation."""
    mine = [kernel for kernel in result.kernels if kernel.gpu == gpu]
    for correlation, kernel in enumerate(mine, start=_FIRST_CORRELATION):
        stream = _stream(result, kernel)
        args = {"stream": stream, "device": gpu, "context": 1, "correlation": correlation}
        begin = kernel.first_workgroup_fs
        category = "kernel" if kernel.workgroups else "gpu_memcpy"
        yield _span(
            _kernel_name(result, kernel), category, gpu, stream, begin, kernel.end_fs, **args,
            workgroups=kernel.workgroups,
        )  # fmt: skip
        yield _span(
            "cudaLaunchKernel", "cuda_runtime", HOST_PID + gpu, 1, kernel.start_fs, begin, cbid=211,
            correlation=correlation,
        )  # fmt: skip
    for stream in sorted({_stream(result, kernel) for kernel in mine} or {COMPUTE_STREAM}):
        what = "communication" if stream == COMMUNICATION_STREAM else "compute"
        yield from _thread(gpu, stream, f"stream {stream}: {what}")


def _stream(result: Result, kernel: KernelSpan) -> int:
    if loop_of(kernel.name) in _KERNELS:
        return COMMUNICATION_STREAM
    if not _queued(result):
        return COMPUTE_STREAM
    return _FIRST_QUEUE + number_of(kernel.name) % _QUEUES


def _queued(result: Result) -> bool:
    """Whether independent GEMMs ran, each with a shape and a queue of its own."""
    return result.config.m == 0 and all(is_gemm(kernel.name) for kernel in result.kernels)


def _kernel_name(result: Result, kernel: KernelSpan) -> str:
    c, base = result.config, loop_of(kernel.name)
    if base in _KERNELS and not kernel.workgroups:
        return f"Memcpy PtoP ({base} by DMA engines)"
    if _queued(result):
        return kernel.name.replace(" ", "_")
    kind = kernel.name.removesuffix(f" {number_of(kernel.name)}").replace(" ", "_")
    return _KERNELS.get(base, f"{kind}_{c.dtype}_{c.m}x{c.n}x{c.k}")


def _fused(result: Result, gpu: int) -> Iterator[Event]:
    """A reduce-scatter without a kernel: from the first byte sent or received to the last complete chunk."""
    output = [chunk for chunk in result.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [t for c in output for t in (c.first_sent_fs, c.first_remote_fs) if t is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    if not starts or not ends or any(kernel.name == "reduce_scatter" for kernel in result.kernels):
        return
    args = {"stream": FUSED_STREAM, "device": gpu, "context": 1}
    yield _span(FUSED, "kernel", gpu, FUSED_STREAM, min(starts), max(ends), **args)
    yield from _thread(gpu, FUSED_STREAM, f"stream {FUSED_STREAM}: track and trigger")


def _stages(result: Result, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    for kernel in dict.fromkeys(stage.kernel for stage in result.stages if stage.gpu == gpu):
        spans = (
            (f"{kernel} stage {s.index}", s.start_fs, s.end_fs, {"workgroups": s.workgroups})
            for s in result.stages
            if s.gpu == gpu and s.kernel == kernel
        )
        yield from tracks.spans(f"stages of {kernel}", "stage", spans)


def _chunks(result: Result, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    """When chunks were written here, arrived, and left; a mark when the tracker saw one complete."""
    mine = [chunk for chunk in result.chunks if chunk.gpu == gpu]
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


def _dmas(result: Result, gpu: int, tracks: _Tracks) -> Iterator[Event]:
    mine = [dma for dma in result.dmas if dma.gpu == gpu]
    for engine in sorted({dma.engine for dma in mine}):
        spans = (
            (f"dma chunk {d.position}", d.start_fs, d.end_fs,
             {"bytes": d.bytes, "tile": d.tile, "waited_us": round(_us(d.start_fs) - _us(d.ready_fs), 6)})
            for d in mine
            if d.engine == engine
        )  # fmt: skip
        yield from tracks.spans(f"DMA engine {engine}", "dma", spans)


def _counters(result: Result, gpu: int) -> Iterator[Event]:
    """DRAM traffic by cause and egress link traffic [GB/s], one value wherever it changes."""
    if result.series is None:
        return
    series = result.series
    rates = {f"DRAM {cause.replace('_', ' ')} [GB/s]": series.rate(cause, gpu) for cause in series.traffic}
    rates["link out [GB/s]"] = series.link[gpu] / (series.bin_fs * 1e-15)
    for name, rate in rates.items():
        yield from changes(name, gpu, rate / 1e9, series.bin_fs)
