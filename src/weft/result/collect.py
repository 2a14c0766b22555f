"""From the engine's final state to a Result: rows become names, bins become series."""

from __future__ import annotations

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Machine, Table
from weft.overlap import PhaseTimes
from weft.program import Program
from weft.result.loops import loop_of, number_of
from weft.result.result import (
    ChunkSpan,
    DmaSpan,
    Ints,
    KernelSpan,
    Residency,
    Result,
    RunConfig,
    Series,
    StageSpan,
)

WAITS = {
    "compute": y.KR_COMPUTE,
    "memory": y.KR_WAIT_LOAD,
    "matrix_unit": y.KR_WAIT_UNIT,
    "store": y.KR_WAIT_STORE,
    "chunk": y.KR_WAIT_COUNTER,
}


def collect(config: RunConfig, program: Program, machine: Machine, wall_s: float) -> Result:
    """The result of a finished run."""
    kernels = _kernels(program, machine)
    chunks = _chunks(program, machine)
    gpus = int(machine.shape[y.S_GPUS])
    return Result(
        config=config,
        times=_times(machine, kernels, chunks),
        bytes={
            name: int(machine.traffic[:, cause].sum()) // gpus
            for cause, name in enumerate(y.CAUSE_NAMES)
            if machine.traffic[:, cause].any()
        },
        counters=_counters(machine),
        levels=_levels(machine),
        kernels=kernels,
        stages=_stages(program, machine),
        chunks=chunks,
        dmas=_dmas(program, machine),
        series=_series(machine),
        events=int(machine.clock[y.C_EVENTS]),
        requests=int(machine.clock[y.C_REQUESTS]),
        wall_s=wall_s,
    )


LEVELS = {
    "cache_hit": y.LEVEL_HIT,
    "cache_merged": y.LEVEL_MERGED,
    "memory_cache_hit": y.LEVEL_SIDE_HIT,
    "memory_cache_merged": y.LEVEL_SIDE_MERGED,
    "memory_cache_written": y.LEVEL_SIDE_WRITTEN,
}


def _levels(m: Machine) -> dict[str, dict[str, int]]:
    """What caches served, by level and cause, of one GPU (the mean if several were simulated) [bytes]."""
    served = m.served.sum(axis=0) // int(m.shape[y.S_GPUS])
    return {
        name: {y.CAUSE_NAMES[cause]: int(served[level, cause]) for cause in np.flatnonzero(served[level])}
        for name, level in LEVELS.items()
        if served[level].any()
    }


def _gpus(machine: Machine) -> range:
    return range(int(machine.shape[y.S_GPUS]))


def _kernels(program: Program, m: Machine) -> tuple[KernelSpan, ...]:
    return tuple(
        KernelSpan(
            gpu=g,
            name=name,
            start_fs=int(m.kernel_run[g, k, y.KR_START]),
            first_workgroup_fs=int(m.kernel_run[g, k, y.KR_FIRST_START]),
            end_fs=int(m.kernel_run[g, k, y.KR_END]),
            workgroups=int(m.kernel[g, k, y.K_WORKGROUPS]),
            waits={what: int(m.kernel_run[g, k, column]) for what, column in WAITS.items()},
        )
        for g in _gpus(m)
        for k, name in enumerate(program.kernel_names)
    )


def _stages(program: Program, m: Machine) -> tuple[StageSpan, ...]:
    spans = []
    for g in _gpus(m):
        for k, name in enumerate(program.kernel_names):
            first, count = int(m.kernel[g, k, y.K_FIRST_WORK]), int(m.kernel[g, k, y.K_WORKGROUPS])
            if count == 0:  # copies by DMA engines
                continue
            log = m.work_log[g, first : first + count]
            # What the GPU holds at once: the workgroups placed before any had ended.
            wave = max(int((log[:, y.WL_START] < log[:, y.WL_END].min()).sum()), 1)
            for stage in range(-(-count // wave)):
                part = log[stage * wave : (stage + 1) * wave]
                start, end = int(part[:, y.WL_START].min()), int(part[:, y.WL_END].max())
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
                    bytes=int(m.region[g, row, y.M_SIZE]),
                    first_local_fs=_moment(log[y.CL_FIRST_LOCAL]),
                    last_local_fs=_moment(log[y.CL_LAST_LOCAL]),
                    first_remote_fs=_moment(log[y.CL_FIRST_REMOTE]),
                    last_remote_fs=_moment(log[y.CL_LAST_REMOTE]),
                    first_sent_fs=_moment(log[y.CL_FIRST_SENT]),
                    last_sent_fs=_moment(log[y.CL_LAST_SENT]),
                    complete_fs=_moment(log[y.CL_COMPLETE]),
                )
            )
    return tuple(spans)


