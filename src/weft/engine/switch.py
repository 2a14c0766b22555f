"""A switch that computes: it adds up what all GPUs hold for one of them, and copies one GPU's store to all.

A load through the switch asks every GPU. Each reads its memory and answers over its own link; after the last answer the
sum goes down the link of the GPU that asked. A store goes up the link of its sender once, and down the link of every
GPU. A place in a GPU's memory depends on its distance from the sender, so that one GPU can represent all.
Stores of several GPUs to one tile of its owner may be added up: the last one of a wavefront's part sends the sum down.
With a table, requests to the same place are merged instead, each on its own: the first one
waits in the table of its owner's port, later ones are added to it. It goes down when all GPUs' have come, when another
one needs its entry and it is the oldest, or when its window is over; what comes later goes down as another update.
A load from one other GPU's memory asks it alone, and the answer comes straight back.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import read_memory
from weft.engine.calendar import schedule
from weft.engine.divide import remainder
from weft.engine.jit import block, shared
from weft.engine.link import hop, new_message, send
from weft.engine.memory import free_request, new_request, stream_of
from weft.engine.state import Machine
from weft.engine.tracker import wavefront_bytes


@shared
def load_afar(m: Machine, g: int, a: int, offset: int, bytes_: int, time: int, q: int) -> None:
    """Slot `q` of GPU `g` asks one GPU or all at `time` for `bytes_` of the load in row `a`, from `offset` on."""
    if m.access[g, a, y.ACCESS_MEMBERS] > 0:
        _load_sum(m, g, a, offset, bytes_, time, q)
        return
    total = _question(m, g, bytes_, q, 0)
    m.request[total, y.REQ_ROW] = m.access[g, a, y.ACCESS_ROUTE]
    cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ
    there = time + m.access[g, a, y.ACCESS_ASKING]
    read_memory(
        m, m.access[g, a, y.ACCESS_SOURCE], offset, bytes_, cause, stream_of(m, cause), there, y.OWNER_SUM, total
    )


@block
def _question(m: Machine, g: int, bytes_: int, q: int, members: int) -> int:
    """What slot `q` of GPU `g` has asked other GPUs for: the row where their answers come together."""
    total = new_request(m)
    m.request[total, y.REQ_GPU] = g
    m.request[total, y.REQ_KIND] = y.READ
    m.request[total, y.REQ_BYTES] = bytes_
    m.request[total, y.REQ_OWNER_KIND] = y.OWNER_SLOT
    m.request[total, y.REQ_OWNER] = q
    m.request[total, y.REQ_MEMBERS] = members
    m.slot[q, y.SLOT_PENDING] += 1
    return total


@block
def asked_by(m: Machine, i: int) -> int:
    """The slot that waits for message `i`, which is a sum or the answer of one GPU."""
    owner = m.request[i, y.REQ_OWNER]
    if m.request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM:
        total = owner
        owner = m.request[total, y.REQ_OWNER]
        free_request(m, total)
    return owner  # type: ignore[no-any-return]


@block
def _load_sum(m: Machine, g: int, a: int, offset: int, bytes_: int, time: int, q: int) -> None:
    """Slot `q` of GPU `g` asks every GPU at `time` for `bytes_` of the load in row `a`, `offset` into its chunk."""
    region, members = m.access[g, a, y.ACCESS_REGION], m.access[g, a, y.ACCESS_MEMBERS]
    cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ
    total = _question(m, g, bytes_, q, members)
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
    """Message `i` is at the switch: an answer or a store is added to its sum, or a store is copied to every GPU."""
    request = m.request
    if request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM:
        total = request[i, y.REQ_OWNER]
        request[total, y.REQ_MEMBERS] -= 1
        if request[total, y.REQ_MEMBERS] == 0:
            _descend(m, total, request[total, y.REQ_GPU], now)
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
    place = request[i, y.REQ_ADDRESS] // y.MERGE_GRAIN
    held = m.merging[g, place] - 1
    if held != y.NONE:
        free_request(m, i)
        request[held, y.REQ_WEIGHT] += 1
        if request[held, y.REQ_WEIGHT] == members:
            _let_go(m, g, held, now)
        return
    entries = m.gpu[g, y.GPU_MERGE_ENTRIES]
    if m.flow[g, y.FLOW_MERGE_HELD] == entries and entries > 0:
        m.flow[g, y.FLOW_MERGE_EVICTED] += 1
        _let_go(m, g, m.flow[g, y.FLOW_MERGE_FIRST] - 1, now)
    request[i, y.REQ_WEIGHT] = 1
    _hold(m, g, i, place, now)
    if members == 1:
        _let_go(m, g, i, now)
    elif m.flow[g, y.FLOW_MERGE_HELD] == 1:
        schedule(m, now + m.gpu[g, y.GPU_MERGE_WINDOW], y.EV_MERGE, g)


@block
def _hold(m: Machine, g: int, i: int, place: int, now: int) -> None:
    """Enter store `i` into the table of GPU `g`'s port, as its newest request."""
    flow, last = m.flow, m.flow[g, y.FLOW_MERGE_LAST]
    m.merging[g, place] = i + 1
    m.request[i, y.REQ_ARRIVE], m.request[i, y.REQ_NEXT], m.request[i, y.REQ_PREVIOUS] = now, 0, last
    if last == 0:
        flow[g, y.FLOW_MERGE_FIRST] = i + 1
    else:
        m.request[last - 1, y.REQ_NEXT] = i + 1
    flow[g, y.FLOW_MERGE_LAST] = i + 1
    flow[g, y.FLOW_MERGE_HELD] += 1
    flow[g, y.FLOW_MERGE_MOST] = max(flow[g, y.FLOW_MERGE_MOST], flow[g, y.FLOW_MERGE_HELD])


@shared
def _let_go(m: Machine, g: int, i: int, now: int) -> None:
    """Request `i` leaves the table of GPU `g`'s port, and goes down its link."""
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
    flow[g, y.FLOW_MERGE_HELD] -= 1
    m.merging[g, request[i, y.REQ_ADDRESS] // y.MERGE_GRAIN] = 0
    request[i, y.REQ_MEMBERS] = 0
    request[i, y.REQ_OWNER_KIND], request[i, y.REQ_OWNER] = y.OWNER_REMOTE, y.NONE
    _descend(m, i, g, now)


@shared
def expire(m: Machine, g: int, now: int) -> None:
    """The window of the oldest request in the table of GPU `g`'s port may be over: those that are go down."""
    window = m.gpu[g, y.GPU_MERGE_WINDOW]
    first = m.flow[g, y.FLOW_MERGE_FIRST] - 1
    while first != y.NONE and m.request[first, y.REQ_ARRIVE] + window <= now:
        m.flow[g, y.FLOW_MERGE_EXPIRED] += 1
        _let_go(m, g, first, now)
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
