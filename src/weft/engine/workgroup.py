"""Workgroups execute scripts: a script is a sequence of phases, a phase a software-pipelined loop.

An iteration owns a slot: it loads, waits for its data, computes in order after its predecessor, stores, and frees the
slot for the iteration `slots` ahead. A phase may first wait for a counter; the next phase begins when every iteration
of this one has finished.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import duration, remainder
from weft.engine.cache import load, store, write_through
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared
from weft.engine.link import new_message, send
from weft.engine.memory import stream_of
from weft.engine.record import record_misses
from weft.engine.state import Machine
from weft.engine.store_buffer import takes, wait_for_room
from weft.engine.switch import load_afar


@block
def phase_row(m: Machine, w: int) -> int:
    """The row of the phase that the workgroup in place `w` is in."""
    g = m.resident[w, y.WG_GPU]
    row = m.kernel[g, m.resident[w, y.WG_KERNEL], y.KERNEL_FIRST_PHASE]
    return row + m.resident[w, y.WG_PHASE]  # type: ignore[no-any-return]


@block
def work_row(m: Machine, w: int) -> int:
    """The row of workgroup `w`'s work."""
    g = m.resident[w, y.WG_GPU]
    return m.kernel[g, m.resident[w, y.WG_KERNEL], y.KERNEL_FIRST_WORK] + m.resident[w, y.WG_INDEX]  # type: ignore[no-any-return]


@shared
def begin_phase(m: Machine, w: int, now: int) -> bool:
    """Enter the workgroup's current phase, skipping empty ones; returns whether the script is over."""
    resident = m.resident
    g, k = resident[w, y.WG_GPU], resident[w, y.WG_KERNEL]
    while resident[w, y.WG_PHASE] < resident[w, y.WG_END]:
        p = phase_row(m, w)
        counter = _awaited(m, g, p, w)
        if counter != y.NONE and m.counter[g, counter, y.COUNTER_VALUE] < m.phase[g, p, y.PHASE_WAIT_VALUE]:
            _wait(m, w, g, counter, m.phase[g, p, y.PHASE_WAIT_VALUE])
            return False
        if resident[w, y.WG_WAITING] != 0:
            resident[w, y.WG_WAITING] = 0
            m.work_log[g, work_row(m, w), y.WORKLOG_RESUMED] = now
            m.kernel_run[g, k, y.RUN_WAIT_COUNTER] += now - resident[w, y.WG_LAST]
            resident[w, y.WG_LAST] = now
        start = now + m.phase[g, p, y.PHASE_DELAY]
        if start > now:
            m.kernel_run[g, k, y.RUN_WAIT_COUNTER] += start - now
            resident[w, y.WG_LAST] = start
        step, first = 1, 0
        if m.phase[g, p, y.PHASE_SHARED] == 1:
            step, first = m.kernel[g, k, y.KERNEL_WORKGROUPS], resident[w, y.WG_INDEX]
        iterations = (m.phase[g, p, y.PHASE_ITERATIONS] - first + step - 1) // step
        if iterations > 0:
            resident[w, y.WG_ITERATIONS] = iterations
            resident[w, y.WG_FIRST] = first
            resident[w, y.WG_STEP] = step
            resident[w, y.WG_COMPUTED] = 0
            resident[w, y.WG_FINISHED] = 0
            resident[w, y.WG_COMPUTING] = 0
            slots = min(iterations, m.phase[g, p, y.PHASE_SLOTS])
            for it in range(slots):
                m.slot[w * y.SLOTS + it, y.SLOT_STATE] = y.SLOT_FREE
                m.slot[w * y.SLOTS + it, y.SLOT_ITERATION] = it
            for it in range(1 if m.phase[g, p, y.PHASE_STAGED] == 1 else slots):
                schedule(m, start, y.EV_SLOT, w * y.SLOTS + it)
            return False
        resident[w, y.WG_PHASE] += 1
    return True


