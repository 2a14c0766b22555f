"""A switch that computes: it adds up what all GPUs hold for one of them, and copies one GPU's store to all.

A load through the switch asks every GPU. Each reads its memory and answers over its own link; after the last answer the
sum goes down the link of the GPU that asked. A store goes up the link of its sender once, and down the link of every
GPU. A place in a GPU's memory depends on its distance from the sender, so that one GPU can represent all.
Stores of several GPUs to one tile of its owner may be added up: the last one of a wavefront's part sends the sum down.
With a table, requests to the same place are merged instead, each on its own: the first one
waits in the table of its owner's port, later ones are added to it. It goes down when all GPUs' have come, when another
one needs its entry and it is the oldest, or when its window is over; what comes later goes down as another update.
A load from one other GPU's memory asks it alone, and the answer comes straight back. With a table, the first load of a
place goes on to its owner and enters the table; later ones wait there for its answer, which goes down to all of them.
The entry keeps the answer for those that come later, and leaves as that of a store does, but not before it is answered.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import remainder
from weft.engine.cache import look_up, read_memory
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared
from weft.engine.link import hop, new_message, send
from weft.engine.memory import free_request, new_request, stream_of
from weft.engine.state import Machine
from weft.engine.tracker import wavefront_bytes


@shared
def load_afar(m: Machine, g: int, part: int, a: int, address: int, bytes_: int, time: int, q: int) -> None:
    """Slot `q` of GPU `g` asks one GPU or all at `time` for `bytes_` of the load in row `a`, from `address` on.

    The lines of partition `part` of the GPU's cache may hold what one GPU has, if the load is cached.
    """
    if m.access[g, a, y.ACCESS_MEMBERS] > 0:
        _load_sum(m, g, a, address, bytes_, time + m.gpu[g, y.GPU_CACHE_OUT], q)
        return
    cause, start, line = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ, time + m.gpu[g, y.GPU_CACHE_OUT], y.NONE
    if m.access[g, a, y.ACCESS_CACHED] == 1:
        start, line = look_up(m, g, part, address, bytes_, cause, 1, time, q)
        if start == y.NEVER:
            return
    total = _question(m, g, bytes_, q, 0, line)
    m.request[total, y.REQ_ROW] = m.access[g, a, y.ACCESS_ROUTE]
    source, address = m.access[g, a, y.ACCESS_SOURCE], address + m.access[g, a, y.ACCESS_MEMBER_STRIDE]
    if m.access[g, a, y.ACCESS_MEMBERS] < y.NONE:
        m.request[total, y.REQ_MEMBERS] = 1
        m.request[total, y.REQ_STRIDE] = -m.access[g, a, y.ACCESS_MEMBERS]
        m.request[total, y.REQ_CHANNEL], m.request[total, y.REQ_ADDRESS] = source, address
        m.request[total, y.REQ_CAUSE] = cause
        schedule(m, start + m.route[m.gpu[g, y.GPU_UP], y.ROUTE_LATENCY], y.EV_ARRIVE, total)
        return
    start += m.access[g, a, y.ACCESS_ASKING]
    read_memory(m, source, address, bytes_, cause, stream_of(m, cause), start, y.OWNER_SUM, total)


@block
def _question(m: Machine, g: int, bytes_: int, q: int, members: int, line: int) -> int:
    """What slot `q` of GPU `g` has asked other GPUs for: the row where their answers come together.

    They fill a `line` of its cache, for which the slot waits already, or none (NONE).
    """
    total = new_request(m)
    m.request[total, y.REQ_GPU] = g
    m.request[total, y.REQ_KIND] = y.READ
    m.request[total, y.REQ_BYTES] = bytes_
    m.request[total, y.REQ_OWNER_KIND] = y.OWNER_SLOT
    m.request[total, y.REQ_OWNER] = q
    m.request[total, y.REQ_MEMBERS] = members
    m.request[total, y.REQ_FILLS] = line
    if line == y.NONE:
        m.slot[q, y.SLOT_PENDING] += 1
    return total


@block
def asked_by(m: Machine, i: int) -> int:
    """The row of what a slot has asked other GPUs for, of which message `i` is the sum or the answer of one GPU."""
    return m.request[i, y.REQ_OWNER] if m.request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM else i


@block
def _load_sum(m: Machine, g: int, a: int, offset: int, bytes_: int, time: int, q: int) -> None:
    """Slot `q` of GPU `g` asks every GPU at `time` for `bytes_` of the load in row `a`, `offset` into its chunk."""
    region, members = m.access[g, a, y.ACCESS_REGION], m.access[g, a, y.ACCESS_MEMBERS]
    cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ
    total = _question(m, g, bytes_, q, members, y.NONE)
    up, down = m.gpu[g, y.GPU_UP], m.gpu[g, y.GPU_DOWN]
    there = time + m.route[up, y.ROUTE_LATENCY] + m.route[down, y.ROUTE_LATENCY]
    for d in range(members):
        other = _below(m, g, d, members)
        address = m.region[other, region, y.REGION_BASE] + offset + d * m.access[g, a, y.ACCESS_MEMBER_STRIDE]
        read_memory(m, other, address, bytes_, cause, stream_of(m, cause), there, y.OWNER_SUM, total)


@block
def _below(m: Machine, g: int, d: int, members: int) -> int:
    """The GPU `d` ranks below GPU `g`; GPU 0 if it represents all."""
    return (g + members - d) % m.shape[y.SIZE_GPUS]  # type: ignore[no-any-return]


@block
def answer(m: Machine, i: int, now: int) -> None:
    """A GPU's memory has read what another GPU asked for: it goes up to the switch, or straight to that GPU."""
    total = m.request[i, y.REQ_OWNER]
    summed = m.request[total, y.REQ_MEMBERS] > 0
    m.request[i, y.REQ_MEMBERS] = 1 if summed else y.NONE
    send(m, m.gpu[m.request[i, y.REQ_GPU], y.GPU_UP] if summed else m.request[total, y.REQ_ROW], i, now)


