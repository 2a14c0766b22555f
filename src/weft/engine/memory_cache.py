"""The memory-side cache: every request to memory passes it; each channel has its own part.

A run may start with dirty lines of earlier work. They are written back byte for byte as the run takes their places,
since real lines are far shorter than the simulated requests.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import duration, quotient, remainder
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared
from weft.engine.memory import channel_of, enqueue, new_request, stream_of
from weft.engine.state import (
    EARLIER_ADDRESS,
    EARLIER_BYTES,
    LINE_BYTES,
    LINE_CAUSE,
    LINE_COMING,
    LINE_HERE,
    LINE_WAITERS,
    SECTORS,
    Machine,
)

_EARLIER_ADDRESS = 1 << 45
"""Address of the data of earlier work: far beyond all addresses of a run."""
_GOLDEN, _GOLDEN_WHOLE = 618_033_989, 1_000_000_000
"""The golden ratio as a fraction: multiples of the first modulo the second spread evenly over any range."""


@shared
def begin_used(m: Machine) -> None:
    """Fill the cache with one long buffer of earlier work, in address order, some of its lines dirty."""
    sets, ways, request = m.shape[y.SIZE_SIDE_SETS], m.shape[y.SIZE_SIDE_WAYS], m.shape[y.SIZE_REQUEST]
    for g in range(m.shape[y.SIZE_GPUS]):
        if m.gpu[g, y.GPU_SIDE_DIRTY] == 0:
            continue
        for n in range(m.shape[y.SIZE_CHANNELS] * sets * ways):
            address = _EARLIER_ADDRESS + n * request
            c = g * m.shape[y.SIZE_CHANNELS] + channel_of(m, address)
            place = _first_of_set(m, c, address) - _first_line(m)
            end = place + ways
            while place < end and m.earlier[place, EARLIER_ADDRESS] != 0:
                place += 1
            if place == end:  # if sets or channels are no power of two, some sets receive more lines than they hold
                continue
            m.earlier[place, EARLIER_ADDRESS] = address
            if n * _GOLDEN % _GOLDEN_WHOLE * 1000 < m.gpu[g, y.GPU_SIDE_DIRTY] * _GOLDEN_WHOLE:
                m.earlier[place, EARLIER_BYTES] = request


@block
def _push_out(m: Machine, g: int, line: int, bytes_: int, stream: int, time: int) -> None:
    """Write back earlier work's dirty bytes in the `bytes_` of a line that `stream` replaces, after its own read."""
    place = line - _first_line(m)
    left = m.earlier[place, EARLIER_BYTES]
    if left > 0:
        i = _written(m, min(left, bytes_), y.CAUSE_EARLIER, stream)
        m.earlier[place, EARLIER_BYTES] = left - m.request[i, y.REQ_BYTES]
        enqueue(m, i, g, m.earlier[place, EARLIER_ADDRESS] + m.shape[y.SIZE_REQUEST] - left, time + 1)


@block
def find(m: Machine, first: int, ways: int, line_address: int) -> int:
    """In the set from row `first` on: the line of `line_address`; else -2 - the oldest idle line; else -1."""
    for w in range(first, first + ways):
        if m.tag[w] == line_address:
            return w
    victim, oldest, now = y.NONE, y.NEVER, m.clock[y.CLOCK_NOW]
    for w in range(first, first + ways):
        if m.stamp[w] < oldest and m.held[w] <= now:
            victim, oldest = w, m.stamp[w]
    return -2 - victim if victim != y.NONE else y.NONE


@block
def sectors(m: Machine, address: int, bytes_: int) -> int:
    """Bit mask of the sectors of its line that a request touches."""
    request = m.shape[y.SIZE_REQUEST]
    first = remainder(m, address, y.SIZE_REQUEST)
    if first == 0 and bytes_ >= request:
        return (1 << SECTORS) - 1
    last = min(first + bytes_, request)
    low = quotient(m, first * SECTORS, y.SIZE_REQUEST)
    high = quotient(m, last * SECTORS + request - 1, y.SIZE_REQUEST)
    return (1 << high) - (1 << low)


@block
def reach(m: Machine, i: int, g: int, address: int, arrive: int) -> None:
    """Send request `i` (kind, bytes, cause, stream, owner are set) to the memory of GPU `g`; it arrives at `arrive`."""
    if m.shape[y.SIZE_SIDE_SETS] > 0:
        arrive = _look_up(m, i, g, address, arrive)
    if arrive != y.NONE:
        enqueue(m, i, g, address, arrive)


