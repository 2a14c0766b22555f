"""A run as a trace in Chrome's event format, with the fields that PyTorch's profiler (Kineto) writes.

Perfetto opens it; HolisticTraceAnalysis reads it: kernels carry category "kernel" and a stream, and names of
communication kernels match its rule ``^nccl.*Kernel``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.files import check_writable, write_atomically
from weft.graph import Collective, Gemm, Node
from weft.result import Span, Timeline
from weft.result.metrics import owned_bytes
from weft.view.explorer import chunk_moves
from weft.view.units import held_stretches

Event = dict[str, Any]
US_PER_FS = 1e-9
HOST_PID = 100_000
COMPUTE_STREAM, COMMUNICATION_STREAM, FUSED_STREAM = 7, 20, 24
_FIRST_QUEUE, _QUEUES = 30, 64
"""Stream numbers of independent GEMMs: one per queue, up to a maximum."""
_FIRST_TRACK = 100
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
FUSED = "ncclTrackTriggerKernel_ReduceScatter"
"""The reduce-scatter that track-and-trigger runs without a kernel of its own."""
GROUP = 16
"""Compute units per counter track in a GPU without XCDs."""
OWNERS = ("gemm", "collective")


def write_trace(run: Timeline, path: str | Path) -> list[Path]:
    """Write a run's trace: to `path`, or to one file per GPU ("_rank0" and so on) if several were simulated.

    Returns the files. A path ending in ".gz" is compressed. Times are in microseconds from the run's start. Raises
    InputError for an ideal, which has no events, and OutputError if a file cannot be written.
    """
    if not run.spans:
        raise InputError(
            f"'{run.overlap}' has no trace: it is an ideal, nothing ran; trace a simulated overlap instead"
        )
    gpus = sorted({span.gpu for span in run.spans})
    paths = [check_writable(rank_path(path, gpu) if len(gpus) > 1 else path) for gpu in gpus]
    return [write_atomically(target, encoded(trace(run, gpu), target)) for gpu, target in zip(gpus, paths, strict=True)]


def rank_path(path: str | Path, rank: int) -> Path:
    """The path of one rank's file: t.json becomes t_rank0.json, t.json.gz becomes t_rank0.json.gz."""
    target = Path(path)
    stem, dot, suffixes = target.name.partition(".")
    return target.with_name(f"{stem}_rank{rank}{dot}{suffixes}")


def trace(run: Timeline, gpu: int = 0) -> dict[str, Any]:
    """The trace of one GPU as plain data."""
    host = HOST_PID + gpu
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": gpu, "name": run.gpu.name}],
        "distributedInfo": {"backend": "nccl", "rank": gpu, "world_size": run.graph.ranks},
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": 0,
        "weft": run.to_dict(),
        "traceEvents": [
            *named("process", gpu, 0, f"GPU {gpu} ({run.gpu.name})", 0),
            *named("process", host, 0, f"host of GPU {gpu}: launches", 1),
            *_kernels(run, gpu, host),
            *_fused(run, gpu),
            *_tracks(run, gpu),
            *_rates(run, gpu),
            *_held(run, gpu),
        ],
    }


def encoded(data: dict[str, Any], target: Path) -> bytes:
    """JSON with one event per line: HolisticTraceAnalysis searches for the rank line by line."""
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


