"""Everything a run reads and writes: the program's tables and the engine's own, as arrays of integers."""

from __future__ import annotations

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
    phase: Table
    access: Table
    work: Table
    region: Table
    tile: Table
    unit_mask: Table
    # The run.
    clock: Table
    heap: Table
    request: Table
    waiter: Table
    channel: Table
    queue: Table
    bank: Table
    group: Table
    slice_free: Table
    tag: Table
    stamp: Table
    line: Table
    earlier: Table
    link: Table
    unit: Table
    resident: Table
    slot: Table
    engine: Table
    dma_queue: Table
    block_left: Table
    seen: Table
    entry: Table
    spilled: Table
    counter: Table
    flow: Table
    kernel_run: Table
    dealt: Table
    # What is kept for the reader of the result.
    traffic: Table
    served: Table
    series: Table
    link_series: Table
    chunk_log: Table
    dma_log: Table
    work_log: Table


# line[l, :], the caches' lines, then those of the memory-side cache. LINE_PENDING: reads on their way; LINE_HERE,
# LINE_COMING: sectors that are there or on their way, a bit each; LINE_WAITERS: waiters of a cache's line, requests of
# a memory-side line.
(
    LINE_DIRTY, LINE_PENDING, LINE_WAITERS, LINE_CAUSE, LINE_BYTES, LINE_HERE, LINE_COMING, LINE_COLUMNS,
) = range(8)  # fmt: skip
SECTORS = 32
"""Parts of a cache line that can be there or not."""
# earlier[l, :] for each line of the memory-side cache: bytes that earlier work left dirty there, and where they belong.
EARLIER_BYTES, EARLIER_ADDRESS, EARLIER_COLUMNS = range(3)
# waiter[i, :]
WT_NEXT, WT_SLOT, WT_NEED, WT_COLUMNS = range(4)
SERIES_BINS = 4096


class Tables(NamedTuple):
    """The program's tables, as `program.lower` makes them."""

    shape: Table
    gpu: Table
    kernel: Table
    phase: Table
    access: Table
    work: Table
    region: Table
    tile: Table
    unit_mask: Table


def allocate(tables: Tables, bin_fs: int) -> Machine:
    """Make the empty state of a run of `tables`; series start with bins of `bin_fs` femtoseconds."""
    s = tables.shape
    gpus, units, channels = int(s[y.S_GPUS]), int(s[y.S_CUS]), int(s[y.S_CHANNELS])
    partitions = int(s[y.S_PARTITIONS])
    lines = gpus * partitions * int(s[y.S_SETS]) * int(s[y.S_WAYS])
    side = gpus * channels * int(s[y.S_SIDE_SETS]) * int(s[y.S_SIDE_WAYS])
    places = gpus * units * int(s[y.S_RESIDENT])
    tiles, wavefronts = max(int(s[y.S_TILES]), 1), int(s[y.S_WAVEFRONTS])
    sets = int(tables.gpu[:, y.G_TRACKER_SETS].max())
    ways = int(tables.gpu[:, y.G_TRACKER_WAYS].max())
    works = tables.work.shape[1]
    heap_rows, request_rows = 2 * margin_events(tables.shape), 2 * margin_requests(tables.shape)

    def table(*dims: int, fill: int = 0) -> Table:
        return np.full(dims, fill, dtype=np.int64)

    machine = Machine(
        *tables,
        clock=table(y.C_COLUMNS),
        heap=table(heap_rows, 2),
        request=table(request_rows, y.R_COLUMNS),
        waiter=table(request_rows, WT_COLUMNS),
        channel=table(gpus * channels, y.H_COLUMNS),
        queue=table(gpus * channels, _queue_rows(tables)),
        bank=table(gpus * channels * int(s[y.S_BANKS]), y.B_COLUMNS),
        group=table(gpus * channels * int(s[y.S_GROUPS])),
        slice_free=table(gpus * (partitions * int(s[y.S_SLICES]) + channels)),
        tag=table(lines + side, fill=y.NONE),
        stamp=table(lines + side),
        line=table(lines + side, LINE_COLUMNS),
        earlier=table(max(side, 1), EARLIER_COLUMNS),
        link=table(gpus * int(s[y.S_PORTS]), y.L_COLUMNS),
        unit=table(gpus * units, y.U_COLUMNS),
        resident=table(places, y.W_COLUMNS),
        slot=table(places * y.SLOTS, y.Q_COLUMNS),
        engine=table(gpus * int(s[y.S_ENGINES]), y.E_COLUMNS),
        dma_queue=table(gpus, tiles),
        block_left=table(gpus, tiles),
        seen=table(gpus, tiles * wavefronts),
        entry=table(gpus * sets, ways, fill=y.NONE),
        spilled=table(gpus, tiles * wavefronts),
        counter=table(gpus, max(int(s[y.S_COUNTERS]), 1), y.N_COLUMNS),
        flow=table(gpus, y.F_COLUMNS),
        kernel_run=table(gpus, int(s[y.S_KERNELS]), y.KR_COLUMNS),
        dealt=table(gpus, int(s[y.S_KERNELS]), partitions),
        traffic=table(gpus, y.CAUSES),
        served=table(gpus, y.LEVELS, y.CAUSES),
        series=table(gpus, y.CAUSES, SERIES_BINS),
        link_series=table(gpus, SERIES_BINS),
        chunk_log=table(gpus, int(s[y.S_REGIONS]), y.CL_COLUMNS, fill=y.NONE),
        dma_log=table(gpus, tiles, y.DL_COLUMNS, fill=y.NONE),
        work_log=table(gpus, works, y.WL_COLUMNS, fill=y.NONE),
    )
    _initialise(machine, bin_fs)
    return machine


