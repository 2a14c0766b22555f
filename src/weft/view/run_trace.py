"""The trace of a run: kernels and their launches, stages, chunks, DMA commands, DRAM and link traffic, held units."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from weft.core.errors import InputError
from weft.graph import Collective, Gemm, Node
from weft.graph.choice import Tracked
from weft.simulate.result import Span, Timeline
from weft.simulate.result.metrics import owned_bytes
from weft.view.explorer import chunk_moves
from weft.view.trace import (
    KERNELS,
    Event,
    RankTrace,
    TraceKernel,
    counter,
    instant,
    microseconds,
    name_events,
    span,
    write_traces,
)
from weft.view.units import held_stretches

_S_PER_FS = 1e-15
_FIRST_QUEUE, _QUEUES = 30, 64
"""Stream numbers of independent GEMMs: one per queue, up to a maximum."""
_FIRST_TRACK = 100
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
    return write_traces([run_trace(run, gpu) for gpu in sorted({each.gpu for each in run.spans})], path)


def run_trace(run: Timeline, gpu: int = 0) -> RankTrace:
    """Return the trace of one GPU."""
    below = [*_tracks(run, gpu), *_rates(run, gpu), *_unit_events(run, gpu)]
    kernels = [*_kernels(run, gpu), *_fused_kernels(run, gpu)]
    return RankTrace(gpu, run.gpu.name, kernels, run.to_dict(), run.graph.ranks, below=below)


def _tracks(run: Timeline, gpu: int) -> Iterator[Event]:
    """Stages, chunks and DMA commands on tracks below the streams; overlapping spans get separate tracks."""
    found: dict[tuple[str, str], list[tuple[int, int, str, Event]]] = {}
    for track, category, name, start, end, args in _below_streams(run, gpu):
        found.setdefault((track, category), []).append((start, end, name, args))
    tid = _FIRST_TRACK - 1
    for (track, category), spans in found.items():
        free: dict[int, int] = {}  # end of the last span on each track [fs]
        for start, end, name, args in sorted(spans, key=lambda each: each[:2]):
            lane = next((lane for lane, until in free.items() if until <= start), None)
            if lane is None:
                tid, lane = tid + 1, tid + 1
                yield from name_events("thread", gpu, tid, f"{track} ({len(free) + 1})" if free else track, tid)
            free[lane] = end
            yield span(name, category, gpu, lane, start * _S_PER_FS, end * _S_PER_FS, **args)
    complete = [(chunk, chunk.complete_fs) for chunk in run.chunks if chunk.gpu == gpu]
    if any(moment is not None for _, moment in complete):
        yield from name_events("thread", gpu, tid + 1, "tracker: chunks complete", tid + 1)
    for chunk, moment in complete:
        if moment is not None:
            name = f"{chunk.buffer} chunk {chunk.position} complete"
            yield instant(name, "tracker", gpu, tid + 1, moment * _S_PER_FS)


def _below_streams(run: Timeline, gpu: int) -> Iterator[tuple[str, str, str, int, int, Event]]:
    """Track, category, name, start and end [fs], and arguments of stages, chunks and DMA commands."""
    for stage in (stage for stage in run.stages if stage.gpu == gpu):
        name, args = f"{stage.kernel} stage {stage.index}", {"workgroups": stage.workgroups}
        yield f"stages of {stage.kernel}", "stage", name, stage.start_fs, stage.end_fs, args
    for chunk, move, start, end in chunk_moves(run, gpu):
        name = f"{chunk.buffer} chunk {chunk.position} {move}"
        yield f"chunks {move}", "chunk", name, start, end, {"bytes": chunk.bytes}
    for dma in sorted((dma for dma in run.dmas if dma.gpu == gpu), key=lambda dma: dma.engine):
        waited = microseconds((dma.start_fs - dma.ready_fs) * _S_PER_FS)
        more = {"bytes": dma.bytes, "tile": dma.tile, "waited_us": waited}
        yield f"DMA engine {dma.engine}", "dma", f"dma chunk {dma.position}", dma.start_fs, dma.end_fs, more


def _kernels(run: Timeline, gpu: int) -> Iterator[TraceKernel]:
    """Yield every kernel from its first workgroup to its end, launched when it was requested."""
    nodes = {node.name: node for node in run.graph}
    for each in (each for each in run.spans if each.gpu == gpu):
        node = nodes.get(each.operator)
        stream, number = _stream(run, each, node)
        yield TraceKernel(
            _kernel_name(each, node),
            stream,
            each.first_workgroup_fs * _S_PER_FS,
            each.end_fs * _S_PER_FS,
            {"workgroups": each.workgroups, "iteration": each.iteration},
            launched=each.start_fs * _S_PER_FS,
            number=number,
            category="kernel" if each.workgroups else "gpu_memcpy",
        )


def _stream(run: Timeline, each: Span, node: Node | None) -> tuple[str, int | None]:
    """Return what runs on the stream of a kernel, and its number where several streams compute."""
    if node is not None and isinstance(node.op, Collective):
        return "communication", None
    queued = len(run.graph.gemms) > 1 and not run.graph.collectives
    return "compute", _FIRST_QUEUE + each.stream % _QUEUES if queued else None


def _kernel_name(each: Span, node: Node | None) -> str:
    if node is not None and isinstance(node.op, Collective):
        if not each.workgroups:
            return f"Memcpy PtoP ({node.op.name} by DMA engines)"
        return KERNELS[node.op.name]
    first = each.operator if each.iteration == 0 else f"{each.operator}.{each.iteration}"
    part = each.operator + each.kernel.removeprefix(first).replace(" ", "_")  # a loop's kernels share a name
    if node is None or not isinstance(node.op, Gemm):
        return part
    return f"{part}_{node.op.dtype}_{node.op.m}x{node.op.n}x{node.op.k}"


def _fused_kernels(run: Timeline, gpu: int) -> Iterator[TraceKernel]:
    """A fused reduce-scatter, which has no kernel: from the first byte sent or received to the last complete chunk."""
    output = [chunk for chunk in run.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [t for c in output for t in (c.first_sent_fs, c.first_remote_fs) if t is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    tracked = any(isinstance(node.choice.kernel, Tracked) for node in run.graph)
    if not starts or not ends or not tracked:
        return
    start, end = min(starts) * _S_PER_FS, max(ends) * _S_PER_FS
    yield TraceKernel(FUSED, "track and trigger", start, end, by_host=False)


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
            yield counter(f"{name} [GB/s]", gpu, at * seconds, {"value": float(shown[at])})


def _unit_events(run: Timeline, gpu: int) -> Iterator[Event]:
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
            yield counter(f"{name}: held units", gpu, fs * _S_PER_FS, dict(zip(OWNERS, counts, strict=True)))


def unit_groups(units: int, parts: int) -> dict[str, tuple[int, int]]:
    """First and past-the-last compute unit of each XCD, or of each `GROUP` units in a GPU without XCDs."""
    if parts > 1:
        edges = [-(-part * units // parts) for part in range(parts + 1)]
        return {f"XCD {part}": edge for part, edge in enumerate(pairwise(edges))}
    groups = ((low, min(low + GROUP, units)) for low in range(0, units, GROUP))
    return {f"CUs {low} to {high - 1}": (low, high) for low, high in groups}
