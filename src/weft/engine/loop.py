"""The event loop: take the first event, let its block act, pass on what follows from it."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import brings_more, complete_from, filled, release_waiter
from weft.engine.calendar import INDEX_MASK, KIND_SHIFT, pending, schedule, settle, take
from weft.engine.dispatcher import consider_launch, count, end_kernel, launch, released, retire
from weft.engine.dma import block_bytes, departed, forward, pump, start_copies, trigger
from weft.engine.jit import block, entry, shared
from weft.engine.link import arrive, depart, hop
from weft.engine.memory import free_request, look, starved, woken
from weft.engine.memory_cache import begin_used, fill
from weft.engine.pim import begin_commands, give_commands
from weft.engine.record import record_chunk, record_load, record_traffic, record_update
from weft.engine.state import WAITER_NEXT, WAITER_SLOT, Machine
from weft.engine.store_buffer import give_up, next_taken
from weft.engine.switch import answer, asked_by, expire, pass_switch
from weft.engine.tracker import track
from weft.engine.workgroup import (
    arrived,
    begin_iteration,
    begin_phase,
    compute_next,
    finish_iteration,
    phase_row,
    store_iteration,
    work_row,
)


@block
def _on_memory(m: Machine, kind: int, index: int, now: int, policy) -> None:  # type: ignore[no-untyped-def]
    """A channel looks for work, a read brings its data, or the memory-side cache has taken a write."""
    i, done = index, now
    if kind == y.EV_CHANNEL or kind == y.EV_PIM:
        if not woken(m, index, now) and kind == y.EV_CHANNEL:
            return
        i = look(m, index, now, policy)
        if m.pim.shape[0] > 0:
            give_commands(m, index, now)
        if i == y.NONE:
            return
        _served(m, i, now)
        if m.request[i, y.REQ_KIND] == y.READ:
            done = m.request[i, y.REQ_ARRIVE] + m.gpu[m.request[i, y.REQ_GPU], y.GPU_MEMORY_LATENCY]
            if _read_needs_event(m, i, now):
                schedule(m, done, y.EV_READ_DONE, i)
                return
    if m.request[i, y.REQ_KIND] == y.READ:
        _on_read(m, i, done, now)
    else:
        _on_taken(m, i, now)


@block
def _served(m: Machine, i: int, now: int) -> None:
    """Count request `i`, which the DRAM has taken."""
    request = m.request
    g = request[i, y.REQ_GPU]
    record_traffic(m, g, request[i, y.REQ_CAUSE], request[i, y.REQ_BYTES], now)
    m.clock[y.CLOCK_REQUESTS] += 1
    if request[i, y.REQ_STREAM] == y.COMPUTE_STREAM:
        m.flow[g, y.FLOW_MONITOR_BYTES] += request[i, y.REQ_BYTES]


@block
def _read_needs_event(m: Machine, i: int, now: int) -> bool:
    """Whether the end of read `i` does more than complete loads, which needs no event: they take the time as it is."""
    owner_kind = m.request[i, y.REQ_OWNER_KIND]
    if m.shape[y.SIZE_SIDE_SETS] > 0 or owner_kind == y.OWNER_ENGINE or owner_kind == y.OWNER_SUM:
        return True
    return owner_kind == y.OWNER_LINE and brings_more(m, m.request[i, y.REQ_OWNER], now)


@block
def _on_taken(m: Machine, i: int, now: int) -> None:
    """Memory has taken a write or an update: who waited for that goes on."""
    request = m.request
    g = request[i, y.REQ_GPU]
    if request[i, y.REQ_REGION] >= 0:
        _on_written(m, i, g, now)
    if request[i, y.REQ_OWNER_KIND] == y.OWNER_SLOT:
        arrived(m, request[i, y.REQ_OWNER], now, y.FROM_MEMORY)
    elif request[i, y.REQ_OWNER_KIND] == y.OWNER_RELEASE:
        released(m, g, request[i, y.REQ_OWNER], now)
    free_request(m, i)


@block
def _on_written(m: Machine, i: int, g: int, now: int) -> None:
    """A store or an update of a mapped region: track it, count it, trigger what it completes."""
    request = m.request
    region, bytes_ = request[i, y.REQ_REGION], request[i, y.REQ_BYTES]
    remote = request[i, y.REQ_OWNER_KIND] == y.OWNER_REMOTE
    record_chunk(m, g, region, y.CHUNK_FIRST_REMOTE if remote else y.CHUNK_FIRST_LOCAL, now)
    counter = m.region[g, region, y.REGION_COUNTER]
    if counter != y.NONE and m.region[g, region, y.REGION_LANED] == 1:
        counter += request[i, y.REQ_TILE]
    if m.region[g, region, y.REGION_TRACKED] > 0:
        if m.update_log.shape[0] > 0:
            owner, key = request[i, y.REQ_OWNER], request[i, y.REQ_TILE] * m.shape[y.SIZE_WAVEFRONTS]
            maker = owner if remote else m.work[g, work_row(m, owner // y.SLOTS), y.WORK_SCRIPT]
            record_update(m, g, key + request[i, y.REQ_WAVEFRONT], remote, maker, now)
        if remote and m.merging.shape[1] > 0 and m.summed.shape[1] > 0:
            bytes_ *= request[i, y.REQ_WEIGHT]
        lead = track(m, g, region, request[i, y.REQ_TILE], request[i, y.REQ_WAVEFRONT], bytes_, now)
        if lead == y.NONE:
            return
        m.chunk_log[g, region, y.CHUNK_COMPLETE] = now
        if m.region[g, region, y.REGION_DMA_MODE] != y.NONE:
            trigger(m, g, lead, now)
        bytes_ = block_bytes(m, g, lead)
    elif not remote and m.region[g, region, y.REGION_TRACKED] == 0:
        return
    if counter != y.NONE:
        count(m, g, counter, bytes_, now)


@block
def _on_read(m: Machine, i: int, done: int, now: int) -> None:
    """Read `i` brings its data at `done`: complete the loads that wait for it."""
    request = m.request
    kind, owner, g = request[i, y.REQ_OWNER_KIND], request[i, y.REQ_OWNER], request[i, y.REQ_GPU]
    if m.shape[y.SIZE_SIDE_SETS] > 0 and request[i, y.REQ_FILLS] != y.NONE:
        fill(m, i, now)
    if kind == y.OWNER_ENGINE:
        forward(m, i, now)
        return
    if kind == y.OWNER_SUM:
        answer(m, i, now)
        return
    came_from = request[i, y.REQ_FROM] if m.shape[y.SIZE_SIDE_SETS] > 0 else y.FROM_MEMORY
    free_request(m, i)
    if kind == y.OWNER_SLOT:
        arrived(m, owner, done + m.gpu[g, y.GPU_CACHE_BACK], came_from)
    elif kind == y.OWNER_LINE:
        node = filled(m, i, done, now)
        while node != y.NONE:
            following = m.waiter[node, WAITER_NEXT]
            present = max(done, complete_from(m, owner, node))
            if present < y.NEVER:
                arrived(m, m.waiter[node, WAITER_SLOT], present + m.gpu[g, y.GPU_CACHE_BACK], came_from)
                release_waiter(m, node)
            node = following


@block
def _on_link(m: Machine, k: int, now: int) -> None:
    """A message has left its GPU by link `k`: its sender goes on, and memory is told of it if its arrival is known."""
    i = depart(m, k, now)
    owner = m.request[i, y.REQ_OWNER]
    if m.request[i, y.REQ_KIND] == y.UPDATE:
        m.flow[m.request[i, y.REQ_GPU], y.FLOW_SENT] += m.request[i, y.REQ_BYTES]
    if m.request[i, y.REQ_OWNER_KIND] == y.OWNER_SLOT:
        if m.gpu[m.request[i, y.REQ_GPU], y.GPU_STORE_BUFFER] > 0 and m.request[i, y.REQ_MEMBERS] == 0:
            give_up(m, m.request[i, y.REQ_GPU], i)
        g, k = m.request[i, y.REQ_GPU], m.resident[owner // y.SLOTS, y.WG_KERNEL]
        column = y.KERNEL_ACKNOWLEDGE_BUSY if m.flow[g, y.FLOW_TILED] > 0 else y.KERNEL_ACKNOWLEDGE
        arrived(m, owner, now + m.kernel[g, k, column], y.FROM_LINK)
    elif m.request[i, y.REQ_OWNER_KIND] == y.OWNER_BUFFERED:
        _leave_buffer(m, m.request[i, y.REQ_GPU], m.request[i, y.REQ_BYTES], now)
    elif m.request[i, y.REQ_OWNER_KIND] == y.OWNER_ENGINE:
        departed(m, owner, m.request[i, y.REQ_BYTES], now)
    if m.request[i, y.REQ_TICKET] == 1:
        arrive(m, i, m.request[i, y.REQ_ARRIVE])


@shared
def _leave_buffer(m: Machine, g: int, bytes_: int, now: int) -> None:
    """A link has sent `bytes_` of the store buffer of GPU `g`: stores that waited for room leave their workgroups."""
    m.flow[g, y.FLOW_BUFFERED] -= bytes_
    i = next_taken(m, g)
    while i != y.NONE:
        arrived(m, m.request[i, y.REQ_OWNER], now, y.FROM_LINK)
        i = next_taken(m, g)


@block
def _on_arrive(m: Machine, i: int, now: int) -> None:
    """A message is at the switch that works on it, or at its receiver: what a slot waits for, or a store."""
    if m.request[i, y.REQ_MEMBERS] > 0:
        pass_switch(m, i, now)
    elif m.request[i, y.REQ_KIND] == y.READ:
        _on_answer(m, i, now)
    else:
        arrive(m, i, now)


@shared
def _on_answer(m: Machine, i: int, now: int) -> None:
    """What a slot asked other GPUs for has come: it is complete, or all loads that wait for the line that it fills."""
    total = asked_by(m, i)
    back = now + m.gpu[m.request[total, y.REQ_GPU], y.GPU_CACHE_BACK]
    line, q = m.request[total, y.REQ_FILLS], m.request[total, y.REQ_OWNER]
    if line == y.NONE:
        arrived(m, q, back, y.FROM_LINK)
    else:
        m.request[i, y.REQ_OWNER] = line
        node = filled(m, i, now, now)
        while node != y.NONE:
            following = m.waiter[node, WAITER_NEXT]
            if complete_from(m, line, node) < y.NEVER:
                arrived(m, m.waiter[node, WAITER_SLOT], back, y.FROM_LINK)
                release_waiter(m, node)
            node = following
    if total != i:
        free_request(m, total)
    free_request(m, i)


@block
def _on_slot(m: Machine, q: int, now: int) -> None:
    state = m.slot[q, y.SLOT_STATE]
    if state == y.SLOT_FREE:
        begin_iteration(m, q, now)
    elif state == y.SLOT_LOADING:
        record_load(m, q, now)
        m.slot[q, y.SLOT_STATE] = y.SLOT_READY
        compute_next(m, q // y.SLOTS, now)
    else:
        finish_iteration(m, q, now)


@block
def _on_computed(m: Machine, q: int, now: int) -> None:
    w = q // y.SLOTS
    m.resident[w, y.WG_COMPUTING] = 0
    m.resident[w, y.WG_COMPUTED] += 1
    if m.phase[m.resident[w, y.WG_GPU], phase_row(m, w), y.PHASE_STORE] != y.NONE:
        store_iteration(m, q, now)
    else:
        finish_iteration(m, q, now)
    compute_next(m, w, now)


@block
def _on_launch(m: Machine, index: int, now: int) -> None:
    g, k = index // m.shape[y.SIZE_KERNELS], index % m.shape[y.SIZE_KERNELS]
    launch(m, g, k, now)
    if m.kernel[g, k, y.KERNEL_COPIES] > 0:
        start_copies(m, g, k, now)
    elif m.kernel[g, k, y.KERNEL_WORKGROUPS] == 0:  # a kernel of other GPUs
        end_kernel(m, g, k, now)


@block
def _act(m: Machine, kind: int, index: int, now: int, policy) -> None:  # type: ignore[no-untyped-def]
    if kind == y.EV_CHANNEL or kind == y.EV_TAKEN or kind == y.EV_READ_DONE or kind == y.EV_PIM:
        _on_memory(m, kind, index, now, policy)
    elif kind == y.EV_SLOT:
        _on_slot(m, index, now)
    elif kind == y.EV_COMPUTED:
        _on_computed(m, index, now)
    elif kind == y.EV_LINK:
        _on_link(m, index, now)
    elif kind == y.EV_ARRIVE:
        _on_arrive(m, index, now)
    elif kind == y.EV_HOP:
        hop(m, index, now)
    elif kind == y.EV_DMA:
        pump(m, index, now)
    elif kind == y.EV_PHASE:
        if begin_phase(m, index, now):
            retire(m, index, now)
    elif kind == y.EV_LAUNCH:
        _on_launch(m, index, now)
    elif kind == y.EV_MERGE:
        expire(m, index, now)
    elif kind == y.EV_COMMAND:
        trigger(m, index // m.shape[y.SIZE_TILES], index % m.shape[y.SIZE_TILES], now)
    elif kind == y.EV_COMPLETE:
        end_kernel(m, index // m.shape[y.SIZE_KERNELS], index % m.shape[y.SIZE_KERNELS], now)


@block
def _start(m: Machine) -> None:
    if m.shape[y.SIZE_SIDE_SETS] > 0:
        begin_used(m)
    begin_commands(m)
    for g in range(m.shape[y.SIZE_GPUS]):
        for k in range(m.shape[y.SIZE_KERNELS]):
            if m.kernel_run[g, k, y.RUN_OPEN] == 0:
                consider_launch(m, g, k, m.gpu[g, y.GPU_START])


@entry
def run(m: Machine, policy, events: int, spare_events: int, spare_requests: int) -> int:  # type: ignore[no-untyped-def]
    """Process up to `events` events; returns the status: running, finished, stuck or starved, or which table must
    grow.

    A first call starts the run. `spare_*` are the rows that any one event may need.
    """
    if m.clock[y.CLOCK_EVENTS] == 0 and pending(m) == 0:
        m.clock[y.CLOCK_UNFINISHED] = m.shape[y.SIZE_GPUS] * m.shape[y.SIZE_KERNELS]
        _start(m)
    for _ in range(events):
        if pending(m) == 0:
            break
        if pending(m) + spare_events > m.heap.shape[0]:
            return y.GROW_HEAP
        if m.clock[y.CLOCK_LIVE_REQUESTS] + spare_requests > m.request.shape[0]:
            return y.GROW_REQUESTS
        if m.clock[y.CLOCK_LIVE_WAITERS] + spare_requests > m.waiter.shape[0]:
            return y.GROW_WAITERS
        code = take(m)
        m.clock[y.CLOCK_EVENTS] += 1
        _act(m, code >> KIND_SHIFT, code & INDEX_MASK, m.clock[y.CLOCK_NOW], policy)
        settle(m)
    if pending(m) > 0:
        return y.RUNNING
    if starved(m):
        return y.STARVED
    return y.FINISHED if m.clock[y.CLOCK_UNFINISHED] == 0 else y.STUCK
