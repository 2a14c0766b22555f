"""The columns of every integer table that the engine reads or writes.

The engine knows arrays and nothing else: a row is a thing (a GPU, a channel, a workgroup), a column is one of the
constants below, whose prefix names the table (CHAN: channel, REQ: request, WG: resident, RUN: kernel_run, WORKLOG:
work_log, CHUNK: chunk_log, COMMAND: dma_log, DMA: engine). All times are femtoseconds, all sizes bytes, unless a name
says otherwise. `X64` columns are femtoseconds per 64 bytes, so that a duration is ``bytes * x64 // 64``.
"""

from __future__ import annotations

from collections.abc import Iterator

NONE = -1


def _columns(count: int) -> Iterator[int]:
    return iter(range(count))


# -- program tables: written by `program`, only read by the engine

QUEUE_ENTRY = 32
"""Bytes of an access, the unit in which a channel's command queue is counted."""

# gpu[g, :] — one GPU of the machine, in integers.
(
    GPU_CUS, GPU_THREADS, GPU_REGISTERS, GPU_LDS, GPU_WORKGROUPS, GPU_CYCLE, GPU_PORT64, GPU_SLICE64, GPU_CACHE_OUT,
    GPU_CACHE_BACK, GPU_MEMORY_LATENCY, GPU_QUEUE_BYTES, GPU_T_BURST, GPU_T_LONG, GPU_T_UPDATE, GPU_T_RRD,
    GPU_T_RCD, GPU_T_RAS, GPU_T_RP, GPU_T_RC, GPU_T_CL, GPU_T_READ_TO_WRITE, GPU_T_WRITE_TO_READ,
    GPU_T_WRITE_TO_PRECHARGE, GPU_T_READ_TO_PRECHARGE, GPU_DMA_ENGINES, GPU_DMA_SETUP, GPU_DMA_WINDOW,
    GPU_TRACKER_SETS, GPU_TRACKER_WAYS, GPU_SPILL_BYTES, GPU_THRESHOLD_HIGH,
    GPU_THRESHOLD_MEDIUM, GPU_THRESHOLD_LOW, GPU_INTENSITY_HIGH, GPU_INTENSITY_MEDIUM, GPU_INTENSITY_LOW,
    GPU_STARVATION, GPU_START, GPU_PEAK64, GPU_LAUNCH, GPU_STRICT, GPU_DMA_RATE64, GPU_SIDE64, GPU_SIDE_LATENCY,
    GPU_SIDE_DIRTY, GPU_T_PATH, GPU_PATH_SLACK, GPU_SHARE_LONG, GPU_SHARE_UPDATE, GPU_T_FAW, GPU_T_RFC,
    GPU_REFRESH_EVERY, GPU_REFRESH_BANKS, GPU_STORE_BUFFER, GPU_UP, GPU_DOWN, GPU_PIM_EVERY, GPU_PIM_PATIENCE,
    GPU_MERGE_ENTRIES, GPU_MERGE_WINDOW, GPU_FABRIC64, GPU_FABRIC_EXCHANGE64, GPU_CORUN_CYCLE,
    GPU_COLUMNS,
) = _columns(65)  # fmt: skip
# GPU_INTENSITY_* are per mille of the peak DRAM bandwidth; GPU_THRESHOLD_* are bytes of queue; GPU_PEAK64 is the
# whole memory's femtoseconds per 64 bytes. GPU_DMA_RATE64: time per 64 bytes in one engine (0: none).
# GPU_STRICT: workgroups of a later kernel wait until the earlier ones are placed. GPU_SIDE64 is one slice of the
# memory-side cache, GPU_SIDE_LATENCY the latency that a hit there adds to the way through the cache, GPU_SIDE_DIRTY
# the per mille of its lines that are dirty at the start. GPU_T_PATH: time of a burst on the path from a channel to
# the rest of the chip, which may lag behind the bus by GPU_PATH_SLACK. GPU_SHARE_*: the share of the bus, in parts of
# WHOLE_BUS, that a bank group takes for a burst every GPU_T_LONG or GPU_T_UPDATE. GPU_REFRESH_EVERY: from one refresh
# of GPU_REFRESH_BANKS banks to the next (0: no refresh). GPU_STORE_BUFFER: bytes of stores to peers that leave their
# workgroup before their link has sent them. GPU_UP, GPU_DOWN: the rows of `route` to a switch that reduces or merges,
# and from it (NONE: there is none). GPU_PIM_EVERY: from the time that a group of commands of memory that computes is
# due to the next one's (0: each is due when the one before has ended); GPU_PIM_PATIENCE: how long it gives way to
# requests.
# GPU_MERGE_ENTRIES: the requests for this GPU that the switch's table holds (0: any number); GPU_MERGE_WINDOW: how long
# it holds one for others to the same place (0: it has no table, and adds up whole tiles). GPU_FABRIC64: one port of the
# fabric, in front of a slice of the memory-side cache (0: there is none); GPU_FABRIC_EXCHANGE64 for communication.
# GPU_CORUN_CYCLE: a cycle of a kernel of tiles beside one that exchanges data, at the clock of the whole GPU; kernels
# have cycles of their own.

