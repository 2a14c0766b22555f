"""The DRAM behind a channel: banks with open rows, bank groups that share the data bus, refresh.

A request is a run of bursts in one row of one bank. Column commands of requests in different bank groups interleave
on the data bus: a request keeps its own bank group for as long as its column delay asks (`GPU_T_LONG` a burst, or
`GPU_T_UPDATE` for a near-memory update) and takes that share of the bus meanwhile.

Queued requests wait in lists of their bank: reads and writes that hit its open row, and misses. Between two looks at a
channel nothing changes but rows that open and refreshes: the next look makes up for them.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.bits import bits_above, lowest_bit
from weft.engine.jit import block
from weft.engine.record import record_activate
from weft.engine.state import Machine


@block
def finds_row_open(m: Machine, c: int, i: int, now: int) -> bool:
    """Whether the row of request `i` is open, and no request for another row has closed it by now."""
    b = m.request[i, y.REQ_BANK]
    if m.bank[b, y.BANK_ROW] != m.request[i, y.REQ_ROW]:
        return False
    bit = 1 << (b - c * m.shape[y.SIZE_BANKS])
    used, awaited = m.channel[c, y.CHAN_HITS] & bit != 0, m.channel[c, y.CHAN_MISSES] & bit != 0
    return used or not awaited or m.bank[b, y.BANK_CLOSED] > now


@block
def join_bank(m: Machine, c: int, i: int, now: int) -> None:
    """Put an admitted request among the hits of its bank, or among the misses if its row is closed by now."""
    channel = m.channel
    g, b = m.request[i, y.REQ_GPU], m.request[i, y.REQ_BANK]
    bit = 1 << (b - c * m.shape[y.SIZE_BANKS])
    unused = channel[c, y.CHAN_HITS] & bit == 0
    if finds_row_open(m, c, i, now):
        _append_hit(m, c, b, i)
        if unused:
            channel[c, y.CHAN_OPENS] = y.NONE
        return
    if unused and channel[c, y.CHAN_MISSES] & bit == 0:
        _close_row(m, c, g, b, now)
    _append_miss(m, b, i)
    channel[c, y.CHAN_MISSES] |= bit


@block
def _append(m: Machine, b: int, head: int, i: int) -> None:
    """Put request `i` at the end of the list of bank `b` whose first column is `head`."""
    bank = m.bank
    m.request[i, y.REQ_NEXT] = y.NONE
    if bank[b, head] == y.NONE:
        bank[b, head] = i
    else:
        m.request[bank[b, head + 1], y.REQ_NEXT] = i
    bank[b, head + 1] = i


@block
def _append_hit(m: Machine, c: int, b: int, i: int) -> None:
    """Put request `i` among the reads or the writes of bank `b`; it may be able to start before the one chosen."""
    _append(m, b, y.BANK_READ_HEAD if m.request[i, y.REQ_KIND] == y.READ else y.BANK_WRITE_HEAD, i)
    ready = max(m.bank[b, y.BANK_READY], m.group[m.bank[b, y.BANK_GROUP], y.GROUP_UNTIL])
    if ready <= m.channel[c, y.CHAN_BEST_START]:
        m.channel[c, y.CHAN_BEST] = y.NONE
    m.channel[c, y.CHAN_HITS] |= 1 << (b - c * m.shape[y.SIZE_BANKS])


@block
def _append_miss(m: Machine, b: int, i: int) -> None:
    """Put request `i` among the misses of bank `b`."""
    if m.bank[b, y.BANK_MISS_HEAD] == y.NONE:
        m.bank[b, y.BANK_MISS_TICKET] = m.request[i, y.REQ_TICKET]
    _append(m, b, y.BANK_MISS_HEAD, i)


@block
def _close_row(m: Machine, c: int, g: int, b: int, now: int) -> None:
    """Precharge bank `b` as soon as it may be, for a request that waits for another row; note when that can open."""
    channel, bank = m.channel, m.bank
    opens = now
    if bank[b, y.BANK_ROW] != y.NONE:
        bank[b, y.BANK_CLOSED] = max(now, bank[b, y.BANK_PRECHARGE])
        opens = bank[b, y.BANK_CLOSED] + m.gpu[g, y.GPU_T_RP]
    bank[b, y.BANK_OPENS] = max(opens, bank[b, y.BANK_ACTIVATED])
    if max(bank[b, y.BANK_OPENS], channel[c, y.CHAN_NEXT_ACTIVATE]) <= channel[c, y.CHAN_OPENS]:
        channel[c, y.CHAN_OPENS] = y.NONE


@block
def open_rows(m: Machine, c: int, g: int, now: int) -> int:
    """Refresh what is due, and activate the rows that misses wait for, each when it could be.

    A row with hits stays open. Returns when the next row can be activated, after `now` (NEVER: none is waited for).
    """
    channel = m.channel
    while True:
        if channel[c, y.CHAN_OPENS] == y.NONE:
            _choose_row(m, c)
        if channel[c, y.CHAN_REFRESH] <= min(now, channel[c, y.CHAN_OPENS]):
            _refresh(m, c, g)
        elif channel[c, y.CHAN_OPENS] <= now:
            _activate(m, c, g, channel[c, y.CHAN_OPENS_BANK], channel[c, y.CHAN_OPENS])
        else:
            return channel[c, y.CHAN_OPENS]  # type: ignore[no-any-return]


@block
def _refresh(m: Machine, c: int, g: int) -> None:
    """Refresh the banks whose turn it is: their rows close together, and none opens until that is over."""
    channel, bank = m.channel, m.bank
    first, count = c * m.shape[y.SIZE_BANKS] + channel[c, y.CHAN_REFRESH_BANK], m.gpu[g, y.GPU_REFRESH_BANKS]
    start = channel[c, y.CHAN_REFRESH]
    for b in range(first, first + count):
        if bank[b, y.BANK_ROW] != y.NONE:
            start = max(start, max(channel[c, y.CHAN_REFRESH], bank[b, y.BANK_PRECHARGE]) + m.gpu[g, y.GPU_T_RP])
    for b in range(first, first + count):
        bank[b, y.BANK_ROW] = y.NONE
        bank[b, y.BANK_ACTIVATED] = max(bank[b, y.BANK_ACTIVATED], start + m.gpu[g, y.GPU_T_RFC])
        bank[b, y.BANK_OPENS] = bank[b, y.BANK_ACTIVATED]
        make_misses(m, c, b)
    channel[c, y.CHAN_OPENS] = y.NONE
    channel[c, y.CHAN_BEST] = y.NONE
    channel[c, y.CHAN_REFRESH] += m.gpu[g, y.GPU_REFRESH_EVERY]
    channel[c, y.CHAN_REFRESH_BANK] = (channel[c, y.CHAN_REFRESH_BANK] + count) % m.shape[y.SIZE_BANKS]


@block
def make_misses(m: Machine, c: int, b: int) -> None:
    """Make misses of all requests of bank `b`, in the order of admission."""
    channel, request, bank = m.channel, m.request, m.bank
    bit = 1 << (b - c * m.shape[y.SIZE_BANKS])
    if channel[c, y.CHAN_HITS] & bit == 0:
        return
    reads, writes, misses = bank[b, y.BANK_READ_HEAD], bank[b, y.BANK_WRITE_HEAD], bank[b, y.BANK_MISS_HEAD]
    bank[b, y.BANK_READ_HEAD] = bank[b, y.BANK_WRITE_HEAD] = bank[b, y.BANK_MISS_HEAD] = y.NONE
    while reads != y.NONE or writes != y.NONE or misses != y.NONE:
        i = _older(m, reads, _older(m, writes, misses))
        following = request[i, y.REQ_NEXT]
        if i == reads:
            reads = following
        elif i == writes:
            writes = following
        else:
            misses = following
        _append_miss(m, b, i)
    channel[c, y.CHAN_HITS] &= ~bit
    channel[c, y.CHAN_MISSES] |= bit


@block
def _older(m: Machine, i: int, j: int) -> int:
    """Which of two requests was admitted first; either may be NONE."""
    if i == y.NONE:
        return j
    return i if j == y.NONE or m.request[i, y.REQ_TICKET] < m.request[j, y.REQ_TICKET] else j


@block
def _choose_row(m: Machine, c: int) -> None:
    """Choose the bank that can open the row of its oldest miss first, of equals that with the oldest miss."""
    channel, bank = m.channel, m.bank
    chosen, start, oldest = y.NONE, y.NEVER, y.NEVER
    waits = channel[c, y.CHAN_MISSES] & ~channel[c, y.CHAN_HITS]
    b = c * m.shape[y.SIZE_BANKS]
    while waits != 0:
        skip = lowest_bit(waits)
        waits = bits_above(waits, skip)
        b += skip
        opens = max(bank[b, y.BANK_OPENS], channel[c, y.CHAN_NEXT_ACTIVATE])
        if opens < start or (opens == start and bank[b, y.BANK_MISS_TICKET] < oldest):
            chosen, start, oldest = b, opens, bank[b, y.BANK_MISS_TICKET]
        b += 1
    channel[c, y.CHAN_OPENS], channel[c, y.CHAN_OPENS_BANK] = start, chosen


@block
def _activate(m: Machine, c: int, g: int, b: int, start: int) -> None:
    """Open the row of the oldest miss of bank `b`; all its misses in that row become hits."""
    channel, request, bank = m.channel, m.request, m.bank
    i = bank[b, y.BANK_MISS_HEAD]
    row = request[i, y.REQ_ROW]
    bank[b, y.BANK_ROW] = row
    bank[b, y.BANK_READY] = start + m.gpu[g, y.GPU_T_RCD]
    bank[b, y.BANK_PRECHARGE] = start + m.gpu[g, y.GPU_T_RAS]
    bank[b, y.BANK_ACTIVATED] = start + m.gpu[g, y.GPU_T_RC]
    # Of five activates in a row, the last begins no earlier than FAW after the first.
    number = channel[c, y.CHAN_ACTIVATES]
    channel[c, y.CHAN_WINDOW + number % 4] = start + m.gpu[g, y.GPU_T_FAW]
    channel[c, y.CHAN_NEXT_ACTIVATE] = max(start + m.gpu[g, y.GPU_T_RRD], channel[c, y.CHAN_WINDOW + (number + 1) % 4])
    channel[c, y.CHAN_ACTIVATES] += 1
    record_activate(m, c, b, start)
    channel[c, y.CHAN_OPENS] = y.NONE
    bank[b, y.BANK_MISS_HEAD] = y.NONE
    while i != y.NONE:
        following = request[i, y.REQ_NEXT]
        if request[i, y.REQ_ROW] == row:
            _append_hit(m, c, b, i)
        else:
            _append_miss(m, b, i)
        i = following
    if bank[b, y.BANK_MISS_HEAD] == y.NONE:
        channel[c, y.CHAN_MISSES] &= ~(1 << (b - c * m.shape[y.SIZE_BANKS]))


@block
def _bus_free(m: Machine, c: int, g: int, share: int) -> int:
    """When the bus has a share to spare beside those of the requests that bank groups are busy with."""
    groups = m.shape[y.SIZE_GROUPS]
    free = m.channel[c, y.CHAN_START] + m.gpu[g, y.GPU_T_BURST]
    while True:
        taken, soonest = share, y.NEVER
        for k in range(c * groups, (c + 1) * groups):
            if m.group[k, y.GROUP_UNTIL] > free:
                taken += m.group[k, y.GROUP_SHARE]
                soonest = min(soonest, m.group[k, y.GROUP_UNTIL])
        if taken <= y.WHOLE_BUS:
            return free  # type: ignore[no-any-return]
        free = soonest


@block
def choose(m: Machine, c: int, g: int, now: int) -> int:
    """Choose the request whose columns can start first, of equals the oldest; returns when (NEVER: there are no hits).

    Of each bank the oldest read and the oldest write that hit its open row count.
    """
    channel, request, bank = m.channel, m.request, m.bank
    if channel[c, y.CHAN_BEST] != y.NONE:
        return channel[c, y.CHAN_BEST_START]  # type: ignore[no-any-return]
    best, best_start, oldest = y.NONE, y.NEVER, y.NEVER
    hits = channel[c, y.CHAN_HITS]
    if hits != 0:
        path = max(now, channel[c, y.CHAN_PATH_UNTIL] - m.gpu[g, y.GPU_PATH_SLACK])
        bus = max(path, _bus_free(m, c, g, m.gpu[g, y.GPU_SHARE_LONG]))
    b, update_bus = c * m.shape[y.SIZE_BANKS], y.NONE
    while hits != 0:
        skip = lowest_bit(hits)
        hits = bits_above(hits, skip)
        b += skip
        ready = max(bank[b, y.BANK_READY], m.group[bank[b, y.BANK_GROUP], y.GROUP_UNTIL])
        i = bank[b, y.BANK_READ_HEAD]
        if i != y.NONE:
            start = max(ready, bus, channel[c, y.CHAN_NEXT_READ])
            if start < best_start or (start == best_start and request[i, y.REQ_TICKET] < oldest):
                best, best_start, oldest = i, start, request[i, y.REQ_TICKET]
        i = bank[b, y.BANK_WRITE_HEAD]
        if i != y.NONE:
            free = bus
            if request[i, y.REQ_KIND] == y.UPDATE:
                if update_bus == y.NONE:
                    update_bus = max(path, _bus_free(m, c, g, m.gpu[g, y.GPU_SHARE_UPDATE]))
                free = update_bus
            start = max(ready, free, channel[c, y.CHAN_NEXT_WRITE])
            if start < best_start or (start == best_start and request[i, y.REQ_TICKET] < oldest):
                best, best_start, oldest = i, start, request[i, y.REQ_TICKET]
        b += 1
    channel[c, y.CHAN_BEST], channel[c, y.CHAN_BEST_START] = best, best_start
    return best_start


@block
def issue(m: Machine, c: int, g: int, i: int, now: int) -> None:
    """Take request `i` from the lists of its bank and give its column commands from `now` on.

    `REQ_ARRIVE` becomes the time of its last data on the bus.
    """
    channel, bank = m.channel, m.bank
    b = m.request[i, y.REQ_BANK]
    bit = 1 << (b - c * m.shape[y.SIZE_BANKS])
    head = y.BANK_READ_HEAD if m.request[i, y.REQ_KIND] == y.READ else y.BANK_WRITE_HEAD
    bank[b, head] = m.request[i, y.REQ_NEXT]
    channel[c, y.CHAN_BEST] = y.NONE
    _give_columns(m, c, g, i, now)
    if bank[b, y.BANK_READ_HEAD] == y.NONE and bank[b, y.BANK_WRITE_HEAD] == y.NONE:
        channel[c, y.CHAN_HITS] &= ~bit
        if channel[c, y.CHAN_MISSES] & bit != 0:
            _close_row(m, c, g, b, now)


@block
def _give_columns(m: Machine, c: int, g: int, i: int, start: int) -> None:
    """Occupy bus, bank group and path with the bursts of request `i`, and note what may follow them when."""
    channel, request, gpu = m.channel, m.request, m.gpu
    b = request[i, y.REQ_BANK]
    kind = request[i, y.REQ_KIND]
    bursts = (request[i, y.REQ_BYTES] + m.shape[y.SIZE_BURST] - 1) // m.shape[y.SIZE_BURST]
    gap = gpu[g, y.GPU_T_UPDATE] if kind == y.UPDATE else gpu[g, y.GPU_T_LONG]
    last = start + (bursts - 1) * gap
    channel[c, y.CHAN_START] = start
    channel[c, y.CHAN_BUSY] += bursts * gpu[g, y.GPU_T_BURST]
    channel[c, y.CHAN_PATH_UNTIL] = max(channel[c, y.CHAN_PATH_UNTIL], start) + bursts * gpu[g, y.GPU_T_PATH]
    group = m.bank[b, y.BANK_GROUP]
    m.group[group, y.GROUP_UNTIL] = last + gap
    m.group[group, y.GROUP_SHARE] = gpu[g, y.GPU_SHARE_UPDATE] if kind == y.UPDATE else gpu[g, y.GPU_SHARE_LONG]
    m.bank[b, y.BANK_PRECHARGE] = max(m.bank[b, y.BANK_PRECHARGE], follow(m, c, g, kind, last))
    request[i, y.REQ_ARRIVE] = last + (gpu[g, y.GPU_T_CL] + gpu[g, y.GPU_T_BURST] if kind == y.READ else gap)
    direction = 0 if kind == y.READ else 1
    if channel[c, y.CHAN_LAST_KIND] != direction:
        channel[c, y.CHAN_TURNAROUNDS] += 1
        channel[c, y.CHAN_LAST_KIND] = direction


@block
def follow(m: Machine, c: int, g: int, kind: int, last: int) -> int:
    """Note what may follow columns of `kind`, of which `last` is the last, when; returns when their row can close."""
    channel, gpu = m.channel, m.gpu
    if kind == y.READ:
        channel[c, y.CHAN_NEXT_WRITE] = max(channel[c, y.CHAN_NEXT_WRITE], last + gpu[g, y.GPU_T_READ_TO_WRITE])
        return last + gpu[g, y.GPU_T_READ_TO_PRECHARGE]  # type: ignore[no-any-return]
    channel[c, y.CHAN_NEXT_READ] = max(channel[c, y.CHAN_NEXT_READ], last + gpu[g, y.GPU_T_WRITE_TO_READ])
    return last + gpu[g, y.GPU_T_WRITE_TO_PRECHARGE]  # type: ignore[no-any-return]
