"""The columns of every integer table that the engine reads or writes.

The engine knows arrays and nothing else: a row is a thing (a GPU, a channel, a workgroup), a column is one of
the constants below. All times are femtoseconds, all sizes bytes, unless a name says otherwise. `X64` columns
are femtoseconds per 64 bytes, so that a duration is ``bytes * x64 // 64``.
"""

from __future__ import annotations

from collections.abc import Iterator

NONE = -1


def _columns(count: int) -> Iterator[int]:
    return iter(range(count))


# -- program tables: written by `program`, only read by the engine
# ------------------------------------------------

# gpu[g, :] — one GPU of the machine, in integers.
(
    G_CUS, G_THREADS, G_REGISTERS, G_LDS, G_WORKGROUPS, G_CYCLE, G_PORT64, G_SLICE64, G_CACHE_OUT, G_CACHE_BACK,
    G_MEMORY_LATENCY, G_QUEUE_BYTES, G_T_BURST, G_T_LONG, G_T_UPDATE, G_T_RRD, G_T_RCD, G_T_RAS, G_T_RP, G_T_RC,
    G_T_CL, G_T_READ_TO_WRITE, G_T_WRITE_TO_READ, G_T_WRITE_TO_PRECHARGE, G_T_READ_TO_PRECHARGE, G_LINK64,
    G_LINK_LATENCY, G_NEIGHBOUR, G_DMA_ENGINES, G_DMA_SETUP, G_DMA_WINDOW, G_TRACKER_SETS, G_TRACKER_WAYS,
    G_SPILL_BYTES, G_THRESHOLD_HIGH, G_THRESHOLD_MEDIUM, G_THRESHOLD_LOW, G_INTENSITY_HIGH, G_INTENSITY_MEDIUM,
    G_INTENSITY_LOW, G_STARVATION, G_START, G_PEAK64, G_LAUNCH, G_DMA_LINK64, G_STRICT, G_PEER64, G_DMA_PEER64,
    G_ALL64, G_DMA_ALL64, G_DMA_RATE64, G_SIDE64, G_SIDE_LATENCY, G_SIDE_DIRTY, G_T_PATH, G_PATH_SLACK,
    G_COLUMNS,
) = _columns(57)  # fmt: skip
# G_INTENSITY_* are per mille of the peak DRAM bandwidth; G_THRESHOLD_* are bytes of queue; G_PEAK64 is the whole
# memory's femtoseconds per 64 bytes. G_LINK64 is what stores by compute units get of the link, G_DMA_LINK64 what DMA
# engines get; G_PEER64 and G_DMA_PEER64 are the same for the link to one peer alone, G_ALL64 and G_DMA_ALL64 for all
# links that lead to one peer each. G_DMA_RATE64: what one engine takes for its own part (0: nothing). G_STRICT:
# workgroups of a later kernel wait until the earlier ones are placed. G_SIDE64 is one slice of the memory-side cache,
# G_SIDE_LATENCY what a hit there adds to the way through the cache, G_SIDE_DIRTY how many of its lines in a thousand
# hold at the start what earlier work wrote.
# G_T_PATH: what a burst takes on the path from a channel to the rest of the chip; it may lag by G_PATH_SLACK behind.

# shape[:] — sizes shared by all GPUs.
(
    S_GPUS, S_CUS, S_CHANNELS, S_BANKS, S_GROUPS, S_INTERLEAVE, S_ROW, S_BURST, S_REQUEST, S_SETS, S_WAYS,
    S_RESIDENT, S_KERNELS, S_REGIONS, S_TILES, S_WAVEFRONTS, S_COUNTERS, S_ENGINES, S_BLOCK_TILES, S_PORTS,
    S_PARTITIONS, S_SLICES, S_SIDE_SETS, S_SIDE_WAYS, S_COLUMNS,
) = _columns(25)  # fmt: skip
# S_RESIDENT: workgroup places per compute unit; S_BLOCK_TILES: workgroup tiles per DMA command; S_PORTS: links
# of a GPU, the whole egress as one link first, then the links to the GPUs 1, 2, ... neighbours away. S_PARTITIONS:
# groups of compute units with a cache of their own each, of S_SETS sets in S_SLICES slices. S_SIDE_SETS: sets that a
# channel has in the memory-side cache (0: there is none).

