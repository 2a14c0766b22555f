"""A memory channel: two request streams, an arbiter, a bounded command queue, FR-FCFS, and DRAM with banks.

A request is a run of bursts in one row of one bank. Column commands of requests in different bank groups interleave
on the data bus, so a request takes its bursts' share of the bus (`GPU_T_BURST` each) and keeps its own bank group for
as long as its column delay asks (`GPU_T_LONG`, or `GPU_T_UPDATE` for a near-memory update). Between the channel and the
rest of the chip lies a path that may be slower than the bus; it goes on while the bus turns round.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.jit import block, spliced
from weft.engine.state import Machine


@block
def new_request(m: Machine) -> int:
    """Take a row from the pool; the loop keeps enough of them free."""
    i = m.clock[y.CLOCK_FREE_REQUEST]
    m.clock[y.CLOCK_FREE_REQUEST] = m.request[i, y.REQ_NEXT]
    m.clock[y.CLOCK_LIVE_REQUESTS] += 1
    m.request[i, y.REQ_NEXT] = y.NONE
    return i  # type: ignore[no-any-return]


@block
def free_request(m: Machine, i: int) -> None:
    """Give a row back to the pool."""
    m.request[i, y.REQ_NEXT] = m.clock[y.CLOCK_FREE_REQUEST]
    m.clock[y.CLOCK_FREE_REQUEST] = i
    m.clock[y.CLOCK_LIVE_REQUESTS] -= 1


@block
def channel_of(m: Machine, address: int) -> int:
    """The channel, within its GPU, that owns an address: stripes go round, each round shifted against the last."""
    channels = m.shape[y.SIZE_CHANNELS]
    stripe = address // m.shape[y.SIZE_INTERLEAVE]
    lap = stripe // channels
    return (stripe + lap * 5 + (lap >> 5) * 3) % channels  # type: ignore[no-any-return]


@block
def stream_of(m: Machine, cause: int) -> int:
    """The stream of a channel that traffic of a cause goes through."""
    return y.COMPUTE_STREAM if cause >= m.shape[y.SIZE_COMPUTE_CAUSE] else y.COMMUNICATION_STREAM


@block
def enqueue(m: Machine, i: int, g: int, address: int, arrive: int) -> None:
    """Put request `i` (kind, bytes, cause, stream, owner set) into its channel's stream, there from `arrive` on."""
    channels, banks = m.shape[y.SIZE_CHANNELS], m.shape[y.SIZE_BANKS]
    interleave = m.shape[y.SIZE_INTERLEAVE]
    local = channel_of(m, address)
    c = g * channels + local
    # The channel's own linear address decides row and bank; successive rows walk over the bank groups. A request larger
    # than a row counts as one: its rows are opened in banks of one group, as if they were one long row.
    span = max(m.shape[y.SIZE_ROW], m.shape[y.SIZE_REQUEST])
    row_index = (address // interleave // channels * interleave + address % interleave) // span
    row = row_index // banks
    request = m.request
    request[i, y.REQ_GPU] = g
    request[i, y.REQ_CHANNEL] = c
    request[i, y.REQ_BANK] = c * banks + (row_index + row * 3) % banks
    request[i, y.REQ_ROW] = row
    request[i, y.REQ_ADDRESS] = address
    request[i, y.REQ_ARRIVE] = arrive
    _join_stream(m, c, i, y.CHAN_COMPUTE_HEAD + 3 * request[i, y.REQ_STREAM])
    channel = m.channel
    wake(m, c, arrive if channel[c, y.CHAN_QUEUED] == 0 else max(arrive, channel[c, y.CHAN_NEXT_COLUMN]))


@spliced
def _join_stream(m: Machine, c: int, i: int, head: int) -> None:
    """Put request `i` into the stream whose first column is `head`, by its time of arrival.

    Requests may be entered ahead of their time; those that arrive earlier then overtake them.
    """
    channel, request = m.channel, m.request
    before = channel[c, head + 1]
    while before != y.NONE and request[before, y.REQ_ARRIVE] > request[i, y.REQ_ARRIVE]:
        before = request[before, y.REQ_PREVIOUS]
    after = channel[c, head] if before == y.NONE else request[before, y.REQ_NEXT]
    request[i, y.REQ_PREVIOUS] = before
    request[i, y.REQ_NEXT] = after
    if before == y.NONE:
        channel[c, head] = i
    else:
        request[before, y.REQ_NEXT] = i
    if after == y.NONE:
        channel[c, head + 1] = i
    else:
        request[after, y.REQ_PREVIOUS] = i
    channel[c, head + 2] += 1


@block
def wake(m: Machine, c: int, time: int) -> None:
    """See to it that channel `c` is looked at no later than `time`."""
    due = m.channel[c, y.CHAN_WAKE]
    if due == y.NONE or due > time:
        m.channel[c, y.CHAN_WAKE] = time
        schedule(m, time, y.EV_CHANNEL, c)


@block
def _head_ready(m: Machine, c: int, stream: int, now: int) -> int:
    head = m.channel[c, y.CHAN_COMPUTE_HEAD + 3 * stream]
    if head != y.NONE and m.request[head, y.REQ_ARRIVE] <= now:
        return head  # type: ignore[no-any-return]
    return y.NONE


@spliced
def _unserved_since(m: Machine, c: int, head: int) -> int:
    """Since when communication has not been served: its first request's arrival, or when the last one went."""
    return max(m.request[head, y.REQ_ARRIVE], m.channel[c, y.CHAN_COMMUNICATION_SERVED])  # type: ignore[no-any-return]


@spliced
def admit(m: Machine, c: int, now: int, policy) -> None:  # type: ignore[no-untyped-def]
    """Let the arbiter move requests from the two streams into the command queue while there is room."""
    channel, request = m.channel, m.request
    g = c // m.shape[y.SIZE_CHANNELS]
    capacity = m.gpu[g, y.GPU_QUEUE_BYTES]
    while True:
        compute = _head_ready(m, c, y.COMPUTE_STREAM, now)
        communication = _head_ready(m, c, y.COMMUNICATION_STREAM, now)
        if compute == y.NONE and communication == y.NONE:
            break
        waited = 0 if communication == y.NONE else now - _unserved_since(m, c, communication)
        stream = policy(
            now,
            0 if compute == y.NONE else channel[c, y.CHAN_COMPUTE_COUNT],
            0 if communication == y.NONE else channel[c, y.CHAN_COMMUNICATION_COUNT],
            channel[c, y.CHAN_QUEUED_BYTES] >> 6,
            capacity >> 6,
            m.flow[g, y.FLOW_THRESHOLD] >> 6,
            channel[c, y.CHAN_LAST_STREAM],
            waited,
            m.gpu[g, y.GPU_STARVATION],
        )
        i = compute if stream == y.COMPUTE_STREAM else communication
        if stream < 0 or stream > 1 or i == y.NONE:
            break
        if channel[c, y.CHAN_QUEUED] > 0 and channel[c, y.CHAN_QUEUED_BYTES] + request[i, y.REQ_BYTES] > capacity:
            break
        if channel[c, y.CHAN_QUEUED] == m.queue.shape[1]:  # of requests smaller than a burst there can be too many
            break
        if stream == y.COMMUNICATION_STREAM and waited > m.gpu[g, y.GPU_STARVATION]:
            m.flow[g, y.FLOW_PAST_LIMIT] += 1
        _move_to_queue(m, c, i, stream, now)


@spliced
def _move_to_queue(m: Machine, c: int, i: int, stream: int, now: int) -> None:
    channel, request = m.channel, m.request
    base = y.CHAN_COMPUTE_HEAD + 3 * stream
    channel[c, base] = request[i, y.REQ_NEXT]
    if channel[c, base] == y.NONE:
        channel[c, base + 1] = y.NONE
    else:
        request[channel[c, base], y.REQ_PREVIOUS] = y.NONE
    channel[c, base + 2] -= 1
    if stream == y.COMMUNICATION_STREAM:
        channel[c, y.CHAN_COMMUNICATION_SERVED] = now
    _account_occupancy(m, c, now)
    m.queue[c, channel[c, y.CHAN_QUEUED]] = i
    channel[c, y.CHAN_QUEUED] += 1
    channel[c, y.CHAN_QUEUED_BYTES] += request[i, y.REQ_BYTES]
    channel[c, y.CHAN_MAX_QUEUED] = max(channel[c, y.CHAN_MAX_QUEUED], channel[c, y.CHAN_QUEUED_BYTES])
    channel[c, y.CHAN_LAST_STREAM] = stream


@block
def _account_occupancy(m: Machine, c: int, now: int) -> None:
    channel = m.channel
    # Bytes x picoseconds keep the integral within 64 bits for hours of simulated time.
    channel[c, y.CHAN_OCCUPANCY] += channel[c, y.CHAN_QUEUED_BYTES] * (
        (now - channel[c, y.CHAN_OCCUPANCY_SINCE]) // 1000
    )
    channel[c, y.CHAN_OCCUPANCY_SINCE] = now


@spliced
def _activate_rows(m: Machine, c: int, g: int, now: int) -> None:
    """Open the rows that queued requests need, oldest first, never closing a row that a queued request still uses."""
    channel, request, bank = m.channel, m.request, m.bank
    first_bank = c * m.shape[y.SIZE_BANKS]
    in_use = 0
    for q in range(channel[c, y.CHAN_QUEUED]):
        i = m.queue[c, q]
        if bank[request[i, y.REQ_BANK], y.BANK_ROW] == request[i, y.REQ_ROW]:
            in_use |= 1 << (request[i, y.REQ_BANK] - first_bank)
    for q in range(channel[c, y.CHAN_QUEUED]):
        i = m.queue[c, q]
        b = request[i, y.REQ_BANK]
        if in_use & (1 << (b - first_bank)):
            continue
        in_use |= 1 << (b - first_bank)
        start = now
        if bank[b, y.BANK_ROW] != y.NONE:
            start = max(now, bank[b, y.BANK_PRECHARGE]) + m.gpu[g, y.GPU_T_RP]
        start = max(start, channel[c, y.CHAN_NEXT_ACTIVATE], bank[b, y.BANK_ACTIVATED])
        channel[c, y.CHAN_NEXT_ACTIVATE] = start + m.gpu[g, y.GPU_T_RRD]
        bank[b, y.BANK_ROW] = request[i, y.REQ_ROW]
        bank[b, y.BANK_READY] = start + m.gpu[g, y.GPU_T_RCD]
        bank[b, y.BANK_PRECHARGE] = start + m.gpu[g, y.GPU_T_RAS]
        bank[b, y.BANK_ACTIVATED] = start + m.gpu[g, y.GPU_T_RC]
        channel[c, y.CHAN_ACTIVATES] += 1


@spliced
def _earliest(m: Machine, c: int, i: int, now: int) -> int:
    """The first moment at which the column commands of a request in an open row may start."""
    channel, b = m.channel, m.request[i, y.REQ_BANK]
    turn = channel[c, y.CHAN_NEXT_READ] if m.request[i, y.REQ_KIND] == y.READ else channel[c, y.CHAN_NEXT_WRITE]
    group = c * m.shape[y.SIZE_GROUPS] + b % m.shape[y.SIZE_GROUPS]
    path = channel[c, y.CHAN_PATH_UNTIL] - m.gpu[m.request[i, y.REQ_GPU], y.GPU_PATH_SLACK]
    return max(now, channel[c, y.CHAN_NEXT_COLUMN], turn, m.bank[b, y.BANK_READY], m.group[group], path)  # type: ignore[no-any-return]


@spliced
def issue(m: Machine, c: int, now: int) -> int:
    """Choose the request that is ready first (then the oldest) and commit its commands; returns its row.

    `REQ_ARRIVE` becomes the time of its last data on the bus.
    """
    channel, request = m.channel, m.request
    g = c // m.shape[y.SIZE_CHANNELS]
    _activate_rows(m, c, g, now)
    best, best_start = 0, y.NEVER
    for q in range(channel[c, y.CHAN_QUEUED]):
        i = m.queue[c, q]
        if m.bank[request[i, y.REQ_BANK], y.BANK_ROW] != request[i, y.REQ_ROW]:
            continue
        start = _earliest(m, c, i, now)
        if start < best_start:
            best, best_start = q, start
            if start <= now:
                break
    i = m.queue[c, best]
    _account_occupancy(m, c, now)
    channel[c, y.CHAN_QUEUED] -= 1
    for q in range(best, channel[c, y.CHAN_QUEUED]):
        m.queue[c, q] = m.queue[c, q + 1]
    channel[c, y.CHAN_QUEUED_BYTES] -= request[i, y.REQ_BYTES]
    _commit(m, c, g, i, best_start)
    return i  # type: ignore[no-any-return]


@spliced
def _commit(m: Machine, c: int, g: int, i: int, start: int) -> None:
    channel, request, gpu = m.channel, m.request, m.gpu
    b = request[i, y.REQ_BANK]
    kind = request[i, y.REQ_KIND]
    bursts = (request[i, y.REQ_BYTES] + m.shape[y.SIZE_BURST] - 1) // m.shape[y.SIZE_BURST]
    gap = gpu[g, y.GPU_T_UPDATE] if kind == y.UPDATE else gpu[g, y.GPU_T_LONG]
    last = start + (bursts - 1) * gap
    channel[c, y.CHAN_NEXT_COLUMN] = start + bursts * gpu[g, y.GPU_T_BURST]
    channel[c, y.CHAN_BUSY] += bursts * gpu[g, y.GPU_T_BURST]
    channel[c, y.CHAN_PATH_UNTIL] = max(channel[c, y.CHAN_PATH_UNTIL], start) + bursts * gpu[g, y.GPU_T_PATH]
    m.group[c * m.shape[y.SIZE_GROUPS] + b % m.shape[y.SIZE_GROUPS]] = last + gap
    if kind == y.READ:
        channel[c, y.CHAN_NEXT_WRITE] = max(channel[c, y.CHAN_NEXT_WRITE], last + gpu[g, y.GPU_T_READ_TO_WRITE])
        closed = last + gpu[g, y.GPU_T_READ_TO_PRECHARGE]
        request[i, y.REQ_ARRIVE] = last + gpu[g, y.GPU_T_CL] + gpu[g, y.GPU_T_BURST]
    else:
        channel[c, y.CHAN_NEXT_READ] = max(channel[c, y.CHAN_NEXT_READ], last + gpu[g, y.GPU_T_WRITE_TO_READ])
        closed = last + gpu[g, y.GPU_T_WRITE_TO_PRECHARGE]
        request[i, y.REQ_ARRIVE] = last + gap
    m.bank[b, y.BANK_PRECHARGE] = max(m.bank[b, y.BANK_PRECHARGE], closed)
    direction = 0 if kind == y.READ else 1
    if channel[c, y.CHAN_LAST_KIND] != direction:
        channel[c, y.CHAN_TURNAROUNDS] += 1
        channel[c, y.CHAN_LAST_KIND] = direction


@spliced
def next_look(m: Machine, c: int, now: int) -> None:
    """After a look at the channel: plan the next one."""
    channel, request = m.channel, m.request
    if channel[c, y.CHAN_QUEUED] > 0:
        wake(m, c, max(now, channel[c, y.CHAN_NEXT_COLUMN]))
        return
    g = c // m.shape[y.SIZE_CHANNELS]
    soonest = y.NEVER
    for stream in range(2):
        head = channel[c, y.CHAN_COMPUTE_HEAD + 3 * stream]
        if head != y.NONE:
            again = request[head, y.REQ_ARRIVE]
            if (
                again <= now and now < channel[c, y.CHAN_NEXT_COLUMN]
            ):  # refused beside a request that has now been issued
                again = channel[c, y.CHAN_NEXT_COLUMN]
            elif again <= now:  # refused by an empty queue: ask again when the starvation limit has passed
                again = max(again, channel[c, y.CHAN_COMMUNICATION_SERVED]) + m.gpu[g, y.GPU_STARVATION] + 1
            if again > now:
                soonest = min(soonest, again)
    if soonest != y.NEVER:
        wake(m, c, soonest)