def _dmas(program: Program, m: Machine) -> tuple[DmaSpan, ...]:
    spans = []
    for g in _gpus(m):
        for tile in np.flatnonzero(m.dma_log[g, :, y.DL_END] != y.NONE):
            log = m.dma_log[g, tile]
            region = m.tile[g, tile, y.TI_REGION]
            spans.append(
                DmaSpan(
                    gpu=g,
                    engine=int(log[y.DL_ENGINE]),
                    tile=int(tile),
                    position=program.regions[int(region)][1],
                    bytes=int(log[y.DL_BYTES]),
                    ready_fs=int(log[y.DL_READY]),
                    start_fs=int(log[y.DL_START]),
                    end_fs=int(log[y.DL_END]),
                )
            )
    return tuple(spans)


def _series(m: Machine) -> Series:
    used = int(np.flatnonzero(m.series.any(axis=(0, 1)) | m.link_series.any(axis=0)).max(initial=0)) + 1
    traffic: dict[str, Ints] = {
        name: m.series[:, cause, :used].copy()
        for cause, name in enumerate(y.CAUSE_NAMES)
        if m.series[:, cause].any()
    }
    return Series(bin_fs=int(m.clock[y.C_BIN]), traffic=traffic, link=m.link_series[:, :used].copy())


def _busy_links(m: Machine) -> Table:
    """How long each link was busy [fs]: those to one peer each if they are used, else the whole egress of a GPU."""
    busy = m.link[:, y.L_BUSY].reshape(int(m.shape[y.S_GPUS]), -1)
    return busy[:, 1:] if busy[:, 1:].any() else busy[:, :1]


def _counters(m: Machine) -> dict[str, float]:
    flow, channel = m.flow, m.channel
    now = max(int(m.clock[y.C_NOW]), 1)
    counters: dict[str, float] = {
        "cache_hits": int(flow[:, y.F_HITS].sum()),
        "cache_merged_misses": int(flow[:, y.F_MERGES].sum()),
        "cache_misses": int(flow[:, y.F_MISSES].sum()),
        "cache_write_backs": int(flow[:, y.F_WRITEBACKS].sum()),
        "tracker_most_live": int(flow[:, y.F_MAX_LIVE].max()),
        "tracker_spills": int(flow[:, y.F_SPILLS].sum()),
        "tracker_refills": int(flow[:, y.F_REFILLS].sum()),
        "dram_activations": int(channel[:, y.H_ACTIVATES].sum()),
        "dram_turnarounds": int(channel[:, y.H_TURNAROUNDS].sum()),
        "dram_bus_utilization": float(channel[:, y.H_BUSY].mean() / now),
        "dram_queue_mean_accesses": float(channel[:, y.H_OCCUPANCY].mean() * 1000 / now / 64),
        "dram_queue_most_accesses": int(channel[:, y.H_MAX_QUEUED].max()) // 64,
        "communication_waited_past_limit": int(flow[:, y.F_STARVED].sum()),
        "compute_unit_utilization": float(m.unit[:, y.U_BUSY].mean() / now),
        "link_bytes": int(m.link[:, y.L_BYTES].sum()),
        "link_utilization": float(_busy_links(m).mean() / now),
    }
    if m.shape[y.S_SIDE_SETS] > 0:
        counters |= {
            "memory_cache_hits": int(flow[:, y.F_SIDE_HITS].sum()),
            "memory_cache_merged_misses": int(flow[:, y.F_SIDE_MERGES].sum()),
            "memory_cache_misses": int(flow[:, y.F_SIDE_MISSES].sum()),
            "memory_cache_writes": int(flow[:, y.F_SIDE_WRITES].sum()),
            "memory_cache_write_backs": int(flow[:, y.F_SIDE_WRITEBACKS].sum()),
        }
    if (flow[:, y.F_INTENSITY] != y.NONE).any():
        counters["arbiter_intensity"] = float(flow[0, y.F_INTENSITY]) / 1000
        counters["arbiter_threshold_accesses"] = int(flow[0, y.F_CHOSEN]) // 64
    return counters