def named(kind: str, pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    """The metadata events that name a "process" or a "thread" and set its sort order."""
    for what, args in ((f"{kind}_name", {"name": name}), (f"{kind}_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _tracks(run: Timeline, gpu: int) -> Iterator[Event]:
    """Stages, chunks and DMA commands on tracks below the streams; overlapping spans get separate tracks."""
    found: dict[tuple[str, str], list[tuple[int, int, str, Event]]] = {}
    for track, category, name, start, end, args in _below_streams(run, gpu):
        found.setdefault((track, category), []).append((start, end, name, args))
    tid = _FIRST_TRACK - 1
    for (track, category), spans in found.items():
        free: dict[int, int] = {}  # end of the last span on each track [fs]
        for start, end, name, args in sorted(spans, key=lambda span: span[:2]):
            lane = next((lane for lane, until in free.items() if until <= start), None)
            if lane is None:
                tid, lane = tid + 1, tid + 1
                yield from named("thread", gpu, tid, f"{track} ({len(free) + 1})" if free else track, tid)
            free[lane] = end
            yield _span(name, category, gpu, lane, start, end, **args)
    complete = [(chunk, chunk.complete_fs) for chunk in run.chunks if chunk.gpu == gpu]
    if any(moment is not None for _, moment in complete):
        yield from named("thread", gpu, tid + 1, "tracker: chunks complete", tid + 1)
    for chunk, moment in complete:
        if moment is not None:
            name = f"{chunk.buffer} chunk {chunk.position} complete"
            yield {"ph": "i", "s": "t", "cat": "tracker", "name": name, "pid": gpu, "tid": tid + 1, "ts": _us(moment)}


def _below_streams(run: Timeline, gpu: int) -> Iterator[tuple[str, str, str, int, int, Event]]:
    """Track, category, name, start and end [fs], and arguments of stages, chunks and DMA commands."""
    for stage in (stage for stage in run.stages if stage.gpu == gpu):
        name, args = f"{stage.kernel} stage {stage.index}", {"workgroups": stage.workgroups}
        yield f"stages of {stage.kernel}", "stage", name, stage.start_fs, stage.end_fs, args
    for chunk, move, start, end in chunk_moves(run, gpu):
        name = f"{chunk.buffer} chunk {chunk.position} {move}"
        yield f"chunks {move}", "chunk", name, start, end, {"bytes": chunk.bytes}
    for dma in sorted((dma for dma in run.dmas if dma.gpu == gpu), key=lambda dma: dma.engine):
        waited = round(_us(dma.start_fs) - _us(dma.ready_fs), 6)
        yield f"DMA engine {dma.engine}", "dma", f"dma chunk {dma.position}", dma.start_fs, dma.end_fs, {
            "bytes": dma.bytes, "tile": dma.tile, "waited_us": waited
        }  # fmt: skip


def _kernels(run: Timeline, gpu: int, host: int) -> Iterator[Event]:
    """Every kernel from its first workgroup to its end, and its launch, linked by a correlation id."""
    nodes = {node.name: node for node in run.graph}
    mine = [(span, _stream(run, span, nodes)) for span in run.spans if span.gpu == gpu]
    for correlation, (span, stream) in enumerate(mine, start=_FIRST_CORRELATION):
        begin, name = span.first_workgroup_fs, _kernel_name(span, nodes.get(span.operator))
        args = {"stream": stream, "device": gpu, "context": 1, "correlation": correlation}
        args |= {"workgroups": span.workgroups, "iteration": span.iteration}
        yield _span(name, "kernel" if span.workgroups else "gpu_memcpy", gpu, stream, begin, span.end_fs, **args)
        launch = {"cbid": 211, "correlation": correlation}
        yield _span("cudaLaunchKernel", "cuda_runtime", host, 1, span.start_fs, begin, **launch)
    for stream in sorted({stream for _, stream in mine} or {COMPUTE_STREAM}):
        what = "communication" if stream == COMMUNICATION_STREAM else "compute"
        yield from named("thread", gpu, stream, f"stream {stream}: {what}", stream)


def _stream(run: Timeline, span: Span, nodes: Mapping[str, Node]) -> int:
    if span.operator in nodes and isinstance(nodes[span.operator].op, Collective):
        return COMMUNICATION_STREAM
    queued = len(run.graph.gemms) > 1 and not run.graph.collectives
    return _FIRST_QUEUE + span.stream % _QUEUES if queued else COMPUTE_STREAM


def _kernel_name(span: Span, node: Node | None) -> str:
    if node is not None and isinstance(node.op, Collective):
        if not span.workgroups:
            return f"Memcpy PtoP ({node.op.name} by DMA engines)"
        return KERNELS[node.op.name]
    first = span.operator if span.iteration == 0 else f"{span.operator}.{span.iteration}"
    part = span.operator + span.kernel.removeprefix(first).replace(" ", "_")  # a loop's kernels share a name
    if node is None or not isinstance(node.op, Gemm):
        return part
    return f"{part}_{node.op.dtype}_{node.op.m}x{node.op.n}x{node.op.k}"


def _fused(run: Timeline, gpu: int) -> Iterator[Event]:
    """A fused reduce-scatter, which has no kernel: from the first byte sent or received to the last complete chunk."""
    output = [chunk for chunk in run.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [t for c in output for t in (c.first_sent_fs, c.first_remote_fs) if t is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    tracked = any(node.choice.driver == "tracker" for node in run.graph)
    if not starts or not ends or not tracked:
        return
    args = {"stream": FUSED_STREAM, "device": gpu, "context": 1}
    yield _span(FUSED, "kernel", gpu, FUSED_STREAM, min(starts), max(ends), **args)
    yield from named("thread", gpu, FUSED_STREAM, f"stream {FUSED_STREAM}: track and trigger", FUSED_STREAM)


def _rates(run: Timeline, gpu: int) -> Iterator[Event]:
    """DRAM traffic by cause and by operator, and egress link traffic [GB/s]: a value at every change."""
    if run.series is None:
        return
    seconds = run.series.bin_fs * 1e-15
    rates = {f"DRAM {' '.join(cause)}": run.series.rate(cause, gpu) for cause in run.series.traffic}
    rates["link out"] = run.series.link[gpu] / seconds
    for owner in OWNERS if run.residency is not None else ():
        read, written = (owned_bytes(run, owner == "gemm", writes, gpu) for writes in (False, True))
        rates[f"DRAM for {owner}"] = (read + written) / seconds
    for name, rate in rates.items():
        shown = np.append(np.round(rate / 1e9, 3), 0.0)  # zero after the last bin
        for at in np.flatnonzero(np.diff(shown, prepend=-1.0)).tolist():
            yield _count(f"{name} [GB/s]", gpu, at * run.series.bin_fs, {"value": float(shown[at])})


def _count(name: str, gpu: int, fs: int, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": gpu, "tid": 0, "ts": _us(fs), "args": values}


def _held(run: Timeline, gpu: int) -> Iterator[Event]:
    """Compute units of each part of the GPU on which an operator's workgroups run, at every change."""
    if run.residency is None:
        return
    gemms = {node.name for node in run.graph.gemms}
    stretches = [
        held_stretches(*run.residency.of(gpu, {s.kernel for s in run.spans if (s.operator in gemms) is is_gemm}))
        for is_gemm in (True, False)
    ]
    for name, (low, high) in unit_groups(run.residency.units, run.gpu.dies).items():
        moments, changes = [np.zeros(1, dtype=np.int64)], [np.zeros((1, len(OWNERS)), dtype=np.int64)]
        for change, (units, *ends) in zip(np.eye(len(OWNERS), dtype=np.int64), stretches, strict=True):
            for sign, at in zip((1, -1), ends, strict=True):
                moments.append(at[(units >= low) & (units < high)])
                changes.append(np.tile(sign * change, (len(moments[-1]), 1)))
        times, which = np.unique(np.concatenate(moments), return_inverse=True)
        held = np.zeros((len(times), len(OWNERS)), dtype=np.int64)
        np.add.at(held, which, np.concatenate(changes))
        for fs, counts in zip(times.tolist(), held.cumsum(axis=0).tolist(), strict=True):
            yield _count(f"{name}: held units", gpu, fs, dict(zip(OWNERS, counts, strict=True)))


def unit_groups(units: int, parts: int) -> dict[str, tuple[int, int]]:
    """First and past-the-last compute unit of each XCD, or of each `GROUP` units in a GPU without XCDs."""
    if parts > 1:
        edges = [-(-part * units // parts) for part in range(parts + 1)]
        return {f"XCD {part}": edge for part, edge in enumerate(pairwise(edges))}
    groups = ((low, min(low + GROUP, units)) for low in range(0, units, GROUP))
    return {f"CUs {low} to {high - 1}": (low, high) for low, high in groups}