@block
def _awaited(m: Machine, g: int, p: int, w: int) -> int:
    """The counter that phase `p` of the workgroup in place `w` waits for, or NONE."""
    counter = m.phase[g, p, y.PHASE_WAIT_COUNTER]
    if counter == y.NONE or m.phase[g, p, y.PHASE_LANED] == 0:
        return counter  # type: ignore[no-any-return]
    lane = m.work[g, work_row(m, w), y.WORK_LANE]
    return counter + lane if lane >= 0 else y.NONE


@block
def _wait(m: Machine, w: int, g: int, counter: int, value: int) -> None:
    m.resident[w, y.WG_WAITING] = 1
    m.counter[g, counter, y.COUNTER_TARGET] = min(m.counter[g, counter, y.COUNTER_TARGET], value)


@block
def begin_iteration(m: Machine, q: int, now: int) -> None:
    """Issue the loads of the iteration that owns slot `q`."""
    w = q // y.SLOTS
    resident = m.resident
    g, u = resident[w, y.WG_GPU], resident[w, y.WG_UNIT]
    p = phase_row(m, w)
    t = work_row(m, w)
    it = resident[w, y.WG_FIRST] + m.slot[q, y.SLOT_ITERATION] * resident[w, y.WG_STEP]
    m.slot[q, y.SLOT_STATE] = y.SLOT_LOADING
    m.slot[q, y.SLOT_PENDING] = 0
    m.slot[q, y.SLOT_TIME] = now
    m.slot[q, y.SLOT_ISSUED] = now
    m.slot[q, y.SLOT_STORED] = m.slot[q, y.SLOT_FROM]
    missed = m.flow[g, y.FLOW_MISSES]
    partition = m.unit[u, y.UNIT_PARTITION]
    first = m.phase[g, p, y.PHASE_FIRST_LOAD]
    for a in range(first, first + m.phase[g, p, y.PHASE_LOADS]):
        offset = (
            m.work[g, t, y.WORK_ROW] * m.access[g, a, y.ACCESS_ROW_STRIDE]
            + m.work[g, t, y.WORK_COLUMN] * m.access[g, a, y.ACCESS_COLUMN_STRIDE]
            + it * m.access[g, a, y.ACCESS_STEP_STRIDE]
        )
        bytes_ = _iteration_bytes(m, g, a, p, t, it, offset)
        share = m.access[g, a, y.ACCESS_SHARE]
        if share > 1 or share < -1:
            member = m.work[g, t, y.WORK_ROW if share > 1 else y.WORK_COLUMN] % abs(share)
            part = (bytes_ + abs(share) - 1) // abs(share)
            bytes_ = min(part, bytes_ - member * part)
            offset += member * part
        address = m.access[g, a, y.ACCESS_BASE] + offset
        cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + y.READ
        stream = stream_of(m, cause)
        cached, afar = m.access[g, a, y.ACCESS_CACHED], m.access[g, a, y.ACCESS_MEMBERS] != 0
        request = m.shape[y.SIZE_REQUEST]
        port = max(m.unit[u, y.UNIT_PORT_FREE], now)
        in_lines = cached == 1 or m.shape[y.SIZE_SIDE_SETS] > 0
        position = 0
        while position < bytes_:
            size = min(request, bytes_ - position)
            if in_lines:  # split at cache-line boundaries
                size = min(size, request - remainder(m, address + position, y.SIZE_REQUEST))
            if afar:
                load_afar(m, g, partition, a, address + position, size, port, q)
            else:
                load(m, g, partition, address + position, size, cause, stream, cached, port, q)
            port += duration(size, m.gpu[g, y.GPU_PORT64])
            position += size
        m.unit[u, y.UNIT_PORT_FREE] = port
    record_misses(m, g, t, missed)
    if m.slot[q, y.SLOT_PENDING] == 0:
        schedule(m, m.slot[q, y.SLOT_TIME], y.EV_SLOT, q)
    if m.phase[g, p, y.PHASE_STAGED] == 1:
        following = m.slot[q, y.SLOT_ITERATION] + 1
        if following < min(resident[w, y.WG_ITERATIONS], m.phase[g, p, y.PHASE_SLOTS]):
            schedule(m, max(m.unit[u, y.UNIT_PORT_FREE], now), y.EV_SLOT, q + 1)


