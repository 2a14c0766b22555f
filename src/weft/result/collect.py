"""From the engine's final state to a timeline: rows become names, bins become series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Machine, Table
from weft.program import PlacedKernel, Program
from weft.result.timeline import Cause, ChunkSpan, DmaSpan, Ints, Residency, Series, Span, StageSpan

WAITS = {
    "compute": y.RUN_COMPUTE,
    "memory": y.RUN_WAIT_LOAD,
    "matrix_unit": y.RUN_WAIT_MATRIX,
    "store": y.RUN_WAIT_STORE,
    "chunk": y.RUN_WAIT_COUNTER,
}


def _causes(program: Program) -> list[Cause]:
    """The causes of traffic in the order of the engine's columns."""
    return [(operator, kind) for operator in program.operators for kind in ("read", "write", "update")]


def collect(program: Program, m: Machine, resident: Mapping[str, int]) -> dict[str, Any]:
    """What a finished run has to say, by field of a Timeline; `resident` is how many workgroups fit, by kernel."""
    spans = _spans(program, m, resident)
    chunks = _chunks(program, m)
    gpus, causes = int(m.shape[y.SIZE_GPUS]), _causes(program)
    begin = min(int(start) for start in m.gpu[:, y.GPU_START])
    # A fused reduce-scatter is no kernel: it ends when its last chunk is whole and gone.
    fused = [at for one in chunks if one.buffer == "output" for at in (one.complete_fs, one.last_sent_fs) if at]
    end = max((*(span.end_fs for span in spans), *fused), default=int(m.clock[y.CLOCK_NOW]))
    return {
        "seconds": (end - begin) * 1e-15,
        "durations": _durations(m, spans, chunks),
        "traffic": {
            causes[cause]: int(m.traffic[:, cause].sum()) // gpus
            for cause in np.flatnonzero(m.traffic.any(axis=0)).tolist()
        },
        "levels": _levels(m, causes),
        "counters": _counters(m),
        "held": _held(program, m),
        "spans": spans,
        "stages": _stages(program, m),
        "chunks": chunks,
        "dmas": _dmas(program, m),
        "series": _series(m, causes),
        "residency": _residency(program, m),
        "events": int(m.clock[y.CLOCK_EVENTS]),
        "requests": int(m.clock[y.CLOCK_REQUESTS]),
    }


LEVELS = {
    "cache_hit": y.LEVEL_HIT,
    "cache_merged": y.LEVEL_MERGED,
    "memory_cache_hit": y.LEVEL_SIDE_HIT,
    "memory_cache_merged": y.LEVEL_SIDE_MERGED,
    "memory_cache_written": y.LEVEL_SIDE_WRITTEN,
}


def _levels(m: Machine, causes: list[Cause]) -> dict[str, dict[Cause, int]]:
    """What caches served, by level and cause, of one GPU (the mean if several were simulated) [bytes]."""
    served = m.served.sum(axis=0) // int(m.shape[y.SIZE_GPUS])
    return {
        name: {causes[cause]: int(served[level, cause]) for cause in np.flatnonzero(served[level]).tolist()}
        for name, level in LEVELS.items()
        if served[level].any()
    }


def _gpus(m: Machine) -> range:
    return range(int(m.shape[y.SIZE_GPUS]))


def _spans(program: Program, m: Machine, resident: Mapping[str, int]) -> tuple[Span, ...]:
    return tuple(
        Span(
            gpu=g,
            operator=placed.operator,
            iteration=placed.iteration,
            stream=placed.stream,
            kernel=placed.kernel.name,
            start_fs=int(m.kernel_run[g, k, y.RUN_START]),
            first_workgroup_fs=int(m.kernel_run[g, k, y.RUN_LAUNCHED]),
            end_fs=int(m.kernel_run[g, k, y.RUN_END]),
            workgroups=int(m.kernel[g, k, y.KERNEL_WORKGROUPS]),
            resident=resident.get(placed.kernel.name, 0),
            waits={what: int(m.kernel_run[g, k, column]) for what, column in WAITS.items()},
            per_workgroup=_per_workgroup(m, g, k),
        )
        for g in _gpus(m)
        for k, placed in enumerate(program.plan.kernels)
    )


