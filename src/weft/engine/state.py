"""The state of a run as integer arrays: the program's tables and the engine's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y

Table = npt.NDArray[np.int64]


class Machine(NamedTuple):
    """The whole state of a run; columns are the constants of `layout`, all entries 64-bit integers."""

    # The program: read only.
    shape: Table
    gpu: Table
    kernel: Table
    successor: Table
    phase: Table
    access: Table
    work: Table
    region: Table
    tile: Table
    unit_mask: Table
    link: Table
    route: Table
    pim: Table
    # The run.
    shift: Table
    clock: Table
    heap: Table
    later: Table
    window: Table
    window_bits: Table
    request: Table
    waiter: Table
    channel: Table
    bank: Table
    group: Table
    slice_free: Table
    tag: Table
    stamp: Table
    held: Table
    line: Table
    earlier: Table
    link_run: Table
    sender: Table
    unit: Table
    resident: Table
    slot: Table
    engine: Table
    dma_queue: Table
    block_left: Table
    seen: Table
    summed: Table
    merging: Table
    entry: Table
    spilled: Table
    counter: Table
    flow: Table
    kernel_run: Table
    dealt: Table
    running: Table
    ready: Table
    ready_next: Table
    # Counters and logs for the result.
    traffic: Table
    served: Table
    series: Table
    link_series: Table
    chunk_log: Table
    dma_log: Table
    work_log: Table
    pim_log: Table
    update_log: Table
    heat: Table
    heated: Table
    arrival: Table
    waiting: Table
    stream: Table
    histogram: Table
    load_series: Table
    misses: Table


# line[l, :], the caches' lines, then those of the memory-side cache. LINE_BYTES: dirty bytes (0: the line is clean);
# LINE_HERE, LINE_COMING: bit masks of the sectors present and in flight; LINE_NEXT: those that a read is known to bring
# at LINE_DUE; LINE_WAITERS: waiters of a cache's line, requests of a memory-side line; LINE_SLICE: the row of
# `slice_free` of the slice that owns a cache's line. What a search of a set reads is stored apart, so that it touches
# few cache lines: tag[l], stamp[l] of the last use, and held[l], until when reads in flight keep the line from being
# replaced (NEVER plus the number of those whose end is not known).
(
    LINE_WAITERS, LINE_CAUSE, LINE_BYTES, LINE_HERE, LINE_COMING, LINE_SLICE, LINE_NEXT, LINE_DUE, LINE_COLUMNS,
) = range(9)  # fmt: skip
SECTORS = 32
"""Number of sectors of a cache line, each valid or not."""
# earlier[l, :] for each line of the memory-side cache: bytes that earlier work left dirty there, and their address.
EARLIER_BYTES, EARLIER_ADDRESS, EARLIER_COLUMNS = range(3)
# waiter[i, :]
WAITER_NEXT, WAITER_SLOT, WAITER_NEED, WAITER_COLUMNS = range(4)
SERIES_BINS = 4096
_CACHE_LINE = 8
"""Integers in a cache line of the processor that runs the engine."""


COLUMNS: dict[str, tuple[int, ...]] = {
    "gpu": (y.GPU_COLUMNS,),
    "kernel": (y.KERNEL_COLUMNS,),
    "phase": (y.PHASE_COLUMNS,),
    "access": (y.ACCESS_COLUMNS,),
    "work": (y.WORK_FIELDS,),
    "region": (y.REGION_COLUMNS,),
    "tile": (y.TILE_COLUMNS,),
    "link": (y.LINK_COLUMNS,),
    "route": (y.ROUTE_COLUMNS,),
    "pim": (y.PIM_COLUMNS,),
    "heap": (2,),
    "later": (y.LATER_COLUMNS,),
    "window": (y.WINDOWS,),
    "window_bits": (y.WINDOWS // 32,),
    "request": (y.REQ_COLUMNS,),
    "waiter": (WAITER_COLUMNS,),
    "channel": (y.CHAN_COLUMNS,),
    "bank": (y.BANK_COLUMNS,),
    "group": (y.GROUP_COLUMNS,),
    "line": (LINE_COLUMNS,),
    "earlier": (EARLIER_COLUMNS,),
    "link_run": (y.LINK_RUN_COLUMNS,),
    "sender": (y.SENDER_COLUMNS,),
    "unit": (y.UNIT_COLUMNS,),
    "resident": (y.WG_COLUMNS,),
    "slot": (y.SLOT_COLUMNS,),
    "engine": (y.DMA_COLUMNS,),
    "counter": (y.COUNTER_COLUMNS,),
    "flow": (y.FLOW_COLUMNS,),
    "kernel_run": (y.RUN_COLUMNS,),
    "ready": (y.READY_COLUMNS,),
    "series": (SERIES_BINS,),
    "link_series": (SERIES_BINS,),
    "chunk_log": (y.CHUNK_COLUMNS,),
    "dma_log": (y.COMMAND_COLUMNS,),
    "work_log": (y.WORKLOG_COLUMNS,),
    "pim_log": (y.PIM_LOG_COLUMNS,),
    "heat": (y.HEAT_COLUMNS,),
    "heated": (y.HEATED_COLUMNS,),
    "arrival": (y.ARRIVAL_COLUMNS,),
    "waiting": (y.WAITING_COLUMNS,),
    "stream": (y.STREAM_COLUMNS,),
    "histogram": (y.HISTOGRAMS, y.CLASSES + 1),
    "load_series": (SERIES_BINS, y.CLASSES),
}
"""The last dimensions of each table that are the same in every run: constants in machine code."""
RECORD = 8
"""Integers of a table's record: address, sizes of up to four dimensions, then those of an index outside the table."""
RECORD_ADDRESS, RECORD_SIZES, RECORD_AXIS, RECORD_INDEX, RECORD_OUTSIDE = 0, 1, 5, 6, 7