# shape[:] — sizes shared by all GPUs.
(
    SIZE_GPUS, SIZE_CUS, SIZE_CHANNELS, SIZE_BANKS, SIZE_GROUPS, SIZE_INTERLEAVE, SIZE_ROW, SIZE_BURST,
    SIZE_REQUEST, SIZE_SETS, SIZE_WAYS, SIZE_RESIDENT, SIZE_KERNELS, SIZE_REGIONS, SIZE_TILES, SIZE_WAVEFRONTS,
    SIZE_COUNTERS, SIZE_ENGINES, SIZE_BLOCK_TILES, SIZE_PARTITIONS, SIZE_SLICES, SIZE_SIDE_SETS, SIZE_SIDE_WAYS,
    SIZE_CLASSES, SIZE_CAUSES, SIZE_COMPUTE_CAUSE, SIZE_HASH, SIZE_SHADERS, SIZE_COLUMNS,
) = _columns(29)  # fmt: skip
# SIZE_RESIDENT: workgroup places per compute unit; SIZE_BLOCK_TILES: workgroup tiles per DMA command.
# SIZE_PARTITIONS: groups of compute units with a cache of their own each, of SIZE_SETS sets in SIZE_SLICES slices.
# SIZE_SIDE_SETS: sets that a channel has in the memory-side cache (0: there is none). SIZE_CLASSES: kernels of
# equal resource needs, allowed compute units and priority form a class. SIZE_HASH: -1 if each round of stripes over the
# channels, and of rows over the banks, is shifted against the last, 0 if all begin at the same one. SIZE_SHADERS: the
# most of KERNEL_SHADERS.

# kernel[g, k, :]
(
    KERNEL_WORKGROUPS, KERNEL_FIRST_WORK, KERNEL_FIRST_PHASE, KERNEL_PHASES, KERNEL_THREADS, KERNEL_REGISTERS,
    KERNEL_LDS, KERNEL_PRIORITY, KERNEL_PREDECESSORS, KERNEL_FIRST_SUCCESSOR, KERNEL_SUCCESSORS,
    KERNEL_AFTER_COUNTER, KERNEL_AFTER_VALUE, KERNEL_LAUNCH, KERNEL_RELEASE, KERNEL_MONITOR, KERNEL_FIRST_COPY,
    KERNEL_COPIES, KERNEL_COMPLETION, KERNEL_CLASS, KERNEL_STAGE, KERNEL_ACKNOWLEDGE, KERNEL_ACKNOWLEDGE_BUSY,
    KERNEL_TILED, KERNEL_EXCHANGES, KERNEL_SHADERS, KERNEL_GRID, KERNEL_CYCLE,
    KERNEL_CORUN_CYCLE, KERNEL_COLUMNS,
) = _columns(30)  # fmt: skip
# KERNEL_PHASES: phases of one script; a kernel may have several, and each workgroup runs one of them.
# KERNEL_PREDECESSORS: kernels that must have ended; KERNEL_AFTER_COUNTER, KERNEL_AFTER_VALUE: a counter and the value
# that it must have reached (NONE: no counter). KERNEL_SUCCESSORS: kernels that wait for this one to end, in the rows
# of successor[:] from KERNEL_FIRST_SUCCESSOR on. KERNEL_RELEASE: write dirty lines back and drop all lines when it
# ends; KERNEL_MONITOR: its first stage's memory intensity sets the arbiter's threshold; KERNEL_COPIES:
# DMA commands that its launch triggers, from the tile row KERNEL_FIRST_COPY on; KERNEL_COMPLETION: from the departure
# of their last byte to the kernel's end. KERNEL_STAGE: number of workgroups that are dispatched together, once all of
# the stage before have ended (0: each as soon as it fits). KERNEL_ACKNOWLEDGE: from the time that a link has sent
# what a slot stores until the slot continues; KERNEL_ACKNOWLEDGE_BUSY: the same while a kernel with KERNEL_TILED runs.
# KERNEL_SHADERS: shader engines of a partition to which its workgroups are dealt round robin, whether or not they have
# room (1: each goes wherever there is room). KERNEL_GRID: its most workgroups at once (0: as many as fit).
# KERNEL_CYCLE: its cycle of a compute unit; KERNEL_CORUN_CYCLE: that of a kernel of tiles beside one that exchanges
# data.
# phase[g, p, :] — one pipelined loop of a workgroup script.
(
    PHASE_ITERATIONS, PHASE_SHARED, PHASE_SLOTS, PHASE_FIRST_LOAD, PHASE_LOADS, PHASE_CYCLES, PHASE_STORE,
    PHASE_WAIT_COUNTER, PHASE_WAIT_VALUE, PHASE_STORES, PHASE_LANED, PHASE_DELAY, PHASE_STAGED,
    PHASE_COLUMNS,
) = _columns(14)  # fmt: skip
# PHASE_SHARED: iterations are dealt round robin to the kernel's workgroups; PHASE_CYCLES: compute-unit cycles per
# iteration; PHASE_STORES: stores of an iteration, from the access row PHASE_STORE on; PHASE_LANED: the counter is
# that of the workgroup's own lane (WORK_LANE; NONE: no wait); PHASE_DELAY: from the end of the wait to
# the first iteration; PHASE_STAGED: the first iterations load one after another, each when the port is free.

