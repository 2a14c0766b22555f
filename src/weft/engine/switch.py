"""A switch that computes: it adds up what all GPUs hold for one of them, and copies one GPU's store to all.

A load through the switch asks every GPU. Each reads its memory and answers over its own link; after the last answer the
sum goes down the link of the GPU that asked. A store goes up the link of its sender once, and down the link of every
GPU. A place in a GPU's memory depends on its distance from the sender, so that one GPU can represent all.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import read_memory
from weft.engine.jit import block, shared
from weft.engine.link import hop, new_message, send
from weft.engine.memory import free_request, new_request, stream_of
from weft.engine.state import Machine


@shared
def load_sum(m: Machine, g: int, a: int, offset: int, bytes_: int, time: int, q: int) -> None:
    """Slot `q` of GPU `g` asks every GPU at `time` for `bytes_` of the load in row `a`, `offset` into its chunk."""
    region, members = m.access[g, a, y.ACCESS_REGION], m.access[g, a, y.ACCESS_MEMBERS]
    cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ
    total = new_request(m)
    m.request[total, y.REQ_GPU] = g
    m.request[total, y.REQ_KIND] = y.READ
    m.request[total, y.REQ_BYTES] = bytes_
    m.request[total, y.REQ_OWNER_KIND] = y.OWNER_SLOT
    m.request[total, y.REQ_OWNER] = q
    m.request[total, y.REQ_MEMBERS] = members
    m.slot[q, y.SLOT_PENDING] += 1
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
    """A GPU's memory has read what another GPU asked for through the switch: it goes up the link."""
    g = m.request[i, y.REQ_GPU]
    m.request[i, y.REQ_MEMBERS] = 1
    send(m, m.gpu[g, y.GPU_UP], i, now)


@shared
def pass_switch(m: Machine, i: int, now: int) -> None:
    """Message `i` is at the switch: an answer is added to its sum, a store is copied to every GPU."""
    request = m.request
    if request[i, y.REQ_OWNER_KIND] == y.OWNER_SUM:
        total = request[i, y.REQ_OWNER]
        request[total, y.REQ_MEMBERS] -= 1
        if request[total, y.REQ_MEMBERS] == 0:
            _descend(m, total, request[total, y.REQ_GPU], now)
    else:
        g, members = request[i, y.REQ_GPU], request[i, y.REQ_MEMBERS]
        for d in range(members):
            _copy(m, i, _below(m, g, d, members), d, now)
    free_request(m, i)


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
