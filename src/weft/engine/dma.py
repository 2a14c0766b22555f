"""DMA engines: commands that read a block and store it, or update with it, at another GPU.

A command is ready when the tracker triggers it, or when the host's thread has handed it over. It reads some rows of
the tile table one after another: a block of output tiles, or the chunks of a batch of copies. With a second receiver
every byte is read once and sent twice; a chunk may also be read from another GPU's memory.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import read_memory
from weft.engine.calendar import schedule
from weft.engine.dispatcher import count, end_kernel
from weft.engine.jit import block, shared, spliced
from weft.engine.link import address_message, new_message, peer, send
from weft.engine.record import record_chunk
from weft.engine.state import Machine
from weft.engine.tracker import wavefront_bytes


@shared
def trigger(m: Machine, g: int, lead: int, now: int) -> None:
    """Mark the command that starts with tile `lead` as ready."""
    m.dma_log[g, lead, y.DL_READY] = now
    m.dma_queue[g, m.flow[g, y.F_DMA_TAIL]] = lead
    m.flow[g, y.F_DMA_TAIL] += 1
    first = g * m.shape[y.S_ENGINES]
    for e in range(first, first + m.gpu[g, y.G_DMA_ENGINES]):
        if m.engine[e, y.E_BLOCK] == y.NONE and _may_take(m, g, e, lead):
            start_next(m, g, e, now)
            return


@block
def _may_take(m: Machine, g: int, e: int, lead: int) -> bool:
    wanted = m.tile[g, lead, y.TI_ENGINE]
    return wanted == 0 or wanted - 1 == e - g * m.shape[y.S_ENGINES]  # type: ignore[no-any-return]


@block
def _end_of(m: Machine, g: int, lead: int) -> int:
    """One past the last tile of the command that starts with tile `lead`."""
    if m.tile[g, lead, y.TI_COPY] > 0:
        return lead + m.tile[g, lead, y.TI_ROWS]  # type: ignore[no-any-return]
    region = m.tile[g, lead, y.TI_REGION]
    last = m.region[g, region, y.M_FIRST_TILE] + m.region[g, region, y.M_TILES]
    return min(lead + m.shape[y.S_BLOCK_TILES], last)  # type: ignore[no-any-return]


@block
def block_bytes(m: Machine, g: int, lead: int) -> int:
    """The bytes that the command of tile `lead` reads."""
    bytes_ = 0
    for t in range(lead, _end_of(m, g, lead)):
        bytes_ += m.tile[g, t, y.TI_BYTES]
    return bytes_


@block
def _receivers(m: Machine, g: int, tile: int) -> int:
    return 1 if m.region[g, m.tile[g, tile, y.TI_REGION], y.M_ALSO_REGION] == y.NONE else 2


@spliced
def _sent_bytes(m: Machine, g: int, lead: int) -> int:
    """The bytes that the command of tile `lead` puts on links."""
    bytes_ = 0
    for t in range(lead, _end_of(m, g, lead)):
        bytes_ += m.tile[g, t, y.TI_BYTES] * _receivers(m, g, t)
    return bytes_


@spliced
def _next_ready(m: Machine, g: int, e: int) -> int:
    """Take the first ready command that engine `e` may take out of the queue; NONE if there is none."""
    found = y.NONE
    for place in range(m.flow[g, y.F_DMA_HEAD], m.flow[g, y.F_DMA_TAIL]):
        lead = m.dma_queue[g, place]
        if lead != y.NONE and _may_take(m, g, e, lead):
            m.dma_queue[g, place] = y.NONE
            found = lead
            break
    head = m.flow[g, y.F_DMA_HEAD]
    while head < m.flow[g, y.F_DMA_TAIL] and m.dma_queue[g, head] == y.NONE:
        head += 1
    m.flow[g, y.F_DMA_HEAD] = head
    return found


@shared
def start_next(m: Machine, g: int, e: int, now: int) -> None:
    """Let an idle engine take the next ready command; its set-up begins."""
    lead = _next_ready(m, g, e)
    m.engine[e, y.E_BLOCK] = lead
    if lead == y.NONE:
        return
    m.engine[e, y.E_TILE] = lead
    m.engine[e, y.E_POSITION] = 0
    m.engine[e, y.E_LEFT] = block_bytes(m, g, lead)
    m.engine[e, y.E_UNSENT] = _sent_bytes(m, g, lead)
    m.engine[e, y.E_FLIGHT] = 0
    m.dma_log[g, lead, y.DL_START] = now
    m.dma_log[g, lead, y.DL_BYTES] = m.engine[e, y.E_UNSENT]
    m.dma_log[g, lead, y.DL_ENGINE] = e - g * m.shape[y.S_ENGINES]
    schedule(m, now + m.gpu[g, y.G_DMA_SETUP], y.EV_DMA, e)


@shared
def pump(m: Machine, e: int, now: int) -> None:
    """Read on while the engine has room and time. A request never crosses a wavefront tile."""
    g = e // m.shape[y.S_ENGINES]
    n = m.engine
    if now >= n[e, y.E_FREE]:
        n[e, y.E_WAKE] = 0
    while n[e, y.E_LEFT] > 0 and n[e, y.E_FLIGHT] < m.gpu[g, y.G_DMA_WINDOW]:
        if n[e, y.E_FREE] > now:
            _wake(m, e)
            return
        tile, position = n[e, y.E_TILE], n[e, y.E_POSITION]
        size = m.tile[g, tile, y.TI_BYTES]
        bytes_ = _read(m, g, e, tile, position, now)
        sent = bytes_ * _receivers(m, g, tile)
        n[e, y.E_LEFT] -= bytes_
        n[e, y.E_FLIGHT] += sent
        n[e, y.E_FREE] = now + sent * m.gpu[g, y.G_DMA_RATE64] // 64
        n[e, y.E_POSITION] += bytes_
        if n[e, y.E_POSITION] >= size:
            n[e, y.E_TILE] += 1
            n[e, y.E_POSITION] = 0
            if m.tile[g, tile, y.TI_COPY] > 0:  # the next copy of a batch is set up while data is on its way
                n[e, y.E_FREE] += m.gpu[g, y.G_DMA_SETUP]


@spliced
def _wake(m: Machine, e: int) -> None:
    """See to it that a busy engine reads on as soon as its own part is free."""
    if m.engine[e, y.E_WAKE] == 0:
        m.engine[e, y.E_WAKE] = 1
        schedule(m, m.engine[e, y.E_FREE], y.EV_DMA, e)


@block
def _read(m: Machine, g: int, e: int, tile: int, position: int, now: int) -> int:
    """Ask the memory for the next bytes of a tile, `position` bytes into it; returns how many."""
    part = wavefront_bytes(m, g, tile)
    end = min((position // part + 1) * part, m.tile[g, tile, y.TI_BYTES])
    bytes_ = min(m.shape[y.S_REQUEST], end - position)
    region = m.tile[g, tile, y.TI_REGION]
    away = m.region[g, region, y.M_SOURCE]
    source = peer(m, g, away)
    asked = now + m.gpu[g, y.G_LINK_LATENCY] if away > 0 else now
    address = m.region[source, region, y.M_BASE] + m.tile[g, tile, y.TI_OFFSET] + position
    cause = m.region[g, region, y.M_DMA_CAUSE]
    i = m.clock[y.C_FREE_REQUEST]  # the row that read_memory takes next
    read_memory(m, source, address, bytes_, cause, y.COMMUNICATION_STREAM, asked, y.OWNER_ENGINE, e)
    m.request[i, y.R_REGION] = region
    m.request[i, y.R_TILE] = tile
    m.request[i, y.R_WAVEFRONT] = position // part
    return bytes_  # type: ignore[no-any-return]


@spliced
def forward(m: Machine, i: int, now: int) -> None:
    """Data read by an engine goes onto the link, as a store or an update of a region of its receiver, or of both."""
    r = m.request
    g = r[i, y.R_GPU]
    region = r[i, y.R_REGION]
    offset = r[i, y.R_ADDRESS] - m.region[g, region, y.M_BASE]
    update = m.region[g, region, y.M_DMA_MODE] == y.REMOTE_UPDATE
    target = m.region[g, region, y.M_DMA_REGION]
    receiver = peer(m, g, m.region[g, region, y.M_HOPS])
    tile = r[i, y.R_TILE] - m.region[g, region, y.M_FIRST_TILE] + m.region[receiver, target, y.M_FIRST_TILE]
    wavefront = r[i, y.R_WAVEFRONT]
    record_chunk(m, g, region, y.CL_FIRST_SENT, now)
    cause = m.region[g, region, y.M_DMA_REMOTE_CAUSE]
    also = m.region[g, region, y.M_ALSO_REGION]
    if also != y.NONE:
        second = peer(m, g, m.region[g, region, y.M_ALSO_HOPS])
        copy = new_message(
            m, g, second, also, offset, r[i, y.R_BYTES], update, cause, y.OWNER_ENGINE, r[i, y.R_OWNER], tile,
            wavefront,
        )  # fmt: skip
        send(m, g, m.region[g, region, y.M_ALSO_PORT], copy, now)
    address_message(m, i, g, receiver, target, offset, update, cause, tile, wavefront)
    send(m, g, m.region[g, region, y.M_PORT], i, now)


@spliced
def departed(m: Machine, e: int, bytes_: int, now: int) -> None:
    """Bytes of a command have left on the link: read on, or finish the command and take the next."""
    g = e // m.shape[y.S_ENGINES]
    m.engine[e, y.E_FLIGHT] -= bytes_
    m.engine[e, y.E_UNSENT] -= bytes_
    if m.engine[e, y.E_UNSENT] > 0:
        pump(m, e, now)
        return
    lead = m.engine[e, y.E_BLOCK]
    m.dma_log[g, lead, y.DL_END] = now
    counter = m.region[g, m.tile[g, lead, y.TI_REGION], y.M_SENT_COUNTER]
    if counter != y.NONE:
        count(m, g, counter, m.dma_log[g, lead, y.DL_BYTES], now)
    start_next(m, g, e, now)
    if m.tile[g, lead, y.TI_COPY] > 0:
        _copied(m, g, m.tile[g, lead, y.TI_COPY] - 1, now)


@shared
def start_copies(m: Machine, g: int, k: int, now: int) -> None:
    """A kernel whose work is copies has been launched: give its commands to the engines, or when the host has."""
    lead = m.kernel[g, k, y.K_FIRST_COPY]
    for _ in range(m.kernel[g, k, y.K_COPIES]):
        after = m.tile[g, lead, y.TI_AFTER]
        if after == 0:
            trigger(m, g, lead, now)
        else:
            schedule(m, now + after, y.EV_COMMAND, g * m.shape[y.S_TILES] + lead)
        lead += m.tile[g, lead, y.TI_ROWS]


@spliced
def _copied(m: Machine, g: int, k: int, now: int) -> None:
    """The last byte of a command has left; after the last command its kernel is over, when whoever waits knows."""
    m.kernel_run[g, k, y.KR_DONE] += 1
    if m.kernel_run[g, k, y.KR_DONE] < m.kernel[g, k, y.K_COPIES]:
        return
    if m.kernel[g, k, y.K_COMPLETION] == 0:
        end_kernel(m, g, k, now)
    else:
        schedule(m, now + m.kernel[g, k, y.K_COMPLETION], y.EV_COMPLETE, g * m.shape[y.S_KERNELS] + k)
