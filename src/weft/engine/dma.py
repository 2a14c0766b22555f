"""DMA engines: commands that read a block and store it, or update with it, at another GPU.

A command is ready when the tracker triggers it, or when the host's thread has handed it over. It reads some rows of
the tile table one after another: a block of output tiles, or the chunks of a batch of copies. With a second receiver
every byte is read once and sent twice; a chunk may also be read from another GPU's memory.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import duration
from weft.engine.cache import read_memory
from weft.engine.calendar import schedule
from weft.engine.dispatcher import count, end_kernel
from weft.engine.jit import block, shared
from weft.engine.link import address_message, new_message, send
from weft.engine.record import record_chunk
from weft.engine.state import Machine
from weft.engine.tracker import wavefront_bytes


@shared
def trigger(m: Machine, g: int, lead: int, now: int) -> None:
    """Mark the command that starts with tile `lead` as ready."""
    m.dma_log[g, lead, y.COMMAND_READY] = now
    m.dma_queue[g, m.flow[g, y.FLOW_DMA_TAIL]] = lead
    m.flow[g, y.FLOW_DMA_TAIL] += 1
    first = g * m.shape[y.SIZE_ENGINES]
    for e in range(first, first + m.gpu[g, y.GPU_DMA_ENGINES]):
        if m.engine[e, y.DMA_BLOCK] == y.NONE and _may_take(m, g, e, lead):
            start_next(m, g, e, now)
            return


@block
def _may_take(m: Machine, g: int, e: int, lead: int) -> bool:
    wanted = m.tile[g, lead, y.TILE_ENGINE]
    return wanted == 0 or wanted - 1 == e - g * m.shape[y.SIZE_ENGINES]  # type: ignore[no-any-return]


@block
def _end_of(m: Machine, g: int, lead: int) -> int:
    """One past the last tile of the command that starts with tile `lead`."""
    if m.tile[g, lead, y.TILE_COPY] > 0:
        return lead + m.tile[g, lead, y.TILE_ROWS]  # type: ignore[no-any-return]
    region = m.tile[g, lead, y.TILE_REGION]
    last = m.region[g, region, y.REGION_FIRST_TILE] + m.region[g, region, y.REGION_TILES]
    return min(lead + m.shape[y.SIZE_BLOCK_TILES], last)  # type: ignore[no-any-return]


@block
def block_bytes(m: Machine, g: int, lead: int) -> int:
    """The bytes that the command of tile `lead` reads."""
    bytes_ = 0
    for t in range(lead, _end_of(m, g, lead)):
        bytes_ += m.tile[g, t, y.TILE_BYTES]
    return bytes_


@block
def _receivers(m: Machine, g: int, tile: int) -> int:
    return 1 if m.region[g, m.tile[g, tile, y.TILE_REGION], y.REGION_ALSO_REGION] == y.NONE else 2


@block
def _sent_bytes(m: Machine, g: int, lead: int) -> int:
    """The bytes that the command of tile `lead` puts on links."""
    bytes_ = 0
    for t in range(lead, _end_of(m, g, lead)):
        bytes_ += m.tile[g, t, y.TILE_BYTES] * _receivers(m, g, t)
    return bytes_


@block
def _next_ready(m: Machine, g: int, e: int) -> int:
    """Take the first ready command that engine `e` may take out of the queue; NONE if there is none."""
    found = y.NONE
    for place in range(m.flow[g, y.FLOW_DMA_HEAD], m.flow[g, y.FLOW_DMA_TAIL]):
        lead = m.dma_queue[g, place]
        if lead != y.NONE and _may_take(m, g, e, lead):
            m.dma_queue[g, place] = y.NONE
            found = lead
            break
    head = m.flow[g, y.FLOW_DMA_HEAD]
    while head < m.flow[g, y.FLOW_DMA_TAIL] and m.dma_queue[g, head] == y.NONE:
        head += 1
    m.flow[g, y.FLOW_DMA_HEAD] = head
    return found


@shared
def start_next(m: Machine, g: int, e: int, now: int) -> None:
    """Let an idle engine take the next ready command; its set-up begins."""
    lead = _next_ready(m, g, e)
    m.engine[e, y.DMA_BLOCK] = lead
    if lead == y.NONE:
        return
    m.engine[e, y.DMA_TILE] = lead
    m.engine[e, y.DMA_POSITION] = 0
    m.engine[e, y.DMA_LEFT] = block_bytes(m, g, lead)
    m.engine[e, y.DMA_UNSENT] = _sent_bytes(m, g, lead)
    m.engine[e, y.DMA_FLIGHT] = 0
    m.dma_log[g, lead, y.COMMAND_START] = now
    m.dma_log[g, lead, y.COMMAND_BYTES] = m.engine[e, y.DMA_UNSENT]
    m.dma_log[g, lead, y.COMMAND_ENGINE] = e - g * m.shape[y.SIZE_ENGINES]
    schedule(m, now + m.gpu[g, y.GPU_DMA_SETUP], y.EV_DMA, e)


@shared
def pump(m: Machine, e: int, now: int) -> None:
    """Read on while the engine has room and time. A request never crosses a wavefront tile."""
    g = e // m.shape[y.SIZE_ENGINES]
    engine = m.engine
    if now >= engine[e, y.DMA_FREE]:
        engine[e, y.DMA_WAKE] = 0
    while engine[e, y.DMA_LEFT] > 0 and engine[e, y.DMA_FLIGHT] < m.gpu[g, y.GPU_DMA_WINDOW]:
        if engine[e, y.DMA_FREE] > now:
            _wake(m, e)
            return
        tile, position = engine[e, y.DMA_TILE], engine[e, y.DMA_POSITION]
        size = m.tile[g, tile, y.TILE_BYTES]
        bytes_ = _read(m, g, e, tile, position, now)
        sent = bytes_ * _receivers(m, g, tile)
        engine[e, y.DMA_LEFT] -= bytes_
        engine[e, y.DMA_FLIGHT] += sent
        engine[e, y.DMA_FREE] = now + duration(sent, m.gpu[g, y.GPU_DMA_RATE64])
        engine[e, y.DMA_POSITION] += bytes_
        if engine[e, y.DMA_POSITION] >= size:
            engine[e, y.DMA_TILE] += 1
            engine[e, y.DMA_POSITION] = 0
            if m.tile[g, tile, y.TILE_COPY] > 0:  # the next copy of a batch is set up while data is on its way
                engine[e, y.DMA_FREE] += m.gpu[g, y.GPU_DMA_SETUP]


@block
def _wake(m: Machine, e: int) -> None:
    """See to it that a busy engine reads on as soon as its own part is free."""
    if m.engine[e, y.DMA_WAKE] == 0:
        m.engine[e, y.DMA_WAKE] = 1
        schedule(m, m.engine[e, y.DMA_FREE], y.EV_DMA, e)


@block
def _read(m: Machine, g: int, e: int, tile: int, position: int, now: int) -> int:
    """Ask the memory for the next bytes of a tile, `position` bytes into it; returns how many."""
    part = wavefront_bytes(m, g, tile)
    end = min((position // part + 1) * part, m.tile[g, tile, y.TILE_BYTES])
    bytes_ = min(m.shape[y.SIZE_REQUEST], end - position)
    region = m.tile[g, tile, y.TILE_REGION]
    source = m.region[g, region, y.REGION_SOURCE]
    asked = now + m.region[g, region, y.REGION_SOURCE_LATENCY]
    address = m.region[source, region, y.REGION_BASE] + m.tile[g, tile, y.TILE_OFFSET] + position
    cause = m.region[g, region, y.REGION_DMA_CAUSE]
    i = m.clock[y.CLOCK_FREE_REQUEST]  # the row that read_memory takes next
    read_memory(m, source, address, bytes_, cause, y.COMMUNICATION_STREAM, asked, y.OWNER_ENGINE, e)
    m.request[i, y.REQ_REGION] = region
    m.request[i, y.REQ_TILE] = tile
    m.request[i, y.REQ_WAVEFRONT] = position // part
    return bytes_  # type: ignore[no-any-return]


@block
def forward(m: Machine, i: int, now: int) -> None:
    """Data read by an engine goes onto the link, as a store or an update of a region of its receiver, or of both."""
    request = m.request
    g = request[i, y.REQ_GPU]
    region = request[i, y.REQ_REGION]
    offset = request[i, y.REQ_ADDRESS] - m.region[g, region, y.REGION_BASE]
    update = m.region[g, region, y.REGION_DMA_MODE] == y.REMOTE_UPDATE
    target = m.region[g, region, y.REGION_DMA_REGION]
    receiver = m.region[g, region, y.REGION_TARGET]
    tile = (
        request[i, y.REQ_TILE]
        - m.region[g, region, y.REGION_FIRST_TILE]
        + m.region[receiver, target, y.REGION_FIRST_TILE]
    )
    wavefront = request[i, y.REQ_WAVEFRONT]
    record_chunk(m, g, region, y.CHUNK_FIRST_SENT, now)
    cause = m.region[g, region, y.REGION_DMA_REMOTE_CAUSE]
    also = m.region[g, region, y.REGION_ALSO_REGION]
    if also != y.NONE:
        second = m.region[g, region, y.REGION_ALSO_TARGET]
        copy = new_message(
            m, g, second, also, offset, request[i, y.REQ_BYTES], update, cause, y.OWNER_ENGINE,
            request[i, y.REQ_OWNER], tile, wavefront,
        )  # fmt: skip
        send(m, m.region[g, region, y.REGION_ALSO_ROUTE], copy, now)
    address_message(m, i, g, receiver, target, offset, update, cause, tile, wavefront)
    send(m, m.region[g, region, y.REGION_ROUTE], i, now)


@block
def departed(m: Machine, e: int, bytes_: int, now: int) -> None:
    """Bytes of a command have left on the link: read on, or finish the command and take the next."""
    g = e // m.shape[y.SIZE_ENGINES]
    m.engine[e, y.DMA_FLIGHT] -= bytes_
    m.engine[e, y.DMA_UNSENT] -= bytes_
    if m.engine[e, y.DMA_UNSENT] > 0:
        pump(m, e, now)
        return
    lead = m.engine[e, y.DMA_BLOCK]
    m.dma_log[g, lead, y.COMMAND_END] = now
    counter = m.region[g, m.tile[g, lead, y.TILE_REGION], y.REGION_SENT_COUNTER]
    if counter != y.NONE:
        count(m, g, counter, m.dma_log[g, lead, y.COMMAND_BYTES], now)
    start_next(m, g, e, now)
    if m.tile[g, lead, y.TILE_COPY] > 0:
        _copied(m, g, m.tile[g, lead, y.TILE_COPY] - 1, now)


@shared
def start_copies(m: Machine, g: int, k: int, now: int) -> None:
    """A kernel whose work is copies has been launched: give its commands to the engines, or when the host has."""
    lead = m.kernel[g, k, y.KERNEL_FIRST_COPY]
    for _ in range(m.kernel[g, k, y.KERNEL_COPIES]):
        after = m.tile[g, lead, y.TILE_AFTER]
        if after == 0:
            trigger(m, g, lead, now)
        else:
            schedule(m, now + after, y.EV_COMMAND, g * m.shape[y.SIZE_TILES] + lead)
        lead += m.tile[g, lead, y.TILE_ROWS]


@block
def _copied(m: Machine, g: int, k: int, now: int) -> None:
    """The last byte of a command has left; after the last command its kernel is over, when whoever waits knows."""
    m.kernel_run[g, k, y.RUN_FINISHED] += 1
    if m.kernel_run[g, k, y.RUN_FINISHED] < m.kernel[g, k, y.KERNEL_COPIES]:
        return
    if m.kernel[g, k, y.KERNEL_COMPLETION] == 0:
        end_kernel(m, g, k, now)
    else:
        schedule(m, now + m.kernel[g, k, y.KERNEL_COMPLETION], y.EV_COMPLETE, g * m.shape[y.SIZE_KERNELS] + k)
