"""The store buffer between compute units and links: a store to a peer leaves its workgroup when the buffer took it.

It holds `GPU_STORE_BUFFER` bytes of stores that their link has not sent. A store that finds room, and no earlier one
waiting for it, is taken at once. Others wait, and are taken in the order of their stores, or when their link has sent
them: the order in which links serve compute units does not depend on the buffer.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block, shared
from weft.engine.state import Machine


@block
def takes(m: Machine, g: int, bytes_: int) -> bool:
    """Whether the buffer of GPU `g` has room for a store now, and none that came before it waits; it then holds it."""
    flow = m.flow
    if flow[g, y.FLOW_BUFFER_FIRST] != 0 or flow[g, y.FLOW_BUFFERED] + bytes_ > m.gpu[g, y.GPU_STORE_BUFFER]:
        return False
    flow[g, y.FLOW_BUFFERED] += bytes_
    return True


@shared
def wait_for_room(m: Machine, g: int, i: int) -> None:
    """Store `i` of GPU `g` waits behind the others for room in the buffer."""
    last = m.flow[g, y.FLOW_BUFFER_LAST]
    m.request[i, y.REQ_BEHIND], m.request[i, y.REQ_BEFORE] = 0, last
    if last == 0:
        m.flow[g, y.FLOW_BUFFER_FIRST] = i + 1
    else:
        m.request[last - 1, y.REQ_BEHIND] = i + 1
    m.flow[g, y.FLOW_BUFFER_LAST] = i + 1


@shared
def give_up(m: Machine, g: int, i: int) -> None:
    """Store `i` of GPU `g` waits no longer for room."""
    behind, before = m.request[i, y.REQ_BEHIND], m.request[i, y.REQ_BEFORE]
    if before == 0:
        m.flow[g, y.FLOW_BUFFER_FIRST] = behind
    else:
        m.request[before - 1, y.REQ_BEHIND] = behind
    if behind == 0:
        m.flow[g, y.FLOW_BUFFER_LAST] = before
    else:
        m.request[behind - 1, y.REQ_BEFORE] = before


@shared
def next_taken(m: Machine, g: int) -> int:
    """Take the store that waits longest for the buffer of GPU `g`, if there is room for it now; else NONE."""
    i = m.flow[g, y.FLOW_BUFFER_FIRST] - 1
    if i == y.NONE:
        return y.NONE
    bytes_ = m.request[i, y.REQ_BYTES]
    if m.flow[g, y.FLOW_BUFFERED] + bytes_ > m.gpu[g, y.GPU_STORE_BUFFER]:
        return y.NONE
    give_up(m, g, i)
    m.flow[g, y.FLOW_BUFFERED] += bytes_
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_BUFFERED
    return i  # type: ignore[no-any-return]
