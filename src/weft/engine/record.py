"""Counters and series for the result: traffic by cause over time, chunk and link activity, interference, heat.

Interference is what the two streams of a memory channel cost each other, heat what each channel or bank does over time;
both are recorded only where a run asks for them.
"""

from __future__ import annotations

import math

from weft.engine import layout as y
from weft.engine.jit import block, shared
from weft.engine.state import SERIES_BINS, Machine, Table


@shared
def _fold(series: Table, link_series: Table, load_series: Table) -> None:
    for g in range(series.shape[0]):
        for b in range(SERIES_BINS // 2):
            for cause in range(series.shape[1]):
                series[g, cause, b] = series[g, cause, 2 * b] + series[g, cause, 2 * b + 1]
            link_series[g, b] = link_series[g, 2 * b] + link_series[g, 2 * b + 1]
        for b in range(SERIES_BINS // 2, SERIES_BINS):
            for cause in range(series.shape[1]):
                series[g, cause, b] = 0
            link_series[g, b] = 0
    for g in range(load_series.shape[0]):
        for stream in range(2):
            for b in range(SERIES_BINS // 2):
                for k in range(y.CLASSES):
                    both = load_series[g, stream, 2 * b, k] + load_series[g, stream, 2 * b + 1, k]
                    load_series[g, stream, b, k] = both
            for b in range(SERIES_BINS // 2, SERIES_BINS):
                for k in range(y.CLASSES):
                    load_series[g, stream, b, k] = 0


@block
def _bin(m: Machine, time: int) -> int:
    """The bin of `time`; when the series is full, pairs of bins are merged and bins become twice as wide."""
    b = m.clock[y.CLOCK_BIN_LAST]
    since = time - b * m.clock[y.CLOCK_BIN]
    if 0 <= since < m.clock[y.CLOCK_BIN]:
        return b  # type: ignore[no-any-return]
    b = time // m.clock[y.CLOCK_BIN]
    while b >= SERIES_BINS:
        _fold(m.series, m.link_series, m.load_series)
        m.clock[y.CLOCK_BIN] *= 2
        b = time // m.clock[y.CLOCK_BIN]
    m.clock[y.CLOCK_BIN_LAST] = b
    return b  # type: ignore[no-any-return]


@block
def record_traffic(m: Machine, g: int, cause: int, bytes_: int, time: int) -> None:
    """Count bytes that the DRAM of GPU `g` moved."""
    m.traffic[g, cause] += bytes_
    m.series[g, cause, _bin(m, time)] += bytes_


@block
def record_link(m: Machine, g: int, bytes_: int, time: int) -> None:
    """Count bytes that left GPU `g`."""
    m.link_series[g, _bin(m, time)] += bytes_


@block
def record_chunk(m: Machine, g: int, region: int, first: int, time: int) -> None:
    """Record the first and last time of an activity of a chunk; `first` is the column of the first."""
    if m.chunk_log[g, region, first] == y.NONE:
        m.chunk_log[g, region, first] = time
    m.chunk_log[g, region, first + 1] = max(m.chunk_log[g, region, first + 1], time)


# -- interference


@block
def record_arrivals(m: Machine, c: int, now: int) -> None:
    """Record the arrival of every request that has reached channel `c` since the last look at it."""
    if m.arrival.shape[0] > 0:
        _arrivals(m, c, now)


@shared
def _arrivals(m: Machine, c: int, now: int) -> None:
    """Record arrivals at channel `c` up to `now`, both streams in the order of time.

    Requests are entered ahead of their arrival; since the last look, nothing else has changed in the channel.
    """
    while True:
        i = _next_arrived(m, c, y.COMPUTE_STREAM, now)
        other = _next_arrived(m, c, y.COMMUNICATION_STREAM, now)
        if i == y.NONE or (other != y.NONE and m.request[other, y.REQ_ARRIVE] < m.request[i, y.REQ_ARRIVE]):
            i = other
        if i == y.NONE:
            return
        _record_arrival(m, c, i)


@block
def _next_arrived(m: Machine, c: int, stream: int, now: int) -> int:
    """The first request of a stream that has arrived by `now` and whose arrival is not recorded, or NONE."""
    last = m.waiting[c, y.WAITING_LAST + stream]
    i = m.channel[c, y.CHAN_COMPUTE_HEAD + 3 * stream] if last == y.NONE else m.request[last, y.REQ_NEXT]
    return i if i != y.NONE and m.request[i, y.REQ_ARRIVE] <= now else y.NONE


@block
def _record_arrival(m: Machine, c: int, i: int) -> None:
    """Count what request `i` finds in channel `c`, and keep its arrival for when it is served."""
    waiting, g, own = m.waiting, m.channel[c, y.CHAN_GPU], m.request[i, y.REQ_STREAM]
    other = 1 - own
    _classify(m.histogram, g, own, y.HISTOGRAM_OWN, waiting[c, y.WAITING_BYTES + own], y.UNIT_BYTES)
    _classify(m.histogram, g, own, y.HISTOGRAM_OTHER, waiting[c, y.WAITING_BYTES + other], y.UNIT_BYTES)
    _classify(m.histogram, g, own, y.HISTOGRAM_QUEUE, m.channel[c, y.CHAN_QUEUED_BYTES], y.UNIT_BYTES)
    m.arrival[i, y.ARRIVAL_TIME] = m.request[i, y.REQ_ARRIVE]
    m.arrival[i, y.ARRIVAL_SERVED] = waiting[c, y.WAITING_SERVED + other]
    waiting[c, y.WAITING_LAST + own] = i
    waiting[c, y.WAITING_BYTES + own] += m.request[i, y.REQ_BYTES]
    waiting[c, y.WAITING_UNSERVED + own] += 1


@block
def record_admission(m: Machine, c: int, i: int) -> None:
    """Record that request `i`, the first of its stream, has left it for the command queue of channel `c`."""
    if m.arrival.shape[0] > 0:
        stream = m.request[i, y.REQ_STREAM]
        m.waiting[c, y.WAITING_BYTES + stream] -= m.request[i, y.REQ_BYTES]
        if m.waiting[c, y.WAITING_LAST + stream] == i:
            m.waiting[c, y.WAITING_LAST + stream] = y.NONE


@block
def record_service(m: Machine, c: int, i: int) -> None:
    """Record how long issued request `i` was in channel `c`, and the bytes of the other stream served before it."""
    if m.arrival.shape[0] > 0:
        _service(m, c, i)


@shared
def _service(m: Machine, c: int, i: int) -> None:
    """Add request `i` to its stream's bytes, delays and latencies."""
    waiting, stream, g, own = m.waiting, m.stream, m.channel[c, y.CHAN_GPU], m.request[i, y.REQ_STREAM]
    other, bytes_ = 1 - own, m.request[i, y.REQ_BYTES]
    ahead = waiting[c, y.WAITING_SERVED + other] - m.arrival[i, y.ARRIVAL_SERVED]
    waiting[c, y.WAITING_SERVED + own] += bytes_
    waiting[c, y.WAITING_UNSERVED + own] -= 1
    stream[g, own, y.STREAM_REQUESTS] += 1
    stream[g, own, y.STREAM_BYTES] += bytes_
    stream[g, own, y.STREAM_AHEAD] += ahead
    if waiting[c, y.WAITING_UNSERVED + other] > 0:
        stream[g, other, y.STREAM_DELAYING] += bytes_
    _classify(m.histogram, g, own, y.HISTOGRAM_AHEAD, ahead, y.UNIT_BYTES)
    if m.request[i, y.REQ_KIND] == y.READ:
        took = m.request[i, y.REQ_ARRIVE] - m.arrival[i, y.ARRIVAL_TIME]
        _classify(m.histogram, g, own, y.HISTOGRAM_READ, took, y.UNIT_TIME)


@block
def record_load(m: Machine, q: int, now: int) -> None:
    """Record the latency of the loads of the iteration in slot `q`, whose last data arrives now."""
    if m.arrival.shape[0] > 0:
        _load(m, q, now)


@shared
def _load(m: Machine, q: int, now: int) -> None:
    """Add the latency of the loads of slot `q` to the histogram and the series of their stream; no loads: nothing."""
    w = q // y.SLOTS
    g, k = m.resident[w, y.WG_GPU], m.resident[w, y.WG_KERNEL]
    p = m.kernel[g, k, y.KERNEL_FIRST_PHASE] + m.resident[w, y.WG_PHASE]
    if m.phase[g, p, y.PHASE_LOADS] == 0:
        return
    cause = m.access[g, m.phase[g, p, y.PHASE_FIRST_LOAD], y.ACCESS_OPERATOR] * y.KINDS
    stream = y.COMPUTE_STREAM if cause >= m.shape[y.SIZE_COMPUTE_CAUSE] else y.COMMUNICATION_STREAM
    issued = m.slot[q, y.SLOT_ISSUED]
    _classify(m.histogram, g, stream, y.HISTOGRAM_LOAD, now - issued, y.UNIT_TIME)
    m.load_series[g, stream, _bin(m, issued), _class_of(now - issued, y.UNIT_TIME)] += 1


@block
def record_misses(m: Machine, g: int, t: int, before: int) -> None:
    """Count the misses since `before` for the chunk that the workgroup of work row `t` makes."""
    if m.arrival.shape[0] > 0 and m.work[g, t, y.WORK_REGION] >= 0:
        m.misses[g, m.work[g, t, y.WORK_REGION]] += m.flow[g, y.FLOW_MISSES] - before


# -- updates of tiles


@shared
def record_update(m: Machine, g: int, key: int, remote: bool, maker: int, time: int) -> None:
    """Record that memory has updated bytes of wavefront tile `key`, made by a part of K here or by a peer GPU."""
    peers = max(m.shape[y.SIZE_GPUS] - 1, 1)
    makers = m.update_log.shape[1] // m.seen.shape[1]
    if remote:
        maker = makers - peers - 1 + max((maker - g) % m.shape[y.SIZE_GPUS], 1)
    m.update_log[g, key * makers + maker] = time


# -- heat


@block
def _heat_row(m: Machine, c: int, b: int) -> int:
    """The row of `heat` of bank `b` in channel `c`: its own, or that of the channel."""
    return b if m.heat.shape[0] == m.bank.shape[0] else c


@block
def _heat_bin(m: Machine, time: int) -> int:
    """The bin of `heat` of `time`; when all are full, pairs of bins are merged and bins become twice as wide."""
    bins = m.heat.shape[1]
    b = max(time, 0) // m.clock[y.CLOCK_HEAT_BIN]
    while b >= bins:
        _fold_heat(m.heat)
        m.clock[y.CLOCK_HEAT_BIN] *= 2
        b = max(time, 0) // m.clock[y.CLOCK_HEAT_BIN]
    return b  # type: ignore[no-any-return]


@shared
def _fold_heat(heat: Table) -> None:
    half = heat.shape[1] // 2
    for r in range(heat.shape[0]):
        for b in range(half):
            for k in range(y.HEAT_COLUMNS):
                heat[r, b, k] = heat[r, 2 * b, k] + heat[r, 2 * b + 1, k]
        for b in range(half, heat.shape[1]):
            for k in range(y.HEAT_COLUMNS):
                heat[r, b, k] = 0


@block
def record_queued(m: Machine, c: int, i: int, now: int) -> None:
    """Record that request `i` is in the command queue of channel `c` from `now` on."""
    if m.heat.shape[0] > 0:
        r = _heat_row(m, c, m.request[i, y.REQ_BANK])
        if m.heated[r, y.HEATED_QUEUED] == 0:
            m.heated[r, y.HEATED_SINCE] = max(now, m.heated[r, y.HEATED_UNTIL])
        m.heated[r, y.HEATED_QUEUED] += 1


@block
def record_activate(m: Machine, c: int, b: int, time: int) -> None:
    """Count a row that bank `b` of channel `c` opens."""
    if m.heat.shape[0] > 0:
        m.heat[_heat_row(m, c, b), _heat_bin(m, time), y.HEAT_ACTIVATES] += 1


@block
def record_columns(m: Machine, c: int, i: int, start: int) -> None:
    """Record the columns of issued request `i`, from `start` to its last data."""
    if m.heat.shape[0] > 0:
        _columns(m, c, i, start)


@shared
def _columns(m: Machine, c: int, i: int, start: int) -> None:
    """Add request `i` to the heat of its bank or channel, and the time in which that had requests, if it was the last.

    Of overlapping requests of bank groups each adds its own time on the bus.
    """
    request, heated = m.request, m.heated
    r, bytes_, end = _heat_row(m, c, request[i, y.REQ_BANK]), request[i, y.REQ_BYTES], request[i, y.REQ_ARRIVE]
    bin_ = _heat_bin(m, start)
    m.heat[r, bin_, y.HEAT_READ if request[i, y.REQ_KIND] == y.READ else y.HEAT_WRITTEN] += bytes_
    m.heat[r, bin_, y.HEAT_REQUESTS] += 1
    bursts = (bytes_ + m.shape[y.SIZE_BURST] - 1) // m.shape[y.SIZE_BURST]
    _spread(m, r, y.HEAT_BUSY, bursts * m.gpu[request[i, y.REQ_GPU], y.GPU_T_BURST], start, end)
    heated[r, y.HEATED_UNTIL] = max(heated[r, y.HEATED_UNTIL], end)
    heated[r, y.HEATED_QUEUED] -= 1
    if heated[r, y.HEATED_QUEUED] == 0:
        since, until = heated[r, y.HEATED_SINCE], heated[r, y.HEATED_UNTIL]
        _spread(m, r, y.HEAT_PENDING, until - since, since, until)


@shared
def _spread(m: Machine, r: int, column: int, amount: int, start: int, end: int) -> None:
    """Spread an amount evenly over the bins between two times."""
    last, whole = _heat_bin(m, end - 1), max(end - start, 1)
    before = 0
    for b in range(_heat_bin(m, start), last + 1):
        reached = min((b + 1) * m.clock[y.CLOCK_HEAT_BIN], end) - start
        until = amount if b == last else int(amount / whole * reached)
        m.heat[r, b, column] += until - before
        before = until


@shared
def _class_of(value: int, unit: int) -> int:
    """The class of a value: 0 below one unit, then CLASSES_PER_DOUBLING of them for every doubling."""
    if value < unit:
        return 0
    return min(1 + int(y.CLASSES_PER_DOUBLING * math.log2(value / unit)), y.CLASSES - 1)


@shared
def _classify(histogram: Table, g: int, stream: int, what: int, value: int, unit: int) -> None:
    """Count a value in its class, and keep the largest."""
    histogram[g, stream, what, _class_of(value, unit)] += 1
    histogram[g, stream, what, y.CLASSES] = max(histogram[g, stream, what, y.CLASSES], value)
