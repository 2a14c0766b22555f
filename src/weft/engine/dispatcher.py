"""The dispatcher: kernels become ready, their workgroups go to compute units in kernel order, as many as fit."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.cache import release
from weft.engine.calendar import schedule
from weft.engine.jit import block, shared, spliced
from weft.engine.state import Machine


@shared
def consider_launches(m: Machine, g: int, now: int) -> None:
    """Launch every kernel whose predecessor has ended and whose counter has been reached."""
    for k in range(m.shape[y.S_KERNELS]):
        if m.kernel_run[g, k, y.KR_READY] != 0:
            continue
        after = m.kernel[g, k, y.K_AFTER]
        if after != y.NONE and m.kernel_run[g, after, y.KR_END] == y.NONE:
            continue
        counter = m.kernel[g, k, y.K_AFTER_COUNTER]
        if counter != y.NONE and m.counter[g, counter, y.N_VALUE] < m.kernel[g, k, y.K_AFTER_VALUE]:
            target = min(m.counter[g, counter, y.N_TARGET], m.kernel[g, k, y.K_AFTER_VALUE])
            m.counter[g, counter, y.N_TARGET] = target
            continue
        m.kernel_run[g, k, y.KR_READY] = 1
        m.kernel_run[g, k, y.KR_START] = now
        schedule(m, now + m.kernel[g, k, y.K_LAUNCH], y.EV_LAUNCH, g * m.shape[y.S_KERNELS] + k)


@shared
def launch(m: Machine, g: int, k: int, now: int) -> None:
    """The launch latency of a kernel has passed: its workgroups may go to the compute units."""
    m.kernel_run[g, k, y.KR_READY] = 2
    m.kernel_run[g, k, y.KR_FIRST_START] = now
    _deal(m, g, k)
    if m.kernel[g, k, y.K_MONITOR] == 1:
        m.flow[g, y.F_MONITOR_START] = now
        m.flow[g, y.F_MONITOR_BYTES] = 0
    dispatch(m, g, now)


@spliced
def _fits(m: Machine, u: int, g: int, k: int) -> bool:
    return (  # type: ignore[no-any-return]
        m.unit_mask[g, k, u - g * m.shape[y.S_CUS]] == 1
        and m.unit[u, y.U_HELD] != m.clock[y.C_TICKET]
        and m.unit[u, y.U_PLACES] > 0
        and m.unit[u, y.U_THREADS] >= m.kernel[g, k, y.K_THREADS]
        and m.unit[u, y.U_REGISTERS] >= m.kernel[g, k, y.K_REGISTERS]
        and m.unit[u, y.U_LDS] >= m.kernel[g, k, y.K_LDS]
    )


@block
def first_unit(m: Machine, g: int, part: int) -> int:
    """The first compute unit of a partition, within its GPU: unit u lies in partition u * partitions // units."""
    partitions = m.shape[y.S_PARTITIONS]
    return (part * m.gpu[g, y.G_CUS] + partitions - 1) // partitions  # type: ignore[no-any-return]


@shared
def _deal(m: Machine, g: int, k: int) -> None:
    """Deal the workgroups of kernel `k` round robin to the partitions in which its mask leaves it a compute unit."""
    partitions = m.shape[y.S_PARTITIONS]
    dealt = 0
    for part in range(partitions):
        m.dealt[g, k, part] = y.NEVER
        for u in range(first_unit(m, g, part), first_unit(m, g, part + 1)):
            if m.unit_mask[g, k, u] == 1:
                m.dealt[g, k, part] = dealt
                dealt += 1
                break
    m.kernel_run[g, k, y.KR_STRIDE] = dealt


@shared
def _emptiest_unit(m: Machine, g: int, part: int, k: int) -> int:
    """The allowed compute unit with the most free places, the lowest number among equals; NONE if none fits."""
    best, places = y.NONE, 0
    base = g * m.shape[y.S_CUS]
    for u in range(base + first_unit(m, g, part), base + first_unit(m, g, part + 1)):
        if m.unit[u, y.U_PLACES] > places and _fits(m, u, g, k):
            best, places = u, m.unit[u, y.U_PLACES]
    return best