@shared
def pass_switch(m: Machine, i: int, now: int) -> None:
    """Message `i` is at the switch: an answer or a store is added to its sum, a store is copied to every GPU, or a load
    is merged with others.
    """
    request = m.request
    if request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM:
        total = request[i, y.REQ_OWNER]
        request[total, y.REQ_MEMBERS] -= 1
        if request[total, y.REQ_MEMBERS] == 0:
            if request[total, y.REQ_GPU] == y.NONE:
                _answer_all(m, total, now)
            else:
                _descend(m, total, request[total, y.REQ_GPU], now)
    elif request[i, y.REQ_KIND] == y.READ:
        _ask(m, i, now)
        return
    elif request[i, y.REQ_STRIDE] == y.NONE:
        if m.merging.shape[1] > 0:
            _merge(m, i, now)
            return
        _add(m, i, now)
    else:
        g, members = request[i, y.REQ_GPU], request[i, y.REQ_MEMBERS]
        for d in range(members):
            _copy(m, i, _below(m, g, d, members), d, now)
    free_request(m, i)


@block
def _add(m: Machine, i: int, now: int) -> None:
    """Add store `i` to the sum of its wavefront's part of a tile; the last one sends the sum to the owner."""
    request = m.request
    g, tile, wavefront = request[i, y.REQ_CHANNEL], request[i, y.REQ_TILE], request[i, y.REQ_WAVEFRONT]
    key, whole = tile * m.shape[y.SIZE_WAVEFRONTS] + wavefront, wavefront_bytes(m, g, tile)
    first = wavefront * whole
    end = min(first + whole, m.tile[g, tile, y.TILE_BYTES])
    m.summed[g, key] += request[i, y.REQ_BYTES]
    if m.summed[g, key] < (end - first) * request[i, y.REQ_MEMBERS]:
        return
    offset = m.tile[g, tile, y.TILE_OFFSET]
    first, end = offset + first, offset + end
    while first < end:
        size = min(m.shape[y.SIZE_REQUEST] - remainder(m, first, y.SIZE_REQUEST), end - first)
        sent = new_message(
            m, request[i, y.REQ_GPU], g, request[i, y.REQ_REGION], first, size, request[i, y.REQ_KIND] == y.UPDATE,
            request[i, y.REQ_CAUSE], y.OWNER_REMOTE, y.NONE, tile, wavefront,
        )  # fmt: skip
        _descend(m, sent, g, now)
        first += size


@shared
def _merge(m: Machine, i: int, now: int) -> None:
    """Merge store `i` with those to the same place that the table of its owner's port holds, or enter it there."""
    request = m.request
    g, members = request[i, y.REQ_CHANNEL], request[i, y.REQ_MEMBERS]
    held = _held(m, g, i)
    if held != y.NONE:
        free_request(m, i)
        request[held, y.REQ_WEIGHT] += 1
        if request[held, y.REQ_WEIGHT] == members:
            _leave(m, g, held, now)
        return
    request[i, y.REQ_WEIGHT] = 1
    if members > 1 and _has_room(m, g, now):
        _hold(m, g, i, now)
    else:
        _go_down(m, g, i, now)