def margin_events(shape: Table) -> int:
    """The most events that one event can enter: a wake-up of every workgroup and channel, every write of a release."""
    gpus = int(shape[y.S_GPUS])
    each = shape[y.S_CUS] * shape[y.S_RESIDENT] + 2 * shape[y.S_CHANNELS] + shape[y.S_ENGINES]
    released = shape[y.S_PARTITIONS] * shape[y.S_SETS] * shape[y.S_WAYS] if shape[y.S_SIDE_SETS] else 0
    return gpus * int(each) + int(released) + 1024


def margin_requests(shape: Table) -> int:
    """The most requests that one event can make: caches that write all their lines back, each pushing out another one
    and what earlier work left, where there is a cache behind them.
    """
    each = 3 if shape[y.S_SIDE_SETS] > 0 else 2
    return int(each * shape[y.S_PARTITIONS] * shape[y.S_SETS] * shape[y.S_WAYS]) + 16384


def _queue_rows(tables: Tables) -> int:
    # Partial requests are rare; a queue entry holds at least one burst.
    return int(tables.gpu[:, y.G_QUEUE_BYTES].max()) // int(tables.shape[y.S_BURST]) + 1


def _initialise(m: Machine, bin_fs: int) -> None:
    m.clock[y.C_BIN] = bin_fs
    link_free_list(m.request, y.R_NEXT, 0)
    link_free_list(m.waiter, WT_NEXT, 0)
    for column in (y.H_HEAD0, y.H_TAIL0, y.H_HEAD1, y.H_TAIL1, y.H_WAKE, y.H_LAST_KIND):
        m.channel[:, column] = y.NONE
    m.bank[:, y.B_ROW] = y.NONE
    m.line[:, LINE_WAITERS] = y.NONE
    m.link[:, y.L_HEAD] = m.link[:, y.L_TAIL] = y.NONE
    m.resident[:, y.W_KERNEL] = y.NONE
    m.engine[:, y.E_BLOCK] = y.NONE
    m.counter[:, :, y.N_TARGET] = y.NEVER
    for column in (y.KR_START, y.KR_END, y.KR_FIRST_START):
        m.kernel_run[:, :, column] = y.NONE
    m.flow[:, y.F_THRESHOLD] = m.gpu[:, y.G_THRESHOLD_HIGH]
    m.flow[:, y.F_INTENSITY] = y.NONE
    m.flow[:, y.F_MONITOR_START] = y.NONE
    units = int(m.shape[y.S_CUS])
    for g in range(int(m.shape[y.S_GPUS])):
        rows = slice(g * units, (g + 1) * units)
        m.unit[rows, y.U_THREADS] = m.gpu[g, y.G_THREADS]
        m.unit[rows, y.U_REGISTERS] = m.gpu[g, y.G_REGISTERS]
        m.unit[rows, y.U_LDS] = m.gpu[g, y.G_LDS]
        m.unit[rows, y.U_PLACES] = m.gpu[g, y.G_WORKGROUPS]
        own = int(m.gpu[g, y.G_CUS])
        m.unit[g * units + own : (g + 1) * units, y.U_PLACES] = 0
        m.unit[g * units : g * units + own, y.U_PARTITION] = (
            np.arange(own) * int(m.shape[y.S_PARTITIONS]) // own
        )
    _count_blocks(m)


def _count_blocks(m: Machine) -> None:
    """A DMA block is complete when every wavefront tile in it is: count them."""
    wavefronts, size = int(m.shape[y.S_WAVEFRONTS]), int(m.shape[y.S_BLOCK_TILES])
    for g in range(int(m.shape[y.S_GPUS])):
        for t in np.flatnonzero(m.tile[g, :, y.TI_BYTES]):
            first = m.region[g, m.tile[g, t, y.TI_REGION], y.M_FIRST_TILE]
            part = -(-m.tile[g, t, y.TI_BYTES] // wavefronts)
            m.block_left[g, first + (t - first) // size * size] += -(-m.tile[g, t, y.TI_BYTES] // part)


def link_free_list(table: Table, column: int, first: int) -> None:
    """Chain the rows of `table` from `first` on into a free list; the last row ends it."""
    rows = table.shape[0]
    table[first:, column] = np.arange(first + 1, rows + 1)
    table[rows - 1, column] = y.NONE


def grow(m: Machine, status: int) -> Machine:
    """Double the table that ran full; the run goes on from where it stopped."""
    if status == y.GROW_HEAP:
        return m._replace(heap=np.concatenate([m.heap, np.zeros_like(m.heap)]))
    if status == y.GROW_REQUESTS:
        return m._replace(request=_doubled(m, m.request, y.R_NEXT, y.C_FREE_REQUEST))
    return m._replace(waiter=_doubled(m, m.waiter, WT_NEXT, y.C_FREE_WAITER))


def _doubled(m: Machine, table: Table, column: int, head: int) -> Table:
    rows = table.shape[0]
    bigger = np.concatenate([table, np.zeros_like(table)])
    bigger[rows:, column] = np.arange(rows + 1, 2 * rows + 1)
    bigger[2 * rows - 1, column] = m.clock[head]
    m.clock[head] = rows
    return bigger
