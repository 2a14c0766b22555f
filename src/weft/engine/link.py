"""The egress links of a GPU: messages leave one after another, arrive a latency later, and become memory requests."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.jit import block, spliced
from weft.engine.memory import new_request
from weft.engine.memory_cache import reach
from weft.engine.record import record_link
from weft.engine.state import Machine


@block
def send(m: Machine, g: int, port: int, i: int, time: int) -> None:
    """Queue message `i`, ready at `time`, for a link of GPU `g`: all of its egress (port 0) or that to one peer."""
    n, k = m.link, g * m.shape[y.S_PORTS] + port
    m.request[i, y.R_ARRIVE] = time
    m.request[i, y.R_NEXT] = y.NONE
    if n[k, y.L_HEAD] == y.NONE:
        n[k, y.L_HEAD] = i
        n[k, y.L_TAIL] = i
        _start(m, k, time)
    else:
        m.request[n[k, y.L_TAIL], y.R_NEXT] = i
        n[k, y.L_TAIL] = i
    n[k, y.L_COUNT] += 1


@block
def _start(m: Machine, k: int, now: int) -> None:
    i, g = m.link[k, y.L_HEAD], k // m.shape[y.S_PORTS]
    bytes_ = m.request[i, y.R_BYTES]
    by_engine = m.request[i, y.R_OWNER_KIND] == y.OWNER_ENGINE
    start = max(now, m.request[i, y.R_ARRIVE], m.link[k, y.L_BUSY_UNTIL])
    whole = g * m.shape[y.S_PORTS]
    if k == whole:
        duration = bytes_ * (m.gpu[g, y.G_DMA_LINK64] if by_engine else m.gpu[g, y.G_LINK64]) // 64
    else:  # all links together carry less than each of them alone
        start = max(start, m.link[whole, y.L_BUSY_UNTIL])
        part = bytes_ * (m.gpu[g, y.G_DMA_ALL64] if by_engine else m.gpu[g, y.G_ALL64]) // 64
        m.link[whole, y.L_BUSY_UNTIL] = start + part
        duration = bytes_ * (m.gpu[g, y.G_DMA_PEER64] if by_engine else m.gpu[g, y.G_PEER64]) // 64
    m.link[k, y.L_BUSY_UNTIL] = start + duration
    m.link[k, y.L_BUSY] += duration
    m.link[k, y.L_BYTES] += bytes_
    record_link(m, g, bytes_, start)
    schedule(m, start + duration, y.EV_LINK, k)


@spliced
def depart(m: Machine, k: int, now: int) -> int:
    """The head message of link `k` has left: it will arrive; the next one starts. Returns the departed message."""
    n = m.link
    i = n[k, y.L_HEAD]
    n[k, y.L_HEAD] = m.request[i, y.R_NEXT]
    n[k, y.L_COUNT] -= 1
    if n[k, y.L_HEAD] == y.NONE:
        n[k, y.L_TAIL] = y.NONE
    else:
        _start(m, k, now)
    schedule(m, now + m.gpu[k // m.shape[y.S_PORTS], y.G_LINK_LATENCY], y.EV_ARRIVE, i)
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
    reach(m, i, g, m.region[g, region, y.M_BASE] + offset, now)


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
