"""Links and routes: a message leaves its GPU when its turn comes, passes every link of its route and becomes a request.

Its head goes on at once (cut-through): a route without others on it takes no longer than its slowest link and all
latencies. Where a further link is taken, messages wait there in the order in which their heads arrive, without limit:
nothing holds up the link behind.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared, spliced
from weft.engine.memory import new_request
from weft.engine.memory_cache import reach
from weft.engine.record import record_link
from weft.engine.state import Machine


@block
def send(m: Machine, route: int, i: int, time: int) -> None:
    """Queue message `i`, ready at `time`, for the first link of the route in row `route`."""
    link, k = m.link_run, m.route[route, y.ROUTE_LINK]
    m.request[i, y.REQ_ROW] = route
    m.request[i, y.REQ_ARRIVE] = time
    m.request[i, y.REQ_NEXT] = y.NONE
    if link[k, y.LINK_HEAD] == y.NONE:
        link[k, y.LINK_HEAD] = i
        link[k, y.LINK_TAIL] = i
        _start(m, k, time)
    else:
        m.request[link[k, y.LINK_TAIL], y.REQ_NEXT] = i
        link[k, y.LINK_TAIL] = i
    link[k, y.LINK_COUNT] += 1


@block
def _start(m: Machine, k: int, now: int) -> None:
    """The first of link `k`'s queue leaves its GPU as soon as the link, and the bundle that it is part of, are free."""
    i, bundle = m.link_run[k, y.LINK_HEAD], m.link[k, y.LINK_BUNDLE]
    start = max(now, m.request[i, y.REQ_ARRIVE], m.link_run[k, y.LINK_BUSY_UNTIL])
    if bundle != y.NONE:
        start = max(start, m.link_run[bundle, y.LINK_BUSY_UNTIL])
        _occupy(m, bundle, i, start)
    end = _occupy(m, k, i, start)
    record_link(m, m.request[i, y.REQ_GPU], m.request[i, y.REQ_BYTES], start)
    schedule(m, end, y.EV_LINK, k)
    _travel(m, i, start, end)


@block
def _occupy(m: Machine, k: int, i: int, start: int) -> int:
    """Message `i` takes link `k` from `start` on; returns until when."""
    by_engine = m.request[i, y.REQ_OWNER_KIND] == y.OWNER_ENGINE
    bytes_ = m.request[i, y.REQ_BYTES]
    duration = bytes_ * (m.link[k, y.LINK_DMA64] if by_engine else m.link[k, y.LINK_STORE64]) // 64
    m.link_run[k, y.LINK_BUSY_UNTIL] = start + duration
    m.link_run[k, y.LINK_BUSY] += duration
    m.link_run[k, y.LINK_BYTES] += bytes_
    return start + duration  # type: ignore[no-any-return]


@shared
def _travel(m: Machine, i: int, start: int, end: int) -> None:
    """The head of message `i` leaves the link that it is at by `start`, the tail by `end`: it goes on, or arrives."""
    p = m.request[i, y.REQ_ROW]
    while True:
        start += m.route[p, y.ROUTE_LATENCY]
        end += m.route[p, y.ROUTE_LATENCY]
        p += 1
        if m.route[p, y.ROUTE_LINK] == y.NONE:
            schedule(m, end, y.EV_ARRIVE, i)
            return
        m.request[i, y.REQ_ROW] = p
        if start > m.clock[y.CLOCK_NOW]:
            m.request[i, y.REQ_ARRIVE] = end
            schedule(m, start, y.EV_HOP, i)
            return
        start, end = _enter(m, i, p, start, end)


@block
def _enter(m: Machine, i: int, p: int, head: int, tail: int) -> tuple[int, int]:
    """Begin with a further link when it is free, first come first served; it ends no earlier than the tail is there."""
    k = m.route[p, y.ROUTE_LINK]
    start = max(head, m.link_run[k, y.LINK_BUSY_UNTIL])
    return start, max(_occupy(m, k, i, start), tail)


@shared
def hop(m: Machine, i: int, now: int) -> None:
    """The head of message `i` comes to a further link of its route."""
    start, end = _enter(m, i, m.request[i, y.REQ_ROW], now, m.request[i, y.REQ_ARRIVE])
    _travel(m, i, start, end)


@spliced
def depart(m: Machine, k: int, now: int) -> int:
    """The first of link `k`'s queue has left its GPU; the next one starts. Returns the departed message."""
    link = m.link_run
    i = link[k, y.LINK_HEAD]
    link[k, y.LINK_HEAD] = m.request[i, y.REQ_NEXT]
    link[k, y.LINK_COUNT] -= 1
    if link[k, y.LINK_HEAD] == y.NONE:
        link[k, y.LINK_TAIL] = y.NONE
    else:
        _start(m, k, now)
    return i  # type: ignore[no-any-return]


@block
def arrive(m: Machine, i: int, now: int) -> None:
    """A message reaches its receiver: a store or an update of its memory, on the communication stream."""
    request = m.request
    g = request[i, y.REQ_CHANNEL]
    region = request[i, y.REQ_REGION]
    offset = request[i, y.REQ_ADDRESS]
    request[i, y.REQ_STREAM] = y.COMMUNICATION_STREAM
    request[i, y.REQ_OWNER_KIND] = y.OWNER_REMOTE
    reach(m, i, g, m.region[g, region, y.REGION_BASE] + offset, now)


@block
def new_message(  # type: ignore[no-untyped-def]
    m: Machine, g, receiver, region, offset, bytes_, update, cause, owner_kind, owner, tile, wavefront
) -> int:
    """Make a message from GPU `g` to `region` of GPU `receiver`, `offset` bytes into it."""
    i = new_request(m)
    address_message(m, i, g, receiver, region, offset, update, cause, tile, wavefront)
    m.request[i, y.REQ_BYTES] = bytes_
    m.request[i, y.REQ_OWNER_KIND] = owner_kind
    m.request[i, y.REQ_OWNER] = owner
    return i


@block
def address_message(  # type: ignore[no-untyped-def]
    m: Machine, i, g, receiver, region, offset, update, cause, tile, wavefront
) -> None:
    """Write where message `i` goes and what it does there."""
    m.request[i, y.REQ_GPU] = g
    m.request[i, y.REQ_CHANNEL] = receiver  # until it arrives and has a channel there
    m.request[i, y.REQ_KIND] = y.UPDATE if update else y.WRITE
    m.request[i, y.REQ_CAUSE] = cause
    m.request[i, y.REQ_REGION] = region
    m.request[i, y.REQ_ADDRESS] = offset
    m.request[i, y.REQ_TILE] = tile
    m.request[i, y.REQ_WAVEFRONT] = wavefront
