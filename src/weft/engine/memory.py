"""A memory channel: two request streams, an arbiter and a bounded command queue in front of the DRAM.

A look at a channel opens rows, issues at most one request by FR-FCFS, and admits requests. It comes when a request
arrives for which there is room, and when columns can start. Between the channel and the rest of the chip lies a path
that may be slower than the DRAM's bus; it goes on while the bus turns round.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import quotient, remainder
from weft.engine.calendar import schedule
from weft.engine.dram import choose, finds_row_open, issue, join_bank, open_rows
from weft.engine.jit import block, shared
from weft.engine.record import (
    record_admission,
    record_arrivals,
    record_columns,
    record_queued,
    record_service,
)
from weft.engine.state import Machine


@block
def new_request(m: Machine) -> int:
    """Take a row from the pool; the loop keeps enough of them free."""
    i = m.clock[y.CLOCK_FREE_REQUEST]
    m.clock[y.CLOCK_FREE_REQUEST] = i + 1 + m.request[i, y.REQ_NEXT]
    m.clock[y.CLOCK_LIVE_REQUESTS] += 1
    m.request[i, y.REQ_NEXT] = y.NONE
    return i  # type: ignore[no-any-return]


@block
def free_request(m: Machine, i: int) -> None:
    """Give a row back to the pool."""
    m.request[i, y.REQ_NEXT] = m.clock[y.CLOCK_FREE_REQUEST] - i - 1
    m.clock[y.CLOCK_FREE_REQUEST] = i
    m.clock[y.CLOCK_LIVE_REQUESTS] -= 1


@block
def channel_of(m: Machine, address: int) -> int:
    """The channel, within its GPU, that owns an address: stripes go round, each round shifted if they are hashed."""
    stripe = quotient(m, address, y.SIZE_INTERLEAVE)
    return _turned(m, stripe, quotient(m, stripe, y.SIZE_CHANNELS))


@block
def _turned(m: Machine, stripe: int, lap: int) -> int:
    """The channel of a stripe in a round `lap` over the channels."""
    return remainder(m, stripe + (lap * 5 + (lap >> 5) * 3 & m.shape[y.SIZE_HASH]), y.SIZE_CHANNELS)


@block
def stream_of(m: Machine, cause: int) -> int:
    """The stream of a channel that traffic of a cause goes through."""
    return y.COMPUTE_STREAM if cause >= m.shape[y.SIZE_COMPUTE_CAUSE] else y.COMMUNICATION_STREAM


@block
def enqueue(m: Machine, i: int, g: int, address: int, arrive: int) -> None:
    """Put request `i` (kind, bytes, cause, stream, owner set) into its channel's stream, there from `arrive` on."""
    stripe = quotient(m, address, y.SIZE_INTERLEAVE)
    lap = quotient(m, stripe, y.SIZE_CHANNELS)
    c = g * m.shape[y.SIZE_CHANNELS] + _turned(m, stripe, lap)
    # The channel's own linear address decides row and bank; successive rows walk over the bank groups, and rounds of
    # rows are shifted like those of stripes. A request larger
    # than a row counts as one: its rows are opened in banks of one group, as if they were one long row.
    own = lap * m.shape[y.SIZE_INTERLEAVE] + remainder(m, address, y.SIZE_INTERLEAVE)
    span = y.SIZE_ROW if m.shape[y.SIZE_ROW] > m.shape[y.SIZE_REQUEST] else y.SIZE_REQUEST
    row_index = quotient(m, own, span)
    row = quotient(m, row_index, y.SIZE_BANKS)
    request = m.request
    request[i, y.REQ_GPU] = g
    request[i, y.REQ_CHANNEL] = c
    request[i, y.REQ_BANK] = c * m.shape[y.SIZE_BANKS] + remainder(
        m, row_index + (row * 3 & m.shape[y.SIZE_HASH]), y.SIZE_BANKS
    )
    request[i, y.REQ_ROW] = row
    request[i, y.REQ_ADDRESS] = address
    request[i, y.REQ_ARRIVE] = arrive
    _join_stream(m, c, i, y.CHAN_COMPUTE_HEAD + 3 * request[i, y.REQ_STREAM])
    if _has_room(m, c, g, i):
        wake(m, c, arrive)


