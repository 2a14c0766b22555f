"""The dispatcher: launches kernels and places their workgroups on compute units, in kernel order, as many as fit."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import release
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared
from weft.engine.state import Machine


@shared
def consider_launch(m: Machine, g: int, k: int, now: int) -> None:
    """Launch kernel `k`, whose predecessors have ended, or queue it until its counter reaches its value."""
    counter, value = m.kernel[g, k, y.KERNEL_AFTER_COUNTER], m.kernel[g, k, y.KERNEL_AFTER_VALUE]
    if counter != y.NONE and m.counter[g, counter, y.COUNTER_VALUE] < value:
        m.kernel_run[g, k, y.RUN_NEXT_WAITING] = m.counter[g, counter, y.COUNTER_KERNEL]
        m.counter[g, counter, y.COUNTER_KERNEL] = k
        m.counter[g, counter, y.COUNTER_TARGET] = min(m.counter[g, counter, y.COUNTER_TARGET], value)
        return
    m.kernel_run[g, k, y.RUN_STATE] = y.LAUNCHING
    m.kernel_run[g, k, y.RUN_START] = now
    schedule(m, now + m.kernel[g, k, y.KERNEL_LAUNCH], y.EV_LAUNCH, g * m.shape[y.SIZE_KERNELS] + k)


@shared
def launch(m: Machine, g: int, k: int, now: int) -> None:
    """The launch latency of a kernel has passed: its workgroups may be placed."""
    m.kernel_run[g, k, y.RUN_STATE] = y.LAUNCHED
    m.kernel_run[g, k, y.RUN_LAUNCHED] = now
    m.flow[g, y.FLOW_TILED] += m.kernel[g, k, y.KERNEL_TILED]
    _deal(m, g, k)
    if m.kernel[g, k, y.KERNEL_MONITOR] == 1:
        m.flow[g, y.FLOW_MONITOR_START] = now
        m.flow[g, y.FLOW_MONITOR_BYTES] = 0
    dispatch(m, g, now)


@block
def _fits(m: Machine, u: int, g: int, k: int) -> bool:
    return (  # type: ignore[no-any-return]
        m.unit_mask[g, k, u - g * m.shape[y.SIZE_CUS]] == 1
        and m.unit[u, y.UNIT_HELD] != m.clock[y.CLOCK_TICKET]
        and m.unit[u, y.UNIT_PLACES] > 0
        and m.unit[u, y.UNIT_THREADS] >= m.kernel[g, k, y.KERNEL_THREADS]
        and m.unit[u, y.UNIT_REGISTERS] >= m.kernel[g, k, y.KERNEL_REGISTERS]
        and m.unit[u, y.UNIT_LDS] >= m.kernel[g, k, y.KERNEL_LDS]
    )


@block
def _may_begin(m: Machine, g: int, k: int) -> bool:
    """Whether a workgroup of kernel `k` may be dispatched: in a kernel of stages, the stage before must have ended."""
    stage, run = m.kernel[g, k, y.KERNEL_STAGE], m.kernel_run
    return stage == 0 or run[g, k, y.RUN_PLACED] < (run[g, k, y.RUN_FINISHED] // stage + 1) * stage  # type: ignore[no-any-return]


@block
def first_unit(m: Machine, g: int, part: int) -> int:
    """The first compute unit of a partition, within its GPU: unit u lies in partition u * partitions // units."""
    partitions = m.shape[y.SIZE_PARTITIONS]
    return (part * m.gpu[g, y.GPU_CUS] + partitions - 1) // partitions  # type: ignore[no-any-return]


@shared
def _deal(m: Machine, g: int, k: int) -> None:
    """Deal the workgroups of kernel `k` round robin to the partitions in which its mask allows a compute unit.

    Those of a partition are dealt round robin to its shader engines with such a compute unit, if the kernel's are.
    """
    partitions, shaders = m.shape[y.SIZE_PARTITIONS], m.kernel[g, k, y.KERNEL_SHADERS]
    dealt = 0
    for part in range(partitions):
        first, allowed = first_unit(m, g, part), 0
        for shader in range(shaders):
            m.dealt[g, k, part, shader] = y.NEVER
        for u in range(first, first_unit(m, g, part + 1)):
            if m.unit_mask[g, k, u] == 1:
                m.dealt[g, k, part, (u - first) % shaders] = dealt
                allowed = 1
        dealt += allowed
    m.kernel_run[g, k, y.RUN_STRIDE] = dealt
    for part in range(partitions):
        rank = 0
        for shader in range(shaders):
            if m.dealt[g, k, part, shader] != y.NEVER:
                m.dealt[g, k, part, shader] += dealt * rank
                rank += 1
        if _has_left(m, g, part, k):
            _join_ready(m, g, part, k)