# access[g, a, :] — a load or a store of a script; its address follows the workgroup and the iteration.
(
    ACCESS_BASE, ACCESS_ROW_STRIDE, ACCESS_COLUMN_STRIDE, ACCESS_STEP_STRIDE, ACCESS_EXTENT, ACCESS_UNIT,
    ACCESS_LAST_UNIT, ACCESS_LIMIT, ACCESS_CACHED, ACCESS_OPERATOR, ACCESS_REGION, ACCESS_SHARE, ACCESS_MEMBERS,
    ACCESS_MEMBER_STRIDE, ACCESS_SOURCE, ACCESS_ROUTE, ACCESS_ASKING, ACCESS_COLUMNS,
) = _columns(18)  # fmt: skip
# ACCESS_REGION: for stores, the first region of the destination buffer (and ACCESS_BASE is an offset in it). With
# tiled work (WORK_REGION >= 0) the workgroup's own region is added, and offset and bytes come from its work row.
# ACCESS_SHARE: the workgroups of that many neighbouring rows of tiles (below zero: columns) fetch a load together, a
# part each; 0 and 1: each fetches all of it. ACCESS_MEMBERS: the number of GPUs from which a load through the switch
# fetches (0: an ordinary load); at the GPU d ranks below, its address is ACCESS_MEMBER_STRIDE times d further on. Below
# zero: a load from the memory of the GPU ACCESS_SOURCE, ACCESS_MEMBER_STRIDE further on there, whose data comes back by
# the route in row ACCESS_ROUTE, ACCESS_ASKING after the load is issued at the earliest: the time that the request takes
# to that GPU. As many GPUs may load the same bytes, and a switch with a table merges their requests (NONE: none does).
EXTENT_ONE, EXTENT_ROWS, EXTENT_COLUMNS = range(3)

# work[g, w, :] — what one workgroup works on.
(
    WORK_ROW, WORK_COLUMN, WORK_ROWS, WORK_COLUMNS, WORK_REGION, WORK_OFFSET, WORK_BYTES, WORK_TILE, WORK_LANE,
    WORK_SCRIPT, WORK_FIELDS,
) = _columns(11)  # fmt: skip
# WORK_SCRIPT: which of its kernel's scripts the workgroup runs.

# region[g, r, :] — the address map: one chunk of one buffer, and what a store into it means.
(
    REGION_BASE, REGION_SIZE, REGION_MODE, REGION_CACHED, REGION_TO_REGION, REGION_REMOTE_CAUSE, REGION_COUNTER,
    REGION_TRACKED, REGION_FIRST_TILE, REGION_TILES, REGION_DMA_MODE, REGION_DMA_REGION, REGION_DMA_CAUSE,
    REGION_DMA_REMOTE_CAUSE, REGION_SENT_COUNTER, REGION_LANED, REGION_TARGET, REGION_ROUTE, REGION_ALSO_REGION,
    REGION_ALSO_TARGET, REGION_ALSO_ROUTE, REGION_SOURCE, REGION_SOURCE_LATENCY, REGION_MEMBERS,
    REGION_MEMBER_STRIDE, REGION_COLUMNS,
) = _columns(26)  # fmt: skip
# REGION_TRACKED: updates per element that complete a tile (0: untracked; NONE: untracked, and stores of the GPU itself
# count like those that arrive); REGION_TO_REGION: the region at the
# receiver for remote modes; REGION_DMA_*: the pre-programmed command that a complete block triggers (REGION_DMA_MODE
# NONE: none). REGION_COUNTER counts bytes received or reduced (REGION_LANED: one counter per lane from there on),
# REGION_SENT_COUNTER bytes that DMA commands have sent on. REGION_TARGET: the GPU that stores and commands go
# to; REGION_ROUTE: the row of `route` that they begin with. REGION_ALSO_*: a second receiver of a command's bytes
# (REGION_ALSO_REGION NONE: there is none). REGION_SOURCE: the GPU that a command reads from, whose row of the region
# says where the bytes go; REGION_SOURCE_LATENCY: time for the request to reach that GPU. REGION_MEMBERS: the number of
# GPUs to which the switch copies a store (0: the store goes to one GPU); at the GPU d ranks below, its place in the
# region is REGION_MEMBER_STRIDE times d further on. If that is NONE, the switch adds up instead what so many GPUs store
# to a wavefront's part of a tile, and sends the sum to REGION_TARGET.
LOCAL_STORE, LOCAL_UPDATE, REMOTE_STORE, REMOTE_UPDATE = range(4)