@shared
def _ask(m: Machine, i: int, now: int) -> None:
    """Request `i` for a load is at the switch: it waits for the answer to an earlier one, has it, or goes on."""
    request, flow, g = m.request, m.flow, m.request[i, y.REQ_CHANNEL]
    entry, total = _held(m, g, i), i
    if entry != y.NONE and request[entry, y.REQ_BYTES] == request[i, y.REQ_BYTES]:
        flow[g, y.FLOW_MERGE_LOADS] += 1
        flow[g, y.FLOW_MERGE_SAVED] += request[i, y.REQ_BYTES]
        request[entry, y.REQ_WEIGHT] += 1
        _await_answer(m, entry, i)
        if request[entry, y.REQ_MEMBERS] == 0:
            _answer_all(m, entry, now)
        return
    if entry == y.NONE and _has_room(m, g, now):
        total = new_request(m)
        for column in (y.REQ_KIND, y.REQ_BYTES, y.REQ_ADDRESS, y.REQ_STRIDE, y.REQ_OWNER_KIND, y.REQ_OWNER):
            request[total, column] = request[i, column]
        request[total, y.REQ_GPU], request[total, y.REQ_MEMBERS] = y.NONE, 1
        request[total, y.REQ_WEIGHT], request[total, y.REQ_ASKERS] = 1, 0
        _await_answer(m, total, i)
        _hold(m, g, total, now)
    cause, there = request[i, y.REQ_CAUSE], now + m.route[m.gpu[g, y.GPU_DOWN], y.ROUTE_LATENCY]
    read_memory(
        m, g, request[i, y.REQ_ADDRESS], request[i, y.REQ_BYTES], cause, stream_of(m, cause), there, y.OWNER_SUM, total
    )


@block
def _await_answer(m: Machine, entry: int, i: int) -> None:
    m.request[i, y.REQ_ASKERS] = m.request[entry, y.REQ_ASKERS]
    m.request[entry, y.REQ_ASKERS] = i + 1


@shared
def _answer_all(m: Machine, entry: int, now: int) -> None:
    """The answer to an entry's load is at the switch: it goes down to all that wait for it."""
    request, i = m.request, m.request[entry, y.REQ_ASKERS] - 1
    g = request[i, y.REQ_CHANNEL]
    while i != y.NONE:
        following = request[i, y.REQ_ASKERS] - 1
        request[i, y.REQ_MEMBERS] = 0
        _descend(m, i, request[i, y.REQ_GPU], now)
        i = following
    request[entry, y.REQ_ASKERS] = 0
    if request[entry, y.REQ_PREVIOUS] == y.NONE:
        _vacate(m, g, entry)
        free_request(m, entry)
    elif request[entry, y.REQ_WEIGHT] == request[entry, y.REQ_STRIDE]:
        _leave(m, g, entry, now)


@block
def _cell(m: Machine, i: int) -> int:
    """The list of the switch's table that a request for its place belongs to."""
    return m.request[i, y.REQ_ADDRESS] // y.MERGE_GRAIN & y.MERGE_CELLS - 1  # type: ignore[no-any-return]


@block
def _held(m: Machine, g: int, i: int) -> int:
    """The request in the table of GPU `g`'s port for the same place as `i`, a load or a store as that is; or NONE."""
    request, held = m.request, m.merging[g, _cell(m, i)] - 1
    while held != y.NONE and (
        request[held, y.REQ_ADDRESS] != request[i, y.REQ_ADDRESS]
        or (request[held, y.REQ_KIND] == y.READ) != (request[i, y.REQ_KIND] == y.READ)
    ):
        held = request[held, y.REQ_CELL] - 1
    return held  # type: ignore[no-any-return]


@shared
def _has_room(m: Machine, g: int, now: int) -> bool:
    """Whether the table of GPU `g`'s port takes another request; if it is full, the oldest one leaves if it can."""
    flow, entries = m.flow, m.gpu[g, y.GPU_MERGE_ENTRIES]
    if flow[g, y.FLOW_MERGE_HELD] < entries or entries == 0:
        return True
    first = flow[g, y.FLOW_MERGE_FIRST] - 1
    if first == y.NONE or _unanswered(m, first):
        flow[g, y.FLOW_MERGE_REFUSED] += 1
        return False
    flow[g, y.FLOW_MERGE_EVICTED] += 1
    _leave(m, g, first, now)
    return True


@block
def _unanswered(m: Machine, i: int) -> bool:
    """Whether entry `i` of the switch's table is a load whose answer has not come."""
    return m.request[i, y.REQ_KIND] == y.READ and m.request[i, y.REQ_MEMBERS] > 0  # type: ignore[no-any-return]