NO_COMMANDS: Table = np.zeros((0, y.PIM_COLUMNS), dtype=np.int64)
"""The table of a memory that does not compute."""


class Tables(NamedTuple):
    """The program's tables, as `weft.engine.program` builds them."""

    shape: Table
    gpu: Table
    kernel: Table
    successor: Table
    phase: Table
    access: Table
    work: Table
    region: Table
    tile: Table
    unit_mask: Table
    link: Table
    route: Table
    pim: Table = NO_COMMANDS


def allocate(
    tables: Tables, bin_fs: int, interference: bool = False, heat: str | None = None, updates: bool = False
) -> Machine:
    """Make the empty state of a run of `tables`; series start with bins of `bin_fs` femtoseconds.

    With `interference`, the run records what the streams of a channel cost each other, with `heat` what each "channel"
    or each "bank" does over time, with
    `updates` when memory updated each tile.
    """
    s = tables.shape
    gpus, units, channels = int(s[y.SIZE_GPUS]), int(s[y.SIZE_CUS]), int(s[y.SIZE_CHANNELS])
    partitions = int(s[y.SIZE_PARTITIONS])
    lines = gpus * partitions * int(s[y.SIZE_SETS]) * int(s[y.SIZE_WAYS])
    side = gpus * channels * int(s[y.SIZE_SIDE_SETS]) * int(s[y.SIZE_SIDE_WAYS])
    places = gpus * units * int(s[y.SIZE_RESIDENT])
    tiles, wavefronts = max(int(s[y.SIZE_TILES]), 1), int(s[y.SIZE_WAVEFRONTS])
    sets = int(tables.gpu[:, y.GPU_TRACKER_SETS].max())
    ways = int(tables.gpu[:, y.GPU_TRACKER_WAYS].max())
    works, causes = tables.work.shape[1], int(s[y.SIZE_CAUSES])
    heap_rows, request_rows = 2 * margin_events(tables.shape), 2 * margin_requests(tables.shape)
    recorded = gpus if interference else 0
    heats = {None: 0, "channel": gpus * channels, "bank": gpus * channels * int(s[y.SIZE_BANKS])}[heat]
    heat_bins = y.BANK_BINS if heat == "bank" else y.CHANNEL_BINS

    makers = int(tables.work[:, :, y.WORK_SCRIPT].max(initial=0)) + 1 + max(gpus - 1, 1)

    machine = Machine(
        *tables,
        shift=_shifts(tables.shape),
        clock=table(y.CLOCK_COLUMNS),
        heap=table(heap_rows, 2),
        later=table(heap_rows, y.LATER_COLUMNS),
        window=table(y.WINDOWS),
        window_bits=table(y.WINDOWS // 32),
        request=table(request_rows, y.REQ_COLUMNS),
        waiter=table(request_rows, WAITER_COLUMNS),
        channel=table(gpus * channels, y.CHAN_COLUMNS),
        bank=table(gpus * channels * int(s[y.SIZE_BANKS]), y.BANK_COLUMNS),
        group=table(gpus * channels * int(s[y.SIZE_GROUPS]), y.GROUP_COLUMNS),
        slice_free=table(gpus * (partitions * int(s[y.SIZE_SLICES]) + channels)),
        tag=table(lines + side, fill=y.NONE),
        stamp=table(lines + side),
        held=table(lines + side),
        line=table(lines + side, LINE_COLUMNS),
        earlier=table(max(side, 1), EARLIER_COLUMNS),
        link_run=table(tables.link.shape[0], y.LINK_RUN_COLUMNS),
        sender=table(tables.link.shape[0], int(s[y.SIZE_ENGINES]) + units, y.SENDER_COLUMNS, fill=y.NONE),
        unit=table(gpus * units, y.UNIT_COLUMNS),
        resident=table(places, y.WG_COLUMNS),
        slot=table(places * y.SLOTS, y.SLOT_COLUMNS),
        engine=table(gpus * int(s[y.SIZE_ENGINES]), y.DMA_COLUMNS),
        dma_queue=table(gpus, tiles),
        block_left=table(gpus, tiles),
        seen=table(gpus, tiles * wavefronts),
        summed=table(gpus, tiles * wavefronts if _added(tables) else 0),
        merging=table(gpus, y.MERGE_CELLS if _merges(tables) else 0),
        entry=table(gpus * sets, ways, fill=y.NONE),
        spilled=table(gpus, tiles * wavefronts),
        counter=table(gpus, max(int(s[y.SIZE_COUNTERS]), 1), y.COUNTER_COLUMNS),
        flow=table(gpus, y.FLOW_COLUMNS),
        kernel_run=table(gpus, int(s[y.SIZE_KERNELS]), y.RUN_COLUMNS),
        dealt=table(gpus, int(s[y.SIZE_KERNELS]), partitions, int(s[y.SIZE_SHADERS])),
        running=table(gpus, int(s[y.SIZE_KERNELS]), partitions),
        ready=table(gpus, partitions, int(s[y.SIZE_CLASSES]), y.READY_COLUMNS),
        ready_next=table(gpus, int(s[y.SIZE_KERNELS]), partitions),
        traffic=table(gpus, causes),
        served=table(gpus, y.LEVELS, causes),
        series=table(gpus, causes, SERIES_BINS),
        link_series=table(gpus, SERIES_BINS),
        chunk_log=table(gpus, int(s[y.SIZE_REGIONS]), y.CHUNK_COLUMNS, fill=y.NONE),
        dma_log=table(gpus, tiles, y.COMMAND_COLUMNS, fill=y.NONE),
        work_log=table(gpus, works, y.WORKLOG_COLUMNS, fill=y.NONE),
        pim_log=table(gpus * channels, len(tables.pim), y.PIM_LOG_COLUMNS),
        update_log=table(gpus if updates else 0, tiles * wavefronts * makers, fill=y.NONE),
        heat=table(heats, heat_bins, y.HEAT_COLUMNS),
        heated=table(heats, y.HEATED_COLUMNS),
        arrival=table(request_rows if interference else 0, y.ARRIVAL_COLUMNS),
        waiting=table(recorded * channels, y.WAITING_COLUMNS),
        stream=table(recorded, 2, y.STREAM_COLUMNS),
        histogram=table(recorded, 2, y.HISTOGRAMS, y.CLASSES + 1),
        load_series=np.zeros((recorded, 2, SERIES_BINS, y.CLASSES), dtype=np.int64),
        misses=table(recorded, int(s[y.SIZE_REGIONS])),
    )
    _initialise(machine, bin_fs)
    return machine


def table(*dims: int, fill: int = 0) -> Table:
    """A table that begins at a processor's cache line, so that rows of 64 bytes lie in one line each."""
    count = math.prod(dims)
    room = np.full(count + _CACHE_LINE, fill, dtype=np.int64) if fill else np.zeros(count + _CACHE_LINE, dtype=np.int64)
    first = -(room.ctypes.data // room.itemsize) % _CACHE_LINE
    return room[first : first + count].reshape(dims)


def table_records(tables: Sequence[Table], names: Sequence[str] = ()) -> Table:
    """Where each table lies and how large it is, as machine code takes it: a row of `RECORD` integers for each.

    The tables must outlive the records. Raises ValueError for a table with gaps or of another type than integers of 64
    bits, and for one of `names` that is not as wide as `COLUMNS` says.
    """
    records = table(len(tables), RECORD)
    for record, each, name in zip(records, tables, names or ("",) * len(tables), strict=True):
        fixed = COLUMNS.get(name, ())
        if each.dtype != np.int64 or not each.flags.c_contiguous or each.shape[each.ndim - len(fixed) :] != fixed:
            raise ValueError(
                f"table '{name}' is {each.dtype} of {each.shape}; the engine takes int64 of (..., {fixed})"
            )
        record[RECORD_ADDRESS] = each.__array_interface__["data"][0]
        record[RECORD_SIZES : RECORD_SIZES + each.ndim] = each.shape
    return records


def _added(tables: Tables) -> bool:
    """Whether a switch adds up what several GPUs store."""
    of = tables.region
    return bool(((of[:, :, y.REGION_MEMBERS] > 0) & (of[:, :, y.REGION_MEMBER_STRIDE] == y.NONE)).any())


def _merges(tables: Tables) -> bool:
    """Whether a switch merges what several GPUs store, or load."""
    stored = _added(tables) and bool(tables.gpu[:, y.GPU_MERGE_WINDOW].any())
    return stored or bool((tables.access[:, :, y.ACCESS_MEMBERS] < y.NONE).any())


def _shifts(shape: Table) -> Table:
    """The binary logarithm of every size that is a power of two, NONE of others."""
    return np.array([int(n).bit_length() - 1 if n > 0 and n & (n - 1) == 0 else y.NONE for n in shape])


def margin_events(shape: Table) -> int:
    """The most events that one event can enter: a wake-up of every workgroup and channel, a launch of every kernel,
    every write of a release.
    """
    gpus = int(shape[y.SIZE_GPUS])
    each = shape[y.SIZE_CUS] * shape[y.SIZE_RESIDENT] + 2 * shape[y.SIZE_CHANNELS] + shape[y.SIZE_ENGINES]
    each += shape[y.SIZE_KERNELS]
    released = shape[y.SIZE_PARTITIONS] * shape[y.SIZE_SETS] * shape[y.SIZE_WAYS] if shape[y.SIZE_SIDE_SETS] else 0
    return gpus * int(each) + int(released) + 1024


def margin_requests(shape: Table) -> int:
    """The most requests that one event can make: caches that write all their lines back, each pushing out another one
    and what earlier work left, where there is a cache behind them.
    """
    each = 3 if shape[y.SIZE_SIDE_SETS] > 0 else 2
    return int(each * shape[y.SIZE_PARTITIONS] * shape[y.SIZE_SETS] * shape[y.SIZE_WAYS]) + 16384


def _initialise(m: Machine, bin_fs: int) -> None:
    m.clock[[y.CLOCK_BIN, y.CLOCK_HEAT_BIN]] = bin_fs
    # About five events in each window, where all channels of all GPUs are busy.
    each = int(m.gpu[:, y.GPU_PEAK64].min()) * int(m.shape[y.SIZE_REQUEST]) // 64 // len(m.gpu)
    m.clock[y.CLOCK_WINDOW_SHIFT] = max(each, 1).bit_length()
    m.clock[y.CLOCK_WINDOW_END] = 1 << int(m.clock[y.CLOCK_WINDOW_SHIFT])
    for column in (
        y.CHAN_COMPUTE_HEAD,
        y.CHAN_COMPUTE_TAIL,
        y.CHAN_COMMUNICATION_HEAD,
        y.CHAN_COMMUNICATION_TAIL,
        y.CHAN_WAKE,
        y.CHAN_SCHEDULED,
        y.CHAN_BEST,
        y.CHAN_OPENS,
        y.CHAN_LAST_KIND,
    ):
        m.channel[:, column] = y.NONE
    m.bank[:, (y.BANK_ROW, *y.BANK_HEADS)] = y.NONE
    m.channel[:, y.CHAN_GPU] = np.arange(len(m.channel)) // int(m.shape[y.SIZE_CHANNELS])
    row = m.gpu[m.channel[:, y.CHAN_GPU]]
    m.channel[:, y.CHAN_START] = -row[:, y.GPU_T_BURST]  # the bus is free at the start
    every = row[:, y.GPU_REFRESH_EVERY]
    m.channel[:, y.CHAN_REFRESH] = np.where(every > 0, every, y.NEVER)
    channel, k = np.divmod(np.arange(len(m.bank)), int(m.shape[y.SIZE_BANKS]))
    m.bank[:, y.BANK_GROUP] = channel * int(m.shape[y.SIZE_GROUPS]) + k % int(m.shape[y.SIZE_GROUPS])
    m.line[:, LINE_WAITERS] = y.NONE
    m.link_run[:, [y.LINK_SENT, y.LINK_FIRST, y.LINK_LAST]] = y.NONE
    m.waiting[:, y.WAITING_LAST : y.WAITING_LAST + 2] = y.NONE
    m.resident[:, y.WG_KERNEL] = y.NONE
    m.engine[:, y.DMA_BLOCK] = y.NONE
    m.counter[:, :, y.COUNTER_TARGET] = y.NEVER
    m.counter[:, :, y.COUNTER_KERNEL] = y.NONE
    m.kernel_run[:, :, y.RUN_OPEN] = m.kernel[:, :, y.KERNEL_PREDECESSORS]
    m.ready[..., y.READY_FIRST] = m.ready[..., y.READY_LAST] = y.NONE
    for column in (y.RUN_START, y.RUN_END, y.RUN_LAUNCHED):
        m.kernel_run[:, :, column] = y.NONE
    m.flow[:, y.FLOW_THRESHOLD] = m.gpu[:, y.GPU_THRESHOLD_HIGH]
    m.flow[:, y.FLOW_INTENSITY] = y.NONE
    m.flow[:, y.FLOW_MONITOR_START] = y.NONE
    units = int(m.shape[y.SIZE_CUS])
    for g in range(int(m.shape[y.SIZE_GPUS])):
        rows = slice(g * units, (g + 1) * units)
        m.unit[rows, y.UNIT_THREADS] = m.gpu[g, y.GPU_THREADS]
        m.unit[rows, y.UNIT_REGISTERS] = m.gpu[g, y.GPU_REGISTERS]
        m.unit[rows, y.UNIT_LDS] = m.gpu[g, y.GPU_LDS]
        m.unit[rows, y.UNIT_PLACES] = m.gpu[g, y.GPU_WORKGROUPS]
        own = int(m.gpu[g, y.GPU_CUS])
        m.unit[g * units + own : (g + 1) * units, y.UNIT_PLACES] = 0
        m.unit[g * units : g * units + own, y.UNIT_PARTITION] = np.arange(own) * int(m.shape[y.SIZE_PARTITIONS]) // own
    _plan_sends(m)
    _plan_computing(m)
    _count_blocks(m)


def _plan_sends(m: Machine) -> None:
    """How many bytes of updates each GPU sends to peers, and what 64 of them take on the links that they begin with."""
    for g in range(int(m.shape[y.SIZE_GPUS])):
        region = m.region[g]
        sends = (region[:, y.REGION_MODE] == y.REMOTE_UPDATE) | (region[:, y.REGION_DMA_MODE] == y.REMOTE_UPDATE)
        m.flow[g, y.FLOW_TO_SEND] = region[sends, y.REGION_SIZE].sum()
        links = m.route[np.unique(region[sends, y.REGION_ROUTE]), y.ROUTE_LINK]
        rates = 1 / np.maximum(m.link[np.unique(links), y.LINK_DMA64], 1)
        m.flow[g, y.FLOW_SEND64] = round(1 / rates.sum()) if len(rates) else 0


def _plan_computing(m: Machine) -> None:
    """Sum what each GPU's compute units compute of its monitored kernel until the busiest one ends [fs].

    Units take workgroups round by round; those without one in the last round wait for the others.
    """
    for g, k in np.argwhere(m.kernel[:, :, y.KERNEL_MONITOR] == 1):
        kernel = m.kernel[g, k]
        first, work = kernel[y.KERNEL_FIRST_PHASE], kernel[y.KERNEL_FIRST_WORK]
        scripts = m.work[g, work : work + kernel[y.KERNEL_WORKGROUPS], y.WORK_SCRIPT]
        phases = first + scripts[:, None] * kernel[y.KERNEL_PHASES] + np.arange(kernel[y.KERNEL_PHASES])
        iteration = m.phase[g, phases, y.PHASE_CYCLES] * m.gpu[g, y.GPU_CYCLE] // 1000
        computing = (m.phase[g, phases, y.PHASE_ITERATIONS] * iteration).sum(axis=1)
        units = max(int(m.unit_mask[g, k, : m.gpu[g, y.GPU_CUS]].sum()), 1)
        longest = np.maximum.reduceat(computing, np.arange(0, len(computing), units)) if len(computing) else computing
        m.flow[g, y.FLOW_TO_COMPUTE] = units * longest.sum()


def _count_blocks(m: Machine) -> None:
    """A DMA block is complete when every wavefront tile in it is: count them."""
    wavefronts, size = int(m.shape[y.SIZE_WAVEFRONTS]), int(m.shape[y.SIZE_BLOCK_TILES])
    for g in range(int(m.shape[y.SIZE_GPUS])):
        for t in np.flatnonzero(m.tile[g, :, y.TILE_BYTES]):
            first = m.region[g, m.tile[g, t, y.TILE_REGION], y.REGION_FIRST_TILE]
            part = -(-m.tile[g, t, y.TILE_BYTES] // wavefronts)
            m.block_left[g, first + (t - first) // size * size] += -(-m.tile[g, t, y.TILE_BYTES] // part)


def grow(m: Machine, status: int) -> Machine:
    """Double the size of the table that is full; the run continues from where it stopped."""
    if status == y.GROW_HEAP:
        later = _doubled(m, m.later, y.LATER_NEXT, y.CLOCK_FREE_LATER)
        return m._replace(heap=np.concatenate([m.heap, np.zeros_like(m.heap)]), later=later)
    if status == y.GROW_REQUESTS:
        arrival = np.concatenate([m.arrival, np.zeros_like(m.arrival)])
        return m._replace(request=_doubled(m, m.request, y.REQ_NEXT, y.CLOCK_FREE_REQUEST), arrival=arrival)
    return m._replace(waiter=_doubled(m, m.waiter, WAITER_NEXT, y.CLOCK_FREE_WAITER))


def _doubled(m: Machine, table: Table, column: int, head: int) -> Table:
    """Twice the table; its new rows are the first of the free list, as zeros link a row to the next one."""
    rows = table.shape[0]
    bigger = np.concatenate([table, np.zeros_like(table)])
    bigger[2 * rows - 1, column] = m.clock[head] - 2 * rows
    m.clock[head] = rows
    return bigger