# tile[g, t, :] — the output tiles in run order, then the copies: TILE_ROWS rows for each command, the first of which
# describes it. TILE_COPY: 1 + the kernel that ends when its copies do (0: none); TILE_AFTER: from the
# kernel's launch until the command is ready; TILE_ENGINE: 1 + the engine that takes it (0: any).
TILE_REGION, TILE_OFFSET, TILE_BYTES, TILE_COPY, TILE_ROWS, TILE_AFTER, TILE_ENGINE, TILE_COLUMNS = _columns(8)

# link[k, :] — one direction of a connection, over all GPUs and switches. LINK_STORE64: time per 64 bytes of stores by
# compute units, LINK_DMA64: of DMA engines; LINK_BUNDLE: the link that it is part of (NONE: none); both must be free.
LINK_STORE64, LINK_DMA64, LINK_BUNDLE, LINK_COLUMNS = _columns(4)

# route[p, :] — the links of a route in consecutive rows; ROUTE_LINK NONE ends it. ROUTE_LATENCY: from the
# end of the link to the next one, or to the receiver.
ROUTE_LINK, ROUTE_LATENCY, ROUTE_COLUMNS = _columns(3)

# pim[k, :] — commands of memory that computes, which every channel carries out in order: PIM_COUNT equal ones, one each
# PIM_GAP. PIM_KIND: what they do, a kind of request or PIM_COMPUTE. PIM_BANKS: the banks of the channel that each
# touches, a bit each; PIM_ROW: the row that must be open there. PIM_BUS: time of each on the data bus.
# PIM_OPENING: what opening the row takes more, where not all banks open together. PIM_TOGETHER: 1 if the next run
# follows at once, 0 if a barrier of PIM_AFTER ends the group.
(
    PIM_KIND, PIM_BANKS, PIM_ROW, PIM_COUNT, PIM_GAP, PIM_BUS, PIM_OPENING, PIM_TOGETHER, PIM_AFTER, PIM_COLUMNS,
) = _columns(10)  # fmt: skip
PIM_ROWS = 1 << 40
"""Rows of commands are numbered from here on, so that no request of the GPU is in one."""

# -- causes of traffic: an operator and what it does, `operator * KINDS + kind`
READ, WRITE, UPDATE, KINDS = _columns(4)
PIM_COMPUTE = KINDS
OPERATOR_TRACKER, OPERATOR_EARLIER, SYSTEM_OPERATORS = range(3)
CAUSE_REFILL = OPERATOR_TRACKER * KINDS + READ
CAUSE_SPILL = OPERATOR_TRACKER * KINDS + WRITE
CAUSE_EARLIER = OPERATOR_EARLIER * KINDS + WRITE
# The first operators are those of every machine: the tracker, whose entries are spilled and fetched back, and work
# before the run, whose data the run evicts from the memory-side cache. Then come the program's operators that
# communicate, and from the cause SIZE_COMPUTE_CAUSE on those that compute.

# -- run tables: the engine's own state. Rows of the busiest tables fill whole cache lines of 8 integers, whence unused
# columns; what one event reads together lies in one line.

# clock[:] — scalars of the run.
(
    CLOCK_NOW, CLOCK_HEAP, CLOCK_EVENTS, CLOCK_REQUESTS, CLOCK_FREE_REQUEST, CLOCK_FREE_WAITER, CLOCK_LIVE_REQUESTS,
    CLOCK_LIVE_WAITERS, CLOCK_UNFINISHED, CLOCK_STAMP, CLOCK_BIN, CLOCK_TICKET, CLOCK_GAP, CLOCK_BIN_LAST,
    CLOCK_HEAT_BIN, CLOCK_LATER, CLOCK_FREE_LATER, CLOCK_WINDOW_SHIFT, CLOCK_WINDOW_END, CLOCK_WINDOW_BITS,
    CLOCK_COLUMNS,
) = _columns(21)  # fmt: skip
# CLOCK_FREE_*: the first free row of a table; a free row's link to the next one counts from the row after it, so that
# zeros link each row to the following one and a new table needs no preparation. CLOCK_GAP: 1 while the event that is
# being processed leaves the first row of the heap free. CLOCK_BIN_LAST: the bin of the series that was counted into
# last. CLOCK_LATER: events in the lists of windows; a window is two to the power of CLOCK_WINDOW_SHIFT femtoseconds,
# the present one ends at CLOCK_WINDOW_END. CLOCK_WINDOW_BITS: the entries of window_bits that are not zero, a bit each.

# later[i, :] — an event of a later window, in the list of window[k]: 1 + its first row (0: it is empty), where k is the
# window's number modulo WINDOWS. window_bits[k // 32] has a bit for each list that is not empty.
LATER_TIME, LATER_CODE, LATER_NEXT = range(3)
LATER_COLUMNS = 4
WINDOWS = 1024
"""Lists of events; 32 x 32, so that two words of 32 bits find the next one that is not empty."""

