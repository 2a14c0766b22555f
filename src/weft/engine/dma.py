"""DMA engines: commands that read a block here and store it, or update with it, at another GPU."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import read_memory
from weft.engine.calendar import schedule
from weft.engine.dispatcher import count, end_kernel
from weft.engine.jit import block, shared
from weft.engine.link import address_message, peer, send
from weft.engine.record import record_chunk
from weft.engine.state import Machine
from weft.engine.tracker import wavefront_bytes


@shared
def trigger(m: Machine, g: int, lead: int, now: int) -> None:
    """Mark the command of the block that starts with tile `lead` as ready."""
    m.dma_log[g, lead, y.DL_READY] = now
    m.dma_queue[g, m.flow[g, y.F_DMA_TAIL]] = lead
    m.flow[g, y.F_DMA_TAIL] += 1
    first = g * m.shape[y.S_ENGINES]
    for e in range(first, first + m.gpu[g, y.G_DMA_ENGINES]):
        if m.engine[e, y.E_BLOCK] == y.NONE:
            start_next(m, g, e, now)
            return


@block
def block_bytes(m: Machine, g: int, lead: int) -> int:
    """The bytes of the DMA block that starts with tile `lead`."""
    region = m.tile[g, lead, y.TI_REGION]
    last = min(
        lead + m.shape[y.S_BLOCK_TILES], m.region[g, region, y.M_FIRST_TILE] + m.region[g, region, y.M_TILES]
    )
    bytes_ = 0
    for t in range(lead, last):
        bytes_ += m.tile[g, t, y.TI_BYTES]
    return bytes_


@shared
def start_next(m: Machine, g: int, e: int, now: int) -> None:
    """Let an idle engine take the next ready command; its set-up begins."""
    head = m.flow[g, y.F_DMA_HEAD]
    if head == m.flow[g, y.F_DMA_TAIL]:
        m.engine[e, y.E_BLOCK] = y.NONE
        return
    m.flow[g, y.F_DMA_HEAD] = head + 1
    lead = m.dma_queue[g, head]
    bytes_ = block_bytes(m, g, lead)
    m.engine[e, y.E_BLOCK] = lead
    m.engine[e, y.E_TILE] = lead
    m.engine[e, y.E_POSITION] = 0
    m.engine[e, y.E_LEFT] = bytes_
    m.engine[e, y.E_UNSENT] = bytes_
    m.engine[e, y.E_FLIGHT] = 0
    m.dma_log[g, lead, y.DL_START] = now
    m.dma_log[g, lead, y.DL_BYTES] = bytes_
    m.dma_log[g, lead, y.DL_ENGINE] = e - g * m.shape[y.S_ENGINES]
    schedule(m, now + m.gpu[g, y.G_DMA_SETUP], y.EV_DMA, e)


@shared
def pump(m: Machine, e: int, now: int) -> None:
    """Read on while the engine's window has room. A request never crosses a wavefront tile."""
    g = e // m.shape[y.S_ENGINES]
    n = m.engine
    while n[e, y.E_LEFT] > 0 and n[e, y.E_FLIGHT] < m.gpu[g, y.G_DMA_WINDOW]:
        tile, position = n[e, y.E_TILE], n[e, y.E_POSITION]
        part = wavefront_bytes(m, g, tile)
        size = m.tile[g, tile, y.TI_BYTES]
        end = min((position // part + 1) * part, size)
        bytes_ = min(m.shape[y.S_REQUEST], end - position)
        region = m.tile[g, tile, y.TI_REGION]
        address = m.region[g, region, y.M_BASE] + m.tile[g, tile, y.TI_OFFSET] + position
        i = m.clock[y.C_FREE_REQUEST]  # the row that read_memory takes next
        read_memory(
            m,
            g,
            address,
            bytes_,
            m.region[g, region, y.M_DMA_CAUSE],
            y.COMMUNICATION_STREAM,
            now,
            y.OWNER_ENGINE,
            e,
        )
        m.request[i, y.R_REGION] = region
        m.request[i, y.R_TILE] = tile
        m.request[i, y.R_WAVEFRONT] = position // part
        n[e, y.E_LEFT] -= bytes_
        n[e, y.E_FLIGHT] += bytes_
        n[e, y.E_POSITION] += bytes_
        if n[e, y.E_POSITION] >= size:
            n[e, y.E_TILE] += 1
            n[e, y.E_POSITION] = 0


@block
def forward(m: Machine, i: int, now: int) -> None:
    """Data read by an engine goes onto the link, as a store or an update of the neighbour's region."""
    r = m.request
    g = r[i, y.R_GPU]
    region = r[i, y.R_REGION]
    offset = r[i, y.R_ADDRESS] - m.region[g, region, y.M_BASE]
    update = m.region[g, region, y.M_DMA_MODE] == y.REMOTE_UPDATE
    target = m.region[g, region, y.M_DMA_REGION]
    receiver = peer(m, g, m.region[g, region, y.M_HOPS])
    tile = r[i, y.R_TILE] - m.region[g, region, y.M_FIRST_TILE] + m.region[receiver, target, y.M_FIRST_TILE]
    record_chunk(m, g, region, y.CL_FIRST_SENT, now)
    cause = m.region[g, region, y.M_DMA_REMOTE_CAUSE]
    address_message(m, i, g, receiver, target, offset, update, cause, tile, r[i, y.R_WAVEFRONT])
    send(m, g, i, now)


@block
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
    """A kernel whose work is copies has been launched: give its commands to the engines."""
    first = m.kernel[g, k, y.K_FIRST_COPY]
    for lead in range(first, first + m.kernel[g, k, y.K_COPIES]):
        trigger(m, g, lead, now)


@block
def _copied(m: Machine, g: int, k: int, now: int) -> None:
    """The last byte of a copy has left; after the last copy its kernel is over."""
    m.kernel_run[g, k, y.KR_DONE] += 1
    if m.kernel_run[g, k, y.KR_DONE] == m.kernel[g, k, y.K_COPIES]:
        end_kernel(m, g, k, now)