# kernel[g, k, :]
(
    K_WORKGROUPS, K_FIRST_WORK, K_FIRST_PHASE, K_PHASES, K_THREADS, K_REGISTERS, K_LDS, K_PRIORITY, K_AFTER,
    K_AFTER_COUNTER, K_AFTER_VALUE, K_LAUNCH, K_RELEASE, K_MONITOR, K_FIRST_COPY, K_COPIES, K_COMPLETION,
    K_COLUMNS,
) = _columns(18)  # fmt: skip
# K_PHASES: phases of one script; a kernel may have several, one behind the other, and each workgroup runs its own.
# K_AFTER: the kernel that must have finished (or NONE); K_RELEASE: write dirty lines back and drop all lines when it
# ends; K_MONITOR: its first stage's memory intensity sets the arbiter's threshold; K_COPIES: DMA commands that its
# launch triggers, from the tile row K_FIRST_COPY on; K_COMPLETION: from the departure of their last byte to the
# kernel's end.

# phase[g, p, :] — one pipelined loop of a workgroup script.
(
    P_ITERATIONS, P_SHARED, P_SLOTS, P_FIRST_LOAD, P_LOADS, P_CYCLES, P_STORE, P_WAIT_COUNTER, P_WAIT_VALUE,
    P_STORES, P_LANED, P_DELAY, P_COLUMNS,
) = _columns(13)  # fmt: skip
# P_SHARED: iterations are dealt round robin to the kernel's workgroups; P_CYCLES: compute-unit cycles per iteration;
# P_STORES: stores of an iteration, from the access row P_STORE on; P_LANED: the counter is that of the workgroup's own
# lane (T_LANE; NONE: nothing to wait for); P_DELAY: from the end of the wait to the first iteration.

# access[g, a, :] — a load or a store of a script; its address follows the workgroup and the iteration.
(
    A_BASE, A_ROW_STRIDE, A_COLUMN_STRIDE, A_STEP_STRIDE, A_EXTENT, A_UNIT, A_LAST_UNIT, A_LIMIT, A_CACHED, A_CAUSE,
    A_REGION, A_SHARE, A_COLUMNS,
) = _columns(13)  # fmt: skip
# A_REGION: for stores, the first region of the destination buffer (and A_BASE is an offset in it). With tiled work
# (T_REGION >= 0) the workgroup's own region is added, and offset and bytes come from its work row. A_SHARE: the
# workgroups of that many neighbouring rows of tiles (below zero: columns) fetch a load together, a part each; 0 and 1:
# each fetches all of it.
EXTENT_ONE, EXTENT_ROWS, EXTENT_COLUMNS = range(3)

# work[g, w, :] — what one workgroup works on.
(
    T_ROW, T_COLUMN, T_ROWS, T_COLUMNS, T_REGION, T_OFFSET, T_BYTES, T_TILE, T_LANE, T_SCRIPT, T_FIELDS,
) = _columns(11)  # fmt: skip
# T_SCRIPT: which of its kernel's scripts the workgroup runs.

# region[g, r, :] — the address map: one chunk of one buffer, and what a store into it means.
(
    M_BASE, M_SIZE, M_MODE, M_CACHED, M_TO_REGION, M_REMOTE_CAUSE, M_COUNTER, M_TRACKED, M_FIRST_TILE, M_TILES,
    M_DMA_MODE, M_DMA_REGION, M_DMA_CAUSE, M_DMA_REMOTE_CAUSE, M_SENT_COUNTER, M_LANED, M_HOPS, M_PORT,
    M_ALSO_REGION, M_ALSO_HOPS, M_ALSO_PORT, M_SOURCE, M_COLUMNS,
) = _columns(23)  # fmt: skip
# M_TRACKED: updates per element that complete a tile (0: untracked); M_TO_REGION: the region at the neighbour for
# remote modes; M_DMA_*: the pre-programmed command that a complete block triggers (M_DMA_MODE NONE: none).
# M_COUNTER counts bytes received or reduced (M_LANED: one counter per lane from there on), M_SENT_COUNTER bytes that
# DMA commands have sent on. M_HOPS: how many neighbours away the receiver of stores and commands is; M_PORT: the link
# that they leave by. M_ALSO_*: a second receiver of a command's bytes (M_ALSO_REGION NONE: there is none). M_SOURCE:
# how many neighbours away the GPU is that a command reads from (0: here), whose neighbours and links count then.
LOCAL_STORE, LOCAL_UPDATE, REMOTE_STORE, REMOTE_UPDATE = range(4)