@shared
def _look_up(m: Machine, i: int, g: int, address: int, arrive: int) -> int:
    """Serve a request from the memory-side cache, or return when it continues to the DRAM."""
    request = m.request
    c = g * m.shape[y.SIZE_CHANNELS] + channel_of(m, address)
    # Rows of these slices, like those of the lines, follow the last-level caches' rows.
    own = m.shape[y.SIZE_GPUS] * m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SLICES] + c
    free = max(m.clock[y.CLOCK_NOW], m.slice_free[own])  # book from now, not from the later arrival: gaps stay usable
    m.slice_free[own] = free + _booked(m, i, g)
    start = max(arrive, free)
    request[i, y.REQ_GPU] = g
    request[i, y.REQ_CHANNEL] = c
    request[i, y.REQ_ADDRESS] = address
    request[i, y.REQ_FILLS] = y.NONE
    late = m.gpu[g, y.GPU_FABRIC64] > 0 and start - arrive > m.gpu[g, y.GPU_SIDE_LATENCY]
    request[i, y.REQ_FROM] = y.FROM_FABRIC if late else y.FROM_MEMORY
    line = _line_of(m, c, address)
    if request[i, y.REQ_KIND] == y.UPDATE:  # executed at the banks: write the line back, invalidate it
        if line >= 0:
            _write_back(m, g, line, start)
            m.line[line, LINE_HERE] = 0
        return start  # type: ignore[no-any-return]
    if line == y.NONE:  # every line of the set is being filled: bypass the cache
        return start  # type: ignore[no-any-return]
    if line < 0:
        line = -2 - line
        _write_back(m, g, line, start)
        m.tag[line] = address // m.shape[y.SIZE_REQUEST]
        m.line[line, LINE_HERE] = 0
    m.clock[y.CLOCK_STAMP] += 1
    m.stamp[line] = m.clock[y.CLOCK_STAMP]
    need = sectors(m, address, request[i, y.REQ_BYTES])
    if request[i, y.REQ_KIND] == y.READ:
        return _read(m, i, g, line, need, start)
    _write(m, i, g, line, need, start)
    return y.NONE


@block
def _booked(m: Machine, i: int, g: int) -> int:
    """How long request `i` takes a slice of GPU `g`, or the fabric's port in front of it, if that takes longer."""
    bytes_ = m.request[i, y.REQ_BYTES]
    took = duration(bytes_, m.gpu[g, y.GPU_SIDE64])
    if m.gpu[g, y.GPU_FABRIC64] > 0:
        moves = m.request[i, y.REQ_STREAM] == y.COMMUNICATION_STREAM
        took = max(took, duration(bytes_, m.gpu[g, y.GPU_FABRIC_EXCHANGE64 if moves else y.GPU_FABRIC64]))
    return took


@block
def _first_line(m: Machine) -> int:
    """Row of the first memory-side line; these rows follow those of the last-level caches."""
    return m.shape[y.SIZE_GPUS] * m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SETS] * m.shape[y.SIZE_WAYS]  # type: ignore[no-any-return]


