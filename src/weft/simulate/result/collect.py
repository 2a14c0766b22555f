"""Translate the engine's final state into the fields of a timeline: rows become names, bins become series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.options import ChannelWork
from weft.engine import layout as y
from weft.engine.program import Program, tiles_of
from weft.engine.state import Machine, Table
from weft.simulate.result.heat import recorded_heat
from weft.simulate.result.interference import read_interference
from weft.simulate.result.timeline import (
    Cause,
    ChunkSpan,
    DmaSpan,
    Ints,
    MemoryCommands,
    Residency,
    Series,
    Span,
    StageSpan,
    TileUpdates,
)

WAITS = {
    "compute": y.RUN_COMPUTE,
    "memory": y.RUN_WAIT_LOAD,
    "matrix_unit": y.RUN_WAIT_MATRIX,
    "store": y.RUN_WAIT_STORE,
    "chunk": y.RUN_WAIT_COUNTER,
}
LEVELS = {
    "cache_hit": y.LEVEL_HIT,
    "cache_merged": y.LEVEL_MERGED,
    "memory_cache_hit": y.LEVEL_SIDE_HIT,
    "memory_cache_merged": y.LEVEL_SIDE_MERGED,
    "memory_cache_written": y.LEVEL_SIDE_WRITTEN,
}
_TILE = (y.WORK_REGION, y.WORK_ROW, y.WORK_COLUMN, y.WORK_ROWS, y.WORK_COLUMNS)


SUMMED = "summed"
"""The buffer whose chunks name the tokens that T3's combine updates."""


