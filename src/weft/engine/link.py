"""Links and routes: a message leaves its GPU when its turn comes, passes every link of its route and becomes a request.

A link serves the compute units and DMA engines of its GPU round robin, `LINK_TURN` bytes each.
The head of a message goes on at once (cut-through): a route without others on it takes no longer than its slowest link
and all latencies. Where a further link is taken, messages wait there in the order in which their heads arrive, without
limit: nothing holds up the link behind.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import duration, prefetch
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared
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
    link[k, y.LINK_COUNT] += 1
    s = _sender_of(m, i)
    if link[k, y.LINK_SENT] == y.NONE:
        link[k, y.LINK_SENDER], link[k, y.LINK_SERVED] = s, m.request[i, y.REQ_BYTES]
        _start(m, k, i, time)
        return
    if m.sender[k, s, y.SENDER_FIRST] == y.NONE:
        m.sender[k, s, y.SENDER_FIRST] = i
        _queue_sender(m, k, s)
    else:
        m.request[m.sender[k, s, y.SENDER_LAST], y.REQ_NEXT] = i
    m.sender[k, s, y.SENDER_LAST] = i


@block
def _sender_of(m: Machine, i: int) -> int:
    """Which of its GPU's senders message `i` comes from: a DMA engine, or the compute unit whose slot waits for it."""
    engines, owner = m.shape[y.SIZE_ENGINES], m.request[i, y.REQ_OWNER]
    if m.request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM:  # an answer takes the turn of the compute unit that asked
        owner = m.request[owner, y.REQ_OWNER]
    if m.request[i, y.REQ_OWNER_KIND] == y.OWNER_ENGINE:
        return owner % engines  # type: ignore[no-any-return]
    unit = m.resident[owner // y.SLOTS, y.WG_UNIT]
    return engines + unit % m.shape[y.SIZE_CUS]  # type: ignore[no-any-return]


@block
def _queue_sender(m: Machine, k: int, s: int) -> None:
    """Sender `s` of link `k` has a message: it goes on with its turn, or has its next one after all others."""
    link, sender = m.link_run, m.sender
    first, last = link[k, y.LINK_FIRST], link[k, y.LINK_LAST]
    goes_on = link[k, y.LINK_SENDER] == s and link[k, y.LINK_SERVED] < y.LINK_TURN
    sender[k, s, y.SENDER_NEXT] = first if goes_on else y.NONE
    if first == y.NONE:
        link[k, y.LINK_FIRST] = link[k, y.LINK_LAST] = s
    elif goes_on:
        link[k, y.LINK_FIRST] = s
    else:
        sender[k, last, y.SENDER_NEXT] = s
        link[k, y.LINK_LAST] = s


@block
def _next_message(m: Machine, k: int, now: int) -> int:
    """Take the message that link `k` sends next: of the first sender in turn whose message is ready by `now`.

    If none is ready, the message that will be ready first.
    """
    sender, request = m.sender, m.request
    best, before_best, soonest = y.NONE, y.NONE, y.NEVER
    before, s = y.NONE, m.link_run[k, y.LINK_FIRST]
    while s != y.NONE and soonest > now:
        ready = request[sender[k, s, y.SENDER_FIRST], y.REQ_ARRIVE]
        if ready < soonest:
            best, before_best, soonest = s, before, ready
        before, s = s, sender[k, s, y.SENDER_NEXT]
    i = sender[k, best, y.SENDER_FIRST]
    following = sender[k, best, y.SENDER_NEXT]
    if before_best == y.NONE:
        m.link_run[k, y.LINK_FIRST] = following
    else:
        sender[k, before_best, y.SENDER_NEXT] = following
    if following == y.NONE:
        m.link_run[k, y.LINK_LAST] = before_best
    sender[k, best, y.SENDER_FIRST] = request[i, y.REQ_NEXT]
    if m.link_run[k, y.LINK_SENDER] != best or m.link_run[k, y.LINK_SERVED] >= y.LINK_TURN:
        m.link_run[k, y.LINK_SENDER], m.link_run[k, y.LINK_SERVED] = best, 0
    m.link_run[k, y.LINK_SERVED] += request[i, y.REQ_BYTES]
    if sender[k, best, y.SENDER_FIRST] != y.NONE:
        _queue_sender(m, k, best)
    if m.link_run[k, y.LINK_FIRST] != y.NONE:  # most likely the message that follows
        likely = sender[k, m.link_run[k, y.LINK_FIRST], y.SENDER_FIRST]
        prefetch(request, likely, y.REQ_NEXT)
        prefetch(request, likely, y.REQ_ARRIVE)
    return i  # type: ignore[no-any-return]


@block
def _start(m: Machine, k: int, i: int, now: int) -> None:
    """Message `i` leaves its GPU as soon as link `k`, and the bundle that it is part of, are free."""
    bundle = m.link[k, y.LINK_BUNDLE]
    start = max(now, m.request[i, y.REQ_ARRIVE], m.link_run[k, y.LINK_BUSY_UNTIL])
    if bundle != y.NONE:
        start = max(start, m.link_run[bundle, y.LINK_BUSY_UNTIL])
        _occupy(m, bundle, i, start)
    end = _occupy(m, k, i, start)
    m.link_run[k, y.LINK_SENT] = i
    record_link(m, m.request[i, y.REQ_GPU], m.request[i, y.REQ_BYTES], start)
    schedule(m, end, y.EV_LINK, k)
    m.request[i, y.REQ_TICKET] = 0
    _travel(m, i, start, end, m.request[i, y.REQ_MEMBERS] == 0 and m.shape[y.SIZE_SIDE_SETS] == 0)


@block
def _occupy(m: Machine, k: int, i: int, start: int) -> int:
    """Message `i` takes link `k` from `start` on; returns until when."""
    by_engine = m.request[i, y.REQ_OWNER_KIND] == y.OWNER_ENGINE
    bytes_ = m.request[i, y.REQ_BYTES]
    took = duration(bytes_, m.link[k, y.LINK_DMA64] if by_engine else m.link[k, y.LINK_STORE64])
    m.link_run[k, y.LINK_BUSY_UNTIL] = start + took
    m.link_run[k, y.LINK_BUSY] += took
    m.link_run[k, y.LINK_BYTES] += bytes_
    return start + took


@shared
def _travel(m: Machine, i: int, start: int, end: int, ahead: bool) -> None:
    """The head of message `i` leaves the link that it is at by `start`, the tail by `end`: it goes on, or arrives.

    Memory may be told of an arrival `ahead` of it: then that needs no event, and follows when the message departs.
    """
    p = m.request[i, y.REQ_ROW]
    while True:
        start += m.route[p, y.ROUTE_LATENCY]
        end += m.route[p, y.ROUTE_LATENCY]
        p += 1
        if m.route[p, y.ROUTE_LINK] == y.NONE:
            if ahead:
                m.request[i, y.REQ_TICKET], m.request[i, y.REQ_ARRIVE] = 1, end
            else:
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
    _travel(m, i, start, end, False)


@block
def depart(m: Machine, k: int, now: int) -> int:
    """The message that occupied link `k` has left its GPU; the next one starts. Returns the departed message."""
    link = m.link_run
    i = link[k, y.LINK_SENT]
    link[k, y.LINK_SENT] = y.NONE
    link[k, y.LINK_COUNT] -= 1
    if link[k, y.LINK_FIRST] != y.NONE:
        _start(m, k, _next_message(m, k, now), now)
    return i  # type: ignore[no-any-return]


@block
def arrive(m: Machine, i: int, now: int) -> None:
    """A message reaches its receiver: a store or an update of its memory, on the communication stream."""
    request = m.request
    g = request[i, y.REQ_CHANNEL]
    region = request[i, y.REQ_REGION]
    offset = request[i, y.REQ_ADDRESS]
    request[i, y.REQ_STREAM] = y.COMMUNICATION_STREAM
    request[i, y.REQ_OWNER_KIND], request[i, y.REQ_OWNER] = y.OWNER_REMOTE, request[i, y.REQ_GPU]
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
    m.request[i, y.REQ_MEMBERS] = 0
