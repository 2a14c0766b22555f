"""T3's tracker: a set-associative table of wavefront tiles that await updates, beside the memory controller.

The set index is the low bits of the workgroup's tile number, the tag the rest and the wavefront. An entry lives from a
tile's first update to its last. When a set is full, one entry is spilled to memory and fetched back at its tile's next
update; both are counted as small memory accesses.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import read_memory
from weft.engine.jit import block, shared
from weft.engine.memory import new_request
from weft.engine.memory_cache import reach
from weft.engine.state import Machine

SPILL_BASE = 1 << 44


@block
def _set_of(m: Machine, g: int, key: int) -> int:
    sets = m.gpu[g, y.GPU_TRACKER_SETS]
    width = m.entry.shape[0] // m.shape[y.SIZE_GPUS]
    return g * width + key // m.shape[y.SIZE_WAVEFRONTS] % sets  # type: ignore[no-any-return]


@shared
def _spill(m: Machine, g: int, key: int, now: int) -> None:
    m.spilled[g, key] = 1
    m.flow[g, y.FLOW_SPILLS] += 1
    m.flow[g, y.FLOW_LIVE_ENTRIES] -= 1
    i = new_request(m)
    m.request[i, y.REQ_KIND] = y.WRITE
    m.request[i, y.REQ_BYTES] = m.gpu[g, y.GPU_SPILL_BYTES]
    m.request[i, y.REQ_CAUSE] = y.CAUSE_SPILL
    m.request[i, y.REQ_STREAM] = y.COMMUNICATION_STREAM
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_NOBODY
    m.request[i, y.REQ_REGION] = y.NONE
    reach(m, i, g, SPILL_BASE + key * m.gpu[g, y.GPU_SPILL_BYTES], now)


@shared
def _take_entry(m: Machine, g: int, key: int, now: int) -> None:
    s = _set_of(m, g, key)
    ways = m.gpu[g, y.GPU_TRACKER_WAYS]
    free = y.NONE
    for w in range(ways):
        if m.entry[s, w] == y.NONE:
            free = w
            break
    if free == y.NONE:  # spill the oldest entry (FIFO): tiles that are being written now are soon written again
        _spill(m, g, m.entry[s, 0], now)
        for w in range(ways - 1):
            m.entry[s, w] = m.entry[s, w + 1]
        free = ways - 1
    m.entry[s, free] = key
    m.flow[g, y.FLOW_LIVE_ENTRIES] += 1
    m.flow[g, y.FLOW_MAX_LIVE] = max(m.flow[g, y.FLOW_MAX_LIVE], m.flow[g, y.FLOW_LIVE_ENTRIES])


@shared
def _leave_entry(m: Machine, g: int, key: int) -> None:
    s = _set_of(m, g, key)
    ways = m.gpu[g, y.GPU_TRACKER_WAYS]
    for w in range(ways):
        if m.entry[s, w] == key:
            for v in range(w, ways - 1):
                m.entry[s, v] = m.entry[s, v + 1]
            m.entry[s, ways - 1] = y.NONE
            m.flow[g, y.FLOW_LIVE_ENTRIES] -= 1
            return


@block
def wavefront_bytes(m: Machine, g: int, tile: int) -> int:
    """Size of a full wavefront tile of workgroup tile `tile` [bytes]."""
    wavefronts = m.shape[y.SIZE_WAVEFRONTS]
    return (m.tile[g, tile, y.TILE_BYTES] + wavefronts - 1) // wavefronts  # type: ignore[no-any-return]


@block
def track(m: Machine, g: int, region: int, tile: int, wavefront: int, bytes_: int, now: int) -> int:
    """Count an update; returns the DMA block that it completes, or NONE."""
    key = tile * m.shape[y.SIZE_WAVEFRONTS] + wavefront
    part = wavefront_bytes(m, g, tile)
    part = min(part, m.tile[g, tile, y.TILE_BYTES] - wavefront * part)
    if m.seen[g, key] == 0:
        _take_entry(m, g, key, now)
    elif m.spilled[g, key] == 1:
        m.spilled[g, key] = 0
        m.flow[g, y.FLOW_REFILLS] += 1
        spill = m.gpu[g, y.GPU_SPILL_BYTES]
        read_memory(
            m,
            g,
            SPILL_BASE + key * spill,
            spill,
            y.CAUSE_REFILL,
            y.COMMUNICATION_STREAM,
            now,
            y.OWNER_NOBODY,
            g,
        )
        _take_entry(m, g, key, now)
    m.seen[g, key] += bytes_
    if m.seen[g, key] < part * m.region[g, region, y.REGION_TRACKED]:
        return y.NONE
    _leave_entry(m, g, key)
    first = m.region[g, region, y.REGION_FIRST_TILE]
    size = m.shape[y.SIZE_BLOCK_TILES]
    lead = first + (tile - first) // size * size
    m.block_left[g, lead] -= 1
    return lead if m.block_left[g, lead] == 0 else y.NONE