def _by_operator(program: Program) -> dict[str, list[tuple[int, PlacedKernel]]]:
    """The kernels of every operator with their rows."""
    found: dict[str, list[tuple[int, PlacedKernel]]] = {}
    for k, placed in enumerate(program.plan.kernels):
        found.setdefault(placed.operator, []).append((k, placed))
    return found


def _held(program: Program, m: Machine) -> dict[str, int]:
    """On how many compute units of GPU 0 the workgroups of each operator ran."""
    return {
        name: len({unit for k, _ in kernels for unit in _log(m, 0, k)[:, y.WORKLOG_UNIT].tolist()})
        for name, kernels in _by_operator(program).items()
    }


def _log(m: Machine, g: int, k: int) -> Table:
    """When and where the workgroups of a kernel ran."""
    first = int(m.kernel[g, k, y.KERNEL_FIRST_WORK])
    return m.work_log[g, first : first + int(m.kernel[g, k, y.KERNEL_WORKGROUPS])]


def _stages(program: Program, m: Machine) -> tuple[StageSpan, ...]:
    spans = []
    for g in _gpus(m):
        for k, name in enumerate(program.kernel_names):
            log = _log(m, g, k)
            count = len(log)
            if count == 0:  # copies by DMA engines
                continue
            # What the GPU holds at once: the workgroups placed before any had ended.
            wave = max(int((log[:, y.WORKLOG_START] < log[:, y.WORKLOG_END].min()).sum()), 1)
            for stage in range(-(-count // wave)):
                part = log[stage * wave : (stage + 1) * wave]
                start, end = int(part[:, y.WORKLOG_START].min()), int(part[:, y.WORKLOG_END].max())
                spans.append(StageSpan(g, name, stage, len(part), start, end))
    return tuple(spans)


def _moment(value: int) -> int | None:
    return None if value == y.NONE else int(value)


def _chunks(program: Program, m: Machine) -> tuple[ChunkSpan, ...]:
    spans = []
    for g in _gpus(m):
        for row, (buffer, position) in enumerate(program.regions):
            log = m.chunk_log[g, row]
            if (log == y.NONE).all():
                continue
            spans.append(
                ChunkSpan(
                    gpu=g,
                    buffer=buffer,
                    position=position,
                    bytes=int(m.region[g, row, y.REGION_SIZE]),
                    first_local_fs=_moment(log[y.CHUNK_FIRST_LOCAL]),
                    last_local_fs=_moment(log[y.CHUNK_LAST_LOCAL]),
                    first_remote_fs=_moment(log[y.CHUNK_FIRST_REMOTE]),
                    last_remote_fs=_moment(log[y.CHUNK_LAST_REMOTE]),
                    first_sent_fs=_moment(log[y.CHUNK_FIRST_SENT]),
                    last_sent_fs=_moment(log[y.CHUNK_LAST_SENT]),
                    complete_fs=_moment(log[y.CHUNK_COMPLETE]),
                )
            )
    return tuple(spans)


def _dmas(program: Program, m: Machine) -> tuple[DmaSpan, ...]:
    spans = []
    for g in _gpus(m):
        for tile in np.flatnonzero(m.dma_log[g, :, y.COMMAND_END] != y.NONE):
            log = m.dma_log[g, tile]
            region = m.tile[g, tile, y.TILE_REGION]
            spans.append(
                DmaSpan(
                    gpu=g,
                    engine=int(log[y.COMMAND_ENGINE]),
                    tile=int(tile),
                    position=program.regions[int(region)][1],
                    bytes=int(log[y.COMMAND_BYTES]),
                    ready_fs=int(log[y.COMMAND_READY]),
                    start_fs=int(log[y.COMMAND_START]),
                    end_fs=int(log[y.COMMAND_END]),
                )
            )
    return tuple(spans)


def _series(m: Machine, causes: list[Cause]) -> Series:
    used = int(np.flatnonzero(m.series.any(axis=(0, 1)) | m.link_series.any(axis=0)).max(initial=0)) + 1
    traffic: dict[Cause, Ints] = {
        name: m.series[:, cause, :used].copy() for cause, name in enumerate(causes) if m.series[:, cause].any()
    }
    return Series(bin_fs=int(m.clock[y.CLOCK_BIN]), traffic=traffic, link=m.link_series[:, :used].copy())


def link_loads(program: Program, m: Machine) -> dict[str, tuple[int, int]]:
    """What each link carried [bytes], and how long it was busy [fs], by its name.

    Where one GPU stands for all, links are its own; its ingress is not listed where it is as fast as its egress.
    """
    columns = m.link_run[:, (y.LINK_BYTES, y.LINK_BUSY)].tolist()
    return {name: (bytes_, busy) for name, (bytes_, busy) in zip(program.link_names, columns, strict=True)}


def _busy_links(m: Machine) -> Table:
    """How long each link was busy by which messages leave their GPU [fs]."""
    starts = m.region[:, :, (y.REGION_ROUTE, y.REGION_ALSO_ROUTE)]
    first = np.unique(m.route[starts[starts != y.NONE], y.ROUTE_LINK])
    return m.link_run[first, y.LINK_BUSY] if len(first) else np.zeros(1, dtype=np.int64)


def _counters(m: Machine) -> dict[str, float]:
    flow, channel = m.flow, m.channel
    now = max(int(m.clock[y.CLOCK_NOW]), 1)
    counters: dict[str, float] = {
        "cache_hits": int(flow[:, y.FLOW_HITS].sum()),
        "cache_merged_misses": int(flow[:, y.FLOW_MERGES].sum()),
        "cache_misses": int(flow[:, y.FLOW_MISSES].sum()),
        "cache_write_backs": int(flow[:, y.FLOW_WRITEBACKS].sum()),
        "tracker_most_live": int(flow[:, y.FLOW_MAX_LIVE].max()),
        "tracker_spills": int(flow[:, y.FLOW_SPILLS].sum()),
        "tracker_refills": int(flow[:, y.FLOW_REFILLS].sum()),
        "dram_activations": int(channel[:, y.CHAN_ACTIVATES].sum()),
        "dram_turnarounds": int(channel[:, y.CHAN_TURNAROUNDS].sum()),
        "dram_bus_utilization": float(channel[:, y.CHAN_BUSY].mean() / now),
        "dram_queue_mean_accesses": float(channel[:, y.CHAN_OCCUPANCY].mean() * 1000 / now / 64),
        "dram_queue_most_accesses": int(channel[:, y.CHAN_MAX_QUEUED].max()) // 64,
        "communication_waited_past_limit": int(flow[:, y.FLOW_PAST_LIMIT].sum()),
        "drained_s": now * 1e-15,
        "compute_unit_utilization": float(m.unit[:, y.UNIT_BUSY].mean() / now),
        "link_bytes": int(m.link_series.sum()),
        "link_utilization": float(_busy_links(m).mean() / now),
    }
    if m.shape[y.SIZE_SIDE_SETS] > 0:
        counters |= {
            "memory_cache_hits": int(flow[:, y.FLOW_SIDE_HITS].sum()),
            "memory_cache_merged_misses": int(flow[:, y.FLOW_SIDE_MERGES].sum()),
            "memory_cache_misses": int(flow[:, y.FLOW_SIDE_MISSES].sum()),
            "memory_cache_writes": int(flow[:, y.FLOW_SIDE_WRITES].sum()),
            "memory_cache_write_backs": int(flow[:, y.FLOW_SIDE_WRITEBACKS].sum()),
        }
    if (flow[:, y.FLOW_INTENSITY] != y.NONE).any():
        counters["arbiter_intensity"] = float(flow[0, y.FLOW_INTENSITY]) / 1000
        counters["arbiter_threshold_accesses"] = int(flow[0, y.FLOW_CHOSEN_THRESHOLD]) // 64
    return counters


def _durations(m: Machine, spans: tuple[Span, ...], chunks: tuple[ChunkSpan, ...]) -> dict[str, float]:
    """How long each operator ran [s]: from its first request to its last end on a GPU, the slowest one's."""
    found: dict[str, int] = {}
    for name in dict.fromkeys(span.operator for span in spans):
        for g in _gpus(m):
            own = [span for span in spans if span.operator == name and span.gpu == g]
            ran = max(span.end_fs for span in own) - min(span.start_fs for span in own)
            found[name] = max(found.get(name, 0), ran)
    fused = max((_fused_time(chunks, g) for g in _gpus(m)), default=0)
    if fused and "reduce_scatter" not in found:
        found["reduce_scatter"] = fused
    return {name: ran * 1e-15 for name, ran in found.items()}


def _fused_time(chunks: tuple[ChunkSpan, ...], gpu: int) -> int:
    output = [chunk for chunk in chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [chunk.first_remote_fs for chunk in output if chunk.first_remote_fs is not None]
    ends = [chunk.complete_fs for chunk in output if chunk.complete_fs is not None]
    return max(ends) - min(starts) if starts and ends else 0


def _per_workgroup(m: Machine, g: int, k: int) -> dict[str, float]:
    """Where the time of a workgroup of kernel `k` went, all that ran in its place counted as one [s]."""
    log = _log(m, g, k)
    if len(log) == 0:
        return {}
    run = m.kernel_run[g, k]
    launched, duration = run[y.RUN_LAUNCHED], run[y.RUN_END] - log[:, y.WORKLOG_START].min()
    resident = max(float((log[:, y.WORKLOG_END] - log[:, y.WORKLOG_START]).sum()) / max(int(duration), 1), 1e-9)
    wave = np.sort(log[:, y.WORKLOG_START])[: min(len(log), int(m.unit_mask[g, k].sum()))]
    waits = {name: float(spent) / resident * 1e-15 for name, spent in _split_waits(run).items()}
    if not _awaits_data(m, k):
        waits["begin"] = waits.pop("chunk")
    return {"dispatch": float((wave - launched).mean()) * 1e-15, **waits}


def _awaits_data(m: Machine, k: int) -> bool:
    """Whether workgroups of kernel `k` wait for data of other GPUs; else they only take time to begin and end."""
    first, count = int(m.kernel[0, k, y.KERNEL_FIRST_PHASE]), int(m.kernel[0, k, y.KERNEL_PHASES])
    return bool((m.phase[0, first : first + count, y.PHASE_WAIT_COUNTER] != y.NONE).any())


def _split_waits(run: Ints) -> dict[str, int]:
    """What a kernel's workgroups did or waited for [fs]: loads by who brought the last part, stores by where to."""
    load, side, cache = (int(run[column]) for column in (y.RUN_WAIT_LOAD, y.RUN_WAIT_SIDE, y.RUN_WAIT_CACHE))
    store, link = int(run[y.RUN_WAIT_STORE]), int(run[y.RUN_WAIT_LINK])
    return {
        "cache": cache,
        "memory_cache": side,
        "memory": load - side - cache,
        "store": store - link,
        "link": link,
        "chunk": int(run[y.RUN_WAIT_COUNTER]),
        "compute": int(run[y.RUN_COMPUTE]),
    }


def _residency(program: Program, m: Machine) -> Residency:
    """Who held which compute unit when."""
    rows = []
    for g in _gpus(m):
        for k in range(len(program.kernel_names)):
            log = _log(m, g, k)
            about = np.tile(np.array([g, k], dtype=np.int64), (len(log), 1))
            rows.append(np.column_stack([about, log[:, (y.WORKLOG_UNIT, y.WORKLOG_START, y.WORKLOG_END)]]))
    return Residency(program.kernel_names, np.concatenate(rows), int(m.gpu[0, y.GPU_CUS]))
