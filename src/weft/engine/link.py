"""The egress link of a GPU: messages leave one after another, arrive a latency later, and become memory requests."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.jit import block
from weft.engine.memory import enqueue, new_request
from weft.engine.record import record_link
from weft.engine.state import Machine


@block
def send(m: Machine, g: int, i: int, time: int) -> None:
    """Queue message `i`, ready at `time`, for the link of GPU `g`."""
    k = m.link
    m.request[i, y.R_ARRIVE] = time
    m.request[i, y.R_NEXT] = y.NONE
    if k[g, y.L_HEAD] == y.NONE:
        k[g, y.L_HEAD] = i
        k[g, y.L_TAIL] = i
        _start(m, g, time)
    else:
        m.request[k[g, y.L_TAIL], y.R_NEXT] = i
        k[g, y.L_TAIL] = i
    k[g, y.L_COUNT] += 1


@block
def _start(m: Machine, g: int, now: int) -> None:
    i = m.link[g, y.L_HEAD]
    bytes_ = m.request[i, y.R_BYTES]
    start = max(now, m.request[i, y.R_ARRIVE], m.link[g, y.L_BUSY_UNTIL])
    by_engine = m.request[i, y.R_OWNER_KIND] == y.OWNER_ENGINE
    duration = bytes_ * (m.gpu[g, y.G_DMA_LINK64] if by_engine else m.gpu[g, y.G_LINK64]) // 64
    m.link[g, y.L_BUSY_UNTIL] = start + duration
    m.link[g, y.L_BUSY] += duration
    m.link[g, y.L_BYTES] += bytes_
    record_link(m, g, bytes_, start)
    schedule(m, start + duration, y.EV_LINK, g)


@block
def depart(m: Machine, g: int, now: int) -> int:
    """The head message has left: it will arrive; the next one starts. Returns the departed message."""
    k = m.link
    i = k[g, y.L_HEAD]
    k[g, y.L_HEAD] = m.request[i, y.R_NEXT]
    k[g, y.L_COUNT] -= 1
    if k[g, y.L_HEAD] == y.NONE:
        k[g, y.L_TAIL] = y.NONE
    else:
        _start(m, g, now)
    schedule(m, now + m.gpu[g, y.G_LINK_LATENCY], y.EV_ARRIVE, i)
    return i  # type: ignore[no-any-return]


@block
def arrive(m: Machine, i: int, now: int) -> None:
    """A message reaches its receiver: a store or an update of its memory, on the communication stream."""
    r = m.request
    g = r[i, y.R_CHANNEL]
    region = r[i, y.R_REGION]
    offset = r[i, y.R_ADDRESS]
    r[i, y.R_STREAM] = y.COMMUNICATION_STREAM
    r[i, y.R_OWNER_KIND] = y.OWNER_REMOTE
    enqueue(m, i, g, m.region[g, region, y.M_BASE] + offset, now)


@block
def peer(m: Machine, g: int, hops: int) -> int:
    """The GPU that is `hops` neighbours away from GPU `g`."""
    for _ in range(hops):
        g = m.gpu[g, y.G_NEIGHBOUR]
    return g


@block
def new_message(  # type: ignore[no-untyped-def]
    m: Machine, g, receiver, region, offset, bytes_, update, cause, owner_kind, owner, tile, wavefront
) -> int:
    """Make a message from GPU `g` to `region` of GPU `receiver`, `offset` bytes into it."""
    i = new_request(m)
    address_message(m, i, g, receiver, region, offset, update, cause, tile, wavefront)
    m.request[i, y.R_BYTES] = bytes_
    m.request[i, y.R_OWNER_KIND] = owner_kind
    m.request[i, y.R_OWNER] = owner
    return i


@block
def address_message(  # type: ignore[no-untyped-def]
    m: Machine, i, g, receiver, region, offset, update, cause, tile, wavefront
) -> None:
    """Write where message `i` goes and what it does there."""
    m.request[i, y.R_GPU] = g
    m.request[i, y.R_CHANNEL] = receiver  # until it arrives and has a channel there
    m.request[i, y.R_KIND] = y.UPDATE if update else y.WRITE
    m.request[i, y.R_CAUSE] = cause
    m.request[i, y.R_REGION] = region
    m.request[i, y.R_ADDRESS] = offset
    m.request[i, y.R_TILE] = tile
    m.request[i, y.R_WAVEFRONT] = wavefront