@block
def _iteration_bytes(m: Machine, g: int, a: int, p: int, t: int, it: int, offset: int) -> int:
    extent = 1
    if m.access[g, a, y.ACCESS_EXTENT] == y.EXTENT_ROWS:
        extent = m.work[g, t, y.WORK_ROWS]
    elif m.access[g, a, y.ACCESS_EXTENT] == y.EXTENT_COLUMNS:
        extent = m.work[g, t, y.WORK_COLUMNS]
    last = it == m.phase[g, p, y.PHASE_ITERATIONS] - 1
    unit = m.access[g, a, y.ACCESS_LAST_UNIT] if last else m.access[g, a, y.ACCESS_UNIT]
    return min(extent * unit, m.access[g, a, y.ACCESS_LIMIT] - offset)  # type: ignore[no-any-return]


@block
def arrived(m: Machine, q: int, time: int, came_from: int) -> None:
    """A request that slot `q` waits for has completed; after the last one, the slot proceeds at `time` or later."""
    m.slot[q, y.SLOT_PENDING] -= 1
    if time >= m.slot[q, y.SLOT_TIME]:
        m.slot[q, y.SLOT_TIME] = time
        m.slot[q, y.SLOT_FROM] = came_from
    if m.slot[q, y.SLOT_PENDING] == 0:
        schedule(m, m.slot[q, y.SLOT_TIME], y.EV_SLOT, q)


@block
def compute_next(m: Machine, w: int, now: int) -> None:
    """Start computing the next iteration in order, if its data has arrived and no other one computes."""
    resident = m.resident
    if resident[w, y.WG_COMPUTING] == 1 or resident[w, y.WG_COMPUTED] >= resident[w, y.WG_ITERATIONS]:
        return
    g, u = resident[w, y.WG_GPU], resident[w, y.WG_UNIT]
    p = phase_row(m, w)
    q = w * y.SLOTS + resident[w, y.WG_COMPUTED] % m.phase[g, p, y.PHASE_SLOTS]
    if m.slot[q, y.SLOT_STATE] != y.SLOT_READY:
        return
    k = resident[w, y.WG_KERNEL]
    beside = m.kernel[g, k, y.KERNEL_TILED] == 1 and m.flow[g, y.FLOW_EXCHANGES] > 0
    cycle = m.kernel[g, k, y.KERNEL_CORUN_CYCLE if beside else y.KERNEL_CYCLE]
    busy = m.phase[g, p, y.PHASE_CYCLES] * cycle // 1000
    start = max(now, m.unit[u, y.UNIT_MATRIX_FREE]) if busy > 0 else now
    ready = max(m.slot[q, y.SLOT_TIME], resident[w, y.WG_LAST])
    # Before its loads were issued, the slot was occupied by the stores of an earlier iteration.
    stored = max(resident[w, y.WG_LAST], min(m.slot[q, y.SLOT_ISSUED], ready))
    _stored(m, g, k, stored - resident[w, y.WG_LAST], m.slot[q, y.SLOT_STORED])
    m.kernel_run[g, k, y.RUN_WAIT_LOAD] += ready - stored
    if m.slot[q, y.SLOT_FROM] == y.FROM_SIDE:
        m.kernel_run[g, k, y.RUN_WAIT_SIDE] += ready - stored
    elif m.slot[q, y.SLOT_FROM] == y.FROM_FABRIC:
        m.kernel_run[g, k, y.RUN_WAIT_FABRIC] += ready - stored
    elif m.slot[q, y.SLOT_FROM] == y.FROM_CACHE:
        m.kernel_run[g, k, y.RUN_WAIT_CACHE] += ready - stored
    m.kernel_run[g, k, y.RUN_WAIT_MATRIX] += start - ready
    m.kernel_run[g, k, y.RUN_COMPUTE] += busy
    if busy > 0:
        m.unit[u, y.UNIT_MATRIX_FREE] = start + busy
        m.unit[u, y.UNIT_BUSY] += busy
    resident[w, y.WG_LAST] = start + busy
    resident[w, y.WG_COMPUTING] = 1
    m.slot[q, y.SLOT_STATE] = y.SLOT_COMPUTING
    schedule(m, start + busy, y.EV_COMPUTED, q)