@block
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
    """Look at channel `c` no later than `time`."""
    channel = m.channel
    due = channel[c, y.CHAN_WAKE]
    if due == y.NONE or due > time:
        channel[c, y.CHAN_WAKE] = time
        if time != channel[c, y.CHAN_SCHEDULED]:
            schedule(m, time, y.EV_CHANNEL, c)
        channel[c, y.CHAN_SCHEDULED] = due


@block
def woken(m: Machine, c: int, now: int) -> bool:
    """Whether a look at channel `c` is due now: an earlier one may have replaced that whose event comes."""
    channel = m.channel
    if channel[c, y.CHAN_SCHEDULED] == now:
        channel[c, y.CHAN_SCHEDULED] = y.NONE
    if channel[c, y.CHAN_WAKE] != now:
        return False
    channel[c, y.CHAN_WAKE] = y.NONE
    return True


@block
def _has_room(m: Machine, c: int, g: int, i: int) -> bool:
    """Whether there is a request `i` and it fits into the command queue; an empty queue takes any request."""
    queued = m.channel[c, y.CHAN_QUEUED_BYTES]
    if i == y.NONE:
        return False
    return queued == 0 or queued + m.request[i, y.REQ_BYTES] <= m.gpu[g, y.GPU_QUEUE_BYTES]  # type: ignore[no-any-return]


@block
def _head_ready(m: Machine, c: int, stream: int, now: int) -> int:
    head = m.channel[c, y.CHAN_COMPUTE_HEAD + 3 * stream]
    if head != y.NONE and m.request[head, y.REQ_ARRIVE] <= now:
        return head  # type: ignore[no-any-return]
    return y.NONE


@block
def _unserved_since(m: Machine, c: int, head: int) -> int:
    """Since when communication has not been served: its first request's arrival, or when the last one went."""
    return max(m.request[head, y.REQ_ARRIVE], m.channel[c, y.CHAN_COMMUNICATION_SERVED])  # type: ignore[no-any-return]


def consult(policy, state: tuple[int, ...]) -> int:  # type: ignore[no-untyped-def]
    """Return the stream that a policy selects, given the fields of an ArbiterView; compiled, a call of its address."""
    return policy(*state)  # type: ignore[no-any-return]


@block
def _admit(m: Machine, c: int, g: int, now: int, policy) -> bool:  # type: ignore[no-untyped-def]
    """Let the arbiter move requests from the two streams into the command queue; whether it has moved any."""
    channel = m.channel
    admitted = False
    while True:
        compute = _head_ready(m, c, y.COMPUTE_STREAM, now)
        communication = _head_ready(m, c, y.COMMUNICATION_STREAM, now)
        if not (_has_room(m, c, g, compute) or _has_room(m, c, g, communication)):
            break
        if compute == y.NONE or communication == y.NONE:
            channel[c, y.CHAN_LEAD] = 0
        waited = 0 if communication == y.NONE else now - _unserved_since(m, c, communication)
        state = (
            now,
            0 if compute == y.NONE else channel[c, y.CHAN_COMPUTE_COUNT],
            0 if communication == y.NONE else channel[c, y.CHAN_COMMUNICATION_COUNT],
            0 if compute == y.NONE else m.request[compute, y.REQ_BYTES],
            0 if communication == y.NONE else m.request[communication, y.REQ_BYTES],
            channel[c, y.CHAN_LEAD],
            channel[c, y.CHAN_QUEUED_BYTES] // y.QUEUE_ENTRY,
            m.gpu[g, y.GPU_QUEUE_BYTES] // y.QUEUE_ENTRY,
            m.flow[g, y.FLOW_THRESHOLD] // y.QUEUE_ENTRY,
            channel[c, y.CHAN_LAST_STREAM],
            waited,
            m.gpu[g, y.GPU_STARVATION],
            m.flow[g, y.FLOW_CRITICAL],
            y.NONE if compute == y.NONE else m.request[compute, y.REQ_KIND],
            y.NONE if communication == y.NONE else m.request[communication, y.REQ_KIND],
            0 if compute == y.NONE else int(finds_row_open(m, c, compute, now)),
            0 if communication == y.NONE else int(finds_row_open(m, c, communication, now)),
        )
        stream = consult(policy, state)
        i = compute if stream == y.COMPUTE_STREAM else communication
        if stream < 0 or stream > 1 or not _has_room(m, c, g, i):
            break
        if stream == y.COMMUNICATION_STREAM and waited > m.gpu[g, y.GPU_STARVATION]:
            m.flow[g, y.FLOW_PAST_LIMIT] += 1
        _move_to_queue(m, c, i, stream, now)
        admitted = True
    return admitted