def _times(m: Machine, kernels: tuple[KernelSpan, ...], chunks: tuple[ChunkSpan, ...]) -> PhaseTimes:
    """Kernel durations (the longest GPU's); a fused reduce-scatter runs from its first byte sent to its last
    reduced.
    """
    longest: dict[str, int] = {}
    for kernel in kernels:
        longest[kernel.name] = max(longest.get(kernel.name, 0), kernel.end_fs - kernel.start_fs)
    begin = min(int(start) for start in m.gpu[:, y.G_START])
    end = max((kernel.end_fs for kernel in kernels), default=int(m.clock[y.C_NOW]))
    reduce_scatter = longest.get("reduce_scatter")
    if reduce_scatter is None:
        reduce_scatter = max((_fused_time(chunks, g) for g in _gpus(m)), default=0)
    return PhaseTimes(
        gemm=longest.get("gemm", 0) * 1e-15,
        reduce_scatter=reduce_scatter * 1e-15,
        all_gather=longest.get("all_gather", 0) * 1e-15,
        total=(end - begin) * 1e-15,
    )


def _fused_time(chunks: tuple[ChunkSpan, ...], gpu: int) -> int:
    output = [chunk for chunk in chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [chunk.first_remote_fs for chunk in output if chunk.first_remote_fs is not None]
    ends = [chunk.complete_fs for chunk in output if chunk.complete_fs is not None]
    return max(ends) - min(starts) if starts and ends else 0


def loop_times(program: Program, machine: Machine, name: str) -> tuple[list[float], dict[str, float]]:
    """When each iteration of the loop `name` ended [s], and what the workgroups of one waited for on average [s]."""
    rows: dict[int, list[int]] = {}
    for k, kernel in enumerate(program.kernel_names):
        if loop_of(kernel) == name:
            rows.setdefault(number_of(kernel), []).append(k)
    ends = [float(machine.kernel_run[:, each, y.KR_END].max()) * 1e-15 for each in rows.values()]
    waits = [waited for each in rows.values() for k in each if (waited := _workgroup_waits(machine, k))]
    keys = waits[0] if waits else ()
    return ends, {key: sum(waited[key] for waited in waits) / len(rows) for key in keys}


def _workgroup_waits(m: Machine, k: int) -> dict[str, float]:
    """Where the time of a workgroup of kernel `k` went on GPU 0, all that ran in its place counted as one [s]."""
    first, count = int(m.kernel[0, k, y.K_FIRST_WORK]), int(m.kernel[0, k, y.K_WORKGROUPS])
    if count == 0:
        return {}
    run, log = m.kernel_run[0, k], m.work_log[0, first : first + count]
    launched, duration = run[y.KR_FIRST_START], run[y.KR_END] - log[:, y.WL_START].min()
    resident = max(float((log[:, y.WL_END] - log[:, y.WL_START]).sum()) / max(int(duration), 1), 1e-9)
    wave = np.sort(log[:, y.WL_START])[: min(count, int(m.unit_mask[0, k].sum()))]
    waits = {name: float(spent) / resident * 1e-15 for name, spent in _split_waits(run).items()}
    if not _awaits_data(m, k):
        waits["begin"] = waits.pop("chunk")
    return {"dispatch": float((wave - launched).mean()) * 1e-15, **waits}


def _awaits_data(m: Machine, k: int) -> bool:
    """Whether workgroups of kernel `k` wait for data of other GPUs; else they only take time to begin and end."""
    first, count = int(m.kernel[0, k, y.K_FIRST_PHASE]), int(m.kernel[0, k, y.K_PHASES])
    return bool((m.phase[0, first : first + count, y.P_WAIT_COUNTER] != y.NONE).any())


def _split_waits(run: Ints) -> dict[str, int]:
    """What a kernel's workgroups did or waited for [fs]: loads by who brought the last part, stores by where to."""
    load, side, cache = (int(run[column]) for column in (y.KR_WAIT_LOAD, y.KR_WAIT_SIDE, y.KR_WAIT_CACHE))
    store, link = int(run[y.KR_WAIT_STORE]), int(run[y.KR_WAIT_LINK])
    return {
        "cache": cache,
        "memory_cache": side,
        "memory": load - side - cache,
        "store": store - link,
        "link": link,
        "chunk": int(run[y.KR_WAIT_COUNTER]),
        "compute": int(run[y.KR_COMPUTE]),
    }


def residency(program: Program, m: Machine) -> Residency:
    """Who held which compute unit when."""
    rows = []
    for g in _gpus(m):
        for k in range(len(program.kernel_names)):
            first, count = int(m.kernel[g, k, y.K_FIRST_WORK]), int(m.kernel[g, k, y.K_WORKGROUPS])
            log = m.work_log[g, first : first + count]
            about = np.tile(np.array([g, k], dtype=np.int64), (count, 1))
            rows.append(np.column_stack([about, log[:, (y.WL_UNIT, y.WL_START, y.WL_END)]]))
    return Residency(program.kernel_names, np.concatenate(rows), int(m.gpu[0, y.G_CUS]))