@spliced
def _next_kernel(m: Machine, g: int, part: int) -> int:
    """Of the launched kernels with workgroups left for a partition the one of highest priority; among equals the first
    launched.
    """
    best, priority, since = y.NONE, -1, y.NEVER
    for k in range(m.shape[y.S_KERNELS]):
        if m.kernel_run[g, k, y.KR_READY] != 2 or m.kernel_run[g, k, y.KR_REFUSED] == m.clock[y.C_TICKET]:
            continue
        if m.dealt[g, k, part] >= m.kernel[g, k, y.K_WORKGROUPS]:
            continue
        rank, launched = m.kernel[g, k, y.K_PRIORITY], m.kernel_run[g, k, y.KR_FIRST_START]
        if rank > priority or (rank == priority and launched < since):
            best, priority, since = k, rank, launched
    return best


@spliced
def _refuse(m: Machine, g: int, k: int) -> None:
    """No unit can take a workgroup of kernel `k` now; a strict dispatcher keeps its units free for it."""
    m.kernel_run[g, k, y.KR_REFUSED] = m.clock[y.C_TICKET]
    if m.gpu[g, y.G_STRICT] == 1:
        units = m.shape[y.S_CUS]
        for u in range(units):
            if m.unit_mask[g, k, u] == 1:
                m.unit[g * units + u, y.U_HELD] = m.clock[y.C_TICKET]


@spliced
def dispatch(m: Machine, g: int, now: int) -> None:
    """Place workgroups in every partition until no kernel has one that fits."""
    for part in range(m.shape[y.S_PARTITIONS]):
        dispatch_in(m, g, part, now)


@shared
def dispatch_in(m: Machine, g: int, part: int, now: int) -> None:
    """Place workgroups in a partition until no kernel has one that fits there."""
    m.clock[y.C_TICKET] += 1
    while True:
        k = _next_kernel(m, g, part)
        if k == y.NONE:
            return
        u = _emptiest_unit(m, g, part, k)
        if u == y.NONE:
            _refuse(m, g, k)
            continue
        _place(m, g, part, k, u, now)


@spliced
def _place(m: Machine, g: int, part: int, k: int, u: int, now: int) -> None:
    places = m.shape[y.S_RESIDENT]
    w = u * places
    while m.resident[w, y.W_KERNEL] != y.NONE:
        w += 1
    m.unit[u, y.U_PLACES] -= 1
    m.unit[u, y.U_THREADS] -= m.kernel[g, k, y.K_THREADS]
    m.unit[u, y.U_REGISTERS] -= m.kernel[g, k, y.K_REGISTERS]
    m.unit[u, y.U_LDS] -= m.kernel[g, k, y.K_LDS]
    s = m.resident
    s[w, y.W_KERNEL] = k
    s[w, y.W_INDEX] = m.dealt[g, k, part]
    s[w, y.W_UNIT] = u
    s[w, y.W_GPU] = g
    s[w, y.W_WAITING] = 0
    s[w, y.W_LAST] = now
    s[w, y.W_START] = now
    m.dealt[g, k, part] += m.kernel_run[g, k, y.KR_STRIDE]
    m.kernel_run[g, k, y.KR_NEXT] += 1
    log = m.kernel[g, k, y.K_FIRST_WORK] + s[w, y.W_INDEX]
    s[w, y.W_PHASE] = m.work[g, log, y.T_SCRIPT] * m.kernel[g, k, y.K_PHASES]
    s[w, y.W_END] = s[w, y.W_PHASE] + m.kernel[g, k, y.K_PHASES]
    m.work_log[g, log, y.WL_START] = now
    m.work_log[g, log, y.WL_UNIT] = u - g * m.shape[y.S_CUS]
    schedule(m, now, y.EV_PHASE, w)


