"""Commands of processing in memory on a channel, beside the requests of a GPU, which wait for them.

A group of runs of commands, from one barrier to the next, takes the channel as a whole: banks that it touches close
their rows, open its own together, and are back when it ends. Until then no request begins a column or opens a row.
Refreshes that fall due meanwhile follow the group, as they follow any open row.
"""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.calendar import schedule
from weft.engine.dram import follow, make_misses
from weft.engine.jit import block, shared
from weft.engine.memory import wake
from weft.engine.state import Machine


@block
def _quiet(m: Machine, c: int, now: int) -> int:
    """When the columns of all requests that have begun on channel `c` are given."""
    groups, quiet = m.shape[y.SIZE_GROUPS], now
    for k in range(c * groups, (c + 1) * groups):
        quiet = max(quiet, m.group[k, y.GROUP_UNTIL])
    return quiet


@shared
def _open_together(m: Machine, c: int, banks: int, row: int, now: int, opening: int) -> int:
    """Open a row in each of those banks at once, where it is not open; returns when columns can begin."""
    bank, gpu, channel, g = m.bank, m.gpu, m.channel, m.channel[c, y.CHAN_GPU]
    first, count = c * m.shape[y.SIZE_BANKS], m.shape[y.SIZE_BANKS]
    start, ready = now, now
    for b in range(first, first + count):
        if (banks >> (b - first)) & 1 and bank[b, y.BANK_ROW] != row:
            start = max(start, bank[b, y.BANK_ACTIVATED])
            if bank[b, y.BANK_ROW] != y.NONE:
                start = max(start, max(now, bank[b, y.BANK_PRECHARGE]) + gpu[g, y.GPU_T_RP])
    start = max(start, channel[c, y.CHAN_NEXT_ACTIVATE])
    for b in range(first, first + count):
        if (banks >> (b - first)) & 1:
            if bank[b, y.BANK_ROW] != row:
                bank[b, y.BANK_ROW] = row
                bank[b, y.BANK_READY] = start + gpu[g, y.GPU_T_RCD] + opening
                bank[b, y.BANK_PRECHARGE] = start + opening + gpu[g, y.GPU_T_RAS]
                bank[b, y.BANK_ACTIVATED] = start + opening + gpu[g, y.GPU_T_RC]
                channel[c, y.CHAN_NEXT_ACTIVATE] = start + opening + max(gpu[g, y.GPU_T_RRD], gpu[g, y.GPU_T_FAW])
            ready = max(ready, bank[b, y.BANK_READY])
    return ready


@shared
def _give_run(m: Machine, c: int, k: int, now: int) -> int:
    """Give the commands of run `k` from `now` on, as early as rows and turnarounds allow; returns when they end."""
    channel, bank, run = m.channel, m.bank, m.pim
    kind, banks, count, gap = run[k, y.PIM_KIND], run[k, y.PIM_BANKS], run[k, y.PIM_COUNT], run[k, y.PIM_GAP]
    start = now
    if kind != y.PIM_COMPUTE:
        start = _open_together(m, c, banks, y.PIM_ROWS + run[k, y.PIM_ROW], now, run[k, y.PIM_OPENING])
        start = max(start, channel[c, y.CHAN_NEXT_READ if kind == y.READ else y.CHAN_NEXT_WRITE])
    last = start + (count - 1) * gap
    if kind != y.PIM_COMPUTE:
        closing, first = follow(m, c, channel[c, y.CHAN_GPU], kind, last), c * m.shape[y.SIZE_BANKS]
        for b in range(m.shape[y.SIZE_BANKS]):
            if (banks >> b) & 1:
                bank[first + b, y.BANK_PRECHARGE] = max(bank[first + b, y.BANK_PRECHARGE], closing)
    channel[c, y.CHAN_BUSY] += count * run[k, y.PIM_BUS]
    m.pim_log[c, k, y.PIM_BEGIN], m.pim_log[c, k, y.PIM_END] = start, last + gap
    return last + gap  # type: ignore[no-any-return]


@shared
def _give_group(m: Machine, c: int, now: int) -> int:
    """Give the runs up to the next barrier from `now` on; the requests of the GPU wait until they end."""
    channel, bank, banks = m.channel, m.bank, m.shape[y.SIZE_BANKS]
    k, end = channel[c, y.CHAN_PIM_RUN], _quiet(m, c, now)
    more = 1
    while more == 1:
        end = _give_run(m, c, k, end)
        more = m.pim[k, y.PIM_TOGETHER] if k + 1 < m.pim.shape[0] else 0
        k += 1
    channel[c, y.CHAN_PIM_RUN] = k
    for column in (y.CHAN_NEXT_READ, y.CHAN_NEXT_WRITE, y.CHAN_NEXT_ACTIVATE):
        channel[c, column] = max(channel[c, column], end)
    for b in range(c * banks, (c + 1) * banks):
        bank[b, y.BANK_PRECHARGE] = max(bank[b, y.BANK_PRECHARGE], end)
        bank[b, y.BANK_CLOSED] = bank[b, y.BANK_PRECHARGE]
        bank[b, y.BANK_OPENS] = bank[b, y.BANK_ACTIVATED]
        if bank[b, y.BANK_ROW] != y.NONE:
            bank[b, y.BANK_OPENS] = max(
                bank[b, y.BANK_OPENS], bank[b, y.BANK_PRECHARGE] + m.gpu[channel[c, y.CHAN_GPU], y.GPU_T_RP]
            )
        if bank[b, y.BANK_ROW] >= y.PIM_ROWS:
            make_misses(m, c, b)
    channel[c, y.CHAN_BEST] = channel[c, y.CHAN_OPENS] = y.NONE
    if channel[c, y.CHAN_QUEUED_BYTES] > 0:
        wake(m, c, end)
    return end


@shared
def give_commands(m: Machine, c: int, now: int) -> None:
    """Give the group of commands that is due, if no request is queued or it has waited for as long as it may."""
    channel, g = m.channel, m.channel[c, y.CHAN_GPU]
    due = channel[c, y.CHAN_PIM_DUE]
    if channel[c, y.CHAN_PIM_RUN] >= m.pim.shape[0] or now < due:
        return
    late = due + m.gpu[g, y.GPU_PIM_PATIENCE]
    if channel[c, y.CHAN_QUEUED_BYTES] > 0 and now < late:
        if now == due:  # there is an event at that time; later looks come by themselves
            schedule(m, late, y.EV_PIM, c)
        return
    end, before = _give_group(m, c, now), channel[c, y.CHAN_PIM_RUN] - 1
    channel[c, y.CHAN_PIM_DUE] = max(end + m.pim[before, y.PIM_AFTER], due + m.gpu[g, y.GPU_PIM_EVERY])
    if channel[c, y.CHAN_PIM_RUN] < m.pim.shape[0]:
        schedule(m, channel[c, y.CHAN_PIM_DUE], y.EV_PIM, c)


@block
def begin_commands(m: Machine) -> None:
    """Make the first group of commands of every channel due when the work of its GPU begins, if there are any."""
    for c in range(m.channel.shape[0] if m.pim.shape[0] > 0 else 0):
        m.channel[c, y.CHAN_PIM_DUE] = m.gpu[m.channel[c, y.CHAN_GPU], y.GPU_START]
        schedule(m, m.channel[c, y.CHAN_PIM_DUE], y.EV_PIM, c)