# request[i, :]
(
    REQ_NEXT, REQ_PREVIOUS, REQ_GPU, REQ_CHANNEL, REQ_BANK, REQ_ROW, REQ_BYTES, REQ_KIND,
    REQ_CAUSE, REQ_STREAM, REQ_ARRIVE, REQ_OWNER_KIND, REQ_OWNER, REQ_TICKET, REQ_ADDRESS, REQ_REGION,
    REQ_TILE, REQ_WAVEFRONT, REQ_MEMBERS, REQ_STRIDE, REQ_FILLS, REQ_FROM, REQ_WEIGHT,
) = _columns(23)  # fmt: skip
REQ_COLUMNS = 24
MERGE_GRAIN = 64
MERGE_CELLS = 1 << 14
"""Lists of requests in the switch's table of a GPU: a power of two, so that few of those held at once share one."""
# REQ_ROW: the row of its bank; for a message, its current row of `route`. REQ_ARRIVE: when it is ready, then when
# its last byte arrives where its head is. REQ_FILLS: the line of the memory-side cache that a read fills,
# or NONE. REQ_FROM: who serves it, the DRAM or that cache. REQ_TICKET: its number in the order of admission;
# for a message, 1 if it is entered at its receiver when it leaves its first link, ahead of REQ_ARRIVE.
# REQ_MEMBERS: for a message, the number of GPUs to which the switch copies it; for the sum that a slot waits for, the
# answers that are missing. REQ_STRIDE: the distance of the copies' places [bytes]. REQ_WEIGHT: of a store that passed
# the switch's table, the GPUs whose stores it adds up; of an entry for loads, the requests so far.
# In the switch's table REQ_CELL is 1 + the next request in the list of a cell (0: none). An entry for loads of a place
# belongs to no GPU (REQ_GPU is NONE): REQ_ASKERS is 1 + the last request of those that wait for its answer, in a list
# by their REQ_ASKERS (0: none), REQ_MEMBERS the answers that are missing, and REQ_STRIDE how many GPUs may ask.
# REQ_FILLS: of a request to another GPU, the line of the last-level cache that its answer fills, or NONE.
# Of a store to one peer that waits for room in the store buffer, 1 + the stores behind and before it (0: none) take the
# columns that it needs later.
REQ_BEHIND, REQ_BEFORE = REQ_PREVIOUS, REQ_STRIDE
REQ_CELL, REQ_ASKERS = REQ_BANK, REQ_TILE
COMPUTE_STREAM, COMMUNICATION_STREAM = range(2)
OWNER_NOBODY, OWNER_LINE, OWNER_SLOT, OWNER_ENGINE, OWNER_RELEASE, OWNER_REMOTE, OWNER_BUFFERED, OWNER_SUM = range(8)

# channel[c, :] — c counts over all GPUs.
(
    CHAN_COMPUTE_HEAD, CHAN_COMPUTE_TAIL, CHAN_COMPUTE_COUNT, CHAN_COMMUNICATION_HEAD, CHAN_COMMUNICATION_TAIL,
    CHAN_COMMUNICATION_COUNT, CHAN_ADMITTED, CHAN_QUEUED_BYTES, CHAN_HITS, CHAN_MISSES, CHAN_START, CHAN_NEXT_READ,
    CHAN_NEXT_WRITE, CHAN_NEXT_ACTIVATE, CHAN_WAKE, CHAN_SCHEDULED, CHAN_LAST_STREAM, CHAN_BUSY, CHAN_OCCUPANCY,
    CHAN_OCCUPANCY_SINCE, CHAN_COMMUNICATION_SERVED, CHAN_ACTIVATES, CHAN_TURNAROUNDS, CHAN_LAST_KIND, CHAN_MAX_QUEUED,
    CHAN_PATH_UNTIL, CHAN_OPENS, CHAN_OPENS_BANK, CHAN_BEST, CHAN_BEST_START, CHAN_GPU, CHAN_LEAD, CHAN_REFRESH,
    CHAN_REFRESH_BANK, CHAN_WINDOW, CHAN_WINDOW_2, CHAN_WINDOW_3, CHAN_WINDOW_4, CHAN_PIM_RUN, CHAN_PIM_DUE,
    CHAN_COLUMNS,
) = _columns(41)  # fmt: skip
# CHAN_ADMITTED: requests admitted so far. CHAN_HITS, CHAN_MISSES: the banks that have some in the queue, a bit each.
# CHAN_START: the first column command of the request issued last. CHAN_WAKE: the next look; CHAN_SCHEDULED: the look
# that it came before, whose event is still in the calendar. CHAN_OPENS: when the row of CHAN_OPENS_BANK can be
# activated, before all others; CHAN_BEST: the request whose columns can start first, at CHAN_BEST_START (both NONE: to
# be chosen anew). CHAN_LEAD: bytes that compute has been admitted more than communication since both wait.
# CHAN_REFRESH: when the banks from CHAN_REFRESH_BANK on are refreshed; CHAN_WINDOW, four columns: when each of the last
# four activates lets a fifth begin. CHAN_PIM_RUN: the next run of commands; CHAN_PIM_DUE: when its group may begin.

