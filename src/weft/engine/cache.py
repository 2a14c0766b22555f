"""The last-level cache: set-associative, LRU per set, misses merged; one cache, or one per partition of compute units.

A line is as long as a request. Kernels may issue shorter requests: a line then holds some of its sectors, and missing
sectors are fetched on demand.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import duration, quotient, remainder
from weft.engine.jit import block, shared
from weft.engine.memory import channel_of, new_request
from weft.engine.memory_cache import find, reach, sectors
from weft.engine.state import (
    LINE_BYTES,
    LINE_CAUSE,
    LINE_COMING,
    LINE_DUE,
    LINE_HERE,
    LINE_NEXT,
    LINE_SLICE,
    LINE_WAITERS,
    WAITER_NEED,
    WAITER_NEXT,
    WAITER_SLOT,
    Machine,
)


@block
def _slice_of(m: Machine, g: int, part: int, address: int) -> int:
    """The row of the slice that owns `address` in partition `part`."""
    first = (g * m.shape[y.SIZE_PARTITIONS] + part) * m.shape[y.SIZE_SLICES]
    return first + remainder(m, channel_of(m, address), y.SIZE_SLICES)  # type: ignore[no-any-return]


@block
def _slice_time(m: Machine, g: int, c: int, bytes_: int, time: int) -> int:
    """When slice `c` starts on a request that leaves its compute unit at `time`."""
    # Requests are scheduled ahead of their arrival. The few slices of a die book work from now on, so that a gap
    # before a later request stays usable; the many slices of a common cache book from the arrival.
    begin = time if m.shape[y.SIZE_PARTITIONS] == 1 else m.clock[y.CLOCK_NOW]
    free = max(begin + m.gpu[g, y.GPU_CACHE_OUT], m.slice_free[c])
    m.slice_free[c] = free + duration(bytes_, m.gpu[g, y.GPU_SLICE64])
    return max(time + m.gpu[g, y.GPU_CACHE_OUT], free)  # type: ignore[no-any-return]


@block
def _find(m: Machine, g: int, part: int, line_address: int) -> int:
    """The line that holds `line_address`; else -2 - the least recently used evictable line; else -1."""
    sets, ways = m.shape[y.SIZE_SETS], m.shape[y.SIZE_WAYS]
    row = remainder(m, line_address ^ (line_address >> 7) ^ (line_address >> 15), y.SIZE_SETS)
    first = ((g * m.shape[y.SIZE_PARTITIONS] + part) * sets + row) * ways
    return find(m, first, ways, line_address)


@block
def _touch(m: Machine, line: int) -> None:
    m.clock[y.CLOCK_STAMP] += 1
    m.stamp[line] = m.clock[y.CLOCK_STAMP]


@shared
def write_back(m: Machine, g: int, line: int, time: int, owner_kind: int, owner: int) -> None:
    """Write a dirty line back to memory; it is clean afterwards."""
    i = new_request(m)
    m.request[i, y.REQ_KIND] = y.WRITE
    m.request[i, y.REQ_BYTES] = m.line[line, LINE_BYTES]
    m.request[i, y.REQ_CAUSE] = m.line[line, LINE_CAUSE]
    m.request[i, y.REQ_STREAM] = y.COMPUTE_STREAM
    m.request[i, y.REQ_OWNER_KIND] = owner_kind
    m.request[i, y.REQ_OWNER] = owner
    m.request[i, y.REQ_REGION] = y.NONE
    m.line[line, LINE_BYTES] = 0
    m.flow[g, y.FLOW_WRITEBACKS] += 1
    reach(m, i, g, m.tag[line] * m.shape[y.SIZE_REQUEST], time)


@block
def _claim(m: Machine, g: int, line: int, line_address: int, c: int, time: int) -> None:
    """Give a line, written back if dirty, to `line_address`, which slice `c` owns."""
    if m.line[line, LINE_BYTES] > 0:
        write_back(m, g, line, time, y.OWNER_NOBODY, y.NONE)
    m.tag[line] = line_address
    m.line[line, LINE_HERE] = m.line[line, LINE_NEXT] = 0
    m.line[line, LINE_SLICE] = c


@block
def _await_line(m: Machine, line: int, need: int, slot: int) -> None:
    node = m.clock[y.CLOCK_FREE_WAITER]
    m.clock[y.CLOCK_FREE_WAITER] = node + 1 + m.waiter[node, WAITER_NEXT]
    m.clock[y.CLOCK_LIVE_WAITERS] += 1
    m.waiter[node, WAITER_SLOT] = slot
    m.waiter[node, WAITER_NEED] = need
    m.waiter[node, WAITER_NEXT] = m.line[line, LINE_WAITERS]
    m.line[line, LINE_WAITERS] = node
    m.slot[slot, y.SLOT_PENDING] += 1


@block
def release_waiter(m: Machine, node: int) -> None:
    """Return a waiter's row to the free list."""
    m.waiter[node, WAITER_NEXT] = m.clock[y.CLOCK_FREE_WAITER] - node - 1
    m.clock[y.CLOCK_FREE_WAITER] = node
    m.clock[y.CLOCK_LIVE_WAITERS] -= 1