@shared
def retire(m: Machine, w: int, now: int) -> None:
    """A workgroup's script is over: free its place, end its kernel after the last one, dispatch the next."""
    s = m.resident
    g, k, u = s[w, y.W_GPU], s[w, y.W_KERNEL], s[w, y.W_UNIT]
    m.work_log[g, m.kernel[g, k, y.K_FIRST_WORK] + s[w, y.W_INDEX], y.WL_END] = now
    s[w, y.W_KERNEL] = y.NONE
    m.unit[u, y.U_PLACES] += 1
    m.unit[u, y.U_THREADS] += m.kernel[g, k, y.K_THREADS]
    m.unit[u, y.U_REGISTERS] += m.kernel[g, k, y.K_REGISTERS]
    m.unit[u, y.U_LDS] += m.kernel[g, k, y.K_LDS]
    if m.kernel[g, k, y.K_MONITOR] == 1 and m.flow[g, y.F_INTENSITY] == y.NONE:
        _choose_threshold(m, g, now)
    m.kernel_run[g, k, y.KR_DONE] += 1
    if m.kernel_run[g, k, y.KR_DONE] == m.kernel[g, k, y.K_WORKGROUPS]:
        writes = release(m, g, k, now) if m.kernel[g, k, y.K_RELEASE] == 1 else 0
        m.kernel_run[g, k, y.KR_RELEASING] = writes
        if writes == 0:
            end_kernel(m, g, k, now)
    dispatch_in(m, g, m.unit[u, y.U_PARTITION], now)


@shared
def end_kernel(m: Machine, g: int, k: int, now: int) -> None:
    """A kernel has ended: those that came after it may launch."""
    m.kernel_run[g, k, y.KR_END] = now
    m.clock[y.C_UNFINISHED] -= 1
    if m.kernel[g, k, y.K_MONITOR] == 1:  # nothing left to protect from communication
        m.flow[g, y.F_THRESHOLD] = m.gpu[g, y.G_QUEUE_BYTES]
    consider_launches(m, g, now)


@shared
def released(m: Machine, g: int, k: int, now: int) -> None:
    """One of the dirty lines that kernel `k` writes back as it ends on GPU `g` has been written."""
    m.kernel_run[g, k, y.KR_RELEASING] -= 1
    if m.kernel_run[g, k, y.KR_RELEASING] == 0:
        end_kernel(m, g, k, now)


@spliced
def _choose_threshold(m: Machine, g: int, now: int) -> None:
    """T3-MCA: the first stage's demand on memory decides how full a queue may be before communication must wait."""
    p = m.gpu
    elapsed = max(now - m.flow[g, y.F_MONITOR_START], 1)
    busy = m.flow[g, y.F_MONITOR_BYTES] // 64 * p[g, y.G_PEAK64]
    intensity = busy * 1000 // elapsed
    m.flow[g, y.F_INTENSITY] = intensity
    if intensity >= p[g, y.G_INTENSITY_HIGH]:
        threshold = p[g, y.G_THRESHOLD_HIGH]
    elif intensity >= p[g, y.G_INTENSITY_MEDIUM]:
        threshold = p[g, y.G_THRESHOLD_MEDIUM]
    elif intensity >= p[g, y.G_INTENSITY_LOW]:
        threshold = p[g, y.G_THRESHOLD_LOW]
    else:
        threshold = p[g, y.G_QUEUE_BYTES]
    m.flow[g, y.F_THRESHOLD] = threshold
    m.flow[g, y.F_CHOSEN] = threshold


@block
def count(m: Machine, g: int, counter: int, amount: int, now: int) -> None:
    """Add to a counter; whoever waits for the value it reaches goes on."""
    m.counter[g, counter, y.N_VALUE] += amount
    if m.counter[g, counter, y.N_VALUE] >= m.counter[g, counter, y.N_TARGET]:
        m.counter[g, counter, y.N_TARGET] = y.NEVER
        _wake_waiting(m, g, now)
        consider_launches(m, g, now)


@shared
def _wake_waiting(m: Machine, g: int, now: int) -> None:
    """Let every waiting workgroup look at its counter again; those too early will wait again."""
    width = m.shape[y.S_CUS] * m.shape[y.S_RESIDENT]
    for w in range(g * width, (g + 1) * width):
        if m.resident[w, y.W_KERNEL] != y.NONE and m.resident[w, y.W_WAITING] == 1:
            m.resident[w, y.W_WAITING] = 2  # woken once, however many counters move now
            schedule(m, now, y.EV_PHASE, w)