# bank[b, :] — b counts over all channels.
(
    BANK_ROW, BANK_READY, BANK_READ_HEAD, BANK_READ_TAIL, BANK_WRITE_HEAD, BANK_WRITE_TAIL, BANK_GROUP, BANK_OPENS,
    BANK_PRECHARGE, BANK_ACTIVATED, BANK_CLOSED, BANK_MISS_HEAD, BANK_MISS_TAIL, BANK_MISS_TICKET,
) = _columns(14)  # fmt: skip
BANK_COLUMNS = 16
BANK_HEADS = BANK_READ_HEAD, BANK_WRITE_HEAD, BANK_MISS_HEAD
# BANK_READY: columns of the open row can begin; BANK_PRECHARGE, BANK_ACTIVATED: the row can be closed, the next one
# opened. While only misses wait: BANK_CLOSED: when the row closes, BANK_OPENS: when the next one can open. Then the
# lists of queued requests: reads and writes (or updates) of the open row, and misses.

# group[b, :] — bank groups over all channels. GROUP_UNTIL: busy with a request; GROUP_SHARE: the share of the bus that
# this takes, in parts of WHOLE_BUS, which every number up to 16 divides.
GROUP_UNTIL, GROUP_SHARE, GROUP_COLUMNS = _columns(3)
WHOLE_BUS = 720_720

# link_run[k, :] — messages that begin with a link wait in a queue of their sender, a DMA engine or a compute unit of
# its GPU; the link serves senders round robin, LINK_TURN bytes each. LINK_SENT: the message that occupies the link
# (NONE: free); LINK_FIRST, LINK_LAST: the list of senders with messages. LINK_SENDER: the sender served last,
# LINK_SERVED: the bytes of its turn so far. Messages that come over other links take their turn as their heads arrive.
(
    LINK_SENT, LINK_FIRST, LINK_LAST, LINK_COUNT, LINK_BUSY_UNTIL, LINK_BYTES, LINK_BUSY, LINK_SENDER, LINK_SERVED,
    LINK_RUN_COLUMNS,
) = _columns(10)  # fmt: skip
LINK_TURN = 4096
"""Bytes of a turn [assumed]: what 256 threads store at once, 16 B each. In bytes, as messages grow with requests."""

# sender[k, s, :] — the queue of a sender at link k: engines first, then compute units. SENDER_NEXT: the next in turn.
SENDER_FIRST, SENDER_LAST, SENDER_NEXT, SENDER_COLUMNS = _columns(4)

# unit[u, :] — compute units over all GPUs.
(
    UNIT_THREADS, UNIT_REGISTERS, UNIT_LDS, UNIT_PLACES, UNIT_MATRIX_FREE, UNIT_PORT_FREE, UNIT_BUSY, UNIT_HELD,
    UNIT_PARTITION, UNIT_COLUMNS,
) = _columns(10)  # fmt: skip

# resident[w, :] — workgroup places over all compute units.
(
    WG_KERNEL, WG_INDEX, WG_UNIT, WG_GPU, WG_PHASE, WG_ITERATIONS, WG_FIRST, WG_STEP, WG_COMPUTED, WG_FINISHED,
    WG_COMPUTING, WG_WAITING, WG_LAST, WG_END,
) = _columns(14)  # fmt: skip
WG_COLUMNS = 16
# WG_PHASE: counted over all scripts of the kernel; WG_END: one past the last of the workgroup's own.

# slot[w * SLOTS + s, :] — one loop iteration in flight.
SLOTS = 8
SLOT_STATE, SLOT_PENDING, SLOT_TIME, SLOT_ITERATION, SLOT_ISSUED, SLOT_FROM, SLOT_STORED = _columns(7)
SLOT_COLUMNS = 8
# SLOT_FROM: what served the slot's last load; SLOT_STORED: the same for the stores before its loads.
FROM_MEMORY, FROM_SIDE, FROM_CACHE, FROM_LINK, FROM_FABRIC = range(5)
SLOT_FREE, SLOT_LOADING, SLOT_READY, SLOT_COMPUTING, SLOT_STORING = range(5)

# engine[e, :] — DMA engines over all GPUs. DMA_FREE: when it can take the next request; DMA_WAKE: whether a
# wake-up is scheduled then.
DMA_BLOCK, DMA_TILE, DMA_POSITION, DMA_LEFT, DMA_UNSENT, DMA_FLIGHT, DMA_FREE, DMA_WAKE, DMA_COLUMNS = _columns(9)

# counter[g, c, :]
COUNTER_VALUE, COUNTER_TARGET, COUNTER_KERNEL, COUNTER_COLUMNS = _columns(4)
# COUNTER_TARGET: the least awaited value; COUNTER_KERNEL: the first of the kernels that wait for it, a
# list continued in RUN_NEXT_WAITING.
NEVER = 1 << 62
LARGEST = (1 << 63) - 1
"""Mask that clears the sign of a 64-bit integer: the bits of 64 banks can be shifted out one by one."""