@block
def _first_of_set(m: Machine, c: int, address: int) -> int:
    """The first line of the set that `address` belongs to, in channel `c` of the machine."""
    sets, ways, request = m.shape[y.SIZE_SIDE_SETS], m.shape[y.SIZE_SIDE_WAYS], m.shape[y.SIZE_REQUEST]
    stripe = m.shape[y.SIZE_INTERLEAVE]
    lap = address // stripe // m.shape[y.SIZE_CHANNELS]
    own = lap * (stripe // request) + address % stripe // request  # line number within this channel
    return _first_line(m) + (c * sets + (own ^ (own >> 5) ^ (own >> 11)) % sets) * ways  # type: ignore[no-any-return]


@block
def _line_of(m: Machine, c: int, address: int) -> int:
    first = _first_of_set(m, c, address)
    return find(m, first, m.shape[y.SIZE_SIDE_WAYS], address // m.shape[y.SIZE_REQUEST])


@shared
def _write_back(m: Machine, g: int, line: int, time: int) -> None:
    """Write a line back to the DRAM if it is dirty; it is clean afterwards."""
    if m.line[line, LINE_BYTES] == 0:
        return
    cause = m.line[line, LINE_CAUSE]
    i = _written(m, m.line[line, LINE_BYTES], cause, stream_of(m, cause))
    m.line[line, LINE_BYTES] = 0
    m.flow[g, y.FLOW_SIDE_WRITEBACKS] += 1
    enqueue(m, i, g, m.tag[line] * m.shape[y.SIZE_REQUEST], time)


@block
def _written(m: Machine, bytes_: int, cause: int, stream: int) -> int:
    """Write to the DRAM on behalf of no waiting requester."""
    i = new_request(m)
    m.request[i, y.REQ_KIND] = y.WRITE
    m.request[i, y.REQ_BYTES] = bytes_
    m.request[i, y.REQ_CAUSE] = cause
    m.request[i, y.REQ_STREAM] = stream
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_NOBODY
    m.request[i, y.REQ_OWNER] = y.NONE
    m.request[i, y.REQ_REGION] = y.NONE
    return i


@block
def _read(m: Machine, i: int, g: int, line: int, need: int, start: int) -> int:
    cause, bytes_ = m.request[i, y.REQ_CAUSE], m.request[i, y.REQ_BYTES]
    if m.line[line, LINE_HERE] & need == need:
        m.flow[g, y.FLOW_SIDE_HITS] += 1
        m.served[g, y.LEVEL_SIDE_HIT, cause] += bytes_
        if m.request[i, y.REQ_FROM] == y.FROM_MEMORY:
            m.request[i, y.REQ_FROM] = y.FROM_SIDE
        schedule(m, start + m.gpu[g, y.GPU_SIDE_LATENCY], y.EV_READ_DONE, i)
        return y.NONE
    if (m.line[line, LINE_HERE] | m.line[line, LINE_COMING]) & need == need:
        m.flow[g, y.FLOW_SIDE_MERGES] += 1
        m.served[g, y.LEVEL_SIDE_MERGED, cause] += bytes_
        m.request[i, y.REQ_NEXT] = m.line[line, LINE_WAITERS]
        m.line[line, LINE_WAITERS] = i
        return y.NONE
    m.flow[g, y.FLOW_SIDE_MISSES] += 1
    m.held[line] = max(m.held[line], y.NEVER) + 1
    m.line[line, LINE_COMING] |= need
    m.request[i, y.REQ_FILLS] = line
    _push_out(m, g, line, bytes_, m.request[i, y.REQ_STREAM], start)
    return start


@block
def _write(m: Machine, i: int, g: int, line: int, need: int, start: int) -> None:
    """Write sectors into the cache without a fetch; the write completes once the cache holds them."""
    bytes_, cause = m.request[i, y.REQ_BYTES], m.request[i, y.REQ_CAUSE]
    m.line[line, LINE_CAUSE] = cause
    if m.line[line, LINE_HERE] & need != need:
        _push_out(m, g, line, bytes_, m.request[i, y.REQ_STREAM], start)
    m.line[line, LINE_HERE] |= need
    m.line[line, LINE_BYTES] = min(m.line[line, LINE_BYTES] + bytes_, m.shape[y.SIZE_REQUEST])
    m.flow[g, y.FLOW_SIDE_WRITES] += 1
    m.served[g, y.LEVEL_SIDE_WRITTEN, cause] += bytes_
    schedule(m, start, y.EV_TAKEN, i)


@block
def fill(m: Machine, i: int, now: int) -> None:
    """A DRAM read has returned: its line holds the data, and requests that waited for it complete."""
    request, lines = m.request, m.line
    line = request[i, y.REQ_FILLS]
    came = sectors(m, request[i, y.REQ_ADDRESS], request[i, y.REQ_BYTES])
    m.held[line] -= 1
    if m.held[line] == y.NEVER:
        m.held[line] = now
    lines[line, LINE_HERE] |= came
    lines[line, LINE_COMING] &= ~came
    j = lines[line, LINE_WAITERS]
    lines[line, LINE_WAITERS] = y.NONE
    while j != y.NONE:
        following = request[j, y.REQ_NEXT]
        need = sectors(m, request[j, y.REQ_ADDRESS], request[j, y.REQ_BYTES])
        if lines[line, LINE_HERE] & need == need:
            schedule(m, now, y.EV_READ_DONE, j)
        else:
            request[j, y.REQ_NEXT] = lines[line, LINE_WAITERS]
            lines[line, LINE_WAITERS] = j
        j = following
