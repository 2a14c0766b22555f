"""A memory channel: two request streams, an arbiter, a bounded command queue, FR-FCFS, and DRAM with banks.

A request is a run of bursts in one row of one bank. Column commands of requests in different bank groups interleave
on the data bus, so a request takes its bursts' share of the bus (`G_T_BURST` each) and keeps its own bank
group for as long as its column delay asks (`G_T_LONG`, or `G_T_UPDATE` for a near-memory update). Between the channel
and the rest of the chip lies a path that may be slower than the bus; it goes on while the bus turns round.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.jit import block, spliced
from weft.engine.state import Machine


@block
def new_request(m: Machine) -> int:
    """Take a row from the pool; the loop keeps enough of them free."""
    i = m.clock[y.C_FREE_REQUEST]
    m.clock[y.C_FREE_REQUEST] = m.request[i, y.R_NEXT]
    m.clock[y.C_LIVE_REQUESTS] += 1
    m.request[i, y.R_NEXT] = y.NONE
    return i  # type: ignore[no-any-return]


@block
def free_request(m: Machine, i: int) -> None:
    """Give a row back to the pool."""
    m.request[i, y.R_NEXT] = m.clock[y.C_FREE_REQUEST]
    m.clock[y.C_FREE_REQUEST] = i
    m.clock[y.C_LIVE_REQUESTS] -= 1


@block
def channel_of(m: Machine, address: int) -> int:
    """The channel, within its GPU, that owns an address: stripes go round, each round shifted against the last."""
    channels = m.shape[y.S_CHANNELS]
    stripe = address // m.shape[y.S_INTERLEAVE]
    lap = stripe // channels
    return (stripe + lap * 5 + (lap >> 5) * 3) % channels  # type: ignore[no-any-return]


@block
def enqueue(m: Machine, i: int, g: int, address: int, arrive: int) -> None:
    """Put request `i` (kind, bytes, cause, stream, owner set) into its channel's stream, there from `arrive` on."""
    channels, banks = m.shape[y.S_CHANNELS], m.shape[y.S_BANKS]
    interleave = m.shape[y.S_INTERLEAVE]
    local = channel_of(m, address)
    c = g * channels + local
    # The channel's own linear address decides row and bank; successive rows walk over the bank groups. A request larger
    # than a row counts as one: its rows are opened in banks of one group, as if they were one long row.
    span = max(m.shape[y.S_ROW], m.shape[y.S_REQUEST])
    row_index = (address // interleave // channels * interleave + address % interleave) // span
    row = row_index // banks
    r = m.request
    r[i, y.R_GPU] = g
    r[i, y.R_CHANNEL] = c
    r[i, y.R_BANK] = c * banks + (row_index + row * 3) % banks
    r[i, y.R_ROW] = row
    r[i, y.R_ADDRESS] = address
    r[i, y.R_ARRIVE] = arrive
    _join_stream(m, c, i, y.H_HEAD0 + 3 * r[i, y.R_STREAM])
    h = m.channel
    wake(m, c, arrive if h[c, y.H_QUEUED] == 0 else max(arrive, h[c, y.H_NEXT_COLUMN]))


@spliced
def _join_stream(m: Machine, c: int, i: int, head: int) -> None:
    """Put request `i` into the stream whose first column is `head`, by its time of arrival.

    Requests may be entered ahead of their time; those that arrive earlier then overtake them.
    """
    h, r = m.channel, m.request
    before = h[c, head + 1]
    while before != y.NONE and r[before, y.R_ARRIVE] > r[i, y.R_ARRIVE]:
        before = r[before, y.R_PREVIOUS]
    after = h[c, head] if before == y.NONE else r[before, y.R_NEXT]
    r[i, y.R_PREVIOUS] = before
    r[i, y.R_NEXT] = after
    if before == y.NONE:
        h[c, head] = i
    else:
        r[before, y.R_NEXT] = i
    if after == y.NONE:
        h[c, head + 1] = i
    else:
        r[after, y.R_PREVIOUS] = i
    h[c, head + 2] += 1


@block
def wake(m: Machine, c: int, time: int) -> None:
    """See to it that channel `c` is looked at no later than `time`."""
    due = m.channel[c, y.H_WAKE]
    if due == y.NONE or due > time:
        m.channel[c, y.H_WAKE] = time
        schedule(m, time, y.EV_CHANNEL, c)


@block
def _head_ready(m: Machine, c: int, stream: int, now: int) -> int:
    head = m.channel[c, y.H_HEAD0 + 3 * stream]
    if head != y.NONE and m.request[head, y.R_ARRIVE] <= now:
        return head  # type: ignore[no-any-return]
    return y.NONE


@spliced
def _unserved_since(m: Machine, c: int, head: int) -> int:
    """Since when communication has not been served: its first request's arrival, or when the last one went."""
    return max(m.request[head, y.R_ARRIVE], m.channel[c, y.H_SERVED])  # type: ignore[no-any-return]


@spliced
def admit(m: Machine, c: int, now: int, policy) -> None:  # type: ignore[no-untyped-def]
    """Let the arbiter move requests from the two streams into the command queue while there is room."""
    h, r = m.channel, m.request
    g = c // m.shape[y.S_CHANNELS]
    capacity = m.gpu[g, y.G_QUEUE_BYTES]
    while True:
        compute = _head_ready(m, c, y.COMPUTE_STREAM, now)
        communication = _head_ready(m, c, y.COMMUNICATION_STREAM, now)
        if compute == y.NONE and communication == y.NONE:
            break
        waited = 0 if communication == y.NONE else now - _unserved_since(m, c, communication)
        stream = policy(
            now,
            0 if compute == y.NONE else h[c, y.H_COUNT0],
            0 if communication == y.NONE else h[c, y.H_COUNT1],
            h[c, y.H_QUEUED_BYTES] >> 6,
            capacity >> 6,
            m.flow[g, y.F_THRESHOLD] >> 6,
            h[c, y.H_LAST_STREAM],
            waited,
            m.gpu[g, y.G_STARVATION],
        )
        i = compute if stream == y.COMPUTE_STREAM else communication
        if stream < 0 or stream > 1 or i == y.NONE:
            break
        if h[c, y.H_QUEUED] > 0 and h[c, y.H_QUEUED_BYTES] + r[i, y.R_BYTES] > capacity:
            break
        if h[c, y.H_QUEUED] == m.queue.shape[1]:  # of requests smaller than a burst there can be too many
            break
        if stream == y.COMMUNICATION_STREAM and waited > m.gpu[g, y.G_STARVATION]:
            m.flow[g, y.F_STARVED] += 1
        _move_to_queue(m, c, i, stream, now)


@spliced
def _move_to_queue(m: Machine, c: int, i: int, stream: int, now: int) -> None:
    h, r = m.channel, m.request
    base = y.H_HEAD0 + 3 * stream
    h[c, base] = r[i, y.R_NEXT]
    if h[c, base] == y.NONE:
        h[c, base + 1] = y.NONE
    else:
        r[h[c, base], y.R_PREVIOUS] = y.NONE
    h[c, base + 2] -= 1
    if stream == y.COMMUNICATION_STREAM:
        h[c, y.H_SERVED] = now
    _account_occupancy(m, c, now)
    m.queue[c, h[c, y.H_QUEUED]] = i
    h[c, y.H_QUEUED] += 1
    h[c, y.H_QUEUED_BYTES] += r[i, y.R_BYTES]
    h[c, y.H_MAX_QUEUED] = max(h[c, y.H_MAX_QUEUED], h[c, y.H_QUEUED_BYTES])
    h[c, y.H_LAST_STREAM] = stream


@block
def _account_occupancy(m: Machine, c: int, now: int) -> None:
    h = m.channel
    # Bytes x picoseconds keep the integral within 64 bits for hours of simulated time.
    h[c, y.H_OCCUPANCY] += h[c, y.H_QUEUED_BYTES] * ((now - h[c, y.H_OCCUPANCY_SINCE]) // 1000)
    h[c, y.H_OCCUPANCY_SINCE] = now


@spliced
def _activate_rows(m: Machine, c: int, g: int, now: int) -> None:
    """Open the rows that queued requests need, oldest first, never closing a row that a queued request still uses."""
    h, r, b = m.channel, m.request, m.bank
    first_bank = c * m.shape[y.S_BANKS]
    in_use = 0
    for q in range(h[c, y.H_QUEUED]):
        i = m.queue[c, q]
        if b[r[i, y.R_BANK], y.B_ROW] == r[i, y.R_ROW]:
            in_use |= 1 << (r[i, y.R_BANK] - first_bank)
    for q in range(h[c, y.H_QUEUED]):
        i = m.queue[c, q]
        k = r[i, y.R_BANK]
        if in_use & (1 << (k - first_bank)):
            continue
        in_use |= 1 << (k - first_bank)
        start = now
        if b[k, y.B_ROW] != y.NONE:
            start = max(now, b[k, y.B_PRECHARGE]) + m.gpu[g, y.G_T_RP]
        start = max(start, h[c, y.H_NEXT_ACTIVATE], b[k, y.B_ACTIVATED])
        h[c, y.H_NEXT_ACTIVATE] = start + m.gpu[g, y.G_T_RRD]
        b[k, y.B_ROW] = r[i, y.R_ROW]
        b[k, y.B_READY] = start + m.gpu[g, y.G_T_RCD]
        b[k, y.B_PRECHARGE] = start + m.gpu[g, y.G_T_RAS]
        b[k, y.B_ACTIVATED] = start + m.gpu[g, y.G_T_RC]
        h[c, y.H_ACTIVATES] += 1


@spliced
def _earliest(m: Machine, c: int, i: int, now: int) -> int:
    """The first moment at which the column commands of a request in an open row may start."""
    h, k = m.channel, m.request[i, y.R_BANK]
    turn = h[c, y.H_NEXT_READ] if m.request[i, y.R_KIND] == y.READ else h[c, y.H_NEXT_WRITE]
    group = c * m.shape[y.S_GROUPS] + k % m.shape[y.S_GROUPS]
    path = h[c, y.H_PATH] - m.gpu[m.request[i, y.R_GPU], y.G_PATH_SLACK]
    return max(now, h[c, y.H_NEXT_COLUMN], turn, m.bank[k, y.B_READY], m.group[group], path)  # type: ignore[no-any-return]


@spliced
def issue(m: Machine, c: int, now: int) -> int:
    """Choose the request that is ready first (then the oldest) and commit its commands; returns its row.

    `R_ARRIVE` becomes the time of its last data on the bus.
    """
    h, r = m.channel, m.request
    g = c // m.shape[y.S_CHANNELS]
    _activate_rows(m, c, g, now)
    best, best_start = 0, y.NEVER
    for q in range(h[c, y.H_QUEUED]):
        i = m.queue[c, q]
        if m.bank[r[i, y.R_BANK], y.B_ROW] != r[i, y.R_ROW]:
            continue
        start = _earliest(m, c, i, now)
        if start < best_start:
            best, best_start = q, start
            if start <= now:
                break
    i = m.queue[c, best]
    _account_occupancy(m, c, now)
    h[c, y.H_QUEUED] -= 1
    for q in range(best, h[c, y.H_QUEUED]):
        m.queue[c, q] = m.queue[c, q + 1]
    h[c, y.H_QUEUED_BYTES] -= r[i, y.R_BYTES]
    _commit(m, c, g, i, best_start)
    return i  # type: ignore[no-any-return]


@spliced
def _commit(m: Machine, c: int, g: int, i: int, start: int) -> None:
    h, r, p = m.channel, m.request, m.gpu
    k = r[i, y.R_BANK]
    kind = r[i, y.R_KIND]
    bursts = (r[i, y.R_BYTES] + m.shape[y.S_BURST] - 1) // m.shape[y.S_BURST]
    gap = p[g, y.G_T_UPDATE] if kind == y.UPDATE else p[g, y.G_T_LONG]
    last = start + (bursts - 1) * gap
    h[c, y.H_NEXT_COLUMN] = start + bursts * p[g, y.G_T_BURST]
    h[c, y.H_BUSY] += bursts * p[g, y.G_T_BURST]
    h[c, y.H_PATH] = max(h[c, y.H_PATH], start) + bursts * p[g, y.G_T_PATH]
    m.group[c * m.shape[y.S_GROUPS] + k % m.shape[y.S_GROUPS]] = last + gap
    if kind == y.READ:
        h[c, y.H_NEXT_WRITE] = max(h[c, y.H_NEXT_WRITE], last + p[g, y.G_T_READ_TO_WRITE])
        closed = last + p[g, y.G_T_READ_TO_PRECHARGE]
        r[i, y.R_ARRIVE] = last + p[g, y.G_T_CL] + p[g, y.G_T_BURST]
    else:
        h[c, y.H_NEXT_READ] = max(h[c, y.H_NEXT_READ], last + p[g, y.G_T_WRITE_TO_READ])
        closed = last + p[g, y.G_T_WRITE_TO_PRECHARGE]
        r[i, y.R_ARRIVE] = last + gap
    m.bank[k, y.B_PRECHARGE] = max(m.bank[k, y.B_PRECHARGE], closed)
    direction = 0 if kind == y.READ else 1
    if h[c, y.H_LAST_KIND] != direction:
        h[c, y.H_TURNAROUNDS] += 1
        h[c, y.H_LAST_KIND] = direction


@spliced
def next_look(m: Machine, c: int, now: int) -> None:
    """After a look at the channel: plan the next one."""
    h, r = m.channel, m.request
    if h[c, y.H_QUEUED] > 0:
        wake(m, c, max(now, h[c, y.H_NEXT_COLUMN]))
        return
    g = c // m.shape[y.S_CHANNELS]
    soonest = y.NEVER
    for stream in range(2):
        head = h[c, y.H_HEAD0 + 3 * stream]
        if head != y.NONE:
            again = r[head, y.R_ARRIVE]
            if (
                again <= now and now < h[c, y.H_NEXT_COLUMN]
            ):  # refused beside a request that has now been issued
                again = h[c, y.H_NEXT_COLUMN]
            elif again <= now:  # refused by an empty queue: ask again when the starvation limit has passed
                again = max(again, h[c, y.H_SERVED]) + m.gpu[g, y.G_STARVATION] + 1
            if again > now:
                soonest = min(soonest, again)
    if soonest != y.NEVER:
        wake(m, c, soonest)