@block
def _stored(m: Machine, g: int, k: int, waited: int, went: int) -> None:
    """Add a workgroup's wait for stores to kernel `k`'s counters, by where its last store went: memory or a link."""
    m.kernel_run[g, k, y.RUN_WAIT_STORE] += waited
    if went == y.FROM_LINK:
        m.kernel_run[g, k, y.RUN_WAIT_LINK] += waited


@block
def store_iteration(m: Machine, q: int, now: int) -> None:
    """Issue the stores of an iteration; the address map decides where they go."""
    w = q // y.SLOTS
    resident = m.resident
    g = resident[w, y.WG_GPU]
    p = phase_row(m, w)
    t = work_row(m, w)
    it = resident[w, y.WG_FIRST] + m.slot[q, y.SLOT_ITERATION] * resident[w, y.WG_STEP]
    m.slot[q, y.SLOT_STATE] = y.SLOT_STORING
    m.slot[q, y.SLOT_PENDING] = 0
    m.slot[q, y.SLOT_TIME] = now
    first_store = m.phase[g, p, y.PHASE_STORE]
    for a in range(first_store, first_store + m.phase[g, p, y.PHASE_STORES]):
        region = m.access[g, a, y.ACCESS_REGION]
        if m.work[g, t, y.WORK_REGION] >= 0:
            region += m.work[g, t, y.WORK_REGION]
            tile = m.work[g, t, y.WORK_TILE]
            offset = m.work[g, t, y.WORK_OFFSET]
            bytes_ = m.work[g, t, y.WORK_BYTES]
            part = (bytes_ + m.shape[y.SIZE_WAVEFRONTS] - 1) // m.shape[y.SIZE_WAVEFRONTS]
        else:
            tile = m.work[g, t, y.WORK_LANE] if m.region[g, region, y.REGION_LANED] == 1 else y.NONE
            offset = (
                m.access[g, a, y.ACCESS_BASE]
                + m.work[g, t, y.WORK_ROW] * m.access[g, a, y.ACCESS_ROW_STRIDE]
                + m.work[g, t, y.WORK_COLUMN] * m.access[g, a, y.ACCESS_COLUMN_STRIDE]
                + it * m.access[g, a, y.ACCESS_STEP_STRIDE]
            )
            bytes_ = _iteration_bytes(m, g, a, p, t, it, offset)
            part = bytes_
        _store_range(m, q, a, region, tile, offset, bytes_, part, now)
    if m.slot[q, y.SLOT_PENDING] == 0:
        schedule(m, m.slot[q, y.SLOT_TIME], y.EV_SLOT, q)


@block
def _store_range(m: Machine, q, a, region, tile, offset, bytes_, part, now) -> None:  # type: ignore[no-untyped-def]
    w = q // y.SLOTS
    g, u = m.resident[w, y.WG_GPU], m.resident[w, y.WG_UNIT]
    request = m.shape[y.SIZE_REQUEST]
    port = max(m.unit[u, y.UNIT_PORT_FREE], now)
    position = 0
    while position < bytes_:
        wavefront = position // part
        # Split at boundaries of cache lines and of wavefront tiles.
        in_line = request - remainder(m, offset + position, y.SIZE_REQUEST)
        size = min(in_line, min((wavefront + 1) * part, bytes_) - position)
        _store_one(m, q, g, a, region, tile, wavefront, offset + position, size, port)
        port += duration(size, m.gpu[g, y.GPU_PORT64])
        position += size
    m.unit[u, y.UNIT_PORT_FREE] = port