# tile[g, t, :] — the output tiles in run order, then the copies: TI_ROWS rows for each command, whose first one says
# the rest. TI_COPY: one more than the kernel that is over when its copies are (0: none); TI_AFTER: from the kernel's
# launch until the command is ready; TI_ENGINE: one more than the engine that takes it (0: any).
TI_REGION, TI_OFFSET, TI_BYTES, TI_COPY, TI_ROWS, TI_AFTER, TI_ENGINE, TI_COLUMNS = _columns(8)

# -- causes of traffic
# --------------------------------------------------------------------------------------------
(
    CAUSE_GEMM_READ, CAUSE_GEMM_WRITE, CAUSE_RS_READ, CAUSE_RS_WRITE, CAUSE_RS_UPDATE, CAUSE_AG_READ, CAUSE_AG_WRITE,
    CAUSE_TRACKER, CAUSE_EARLIER, CAUSES,
) = _columns(10)  # fmt: skip
CAUSE_NAMES = (
    "gemm_read",
    "gemm_write",
    "rs_read",
    "rs_write",
    "rs_update",
    "ag_read",
    "ag_write",
    "tracker_spill",
    "earlier_write",
)
# CAUSE_EARLIER: what work before the run wrote, and the run pushes out of the memory-side cache.

# -- run tables: the engine's own state
# ---------------------------------------------------------------------------

# clock[:] — scalars of the run.
(
    C_NOW, C_HEAP, C_EVENTS, C_REQUESTS, C_FREE_REQUEST, C_FREE_WAITER, C_LIVE_REQUESTS, C_LIVE_WAITERS,
    C_UNFINISHED, C_STAMP, C_BIN, C_TICKET, C_COLUMNS,
) = _columns(13)  # fmt: skip

# request[i, :]
(
    R_NEXT, R_PREVIOUS, R_GPU, R_CHANNEL, R_BANK, R_ROW, R_BYTES, R_KIND, R_CAUSE, R_STREAM, R_ARRIVE,
    R_OWNER_KIND, R_OWNER, R_TILE, R_WAVEFRONT, R_REGION, R_ADDRESS, R_FILLS, R_FROM, R_COLUMNS,
) = _columns(20)  # fmt: skip
# R_FILLS: the line of the memory-side cache that a read fills, or NONE. R_FROM: who serves it, the DRAM or that cache.
READ, WRITE, UPDATE = range(3)
COMPUTE_STREAM, COMMUNICATION_STREAM = range(2)
OWNER_NOBODY, OWNER_LINE, OWNER_SLOT, OWNER_ENGINE, OWNER_RELEASE, OWNER_REMOTE = range(6)

# channel[c, :] — c counts over all GPUs.
(
    H_HEAD0, H_TAIL0, H_COUNT0, H_HEAD1, H_TAIL1, H_COUNT1, H_QUEUED, H_QUEUED_BYTES, H_NEXT_COLUMN, H_NEXT_READ,
    H_NEXT_WRITE, H_NEXT_ACTIVATE, H_WAKE, H_LAST_STREAM, H_BUSY, H_OCCUPANCY, H_OCCUPANCY_SINCE, H_SERVED,
    H_ACTIVATES, H_TURNAROUNDS, H_LAST_KIND, H_MAX_QUEUED, H_PATH,
    H_COLUMNS,
) = _columns(24)  # fmt: skip

# bank[b, :] — b counts over all channels.
B_ROW, B_READY, B_PRECHARGE, B_ACTIVATED, B_COLUMNS = _columns(5)

# link[g * S_PORTS + p, :] — the egress of one GPU: port 0 is all of it, the others lead to one peer each and share it.
L_HEAD, L_TAIL, L_COUNT, L_BUSY_UNTIL, L_BYTES, L_BUSY, L_COLUMNS = _columns(7)

# unit[u, :] — compute units over all GPUs.
(
    U_THREADS, U_REGISTERS, U_LDS, U_PLACES, U_MATRIX_FREE, U_PORT_FREE, U_BUSY, U_HELD, U_PARTITION, U_COLUMNS,
) = _columns(10)  # fmt: skip

# resident[w, :] — workgroup places over all compute units.
(
    W_KERNEL, W_INDEX, W_UNIT, W_GPU, W_PHASE, W_ITERATIONS, W_FIRST, W_STEP, W_COMPUTED, W_FINISHED, W_COMPUTING,
    W_WAITING, W_LAST, W_START, W_END, W_COLUMNS,
) = _columns(16)  # fmt: skip
# W_PHASE: counted over all scripts of the kernel; W_END: one past the last of the workgroup's own.