@block
def _has_left(m: Machine, g: int, part: int, k: int) -> bool:
    """Whether workgroups of kernel `k` that are dealt to a partition are not placed."""
    left = False
    for shader in range(m.kernel[g, k, y.KERNEL_SHADERS]):
        left = left or m.dealt[g, k, part, shader] < m.kernel[g, k, y.KERNEL_WORKGROUPS]
    return left


@block
def _shader_of(m: Machine, g: int, part: int, k: int, u: int) -> int:
    """The shader engine of a compute unit among those of its partition to which kernel `k` is dealt."""
    return (u - g * m.shape[y.SIZE_CUS] - first_unit(m, g, part)) % m.kernel[g, k, y.KERNEL_SHADERS]  # type: ignore[no-any-return]


@block
def _grid_full(m: Machine, g: int, part: int, k: int) -> bool:
    """Whether as many workgroups of kernel `k` run in a partition as its grid has there."""
    grid, parts = m.kernel[g, k, y.KERNEL_GRID], m.kernel_run[g, k, y.RUN_STRIDE]
    return grid > 0 and m.running[g, k, part] >= max((grid + parts - 1 - part % parts) // parts, 1)  # type: ignore[no-any-return]


@block
def _precedes(m: Machine, g: int, k: int, other: int) -> bool:
    """Whether kernel `k` is dispatched before another: by priority, then launch time, then index."""
    rank, others = m.kernel[g, k, y.KERNEL_PRIORITY], m.kernel[g, other, y.KERNEL_PRIORITY]
    if rank != others:
        return rank > others  # type: ignore[no-any-return]
    launched, others = m.kernel_run[g, k, y.RUN_LAUNCHED], m.kernel_run[g, other, y.RUN_LAUNCHED]
    return launched < others or (launched == others and k < other)


@shared
def _join_ready(m: Machine, g: int, part: int, k: int) -> None:
    """Insert kernel `k` into the ready list of its class, which is sorted by launch time and index."""
    c = m.kernel[g, k, y.KERNEL_CLASS]
    before, following = m.ready[g, part, c, y.READY_LAST], y.NONE
    if before != y.NONE and _precedes(m, g, k, before):
        before, following = y.NONE, m.ready[g, part, c, y.READY_FIRST]
        while _precedes(m, g, following, k):
            before, following = following, m.ready_next[g, following, part]
    m.ready_next[g, k, part] = following
    if before == y.NONE:
        m.ready[g, part, c, y.READY_FIRST] = k
    else:
        m.ready_next[g, before, part] = k
    if following == y.NONE:
        m.ready[g, part, c, y.READY_LAST] = k


@block
def _leave_ready(m: Machine, g: int, part: int, c: int) -> None:
    """Remove the first kernel of a class from a partition's ready list: it has no workgroups left there."""
    k = m.ready_next[g, m.ready[g, part, c, y.READY_FIRST], part]
    m.ready[g, part, c, y.READY_FIRST] = k
    if k == y.NONE:
        m.ready[g, part, c, y.READY_LAST] = y.NONE


@shared
def _emptiest_unit(m: Machine, g: int, part: int, k: int) -> int:
    """The allowed compute unit with the most free places, the lowest number on a tie; NONE if none has room."""
    best, places = y.NONE, 0
    base, last = g * m.shape[y.SIZE_CUS], m.kernel[g, k, y.KERNEL_WORKGROUPS]
    if _grid_full(m, g, part, k):
        return best
    for u in range(base + first_unit(m, g, part), base + first_unit(m, g, part + 1)):
        if m.unit[u, y.UNIT_PLACES] <= places or not _fits(m, u, g, k):
            continue
        if m.dealt[g, k, part, _shader_of(m, g, part, k, u)] < last:
            best, places = u, m.unit[u, y.UNIT_PLACES]
    return best


@block
def _next_class(m: Machine, g: int, part: int) -> int:
    """The class, among those not refused, whose first kernel is dispatched next in a partition, or NONE."""
    best, first = y.NONE, y.NONE
    for c in range(m.shape[y.SIZE_CLASSES]):
        k = m.ready[g, part, c, y.READY_FIRST]
        if k == y.NONE or m.ready[g, part, c, y.READY_REFUSED] == m.clock[y.CLOCK_TICKET]:
            continue
        if best == y.NONE or _precedes(m, g, k, first):
            best, first = c, k
    return best


@block
def _refuse(m: Machine, g: int, part: int, c: int) -> None:
    """Mark class `c` refused, as no unit can take its workgroup now; a strict dispatcher reserves its units for it."""
    m.ready[g, part, c, y.READY_REFUSED] = m.clock[y.CLOCK_TICKET]
    if m.gpu[g, y.GPU_STRICT] == 1:
        k = m.ready[g, part, c, y.READY_FIRST]
        for u in range(first_unit(m, g, part), first_unit(m, g, part + 1)):
            if m.unit_mask[g, k, u] == 1:
                m.unit[g * m.shape[y.SIZE_CUS] + u, y.UNIT_HELD] = m.clock[y.CLOCK_TICKET]


@shared
def dispatch(m: Machine, g: int, now: int) -> None:
    """Place workgroups in every partition until none fits."""
    for part in range(m.shape[y.SIZE_PARTITIONS]):
        dispatch_in(m, g, part, now)


@shared
def dispatch_in(m: Machine, g: int, part: int, now: int) -> None:
    """Place workgroups in one partition until none fits."""
    m.clock[y.CLOCK_TICKET] += 1
    while True:
        c = _next_class(m, g, part)
        if c == y.NONE:
            return
        k = m.ready[g, part, c, y.READY_FIRST]
        u = _emptiest_unit(m, g, part, k) if _may_begin(m, g, k) else y.NONE
        if u == y.NONE:
            _refuse(m, g, part, c)
            continue
        _place(m, g, part, k, u, now)
        if not _has_left(m, g, part, k):
            _leave_ready(m, g, part, c)


@block
def _place(m: Machine, g: int, part: int, k: int, u: int, now: int) -> None:
    places = m.shape[y.SIZE_RESIDENT]
    w = u * places
    while m.resident[w, y.WG_KERNEL] != y.NONE:
        w += 1
    m.unit[u, y.UNIT_PLACES] -= 1
    m.unit[u, y.UNIT_THREADS] -= m.kernel[g, k, y.KERNEL_THREADS]
    m.unit[u, y.UNIT_REGISTERS] -= m.kernel[g, k, y.KERNEL_REGISTERS]
    m.unit[u, y.UNIT_LDS] -= m.kernel[g, k, y.KERNEL_LDS]
    resident = m.resident
    resident[w, y.WG_KERNEL] = k
    shader, dealt_to = _shader_of(m, g, part, k, u), 0
    for other in range(m.kernel[g, k, y.KERNEL_SHADERS]):
        dealt_to += m.dealt[g, k, part, other] != y.NEVER
    resident[w, y.WG_INDEX] = m.dealt[g, k, part, shader]
    resident[w, y.WG_UNIT] = u
    resident[w, y.WG_GPU] = g
    resident[w, y.WG_WAITING] = 0
    resident[w, y.WG_LAST] = now
    m.dealt[g, k, part, shader] += m.kernel_run[g, k, y.RUN_STRIDE] * dealt_to
    m.running[g, k, part] += 1
    if m.kernel_run[g, k, y.RUN_PLACED] == 0:
        m.flow[g, y.FLOW_EXCHANGES] += m.kernel[g, k, y.KERNEL_EXCHANGES]
    m.kernel_run[g, k, y.RUN_PLACED] += 1
    log = m.kernel[g, k, y.KERNEL_FIRST_WORK] + resident[w, y.WG_INDEX]
    resident[w, y.WG_PHASE] = m.work[g, log, y.WORK_SCRIPT] * m.kernel[g, k, y.KERNEL_PHASES]
    resident[w, y.WG_END] = resident[w, y.WG_PHASE] + m.kernel[g, k, y.KERNEL_PHASES]
    m.work_log[g, log, y.WORKLOG_START] = now
    m.work_log[g, log, y.WORKLOG_UNIT] = u - g * m.shape[y.SIZE_CUS]
    schedule(m, now, y.EV_PHASE, w)


@shared
def retire(m: Machine, w: int, now: int) -> None:
    """Retire a workgroup whose script is over: free its place, end its kernel after the last one, dispatch the next."""
    resident = m.resident
    g, k, u = resident[w, y.WG_GPU], resident[w, y.WG_KERNEL], resident[w, y.WG_UNIT]
    m.work_log[g, m.kernel[g, k, y.KERNEL_FIRST_WORK] + resident[w, y.WG_INDEX], y.WORKLOG_END] = now
    resident[w, y.WG_KERNEL] = y.NONE
    m.unit[u, y.UNIT_PLACES] += 1
    m.unit[u, y.UNIT_THREADS] += m.kernel[g, k, y.KERNEL_THREADS]
    m.unit[u, y.UNIT_REGISTERS] += m.kernel[g, k, y.KERNEL_REGISTERS]
    m.unit[u, y.UNIT_LDS] += m.kernel[g, k, y.KERNEL_LDS]
    if m.kernel[g, k, y.KERNEL_MONITOR] == 1 and m.flow[g, y.FLOW_INTENSITY] == y.NONE:
        _choose_threshold(m, g, now)
    m.kernel_run[g, k, y.RUN_FINISHED] += 1
    m.running[g, k, m.unit[u, y.UNIT_PARTITION]] -= 1
    if m.kernel[g, k, y.KERNEL_MONITOR] == 1:
        _find_critical(m, g, k, now)
    if m.kernel_run[g, k, y.RUN_FINISHED] == m.kernel[g, k, y.KERNEL_WORKGROUPS]:
        writes = release(m, g, k, now) if m.kernel[g, k, y.KERNEL_RELEASE] == 1 else 0
        m.kernel_run[g, k, y.RUN_WRITE_BACKS] = writes
        if writes == 0:
            end_kernel(m, g, k, now)
    if m.kernel[g, k, y.KERNEL_STAGE] > 0 and m.kernel_run[g, k, y.RUN_FINISHED] % m.kernel[g, k, y.KERNEL_STAGE] == 0:
        dispatch(m, g, now)
    else:
        dispatch_in(m, g, m.unit[u, y.UNIT_PARTITION], now)


@shared
def end_kernel(m: Machine, g: int, k: int, now: int) -> None:
    """End a kernel: successors whose last open predecessor it was may launch."""
    m.kernel_run[g, k, y.RUN_END] = now
    m.flow[g, y.FLOW_TILED] -= m.kernel[g, k, y.KERNEL_TILED]
    if m.kernel_run[g, k, y.RUN_PLACED] > 0:
        m.flow[g, y.FLOW_EXCHANGES] -= m.kernel[g, k, y.KERNEL_EXCHANGES]
    m.clock[y.CLOCK_UNFINISHED] -= 1
    if m.kernel[g, k, y.KERNEL_MONITOR] == 1:  # the GEMM has ended: no limit on communication
        m.flow[g, y.FLOW_THRESHOLD] = m.gpu[g, y.GPU_QUEUE_BYTES]
    first = m.kernel[g, k, y.KERNEL_FIRST_SUCCESSOR]
    for row in range(first, first + m.kernel[g, k, y.KERNEL_SUCCESSORS]):
        after = m.successor[row]
        m.kernel_run[g, after, y.RUN_OPEN] -= 1
        if m.kernel_run[g, after, y.RUN_OPEN] == 0:
            consider_launch(m, g, after, now)


@shared
def released(m: Machine, g: int, k: int, now: int) -> None:
    """One of the dirty lines that kernel `k` writes back at its end on GPU `g` has reached memory."""
    m.kernel_run[g, k, y.RUN_WRITE_BACKS] -= 1
    if m.kernel_run[g, k, y.RUN_WRITE_BACKS] == 0:
        end_kernel(m, g, k, now)


@block
def _choose_threshold(m: Machine, g: int, now: int) -> None:
    """T3-MCA: set the queue occupancy limit for communication from the memory intensity of the GEMM's first stage."""
    gpu = m.gpu
    elapsed = max(now - m.flow[g, y.FLOW_MONITOR_START], 1)
    busy = m.flow[g, y.FLOW_MONITOR_BYTES] // 64 * gpu[g, y.GPU_PEAK64]
    intensity = busy * 1000 // elapsed
    m.flow[g, y.FLOW_INTENSITY] = intensity
    if intensity >= gpu[g, y.GPU_INTENSITY_HIGH]:
        threshold = gpu[g, y.GPU_THRESHOLD_HIGH]
    elif intensity >= gpu[g, y.GPU_INTENSITY_MEDIUM]:
        threshold = gpu[g, y.GPU_THRESHOLD_MEDIUM]
    elif intensity >= gpu[g, y.GPU_INTENSITY_LOW]:
        threshold = gpu[g, y.GPU_THRESHOLD_LOW]
    else:
        threshold = gpu[g, y.GPU_QUEUE_BYTES]
    m.flow[g, y.FLOW_THRESHOLD] = threshold
    m.flow[g, y.FLOW_CHOSEN_THRESHOLD] = threshold


@block
def _find_critical(m: Machine, g: int, k: int, now: int) -> None:
    """Estimate which ends later: kernel `k` at its pace so far, or the updates that are left at the links' rate.

    The pace is that of the kernel's computing, without the time that its workgroups waited for a link to take their
    stores. What is left is that of the busiest compute unit: a last round of few workgroups takes as long as any other.
    """
    run = m.kernel_run
    occupied = run[g, k, y.RUN_COMPUTE] + run[g, k, y.RUN_WAIT_LOAD]
    occupied += run[g, k, y.RUN_WAIT_MATRIX] + run[g, k, y.RUN_WAIT_STORE]
    elapsed = now - run[g, k, y.RUN_LAUNCHED]
    elapsed -= elapsed // 1000 * (run[g, k, y.RUN_WAIT_LINK] // (occupied // 1000 + 1))
    done = run[g, k, y.RUN_COMPUTE] // (m.flow[g, y.FLOW_TO_COMPUTE] // 1000 + 1)
    left = elapsed // max(done, 1) * (1000 - done)
    if run[g, k, y.RUN_FINISHED] == m.kernel[g, k, y.KERNEL_WORKGROUPS]:
        left = 0
    unsent = (m.flow[g, y.FLOW_TO_SEND] - m.flow[g, y.FLOW_SENT]) // 64 * m.flow[g, y.FLOW_SEND64]
    m.flow[g, y.FLOW_CRITICAL] = y.COMMUNICATION_STREAM if unsent > left else y.COMPUTE_STREAM


@block
def count(m: Machine, g: int, counter: int, amount: int, now: int) -> None:
    """Add to a counter; kernels and workgroups that wait for its new value resume."""
    m.counter[g, counter, y.COUNTER_VALUE] += amount
    if m.counter[g, counter, y.COUNTER_VALUE] >= m.counter[g, counter, y.COUNTER_TARGET]:
        m.counter[g, counter, y.COUNTER_TARGET] = y.NEVER
        _wake_waiting(m, g, now)
        _launch_waiting(m, g, counter, now)


@shared
def _launch_waiting(m: Machine, g: int, counter: int, now: int) -> None:
    """Launch the kernels that wait for a counter; those whose value is not reached wait again."""
    k = m.counter[g, counter, y.COUNTER_KERNEL]
    m.counter[g, counter, y.COUNTER_KERNEL] = y.NONE
    while k != y.NONE:
        following = m.kernel_run[g, k, y.RUN_NEXT_WAITING]
        consider_launch(m, g, k, now)
        k = following


@shared
def _wake_waiting(m: Machine, g: int, now: int) -> None:
    """Wake every workgroup that waits for a counter; those whose value is not reached wait again."""
    width = m.shape[y.SIZE_CUS] * m.shape[y.SIZE_RESIDENT]
    for w in range(g * width, (g + 1) * width):
        if m.resident[w, y.WG_KERNEL] != y.NONE and m.resident[w, y.WG_WAITING] == 1:
            m.resident[w, y.WG_WAITING] = 2  # woken once, even if several counters change at this time
            schedule(m, now, y.EV_PHASE, w)