@block
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
    record_admission(m, c, i)
    _account_occupancy(m, c, now)
    request[i, y.REQ_TICKET] = channel[c, y.CHAN_ADMITTED]
    channel[c, y.CHAN_ADMITTED] += 1
    channel[c, y.CHAN_QUEUED_BYTES] += request[i, y.REQ_BYTES]
    channel[c, y.CHAN_MAX_QUEUED] = max(channel[c, y.CHAN_MAX_QUEUED], channel[c, y.CHAN_QUEUED_BYTES])
    channel[c, y.CHAN_LAST_STREAM] = stream
    channel[c, y.CHAN_LEAD] += request[i, y.REQ_BYTES] if stream == y.COMPUTE_STREAM else -request[i, y.REQ_BYTES]
    join_bank(m, c, i, now)
    record_queued(m, c, i, now)


@block
def _account_occupancy(m: Machine, c: int, now: int) -> None:
    channel = m.channel
    # Bytes x picoseconds keep the integral within 64 bits for hours of simulated time.
    channel[c, y.CHAN_OCCUPANCY] += channel[c, y.CHAN_QUEUED_BYTES] * (
        (now - channel[c, y.CHAN_OCCUPANCY_SINCE]) // 1000
    )
    channel[c, y.CHAN_OCCUPANCY_SINCE] = now


@block
def look(m: Machine, c: int, now: int, policy) -> int:  # type: ignore[no-untyped-def]
    """Open rows, issue the request whose columns can start by now, admit requests, and plan the next look.

    Returns the issued request, or NONE.
    """
    g = m.channel[c, y.CHAN_GPU]
    issued = y.NONE
    record_arrivals(m, c, now)
    while True:
        opened = open_rows(m, c, g, now)
        start = choose(m, c, g, now)
        ready = issued == y.NONE and start <= now
        if ready:
            issued = m.channel[c, y.CHAN_BEST]
            _account_occupancy(m, c, now)
            m.channel[c, y.CHAN_QUEUED_BYTES] -= m.request[issued, y.REQ_BYTES]
            issue(m, c, g, issued, now)
            record_columns(m, c, issued, now)
            record_service(m, c, issued)
        if not _admit(m, c, g, now, policy) and not ready:
            break
    if opened < y.NEVER:
        start = min(start, opened + m.gpu[g, y.GPU_T_RCD])
    start = min(start, _next_arrival(m, c, g, now))
    if start < y.NEVER:
        wake(m, c, max(start, now))
    return issued


@block
def _next_arrival(m: Machine, c: int, g: int, now: int) -> int:
    """When a stream has another request for the queue, or the policy is to be asked again (NEVER: neither)."""
    channel, request = m.channel, m.request
    soonest = y.NEVER
    for stream in range(2):
        head = channel[c, y.CHAN_COMPUTE_HEAD + 3 * stream]
        if _has_room(m, c, g, head):
            again = request[head, y.REQ_ARRIVE]
            if again <= now:  # refused by the policy: ask again when the starvation limit has passed
                again = max(again, channel[c, y.CHAN_COMMUNICATION_SERVED]) + m.gpu[g, y.GPU_STARVATION] + 1
            if again > now:
                soonest = min(soonest, again)
    return soonest


@shared
def starved(m: Machine) -> bool:
    """Whether a stream has requests that the policy refused, once no event is left."""
    for c in range(m.channel.shape[0]):
        if m.channel[c, y.CHAN_COMPUTE_COUNT] + m.channel[c, y.CHAN_COMMUNICATION_COUNT] > 0:
            return True
    return False