# flow[g, :] — per-GPU run state.
(
    FLOW_DMA_HEAD, FLOW_DMA_TAIL, FLOW_THRESHOLD, FLOW_INTENSITY, FLOW_MONITOR_START, FLOW_MONITOR_BYTES,
    FLOW_SPILLS, FLOW_REFILLS, FLOW_LIVE_ENTRIES, FLOW_MAX_LIVE, FLOW_HITS, FLOW_MERGES, FLOW_MISSES,
    FLOW_WRITEBACKS, FLOW_CHOSEN_THRESHOLD, FLOW_PAST_LIMIT, FLOW_SIDE_HITS, FLOW_SIDE_MERGES, FLOW_SIDE_MISSES,
    FLOW_SIDE_WRITES, FLOW_SIDE_WRITEBACKS, FLOW_TO_SEND, FLOW_SENT, FLOW_SEND64, FLOW_TO_COMPUTE,
    FLOW_CRITICAL, FLOW_BUFFERED, FLOW_BUFFER_FIRST, FLOW_BUFFER_LAST, FLOW_MERGE_FIRST, FLOW_MERGE_LAST,
    FLOW_MERGE_HELD, FLOW_MERGE_MOST, FLOW_MERGE_EVICTED, FLOW_MERGE_EXPIRED, FLOW_MERGE_REFUSED, FLOW_MERGE_LOADS,
    FLOW_MERGE_SAVED, FLOW_TILED, FLOW_EXCHANGES, FLOW_COLUMNS,
) = _columns(41)  # fmt: skip

# FLOW_TO_SEND, FLOW_SENT: bytes of updates that the GPU sends to peers, in all and so far; FLOW_SEND64: what 64 of them
# take on its links together. FLOW_TO_COMPUTE: what the compute units compute of the monitored kernel until the busiest
# one ends, as if all were as busy [fs]. FLOW_CRITICAL: the stream that is expected to end later, by the progress of
# that kernel and of these bytes.
# FLOW_BUFFERED: bytes in the store buffer; FLOW_BUFFER_FIRST, _LAST: 1 + the first and the last store that wait for
# room in it (0: none does). FLOW_MERGE_FIRST, _LAST: 1 + the oldest and the newest request for this GPU in the switch's
# table (0: none); FLOW_MERGE_HELD, _MOST: how many it holds, and held at most; FLOW_MERGE_EVICTED, _EXPIRED: those that
# went on before all had come, as the table was full or the window over. FLOW_MERGE_REFUSED: those that found it full,
# its oldest one a load under way; FLOW_MERGE_LOADS: loads merged with an earlier one, FLOW_MERGE_SAVED: their bytes.
# FLOW_TILED: kernels of tiles that run; FLOW_EXCHANGES: kernels with KERNEL_EXCHANGES that have placed a workgroup.

# kernel_run[g, k, :]
WAITS, LAUNCHING, LAUNCHED = range(3)
(
    RUN_STATE, RUN_OPEN, RUN_NEXT_WAITING, RUN_PLACED, RUN_FINISHED, RUN_START, RUN_END, RUN_WRITE_BACKS, RUN_WAIT_LOAD,
    RUN_WAIT_MATRIX, RUN_WAIT_STORE, RUN_WAIT_COUNTER, RUN_COMPUTE, RUN_LAUNCHED, RUN_STRIDE,
    RUN_WAIT_SIDE, RUN_WAIT_CACHE, RUN_WAIT_LINK, RUN_WAIT_FABRIC, RUN_COLUMNS,
) = _columns(20)  # fmt: skip
# RUN_STATE: one of the three above; RUN_OPEN: predecessors that have not ended; RUN_START: when the last of them ended;
# RUN_LAUNCHED: when its launch was over; RUN_FINISHED: finished workgroups or copies; RUN_WRITE_BACKS: writes of a
# release that memory has not accepted.
# RUN_WAIT_SIDE, RUN_WAIT_CACHE: the parts of RUN_WAIT_LOAD whose last load was served by the memory-side cache
# or by the cache, RUN_WAIT_FABRIC: whose last load waited longer in the fabric than a hit there takes;
# RUN_WAIT_LINK: the part of RUN_WAIT_STORE whose last store went over a link. RUN_PLACED: workgroups
# placed so far; RUN_STRIDE: partitions among which they are dealt.

# ready[g, partition, class, :] — the launched kernels of a class with workgroups left for a partition, by launch time,
# then index; the list continues in ready_next[g, k, partition]. READY_REFUSED: the dispatch in which none of their
# workgroups fitted.
READY_FIRST, READY_LAST, READY_REFUSED, READY_COLUMNS = _columns(4)

# served[g, level, cause]: bytes by what served a request: hits and merged misses of the caches, and writes into the
# memory-side cache. The rest is DRAM traffic.
LEVEL_HIT, LEVEL_MERGED, LEVEL_SIDE_HIT, LEVEL_SIDE_MERGED, LEVEL_SIDE_WRITTEN, LEVELS = _columns(6)

# chunk_log[g, r, :] — first and last writes to a region by this GPU and by the neighbour, and its sending.
(
    CHUNK_FIRST_LOCAL, CHUNK_LAST_LOCAL, CHUNK_FIRST_REMOTE, CHUNK_LAST_REMOTE, CHUNK_FIRST_SENT, CHUNK_LAST_SENT,
    CHUNK_COMPLETE, CHUNK_COLUMNS,
) = _columns(8)  # fmt: skip

