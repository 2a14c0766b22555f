"""Commands of processing in memory on one channel, beside the requests of a GPU, which wait for them.

A group of runs of commands, from one barrier to the next, takes the channel as a whole: banks that it touches close
their rows, open its own together, and are back when it ends. Until then no request begins a column or opens a row.
Refreshes that fall due meanwhile follow the group, as they follow any open row.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import KIND_SHIFT, schedule, settle, take
from weft.engine.dram import _make_misses
from weft.engine.jit import block, entry, shared
from weft.engine.memory import enqueue, look, new_request, wake
from weft.engine.replay import TRACE_ADDRESS, TRACE_AT, TRACE_BYTES, TRACE_KIND, TRACE_STREAM
from weft.engine.state import Machine, Table

(
    PIM_KIND, PIM_BANKS, PIM_ROW, PIM_COUNT, PIM_GAP, PIM_BUS, PIM_OPENING, PIM_TOGETHER, PIM_AFTER, PIM_COLUMNS,
) = range(10)  # fmt: skip
# run[k, :] — PIM_COUNT equal commands, one every PIM_GAP. PIM_KIND: what they do. PIM_BANKS: the banks of the channel
# that each touches, a bit each; PIM_ROW: the row that must be open there. PIM_BUS: time of each on the data bus;
# PIM_OPENING: what opening the row takes more, where not all banks open together. PIM_TOGETHER: 1 if the next run
# follows at once, 0 if a barrier of PIM_AFTER ends the group.
PIM_COMPUTE, PIM_READ, PIM_WRITE = range(3)
PIM_ROWS = 1 << 40
"""Rows of commands are numbered from here on, so that no request of the GPU is in one."""

# log[k, :] — when the first command of run `k` was given, and when the run ended.
LOG_BEGIN, LOG_END, LOG_COLUMNS = range(3)

# stand[:] — where a replay has got to: the next request to enter, the next one whose data is waited for, when the last
# one was used, the next run, and when its group may begin at the earliest.
STAND_ENTERED, STAND_USED, STAND_CLOCK, STAND_RUN, STAND_DUE, STAND_COLUMNS = range(6)

# source[i, :] — a request as in `weft.engine.replay`; TRACE_AT: when its data would be used, if all came in time.
# served[i, :] — when it was sent, when its data came (a write: when memory took it), and when they were used.
SERVED_SENT, SERVED_DONE, SERVED_USED, SERVED_COLUMNS = range(4)


@shared
def _enter(m: Machine, source: Table, served: Table, stand: Table, at: int) -> None:
    """Send the next request, which arrives at its channel at `at`."""
    n = stand[STAND_ENTERED]
    i = new_request(m)
    m.request[i, y.REQ_KIND] = source[n, TRACE_KIND]
    m.request[i, y.REQ_BYTES] = source[n, TRACE_BYTES]
    m.request[i, y.REQ_STREAM] = source[n, TRACE_STREAM]
    m.request[i, y.REQ_OWNER_KIND] = y.OWNER_NOBODY
    m.request[i, y.REQ_OWNER] = n
    m.request[i, y.REQ_REGION] = y.NONE
    m.request[i, y.REQ_FILLS] = y.NONE
    served[n, SERVED_SENT] = at
    stand[STAND_ENTERED] = n + 1
    enqueue(m, i, 0, source[n, TRACE_ADDRESS], at)


@shared
def _use(m: Machine, source: Table, served: Table, stand: Table, window: int) -> None:
    """Use the data that have come, in order: each frees a place of the window for the next request.

    A kernel uses the data of a request when they have come and the work on those before is done; it does not wait for
    what it has written.
    """
    while stand[STAND_USED] < stand[STAND_ENTERED]:
        n = stand[STAND_USED]
        clock = stand[STAND_CLOCK] + source[n, TRACE_AT] - (source[n - 1, TRACE_AT] if n > 0 else 0)
        if source[n, TRACE_KIND] == y.READ:
            if served[n, SERVED_DONE] == y.NONE:
                break
            clock = max(clock, served[n, SERVED_DONE])
        served[n, SERVED_USED] = stand[STAND_CLOCK] = clock
        stand[STAND_USED] = n + 1
        if stand[STAND_ENTERED] < source.shape[0]:
            _enter(m, source, served, stand, clock)


@block
def _quiet(m: Machine, now: int) -> int:
    """When the columns of all requests that have begun are given."""
    quiet = now
    for k in range(m.group.shape[0]):
        quiet = max(quiet, m.group[k, y.GROUP_UNTIL])
    return quiet


@shared
def _open_together(m: Machine, banks: int, row: int, now: int, opening: int) -> int:
    """Open a row in each of those banks at once, where it is not open; returns when columns can begin."""
    bank, gpu, channel = m.bank, m.gpu, m.channel
    start, ready = now, now
    for b in range(bank.shape[0]):
        if (banks >> b) & 1 and bank[b, y.BANK_ROW] != row:
            start = max(start, bank[b, y.BANK_ACTIVATED])
            if bank[b, y.BANK_ROW] != y.NONE:
                start = max(start, max(now, bank[b, y.BANK_PRECHARGE]) + gpu[0, y.GPU_T_RP])
    start = max(start, channel[0, y.CHAN_NEXT_ACTIVATE])
    for b in range(bank.shape[0]):
        if (banks >> b) & 1:
            if bank[b, y.BANK_ROW] != row:
                bank[b, y.BANK_ROW] = row
                bank[b, y.BANK_READY] = start + gpu[0, y.GPU_T_RCD] + opening
                bank[b, y.BANK_PRECHARGE] = start + opening + gpu[0, y.GPU_T_RAS]
                bank[b, y.BANK_ACTIVATED] = start + opening + gpu[0, y.GPU_T_RC]
                channel[0, y.CHAN_NEXT_ACTIVATE] = start + opening + max(gpu[0, y.GPU_T_RRD], gpu[0, y.GPU_T_FAW])
            ready = max(ready, bank[b, y.BANK_READY])
    return ready


@shared
def _give_run(m: Machine, run: Table, log: Table, k: int, now: int) -> int:
    """Give the commands of run `k` from `now` on, as early as rows and turnarounds allow; returns when they end."""
    channel, bank, gpu = m.channel, m.bank, m.gpu
    kind, banks, count, gap = run[k, PIM_KIND], run[k, PIM_BANKS], run[k, PIM_COUNT], run[k, PIM_GAP]
    start = now
    if kind != PIM_COMPUTE:
        start = _open_together(m, banks, PIM_ROWS + run[k, PIM_ROW], now, run[k, PIM_OPENING])
        start = max(start, channel[0, y.CHAN_NEXT_READ if kind == PIM_READ else y.CHAN_NEXT_WRITE])
    last = start + (count - 1) * gap
    closing = last
    if kind == PIM_READ:
        channel[0, y.CHAN_NEXT_WRITE] = max(channel[0, y.CHAN_NEXT_WRITE], last + gpu[0, y.GPU_T_READ_TO_WRITE])
        closing = last + gpu[0, y.GPU_T_READ_TO_PRECHARGE]
    elif kind == PIM_WRITE:
        channel[0, y.CHAN_NEXT_READ] = max(channel[0, y.CHAN_NEXT_READ], last + gpu[0, y.GPU_T_WRITE_TO_READ])
        closing = last + gpu[0, y.GPU_T_WRITE_TO_PRECHARGE]
    for b in range(bank.shape[0]):
        if (banks >> b) & 1:
            bank[b, y.BANK_PRECHARGE] = max(bank[b, y.BANK_PRECHARGE], closing)
    channel[0, y.CHAN_BUSY] += count * run[k, PIM_BUS]
    log[k, LOG_BEGIN], log[k, LOG_END] = start, last + gap
    return last + gap  # type: ignore[no-any-return]


@shared
def _give_group(m: Machine, run: Table, log: Table, stand: Table, now: int) -> int:
    """Give the runs up to the next barrier from `now` on; the requests of the GPU wait until they end."""
    channel, bank = m.channel, m.bank
    k, end = stand[STAND_RUN], _quiet(m, now)
    more = 1
    while more == 1:
        end = _give_run(m, run, log, k, end)
        more = run[k, PIM_TOGETHER] if k + 1 < run.shape[0] else 0
        k += 1
    stand[STAND_RUN] = k
    for column in (y.CHAN_NEXT_READ, y.CHAN_NEXT_WRITE, y.CHAN_NEXT_ACTIVATE):
        channel[0, column] = max(channel[0, column], end)
    for b in range(bank.shape[0]):
        bank[b, y.BANK_PRECHARGE] = max(bank[b, y.BANK_PRECHARGE], end)
        bank[b, y.BANK_CLOSED] = bank[b, y.BANK_PRECHARGE]
        bank[b, y.BANK_OPENS] = bank[b, y.BANK_ACTIVATED]
        if bank[b, y.BANK_ROW] != y.NONE:
            bank[b, y.BANK_OPENS] = max(bank[b, y.BANK_OPENS], bank[b, y.BANK_PRECHARGE] + m.gpu[0, y.GPU_T_RP])
        if bank[b, y.BANK_ROW] >= PIM_ROWS:
            _make_misses(m, 0, b)
    channel[0, y.CHAN_BEST] = channel[0, y.CHAN_OPENS] = y.NONE
    if channel[0, y.CHAN_QUEUED_BYTES] > 0:
        wake(m, 0, end)
    return end


@shared
def _commands(m: Machine, run: Table, log: Table, stand: Table, every: int, patience: int, now: int) -> None:
    """Give the group of commands that is due, if no request is queued or it has waited for `patience`."""
    if stand[STAND_RUN] >= run.shape[0] or now < stand[STAND_DUE]:
        return
    late = stand[STAND_DUE] + patience
    if m.channel[0, y.CHAN_QUEUED_BYTES] > 0 and now < late:
        schedule(m, late, y.EV_COMMAND, 0)
        return
    end = _give_group(m, run, log, stand, now)
    stand[STAND_DUE] = max(end + run[stand[STAND_RUN] - 1, PIM_AFTER], stand[STAND_DUE] + every)
    if stand[STAND_RUN] < run.shape[0]:
        schedule(m, stand[STAND_DUE], y.EV_COMMAND, 0)


@entry
def meet(  # type: ignore[no-untyped-def]
    m: Machine, source: Table, served: Table, run: Table, log: Table, stand: Table, policy, window: int, every: int,
    patience: int,
) -> int:  # fmt: skip
    """Serve all requests and all commands on one channel; returns the status.

    At most `window` requests are sent before the data of the first are used. A group of commands is due every `every`
    (0: as soon as the one before has ended), and gives way to queued requests for `patience`. The tables of requests
    and events have room for all.
    """
    for _ in range(min(window, source.shape[0])):
        _enter(m, source, served, stand, 0)
    _use(m, source, served, stand, window)
    if run.shape[0] > 0:
        schedule(m, 0, y.EV_COMMAND, 0)
    while m.clock[y.CLOCK_HEAP] > 0:
        if m.clock[y.CLOCK_HEAP] + 8 > m.heap.shape[0]:
            return y.GROW_HEAP
        code = take(m)
        kind, now = code >> KIND_SHIFT, m.clock[y.CLOCK_NOW]
        m.clock[y.CLOCK_EVENTS] += 1
        if kind == y.EV_CHANNEL and m.channel[0, y.CHAN_SCHEDULED] == now:
            m.channel[0, y.CHAN_SCHEDULED] = y.NONE
        if kind != y.EV_CHANNEL or m.channel[0, y.CHAN_WAKE] == now:
            if m.channel[0, y.CHAN_WAKE] == now:
                m.channel[0, y.CHAN_WAKE] = y.NONE
            i = look(m, 0, now, policy)
            if i != y.NONE:
                latency = m.gpu[0, y.GPU_MEMORY_LATENCY] if m.request[i, y.REQ_KIND] == y.READ else 0
                served[m.request[i, y.REQ_OWNER], SERVED_DONE] = m.request[i, y.REQ_ARRIVE] + latency
                _use(m, source, served, stand, window)
            _commands(m, run, log, stand, every, patience, now)
        settle(m)
    done = stand[STAND_USED] == source.shape[0] and stand[STAND_RUN] == run.shape[0]
    return y.FINISHED if done else y.STARVED
