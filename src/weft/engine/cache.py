"""The last-level cache: set-associative, true LRU in a set, merged misses; a slice belongs to each memory channel."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block, shared
from weft.engine.memory import channel_of, enqueue, new_request
from weft.engine.state import (
    LINE_BYTES,
    LINE_CAUSE,
    LINE_DIRTY,
    LINE_PENDING,
    LINE_WAITERS,
    WT_NEXT,
    WT_SLOT,
    Machine,
)


@block
def _slice_time(m: Machine, g: int, address: int, bytes_: int, time: int) -> int:
    """When the slice that owns `address` starts on a request that leaves its compute unit at `time`."""
    c = g * m.shape[y.S_CHANNELS] + channel_of(m, address)
    start = max(time + m.gpu[g, y.G_CACHE_OUT], m.slice_free[c])
    m.slice_free[c] = start + bytes_ * m.gpu[g, y.G_SLICE64] // 64
    return start  # type: ignore[no-any-return]


@block
def _find(m: Machine, g: int, line_address: int) -> int:
    """The line that holds `line_address`, else the least recently used free-to-go line as -2 - line, else -1."""
    sets, ways = m.shape[y.S_SETS], m.shape[y.S_WAYS]
    first = (g * sets + (line_address ^ (line_address >> 7) ^ (line_address >> 15)) % sets) * ways
    for w in range(first, first + ways):
        if m.tag[w] == line_address:
            return w
    victim, oldest = y.NONE, y.NEVER
    for w in range(first, first + ways):
        if m.stamp[w] < oldest and m.line[w, LINE_PENDING] == 0:
            victim, oldest = w, m.stamp[w]
    return -2 - victim if victim != y.NONE else y.NONE


@block
def _touch(m: Machine, line: int) -> None:
    m.clock[y.C_STAMP] += 1
    m.stamp[line] = m.clock[y.C_STAMP]


@shared
def write_back(m: Machine, g: int, line: int, time: int, owner_kind: int) -> None:
    """Send a dirty line to memory; it is clean afterwards."""
    i = new_request(m)
    m.request[i, y.R_KIND] = y.WRITE
    m.request[i, y.R_BYTES] = m.line[line, LINE_BYTES]
    m.request[i, y.R_CAUSE] = m.line[line, LINE_CAUSE]
    m.request[i, y.R_STREAM] = y.COMPUTE_STREAM
    m.request[i, y.R_OWNER_KIND] = owner_kind
    m.request[i, y.R_OWNER] = g
    m.request[i, y.R_REGION] = y.NONE
    m.line[line, LINE_DIRTY] = 0
    m.flow[g, y.F_WRITEBACKS] += 1
    enqueue(m, i, g, m.tag[line] * m.shape[y.S_REQUEST], time)


@block
def _claim(m: Machine, g: int, line: int, line_address: int, time: int) -> None:
    if m.line[line, LINE_DIRTY] == 1:
        write_back(m, g, line, time, y.OWNER_NOBODY)
    m.tag[line] = line_address


@block
def _await_line(m: Machine, line: int, slot: int) -> None:
    node = m.clock[y.C_FREE_WAITER]
    m.clock[y.C_FREE_WAITER] = m.waiter[node, WT_NEXT]
    m.clock[y.C_LIVE_WAITERS] += 1
    m.waiter[node, WT_SLOT] = slot
    m.waiter[node, WT_NEXT] = m.line[line, LINE_WAITERS]
    m.line[line, LINE_WAITERS] = node
    m.slot[slot, y.Q_PENDING] += 1


@block
def release_waiter(m: Machine, node: int) -> None:
    """Give a waiter's row back to the pool."""
    m.waiter[node, WT_NEXT] = m.clock[y.C_FREE_WAITER]
    m.clock[y.C_FREE_WAITER] = node
    m.clock[y.C_LIVE_WAITERS] -= 1


@block
def read_memory(  # type: ignore[no-untyped-def]
    m: Machine, g, address, bytes_, cause, stream, time, owner_kind, owner
) -> None:
    """Ask memory for `bytes_` at `address` on behalf of a line, a slot or a DMA engine."""
    i = new_request(m)
    m.request[i, y.R_KIND] = y.READ
    m.request[i, y.R_BYTES] = bytes_
    m.request[i, y.R_CAUSE] = cause
    m.request[i, y.R_STREAM] = stream
    m.request[i, y.R_OWNER_KIND] = owner_kind
    m.request[i, y.R_OWNER] = owner
    m.request[i, y.R_REGION] = y.NONE
    enqueue(m, i, g, address, time)


