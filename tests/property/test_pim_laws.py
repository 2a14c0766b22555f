"""Laws of memory that computes: limits of banks, channel and refresh hold, and what commands can save a kernel."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.units import to_fs
from weft.engine.layout import PIM_BANKS, PIM_COUNT, PIM_GAP, PIM_ROW, PIM_TOGETHER, WRITE
from weft.hardware.pim import pim
from weft.kernels.pim import INSTRUCTION_SETS, STREAMING, encode, stream
from weft.simulate.channel import Requests
from weft.simulate.pim import IDLE, meet

FEW = settings(max_examples=12, deadline=None)
NAMES = st.sampled_from(["hbm2", "hbm2-shared", "hbm3", "lpddr5x"])
SETS = st.sampled_from(sorted(INSTRUCTION_SETS))


@st.composite
def works(draw):
    """A configuration and a stream of commands on it."""
    on = pim(draw(NAMES))
    words = 16 * draw(st.integers(1, 60))
    if draw(st.booleans()):
        return on, stream(draw(st.sampled_from(sorted(STREAMING))), words, on)
    return on, encode(words, on, draw(st.sampled_from(["mx9", "mx6", "mx4"])), draw(SETS), draw(st.booleans()))


@st.composite
def kernels(draw):
    """Requests of a kernel: reads and writes of 32 to 512 B in order or scattered, used at a steady rate."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = draw(st.integers(1, 300)), draw(st.sampled_from([32, 64, 512]))
    gap, span = draw(st.integers(0, 100)), draw(st.sampled_from([1, 64, 4096]))
    order = np.arange(count) if span == 1 else rng.integers(0, span, count)
    kind = (rng.random(count) < draw(st.sampled_from([0, 0.3]))).astype(np.int64)
    zero = np.zeros(count, dtype=np.int64)
    return Requests(np.arange(count) * gap * 10**6, kind, zero, order * size, zero + size)


def groups(met):
    """First and last run of each group of commands."""
    last = np.flatnonzero(met.stream.runs[:, PIM_TOGETHER] == 0)
    return np.concatenate(([0], last[:-1] + 1)), last


def without_refresh(on):
    """The configuration with its first refresh after a second."""
    return on.model_copy(update={"channel": on.channel.model_copy(update={"refi": 1.0})})


@FEW
@given(works(), kernels(), st.sampled_from([0.0, 0.5e-6, 3e-6]), st.sampled_from([0.0, 1e-6]))
def test_commands_keep_the_limits_of_banks_and_channel(work, requests, every, patience):
    on, made = work
    met = meet(made, on, requests, every=every, patience=patience)
    runs = made.runs
    assert (met.begin[1:] >= met.end[:-1]).all(), "commands are given in order, one at a time"
    assert (met.end - met.begin == runs[:, PIM_COUNT] * runs[:, PIM_GAP]).all()
    first, _ = groups(met)
    assert (met.begin[first] >= np.arange(len(first)) * to_fs(every)).all(), "no group comes before it is due"
    c = on.channel
    closes, before = (to_fs(c.rtp), to_fs(c.wr)), {}
    for k, run in enumerate(runs):
        for bank in (b for b in range(c.banks) if run[PIM_BANKS] >> b & 1):
            if bank in before and runs[before[bank], PIM_ROW] != run[PIM_ROW]:
                j = before[bank]
                wait = closes[int(runs[j, 0] == WRITE)] + to_fs(c.rp) + to_fs(c.rcd)
                assert met.begin[k] >= met.end[j] - runs[j, PIM_GAP] + wait
            before[bank] = k


@FEW
@given(works(), kernels(), st.sampled_from([0.0, 0.5e-6]))
def test_no_column_of_a_request_lies_within_a_group_of_commands(work, requests, every):
    on, made = work
    met = meet(made, on, requests, every=every)
    first, last = groups(met)
    write = requests.kind == 1
    burst = to_fs(on.units.word_bytes / on.channel.bandwidth)
    columns = met.done[write] - to_fs(on.units.period)  # the last column of a write
    for begin, end in zip(met.begin[first], met.end[last], strict=True):
        assert not ((columns > begin) & (columns < end - burst)).any()


@FEW
@given(works())
def test_commands_leave_the_time_of_every_refresh_free(work):
    on, made = work
    met = meet(made, on)
    end = int(met.end[-1])
    due = end // to_fs(on.channel.refi)
    longest = max((met.end[last] - met.begin[first] for first, last in zip(*groups(met), strict=True)), default=0)
    behind = 1 + int(longest) // to_fs(on.channel.refi)  # a refresh follows the group that it falls into
    assert made.busy_fs + (due - behind) * to_fs(on.channel.rfc) <= end