@block
def read_memory(  # type: ignore[no-untyped-def]
    m: Machine, g, address, bytes_, cause, stream, time, owner_kind, owner
) -> None:
    """Issue a memory read of `bytes_` at `address` for a cache line, a slot or a DMA engine."""
    i = new_request(m)
    m.request[i, y.REQ_KIND] = y.READ
    m.request[i, y.REQ_BYTES] = bytes_
    m.request[i, y.REQ_CAUSE] = cause
    m.request[i, y.REQ_STREAM] = stream
    m.request[i, y.REQ_OWNER_KIND] = owner_kind
    m.request[i, y.REQ_OWNER] = owner
    m.request[i, y.REQ_REGION] = y.NONE
    reach(m, i, g, address, time)


@block
def _cached(m: Machine, slot: int, time: int, came_from: int) -> None:
    """Record that the cache completes its part of `slot`'s request at `time`; at equal times memory counts."""
    latest = m.slot[slot, y.SLOT_TIME]
    if time > latest or (time == latest and m.slot[slot, y.SLOT_FROM] != y.FROM_MEMORY):
        m.slot[slot, y.SLOT_TIME] = time
        m.slot[slot, y.SLOT_FROM] = came_from


@block
def load(m: Machine, g, part, address, bytes_, cause, stream, cached, time, slot) -> None:  # type: ignore[no-untyped-def]
    """Load for `slot`: a hit completes at a known time; a miss or a bypass adds to what the slot waits for."""
    start, line = look_up(m, g, part, address, bytes_, cause, cached, time, slot)
    if start == y.NEVER:
        return
    if line == y.NONE:
        m.slot[slot, y.SLOT_PENDING] += 1
        read_memory(m, g, address, bytes_, cause, stream, start, y.OWNER_SLOT, slot)
    else:
        read_memory(m, g, address, bytes_, cause, stream, start, y.OWNER_LINE, line)


@block
def look_up(m: Machine, g, part, address, bytes_, cause, cached, time, slot) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """Look for the bytes that `slot` loads: when a request for them goes on, and the line that it fills (NONE: none).

    NEVER: they are there, or on their way.
    """
    line_address = quotient(m, address, y.SIZE_REQUEST)
    line = _find(m, g, part, line_address) if cached == 1 else y.NONE
    c = m.line[line, LINE_SLICE] if line >= 0 else _slice_of(m, g, part, address)
    start = _slice_time(m, g, c, bytes_, time)
    if cached == 1:
        need = sectors(m, address, bytes_)
        if line >= 0:
            _touch(m, line)
            _take_in(m, line, m.clock[y.CLOCK_NOW])
            present = present_from(m, line, need)
            if present == 0:
                m.flow[g, y.FLOW_HITS] += 1
                m.served[g, y.LEVEL_HIT, cause] += bytes_
                _cached(m, slot, start + m.gpu[g, y.GPU_CACHE_BACK], y.FROM_CACHE)
                return y.NEVER, y.NONE
            if present < y.NEVER or _comes(m, line, need):
                m.flow[g, y.FLOW_MERGES] += 1
                m.served[g, y.LEVEL_MERGED, cause] += bytes_
                if present < y.NEVER:
                    _cached(m, slot, present + m.gpu[g, y.GPU_CACHE_BACK], y.FROM_MEMORY)
                else:
                    _await_line(m, line, need, slot)
                return y.NEVER, y.NONE
        elif line != y.NONE:
            line = -2 - line
            _claim(m, g, line, line_address, c, start)
            _touch(m, line)
        m.flow[g, y.FLOW_MISSES] += 1
        if line != y.NONE:  # else every line of the set is being filled: bypass the cache
            m.held[line] = max(m.held[line], y.NEVER) + 1
            m.line[line, LINE_COMING] |= need
            _await_line(m, line, need, slot)
    return start, line


@block
def _take_in(m: Machine, line: int, now: int) -> None:
    """Mark the sectors that a read was known to bring by now as present."""
    if m.line[line, LINE_NEXT] != 0 and m.line[line, LINE_DUE] <= now:
        m.line[line, LINE_HERE] |= m.line[line, LINE_NEXT]
        m.line[line, LINE_NEXT] = 0