@block
def load(m: Machine, g, address, bytes_, cause, stream, cached, time, slot) -> None:  # type: ignore[no-untyped-def]
    """Load for `slot`: a hit has its time at once, a miss or a bypass adds to what the slot waits for."""
    start = _slice_time(m, g, address, bytes_, time)
    owner_kind, owner = y.OWNER_SLOT, slot
    if cached == 1:
        line_address = address // m.shape[y.S_REQUEST]
        line = _find(m, g, line_address)
        if line >= 0:
            _touch(m, line)
            if m.line[line, LINE_PENDING] == 1:
                m.flow[g, y.F_MERGES] += 1
                _await_line(m, line, slot)
            else:
                m.flow[g, y.F_HITS] += 1
                m.slot[slot, y.Q_TIME] = max(m.slot[slot, y.Q_TIME], start + m.gpu[g, y.G_CACHE_BACK])
            return
        m.flow[g, y.F_MISSES] += 1
        if line != y.NONE:  # else every line of the set is on its way: go past the cache
            owner_kind, owner = y.OWNER_LINE, -2 - line
            _claim(m, g, owner, line_address, start)
            _touch(m, owner)
            m.line[owner, LINE_PENDING] = 1
            _await_line(m, owner, slot)
    if owner_kind == y.OWNER_SLOT:
        m.slot[slot, y.Q_PENDING] += 1
    read_memory(m, g, address, bytes_, cause, stream, start, owner_kind, owner)


@block
def store(m: Machine, g, address, bytes_, cause, time, slot) -> None:  # type: ignore[no-untyped-def]
    """Store full lines into the cache (allocated without a fetch); the slot gets the time of acceptance."""
    start = _slice_time(m, g, address, bytes_, time)
    m.slot[slot, y.Q_TIME] = max(m.slot[slot, y.Q_TIME], start)
    line_address = address // m.shape[y.S_REQUEST]
    line = _find(m, g, line_address)
    if line == y.NONE:
        write_through(
            m, g, address, bytes_, y.WRITE, cause, y.COMPUTE_STREAM, start, slot, y.NONE, y.NONE, y.NONE
        )
        return
    if line < 0:
        line = -2 - line
        _claim(m, g, line, line_address, start)
        m.line[line, LINE_BYTES] = 0
    _touch(m, line)
    if m.line[line, LINE_DIRTY] == 0:
        m.line[line, LINE_BYTES] = 0
    m.line[line, LINE_DIRTY] = 1
    m.line[line, LINE_CAUSE] = cause
    m.line[line, LINE_BYTES] = min(m.line[line, LINE_BYTES] + bytes_, m.shape[y.S_REQUEST])


@shared
def write_through(  # type: ignore[no-untyped-def]
    m: Machine, g, address, bytes_, kind, cause, stream, time, slot, region, tile, wavefront
) -> None:
    """Store or update memory past the cache; the slot waits until the DRAM takes it."""
    i = new_request(m)
    m.slot[slot, y.Q_PENDING] += 1
    m.request[i, y.R_KIND] = kind
    m.request[i, y.R_BYTES] = bytes_
    m.request[i, y.R_CAUSE] = cause
    m.request[i, y.R_STREAM] = stream
    m.request[i, y.R_OWNER_KIND] = y.OWNER_SLOT
    m.request[i, y.R_OWNER] = slot
    m.request[i, y.R_REGION] = region
    m.request[i, y.R_TILE] = tile
    m.request[i, y.R_WAVEFRONT] = wavefront
    enqueue(m, i, g, address, time)


@shared
def release(m: Machine, g: int, time: int) -> int:
    """End of a kernel whose results others will read: write dirty lines back, forget all lines; returns the writes."""
    sets, ways = m.shape[y.S_SETS], m.shape[y.S_WAYS]
    writes = 0
    for line in range(g * sets * ways, (g + 1) * sets * ways):
        if m.line[line, LINE_DIRTY] == 1:
            write_back(m, g, line, time, y.OWNER_RELEASE)
            writes += 1
        if m.line[line, LINE_PENDING] == 0:
            m.tag[line] = y.NONE
            m.stamp[line] = 0
    return writes