@block
def _store_one(m: Machine, q, g, a, region, tile, wavefront, offset, size, time) -> None:  # type: ignore[no-untyped-def]
    mode = m.region[g, region, y.REGION_MODE]
    if mode >= y.REMOTE_STORE:
        target = m.region[g, region, y.REGION_TO_REGION]
        receiver = m.region[g, region, y.REGION_TARGET]
        if tile != y.NONE and m.region[g, region, y.REGION_LANED] == 0:
            tile += m.region[receiver, target, y.REGION_FIRST_TILE] - m.region[g, region, y.REGION_FIRST_TILE]
        buffered, members = takes(m, g, size), m.region[g, region, y.REGION_MEMBERS]
        i = new_message(
            m, g, receiver, target, offset, size, mode == y.REMOTE_UPDATE, m.region[g, region, y.REGION_REMOTE_CAUSE],
            y.OWNER_BUFFERED if buffered else y.OWNER_SLOT, q, tile, wavefront,
        )  # fmt: skip
        m.request[i, y.REQ_MEMBERS] = members
        m.request[i, y.REQ_STRIDE] = m.region[g, region, y.REGION_MEMBER_STRIDE]
        if buffered:
            m.slot[q, y.SLOT_TIME] = max(m.slot[q, y.SLOT_TIME], time)
        else:
            m.slot[q, y.SLOT_PENDING] += 1
            if m.gpu[g, y.GPU_STORE_BUFFER] > 0 and members == 0:
                wait_for_room(m, g, i)
        send(m, m.region[g, region, y.REGION_ROUTE], i, time + m.gpu[g, y.GPU_CACHE_OUT])
        return
    address = m.region[g, region, y.REGION_BASE] + offset
    kind = y.UPDATE if mode == y.LOCAL_UPDATE else y.WRITE
    cause = m.access[g, a, y.ACCESS_OPERATOR] * y.KINDS + kind
    if m.region[g, region, y.REGION_CACHED] == 1:
        partition = m.unit[m.resident[q // y.SLOTS, y.WG_UNIT], y.UNIT_PARTITION]
        store(m, g, partition, address, size, cause, time, q)
        return
    write_through(
        m,
        g,
        address,
        size,
        kind,
        cause,
        stream_of(m, cause),
        time + m.gpu[g, y.GPU_CACHE_OUT],
        q,
        region,
        tile,
        wavefront,
    )


@block
def finish_iteration(m: Machine, q: int, now: int) -> None:
    """Free the slot: the iteration `slots` ahead takes it, or, after the last one, the next phase begins."""
    w = q // y.SLOTS
    resident = m.resident
    g = resident[w, y.WG_GPU]
    resident[w, y.WG_FINISHED] += 1
    m.slot[q, y.SLOT_STATE] = y.SLOT_FREE
    ahead = m.slot[q, y.SLOT_ITERATION] + m.phase[g, phase_row(m, w), y.PHASE_SLOTS]
    if ahead < resident[w, y.WG_ITERATIONS]:
        m.slot[q, y.SLOT_ITERATION] = ahead
        schedule(m, now, y.EV_SLOT, q)
    elif resident[w, y.WG_FINISHED] == resident[w, y.WG_ITERATIONS]:
        _stored(m, g, resident[w, y.WG_KERNEL], now - resident[w, y.WG_LAST], m.slot[q, y.SLOT_FROM])
        resident[w, y.WG_LAST] = now
        resident[w, y.WG_PHASE] += 1
        schedule(m, now, y.EV_PHASE, w)