def one_by_one(requests, work, every, on):
    """When a kernel uses data that it reads one after another: alone, and beside commands."""
    reads = requests._replace(kind=np.zeros_like(requests.kind))
    return meet(IDLE, on, reads, window=1).used, meet(work[1], on, reads, window=1, every=every).used


@FEW
@given(works(), kernels(), st.sampled_from([0.0, 0.5e-6, 3e-6]))
def test_commands_never_speed_a_kernel_that_reads_one_datum_after_another(work, requests, every):
    alone, both = one_by_one(requests, work, every, without_refresh(work[0]))
    assert (both >= alone).all()


@FEW
@given(works(), kernels(), st.sampled_from([0.0, 0.5e-6, 3e-6]))
def test_commands_save_such_a_kernel_at_most_each_refresh_and_the_row_that_it_closes(work, requests, every):
    """A kernel that commands delay may fall into a refresh's interval at a moment when it asks for nothing."""
    c = work[0].channel
    alone, both = one_by_one(requests, work, every, work[0])
    refreshes = alone // to_fs(c.refi)
    assert (both >= alone - refreshes * to_fs(c.rfc + c.ras + c.rp)).all()


@FEW
@given(works(), kernels(), st.integers(1, 64), st.sampled_from([0.0, 0.5e-6, 3e-6]))
def test_commands_save_a_kernel_no_more_than_its_requests_had_waited(work, requests, window, every):
    """Requests of a kernel pass each other, by open rows and by direction; commands can only undo that.

    A request is sent when the one `window` before it has been used. It cannot save more than the time that it had been
    in the channel, and that only once in a window: of requests sent together the last one used decides.
    """
    on, made = work
    alone = meet(IDLE, on, requests, window=window)
    both = meet(made, on, requests, window=window, every=every)
    waited, saved = np.where(requests.kind == 0, alone.done - alone.sent, 0), np.zeros(len(requests.at) + 1, int)
    for n in range(len(waited)):
        before = saved[n - window] if n >= window else 0
        saved[n] = max(saved[n - 1], before + waited[n])
    assert (both.used >= alone.used - saved[:-1]).all()


@FEW
@given(works(), kernels(), st.integers(1, 64), st.sampled_from([0.0, 0.5e-6, 3e-6]))
def test_a_kernel_and_commands_take_turns_on_the_channel(work, requests, window, every):
    on, made = work
    met = meet(made, on, requests, window=window, every=every)
    first, last = groups(met)
    until = met.done.max()
    held = (met.end[last] - met.begin[first])[met.end[last] <= until].sum()
    words = -(-requests.bytes // on.units.word_bytes)
    assert until >= held + words.sum() * to_fs(on.units.word_bytes / on.channel.bandwidth)


def test_a_request_that_younger_ones_pass_is_served_earlier_beside_commands():
    """Hits of an open row go before an older request for another row, until commands close that row: no refresh."""
    on = without_refresh(hbm2 := pim("hbm2"))
    at, zero = np.arange(80) * to_fs(74e-9), np.zeros(80, dtype=np.int64)
    reads = Requests(at, zero, zero, np.random.default_rng(119).integers(0, 4096, 80) * 512, zero + 512)
    made = stream("add", 480, hbm2)
    alone, both = meet(IDLE, on, reads), meet(made, on, reads, every=0.5e-6)
    assert both.seconds < alone.seconds - 1e-6
    stalled = int(np.argmax(alone.done - alone.sent))
    assert (alone.done[stalled + 1 :] < alone.done[stalled]).sum() > 20
    assert both.done[stalled] < alone.done[stalled]
    assert meet(made, on, reads, window=1, every=0.5e-6).seconds > meet(IDLE, on, reads, window=1).seconds


@FEW
@given(works(), kernels())
def test_a_kernel_ends_by_the_time_of_both_in_turn_with_their_rows_opened_again(work, requests):
    on, made = work
    alone = meet(IDLE, on, requests)
    both = meet(made, on, requests)
    commands = meet(made, on).pim_seconds
    openings = made.blocks * 2 * (on.channel.rp + on.channel.ras + on.channel.wr)
    assert both.seconds <= alone.seconds + (commands + openings) * 1.2 + 1e-6