def collect(program: Program, m: Machine, resident: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a Timeline from a finished run; `resident` workgroups of a kernel fit on a compute unit."""
    spans, chunks = _spans(program, m, resident), _chunks(program, m)
    gpus = int(m.shape[y.SIZE_GPUS])
    # The causes of traffic in the order of the engine's columns.
    causes: list[Cause] = [(name, kind) for name in program.operators for kind in ("read", "write", "update")]
    traffic, served, series = m.traffic.sum(axis=0), m.served.sum(axis=0), _series(m, causes)
    begin = min(int(start) for start in m.gpu[:, y.GPU_START])
    # A fused reduce-scatter or combine has no kernel: it ends when its last chunk is complete and sent, or updated.
    fused = [at for one in chunks if one.buffer == "output" for at in (one.complete_fs, one.last_sent_fs) if at]
    fused += [at for one in chunks if one.buffer == SUMMED for at in (one.last_local_fs, one.last_remote_fs) if at]
    end = max((*(span.end_fs for span in spans), *fused), default=int(m.clock[y.CLOCK_NOW]))
    held: dict[str, set[int]] = {}
    for k, placed in enumerate(program.plan.kernels):
        held.setdefault(placed.operator, set()).update(_log(m, 0, k)[:, y.WORKLOG_UNIT].tolist())
    return {
        "seconds": (end - begin) * 1e-15,
        "durations": _durations(gpus, spans, chunks),
        "traffic": {causes[cause]: int(traffic[cause]) // gpus for cause in np.flatnonzero(traffic).tolist()},
        "levels": {
            name: {causes[cause]: int(served[level, cause]) // gpus for cause in np.flatnonzero(served[level]).tolist()}
            for name, level in LEVELS.items()
            if served[level].any()
        },
        "counters": _counters(m, program.link_names),
        "held": {name: len(units) for name, units in held.items()},
        "spans": spans,
        "stages": _stages(program, m),
        "chunks": chunks,
        "dmas": _dmas(program, m),
        "series": series,
        "interference": read_interference(m, series.link.shape[1]) if len(m.stream) else None,
        "heat": recorded_heat(m, end) if len(m.heat) else None,
        "updates": _updates(program, m),
        "residency": _residency(program, m),
        "events": int(m.clock[y.CLOCK_EVENTS]),
        "requests": int(m.clock[y.CLOCK_REQUESTS]),
    }


def _spans(program: Program, m: Machine, resident: Mapping[str, int]) -> tuple[Span, ...]:
    return tuple(
        Span(
            gpu=g,
            operator=placed.operator,
            iteration=placed.iteration,
            stream=placed.stream,
            kernel=placed.kernel.name,
            start_fs=int(run[y.RUN_START]),
            first_workgroup_fs=int(run[y.RUN_LAUNCHED]),
            end_fs=int(run[y.RUN_END]),
            workgroups=int(m.kernel[g, k, y.KERNEL_WORKGROUPS]),
            resident=resident.get(placed.kernel.name, 0),
            waits={what: int(run[column]) for what, column in WAITS.items()},
            per_workgroup=_per_workgroup(m, g, k),
        )
        for g, kernels in enumerate(m.kernel_run)
        for k, (placed, run) in enumerate(zip(program.plan.kernels, kernels, strict=True))
    )


def _log(m: Machine, g: int, k: int) -> Table:
    """Return the log of the workgroups of a kernel: when and on which compute unit each ran."""
    first = int(m.kernel[g, k, y.KERNEL_FIRST_WORK])
    return m.work_log[g, first : first + int(m.kernel[g, k, y.KERNEL_WORKGROUPS])]


def _per_workgroup(m: Machine, g: int, k: int) -> dict[str, float]:
    """Return the time of a workgroup slot of kernel `k` by what it did or waited for [s]; keys as in `REASONS`.

    Loads count by what served their last request, stores by where they went.
    """
    log, run, about = _log(m, g, k), m.kernel_run[g, k], m.kernel[0, k]
    if len(log) == 0:
        return {}
    starts, ends = log[:, y.WORKLOG_START], log[:, y.WORKLOG_END]
    launched, duration = run[y.RUN_LAUNCHED], run[y.RUN_END] - starts.min()
    resident = max(float((ends - starts).sum()) / max(int(duration), 1), 1e-9)
    wave = np.sort(starts)[: min(len(log), int(m.unit_mask[g, k].sum()))]
    side, cache, link = run[y.RUN_WAIT_SIDE], run[y.RUN_WAIT_CACHE], run[y.RUN_WAIT_LINK]
    fabric = run[y.RUN_WAIT_FABRIC]
    spent = {
        "fabric": fabric,
        "cache": cache,
        "memory_cache": side,
        "memory": run[y.RUN_WAIT_LOAD] - side - cache - fabric,
        "store": run[y.RUN_WAIT_STORE] - link,
        "link": link,
        "chunk": run[y.RUN_WAIT_COUNTER],
        "compute": run[y.RUN_COMPUTE],
    }
    waits = {name: float(fs) / resident * 1e-15 for name, fs in spent.items()}
    phases = m.phase[0, about[y.KERNEL_FIRST_PHASE] :][: about[y.KERNEL_PHASES]]
    if (phases[:, y.PHASE_WAIT_COUNTER] == y.NONE).all():  # no chunk is awaited: begin and end
        waits["begin"] = waits.pop("chunk")
    return {"dispatch": float((wave - launched).mean()) * 1e-15, **waits}


def _stages(program: Program, m: Machine) -> tuple[StageSpan, ...]:
    spans = []
    for g in range(len(m.kernel)):
        for k, name in enumerate(program.kernel_names):
            log = _log(m, g, k)
            count = len(log)
            if count == 0:  # copies by DMA engines
                continue
            # Workgroups that the GPU holds at once: those placed before the first one ended.
            wave = max(int((log[:, y.WORKLOG_START] < log[:, y.WORKLOG_END].min()).sum()), 1)
            for stage in range(-(-count // wave)):
                part = log[stage * wave : (stage + 1) * wave]
                start, end = int(part[:, y.WORKLOG_START].min()), int(part[:, y.WORKLOG_END].max())
                spans.append(StageSpan(g, name, stage, len(part), start, end))
    return tuple(spans)


def _chunks(program: Program, m: Machine) -> tuple[ChunkSpan, ...]:
    # In the order of the fields of a span.
    moments = [y.CHUNK_FIRST_LOCAL, y.CHUNK_LAST_LOCAL, y.CHUNK_FIRST_REMOTE, y.CHUNK_LAST_REMOTE,
               y.CHUNK_FIRST_SENT, y.CHUNK_LAST_SENT, y.CHUNK_COMPLETE]  # fmt: skip
    spans = []
    for g, logs in enumerate(m.chunk_log):
        for row, (buffer, position) in enumerate(program.regions):
            times = [None if at == y.NONE else at for at in logs[row, moments].tolist()]
            if any(at is not None for at in times):
                spans.append(ChunkSpan(g, buffer, position, int(m.region[g, row, y.REGION_SIZE]), *times))
    return tuple(spans)


def _dmas(program: Program, m: Machine) -> tuple[DmaSpan, ...]:
    spans = []
    for g, logs in enumerate(m.dma_log):
        for tile in np.flatnonzero(logs[:, y.COMMAND_END] != y.NONE).tolist():
            log = logs[tile].tolist()
            spans.append(
                DmaSpan(
                    gpu=g,
                    engine=log[y.COMMAND_ENGINE],
                    tile=tile,
                    position=program.regions[int(m.tile[g, tile, y.TILE_REGION])][1],
                    bytes=log[y.COMMAND_BYTES],
                    ready_fs=log[y.COMMAND_READY],
                    start_fs=log[y.COMMAND_START],
                    end_fs=log[y.COMMAND_END],
                )
            )
    return tuple(spans)


def _series(m: Machine, causes: list[Cause]) -> Series:
    used = int(np.flatnonzero(m.series.any(axis=(0, 1)) | m.link_series.any(axis=0)).max(initial=0)) + 1
    traffic: dict[Cause, Ints] = {
        name: m.series[:, cause, :used].copy() for cause, name in enumerate(causes) if m.series[:, cause].any()
    }
    return Series(bin_fs=int(m.clock[y.CLOCK_BIN]), traffic=traffic, link=m.link_series[:, :used].copy())


def _on_network(names: tuple[str, ...], m: Machine) -> dict[str, float]:
    """Return what left the nodes by the adapters of a network between them [bytes]; nothing without one."""
    adapters = [k for k, name in enumerate(names) if name.startswith("adapter out")]
    return {"network_bytes": int(m.link_run[adapters, y.LINK_BYTES].sum())} if adapters else {}


def _merge_counters(m: Machine) -> dict[str, float]:
    """Return how full the switch's tables were, what left them before all GPUs' requests had come, found no room or was
    a load that joined an earlier one; nothing without any.
    """
    if not m.merging.shape[1]:
        return {}
    flow = m.flow
    return {
        "merge_most_entries": int(flow[:, y.FLOW_MERGE_MOST].max()),
        "merge_evicted": int(flow[:, y.FLOW_MERGE_EVICTED].sum()),
        "merge_expired": int(flow[:, y.FLOW_MERGE_EXPIRED].sum()),
        "merge_refused": int(flow[:, y.FLOW_MERGE_REFUSED].sum()),
        "merge_loads": int(flow[:, y.FLOW_MERGE_LOADS].sum()),
        "merge_saved_bytes": int(flow[:, y.FLOW_MERGE_SAVED].sum()),
    }


def _counters(m: Machine, names: tuple[str, ...]) -> dict[str, float]:
    flow, channel = m.flow, m.channel
    now = max(int(m.clock[y.CLOCK_NOW]), 1)
    counted, most = flow.sum(axis=0).tolist(), flow.max(axis=0).tolist()
    # How long the egress links were busy.
    afar = m.access[m.access[:, :, y.ACCESS_MEMBERS] < 0]
    starts = np.append(m.region[:, :, (y.REGION_ROUTE, y.REGION_ALSO_ROUTE)], afar[:, y.ACCESS_ROUTE])
    first = np.unique(m.route[starts[starts != y.NONE], y.ROUTE_LINK])
    counters: dict[str, float] = {
        "cache_hits": counted[y.FLOW_HITS],
        "cache_merged_misses": counted[y.FLOW_MERGES],
        "cache_misses": counted[y.FLOW_MISSES],
        "cache_write_backs": counted[y.FLOW_WRITEBACKS],
        "tracker_most_live": most[y.FLOW_MAX_LIVE],
        "tracker_spills": counted[y.FLOW_SPILLS],
        "tracker_refills": counted[y.FLOW_REFILLS],
        "dram_activations": int(channel[:, y.CHAN_ACTIVATES].sum()),
        "dram_turnarounds": int(channel[:, y.CHAN_TURNAROUNDS].sum()),
        "dram_bus_utilization": float(channel[:, y.CHAN_BUSY].mean() / now),
        "dram_queue_mean_accesses": float(channel[:, y.CHAN_OCCUPANCY].mean() * 1000 / now / y.QUEUE_ENTRY),
        "dram_queue_most_accesses": int(channel[:, y.CHAN_MAX_QUEUED].max()) // y.QUEUE_ENTRY,
        "communication_waited_past_limit": counted[y.FLOW_PAST_LIMIT],
        "drained_s": now * 1e-15,
        "compute_unit_utilization": float(m.unit[:, y.UNIT_BUSY].mean() / now),
        "link_bytes": int(m.link_series.sum()),
        **_on_network(names, m),
        **_merge_counters(m),
        "link_utilization": float(m.link_run[first, y.LINK_BUSY].mean() / now) if len(first) else 0.0,
    }
    if m.shape[y.SIZE_SIDE_SETS] > 0:
        counters |= {
            "memory_cache_hits": counted[y.FLOW_SIDE_HITS],
            "memory_cache_merged_misses": counted[y.FLOW_SIDE_MERGES],
            "memory_cache_misses": counted[y.FLOW_SIDE_MISSES],
            "memory_cache_writes": counted[y.FLOW_SIDE_WRITES],
            "memory_cache_write_backs": counted[y.FLOW_SIDE_WRITEBACKS],
        }
    if (flow[:, y.FLOW_INTENSITY] != y.NONE).any():
        counters["arbiter_intensity"] = float(flow[0, y.FLOW_INTENSITY]) / 1000
        counters["arbiter_threshold_accesses"] = int(flow[0, y.FLOW_CHOSEN_THRESHOLD]) // y.QUEUE_ENTRY
    return counters


def _durations(gpus: int, spans: tuple[Span, ...], chunks: tuple[ChunkSpan, ...]) -> dict[str, float]:
    """Return how long each operator ran [s]: from its first request to its last end, on the slowest GPU.

    A reduce-scatter without a kernel runs from its first byte sent to its last one reduced, a combine without one from
    the first update of a token to the last.
    """
    found: dict[str, int] = {}
    for name in dict.fromkeys(span.operator for span in spans):
        for g in range(gpus):
            own = [span for span in spans if span.operator == name and span.gpu == g]
            ran = max(span.end_fs for span in own) - min(span.start_fs for span in own)
            found[name] = max(found.get(name, 0), ran)
    if "reduce_scatter" not in found:
        for g in range(gpus):
            output = [chunk for chunk in chunks if chunk.gpu == g and chunk.buffer == "output"]
            starts = [chunk.first_remote_fs for chunk in output if chunk.first_remote_fs is not None]
            ends = [chunk.complete_fs for chunk in output if chunk.complete_fs is not None]
            if starts and ends:
                found["reduce_scatter"] = max(found.get("reduce_scatter", 0), max(ends) - min(starts))
    for g in sorted({chunk.gpu for chunk in chunks if chunk.buffer == SUMMED}):
        sums = [chunk for chunk in chunks if chunk.gpu == g and chunk.buffer == SUMMED]
        firsts = [at for one in sums for at in (one.first_local_fs, one.first_remote_fs) if at is not None]
        lasts = [at for one in sums for at in (one.last_local_fs, one.last_remote_fs) if at is not None]
        found["combine"] = max(found.get("combine", 0), max(lasts) - min(firsts))
    return {name: ran * 1e-15 for name, ran in found.items()}


def _residency(program: Program, m: Machine) -> Residency:
    """Kernel, compute unit, start and end of every workgroup."""
    rows = []
    for g in range(len(m.kernel)):
        for k in range(len(program.kernel_names)):
            log = _log(m, g, k)
            about = np.tile(np.array([g, k], dtype=np.int64), (len(log), 1))
            rows.append(np.column_stack([about, log[:, (y.WORKLOG_UNIT, y.WORKLOG_START, y.WORKLOG_END)]]))
    return Residency(program.kernel_names, np.concatenate(rows), int(m.gpu[0, y.GPU_CUS]))


def carried_out(work: ChannelWork, m: Machine) -> MemoryCommands:
    """Return what memory that computes has done during a run."""
    begin, end = m.pim_log[:, :, y.PIM_BEGIN].copy(), m.pim_log[:, :, y.PIM_END].copy()
    words = work.stream.count("read", "write", "update") * work.pim.together
    return MemoryCommands(work.stream.title, words * work.pim.units.word_bytes, work.stream.runs, begin, end)


def _updates(program: Program, m: Machine) -> TileUpdates | None:
    """Return the updates that a run recorded; None if it recorded none, or has no tiles."""
    if len(m.update_log) == 0 or not program.plan.work:
        return None
    gpus, wavefronts = len(m.update_log), int(m.shape[y.SIZE_WAVEFRONTS])
    work = program.plan.work
    tiles = np.stack([tiles_of(work[g if len(work) > 1 else 0])[:, _TILE] for g in range(gpus)])
    log = m.update_log.reshape(gpus, m.seen.shape[1] // wavefronts, wavefronts, -1)[:, : tiles.shape[1]]
    peers = max(gpus - 1, 1)
    return TileUpdates(tiles, log[..., :-peers].copy(), log[..., -peers:].copy(), _begun(program, m, tiles.shape[1]))


def _begun(program: Program, m: Machine, tiles: int) -> Ints:
    """Return when the first workgroup of each tile began to read, after its wait [fs]; of the shape (gpus, tiles)."""
    begun = np.full((len(m.kernel), tiles), y.NEVER)
    for g in range(len(begun)):
        for k, placed in enumerate(program.plan.kernels):
            if placed.kernel.tiled:
                first, log = int(m.kernel[g, k, y.KERNEL_FIRST_WORK]), _log(m, g, k)
                tile = m.work[g, first : first + len(log), y.WORK_TILE]
                np.minimum.at(begun[g], tile, log[:, (y.WORKLOG_START, y.WORKLOG_RESUMED)].max(axis=1))
    return begun