@block
def present_from(m: Machine, line: int, need: int) -> int:
    """When all the sectors `need` of a line are present: 0 if they are, NEVER if the end of a read is not known."""
    lacks = need & ~m.line[line, LINE_HERE]
    if lacks == 0:
        return 0
    return m.line[line, LINE_DUE] if lacks & ~m.line[line, LINE_NEXT] == 0 else y.NEVER


@block
def _comes(m: Machine, line: int, need: int) -> bool:
    """Whether reads in flight bring the sectors of `need` that a line lacks."""
    return need & ~(m.line[line, LINE_HERE] | m.line[line, LINE_NEXT] | m.line[line, LINE_COMING]) == 0  # type: ignore[no-any-return]


@block
def brings_more(m: Machine, line: int, now: int) -> bool:
    """Whether a read of other sectors of a line is already known to arrive after `now`: a line notes one such time."""
    return m.line[line, LINE_NEXT] != 0 and m.line[line, LINE_DUE] > now  # type: ignore[no-any-return]


@block
def filled(m: Machine, i: int, due: int, now: int) -> int:
    """A read fills a line at `due`, now or later: note that, and return the head of the line's chain of waiters."""
    line, request = m.request[i, y.REQ_OWNER], m.request
    came = sectors(m, request[i, y.REQ_ADDRESS], request[i, y.REQ_BYTES])
    _take_in(m, line, now)
    m.held[line] -= 1
    if due > now:
        m.line[line, LINE_NEXT], m.line[line, LINE_DUE] = came, due
    else:
        m.line[line, LINE_HERE] |= came
    if m.held[line] == y.NEVER:
        m.held[line] = m.line[line, LINE_DUE]
    m.line[line, LINE_COMING] &= ~came
    node = m.line[line, LINE_WAITERS]
    m.line[line, LINE_WAITERS] = y.NONE
    return node  # type: ignore[no-any-return]


@block
def complete_from(m: Machine, line: int, node: int) -> int:
    """When the sectors that a waiter needs are present; if that is not known (NEVER), it rejoins the line's waiters."""
    present = present_from(m, line, m.waiter[node, WAITER_NEED])
    if present == y.NEVER:
        m.waiter[node, WAITER_NEXT] = m.line[line, LINE_WAITERS]
        m.line[line, LINE_WAITERS] = node
    return present


@block
def store(m: Machine, g, part, address, bytes_, cause, time, slot) -> None:  # type: ignore[no-untyped-def]
    """Store into the cache (allocated without a fetch); the slot gets the time at which the cache accepts it."""
    line_address = quotient(m, address, y.SIZE_REQUEST)
    line = _find(m, g, part, line_address)
    c = m.line[line, LINE_SLICE] if line >= 0 else _slice_of(m, g, part, address)
    start = _slice_time(m, g, c, bytes_, time)
    _cached(m, slot, start, y.FROM_CACHE)
    if line == y.NONE:
        write_through(m, g, address, bytes_, y.WRITE, cause, y.COMPUTE_STREAM, start, slot, y.NONE, y.NONE, y.NONE)
        return
    if line < 0:
        line = -2 - line
        _claim(m, g, line, line_address, c, start)
    _touch(m, line)
    m.line[line, LINE_CAUSE] = cause
    m.line[line, LINE_HERE] |= sectors(m, address, bytes_)
    m.line[line, LINE_BYTES] = min(m.line[line, LINE_BYTES] + bytes_, m.shape[y.SIZE_REQUEST])


@shared
def write_through(  # type: ignore[no-untyped-def]
    m: Machine, g, address, bytes_, kind, cause, stream, time, slot, region, tile, wavefront
) -> None:
    """Store to or update memory past the cache; the slot waits until the DRAM accepts it."""
    i = new_request(m)
    m.slot[slot, y.SLOT_PENDING] += 1
    m.request[i, y.REQ_KIND] = kind
    m.request[i, y.REQ_BYTES] = bytes_
    m.request[i, y.REQ_CAUSE] = cause
    m.request[i, y.REQ_STREAM] = stream
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_SLOT
    m.request[i, y.REQ_OWNER] = slot
    m.request[i, y.REQ_REGION] = region
    m.request[i, y.REQ_TILE] = tile
    m.request[i, y.REQ_WAVEFRONT] = wavefront
    reach(m, i, g, address, time)


@shared
def release(m: Machine, g: int, k: int, time: int) -> int:
    """Release at the end of kernel `k`: write dirty lines back, invalidate all lines; returns the number of writes."""
    lines = m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SETS] * m.shape[y.SIZE_WAYS]
    writes = 0
    for line in range(g * lines, (g + 1) * lines):
        if m.line[line, LINE_BYTES] > 0:
            write_back(m, g, line, time, y.OWNER_RELEASE, k)
            writes += 1
        if m.held[line] <= time:
            m.tag[line] = y.NONE
            m.stamp[line] = 0
    return writes