# slot[w * SLOTS + s, :] — one loop iteration in flight.
SLOTS = 8
Q_STATE, Q_PENDING, Q_TIME, Q_ITERATION, Q_ISSUED, Q_FROM, Q_STORED, Q_COLUMNS = _columns(8)
# Q_FROM: what the slot waited for last of all; Q_STORED: the same of the stores before its loads.
FROM_MEMORY, FROM_SIDE, FROM_CACHE, FROM_LINK = range(4)
SLOT_FREE, SLOT_LOADING, SLOT_READY, SLOT_COMPUTING, SLOT_STORING = range(5)

# engine[e, :] — DMA engines over all GPUs. E_FREE: when its own part takes the next request; E_WAKE: whether it will be
# woken then.
E_BLOCK, E_TILE, E_POSITION, E_LEFT, E_UNSENT, E_FLIGHT, E_FREE, E_WAKE, E_COLUMNS = _columns(9)

# counter[g, c, :]
N_VALUE, N_TARGET, N_COLUMNS = _columns(3)
NEVER = 1 << 62

# flow[g, :] — per-GPU run state.
(
    F_DMA_HEAD, F_DMA_TAIL, F_THRESHOLD, F_INTENSITY, F_MONITOR_START, F_MONITOR_BYTES, F_SPILLS, F_REFILLS,
    F_LIVE_ENTRIES, F_MAX_LIVE, F_HITS, F_MERGES, F_MISSES, F_WRITEBACKS, F_CHOSEN, F_STARVED, F_SIDE_HITS,
    F_SIDE_MERGES, F_SIDE_MISSES, F_SIDE_WRITES, F_SIDE_WRITEBACKS, F_COLUMNS,
) = _columns(22)  # fmt: skip

# kernel_run[g, k, :]
(
    KR_READY, KR_NEXT, KR_DONE, KR_START, KR_END, KR_RELEASING, KR_WAIT_LOAD, KR_WAIT_UNIT, KR_WAIT_STORE,
    KR_WAIT_COUNTER, KR_COMPUTE, KR_FIRST_START, KR_REFUSED, KR_STRIDE, KR_WAIT_SIDE, KR_WAIT_CACHE, KR_WAIT_LINK,
    KR_COLUMNS,
) = _columns(18)  # fmt: skip
# KR_WAIT_SIDE, KR_WAIT_CACHE: the parts of KR_WAIT_LOAD in which the last to come came from the memory-side cache, or
# was a hit; KR_WAIT_LINK: that of KR_WAIT_STORE in which the last to go went over a link.
# KR_NEXT: workgroups placed so far; KR_STRIDE: partitions among which they are dealt.

# served[g, level, cause]: bytes by where a request was served. Hits and merged misses of the caches; what was written
# into the memory-side cache. The rest is DRAM's traffic.
LEVEL_HIT, LEVEL_MERGED, LEVEL_SIDE_HIT, LEVEL_SIDE_MERGED, LEVEL_SIDE_WRITTEN, LEVELS = _columns(6)

# chunk_log[g, r, :] — when a region was first and last written from here and from the neighbour, and sent on.
(
    CL_FIRST_LOCAL, CL_LAST_LOCAL, CL_FIRST_REMOTE, CL_LAST_REMOTE, CL_FIRST_SENT, CL_LAST_SENT, CL_COMPLETE,
    CL_COLUMNS,
) = _columns(8)  # fmt: skip

# dma_log[g, b, :] — one DMA command.
DL_READY, DL_START, DL_END, DL_ENGINE, DL_BYTES, DL_COLUMNS = _columns(6)

# work_log[g, w, :]
WL_START, WL_END, WL_UNIT, WL_COLUMNS = _columns(4)

# -- events; at equal times the lower kind goes first, then the lower index
# ----------------------------------------
(
    EV_LAUNCH, EV_ARRIVE, EV_READ_DONE, EV_LINK, EV_DMA, EV_PHASE, EV_SLOT, EV_COMPUTED, EV_CHANNEL,
    EV_COMMAND, EV_COMPLETE, EV_TAKEN,
) = range(12)  # fmt: skip

# -- statuses
# -----------------------------------------------------------------------------------------------------
(
    RUNNING, FINISHED, STUCK, GROW_HEAP, GROW_REQUESTS, GROW_WAITERS,
) = range(6)  # fmt: skip