# dma_log[g, b, :] — one DMA command.
COMMAND_READY, COMMAND_START, COMMAND_END, COMMAND_ENGINE, COMMAND_BYTES, COMMAND_COLUMNS = _columns(6)

# work_log[g, w, :] — WORKLOG_RESUMED: when its last wait for a counter ended (NONE: it found what it needed).
WORKLOG_START, WORKLOG_END, WORKLOG_UNIT, WORKLOG_RESUMED, WORKLOG_COLUMNS = _columns(5)

# pim_log[c, k, :] — when the first command of run `k` was given on a channel, and when the run ended.
PIM_BEGIN, PIM_END, PIM_LOG_COLUMNS = _columns(3)

# -- interference: recorded only where a run asks for it; else these tables have no rows

# update_log[g, t * makers + maker] — when the last bytes of an update of wavefront tile `t` were in memory (NONE: there
# was none). Makers are the parts of K (scripts) of the GPU itself, then its peers by distance, the GPU above first.
# heat[r, bin, :] — what bank or channel `r` did in a bin of time: bytes, requests and activates, the time of its
# columns on the bus, and the time in which it had requests, queued or on the bus [fs].
(
    HEAT_READ, HEAT_WRITTEN, HEAT_REQUESTS, HEAT_ACTIVATES, HEAT_BUSY, HEAT_PENDING, HEAT_COLUMNS,
) = _columns(7)  # fmt: skip
# heated[r, :] — requests of bank or channel `r` in the command queue, since when there are any, and until when the bus
# carries the last one's data.
HEATED_QUEUED, HEATED_SINCE, HEATED_UNTIL, HEATED_COLUMNS = range(4)
CHANNEL_BINS, BANK_BINS = 512, 128
"""Bins of time of the heat of channels and of banks."""

# arrival[i, :] — a request at its channel: when it arrived, and how many bytes of the other stream had been served.
ARRIVAL_TIME, ARRIVAL_SERVED, ARRIVAL_COLUMNS = _columns(3)

# waiting[c, :] — a channel's two streams, compute first in each pair of columns. WAITING_LAST: the last request of the
# stream whose arrival is recorded and that is not admitted yet; WAITING_BYTES: bytes that have arrived and are not
# admitted; WAITING_UNSERVED: requests that have arrived and are not served; WAITING_SERVED: bytes served so far.
WAITING_LAST, WAITING_BYTES, WAITING_UNSERVED, WAITING_SERVED = range(0, 8, 2)
WAITING_COLUMNS = 8

# stream[g, s, :] — what GPU g's channels served for stream s. STREAM_AHEAD: bytes of the other stream served between a
# request's arrival and its service, summed over requests; STREAM_DELAYING: bytes of the other stream served while at
# least one request waited.
STREAM_REQUESTS, STREAM_BYTES, STREAM_AHEAD, STREAM_DELAYING, STREAM_COLUMNS = _columns(5)

# histogram[g, s, what, :] — how many values of stream s were in each class, then the largest value. Class 0 is below
# one unit (a nanosecond, a byte); a value doubles in CLASSES_PER_DOUBLING classes.
(
    HISTOGRAM_LOAD, HISTOGRAM_READ, HISTOGRAM_AHEAD, HISTOGRAM_OWN, HISTOGRAM_OTHER, HISTOGRAM_QUEUE, HISTOGRAMS,
) = _columns(7)  # fmt: skip
# HISTOGRAM_LOAD: from the issue of an iteration's loads to its last data [fs]; HISTOGRAM_READ: from a read's arrival at
# its channel to its last data on the bus [fs]; HISTOGRAM_AHEAD: bytes of the other stream served between a request's
# arrival and its service; HISTOGRAM_OWN, _OTHER, _QUEUE: bytes that an arriving request finds in its own stream, in the
# other one and in the command queue.
CLASSES_PER_DOUBLING = 16
CLASSES = 1 + 24 * CLASSES_PER_DOUBLING
UNIT_TIME, UNIT_BYTES = 1_000_000, 1
"""The unit of classes of times, a nanosecond in femtoseconds, and that of classes of bytes."""

# load_series[g, s, bin, class] — loads of stream s by when they were issued and how long they took.
# misses[g, p] — requests for operands that missed in the last-level cache, by the position of the chunk that their
# workgroup makes.

# -- events; at equal times the lower kind goes first, then the lower index
(
    EV_LAUNCH, EV_ARRIVE, EV_READ_DONE, EV_LINK, EV_DMA, EV_PHASE, EV_SLOT, EV_COMPUTED, EV_CHANNEL, EV_COMMAND,
    EV_COMPLETE, EV_TAKEN, EV_HOP, EV_PIM, EV_MERGE,
) = range(15)  # fmt: skip

# -- statuses
(
    RUNNING, FINISHED, STUCK, GROW_HEAP, GROW_REQUESTS, GROW_WAITERS, STARVED,
) = range(7)  # fmt: skip
# No event is left, and STUCK: kernels are unfinished; STARVED: the policy leaves requests in a stream.