@block
def _hold(m: Machine, g: int, i: int, now: int) -> None:
    """Enter request `i` into the table of GPU `g`'s port, as its newest one."""
    flow, last, cell = m.flow, m.flow[g, y.FLOW_MERGE_LAST], _cell(m, i)
    m.request[i, y.REQ_CELL], m.merging[g, cell] = m.merging[g, cell], i + 1
    m.request[i, y.REQ_ARRIVE], m.request[i, y.REQ_NEXT], m.request[i, y.REQ_PREVIOUS] = now, 0, last
    if last == 0:
        flow[g, y.FLOW_MERGE_FIRST] = i + 1
        schedule(m, now + m.gpu[g, y.GPU_MERGE_WINDOW], y.EV_MERGE, g)
    else:
        m.request[last - 1, y.REQ_NEXT] = i + 1
    flow[g, y.FLOW_MERGE_LAST] = i + 1
    flow[g, y.FLOW_MERGE_HELD] += 1
    flow[g, y.FLOW_MERGE_MOST] = max(flow[g, y.FLOW_MERGE_MOST], flow[g, y.FLOW_MERGE_HELD])


@shared
def _leave(m: Machine, g: int, i: int, now: int) -> None:
    """Request `i` leaves the table of GPU `g`'s port: a store goes down its link, a load when it is answered."""
    _unlink(m, g, i)
    if _unanswered(m, i):
        m.request[i, y.REQ_PREVIOUS] = y.NONE
        return
    _vacate(m, g, i)
    if m.request[i, y.REQ_KIND] == y.READ:
        free_request(m, i)
    else:
        _go_down(m, g, i, now)


@block
def _unlink(m: Machine, g: int, i: int) -> None:
    """Take request `i` out of the order in which those for GPU `g` came."""
    flow, request = m.flow, m.request
    before, behind = request[i, y.REQ_PREVIOUS], request[i, y.REQ_NEXT]
    if before == 0:
        flow[g, y.FLOW_MERGE_FIRST] = behind
    else:
        request[before - 1, y.REQ_NEXT] = behind
    if behind == 0:
        flow[g, y.FLOW_MERGE_LAST] = before
    else:
        request[behind - 1, y.REQ_PREVIOUS] = before


@block
def _vacate(m: Machine, g: int, i: int) -> None:
    """Free the room of request `i` in the table of GPU `g`'s port."""
    request, cell = m.request, _cell(m, i)
    m.flow[g, y.FLOW_MERGE_HELD] -= 1
    before = m.merging[g, cell] - 1
    if before == i:
        m.merging[g, cell] = request[i, y.REQ_CELL]
        return
    while request[before, y.REQ_CELL] - 1 != i:
        before = request[before, y.REQ_CELL] - 1
    request[before, y.REQ_CELL] = request[i, y.REQ_CELL]


@block
def _go_down(m: Machine, g: int, i: int, now: int) -> None:
    """Send store `i` down the link of GPU `g`."""
    m.request[i, y.REQ_MEMBERS] = 0
    m.request[i, y.REQ_OWNER_KIND], m.request[i, y.REQ_OWNER] = y.OWNER_REMOTE, y.NONE
    _descend(m, i, g, now)


@shared
def expire(m: Machine, g: int, now: int) -> None:
    """The window of the oldest request in the table of GPU `g`'s port may be over: those whose is leave."""
    window = m.gpu[g, y.GPU_MERGE_WINDOW]
    first = m.flow[g, y.FLOW_MERGE_FIRST] - 1
    while first != y.NONE and m.request[first, y.REQ_ARRIVE] + window <= now:
        m.flow[g, y.FLOW_MERGE_EXPIRED] += 1
        _leave(m, g, first, now)
        first = m.flow[g, y.FLOW_MERGE_FIRST] - 1
    if first != y.NONE:
        schedule(m, m.request[first, y.REQ_ARRIVE] + window, y.EV_MERGE, g)


@block
def _copy(m: Machine, i: int, receiver: int, d: int, now: int) -> None:
    """Copy store `i` to the GPU `d` ranks below its sender."""
    request = m.request
    copy = new_message(
        m, request[i, y.REQ_GPU], receiver, request[i, y.REQ_REGION],
        request[i, y.REQ_ADDRESS] + d * request[i, y.REQ_STRIDE], request[i, y.REQ_BYTES],
        request[i, y.REQ_KIND] == y.UPDATE, request[i, y.REQ_CAUSE], y.OWNER_REMOTE, y.NONE, request[i, y.REQ_TILE],
        request[i, y.REQ_WAVEFRONT],
    )  # fmt: skip
    _descend(m, copy, receiver, now)


@block
def _descend(m: Machine, i: int, g: int, now: int) -> None:
    """Send message `i` from the switch down the link of GPU `g`."""
    m.request[i, y.REQ_ROW] = m.gpu[g, y.GPU_DOWN]
    m.request[i, y.REQ_ARRIVE] = now
    hop(m, i, now)
