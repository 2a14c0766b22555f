"""Laws of memory that computes: limits of banks, channel and refresh hold, and commands never speed a kernel up."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.engine.layout import PIM_BANKS, PIM_COUNT, PIM_GAP, PIM_ROW, PIM_TOGETHER, WRITE
from weft.hardware.pim import pim, pim_names
from weft.kernels.pim import INSTRUCTION_SETS, STREAMING, encode, stream
from weft.run.channel import Requests
from weft.run.pim import IDLE, meet
from weft.units import to_fs

FEW = settings(max_examples=12, deadline=None)
NAMES = st.sampled_from(pim_names())
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


@FEW
@given(works(), kernels(), st.integers(1, 64), st.sampled_from([0.0, 0.5e-6, 3e-6]))
def test_adding_commands_never_speeds_a_kernel(work, requests, window, every):
    on, made = work
    alone = meet(IDLE, on, requests, window=window)
    both = meet(made, on, requests, window=window, every=every)
    # Where commands change which row opens first, FR-FCFS may order what follows better: by a row cycle, not more.
    assert both.seconds >= alone.seconds - on.channel.ras - on.channel.rp


@FEW
@given(works(), kernels())
def test_a_kernel_ends_by_the_time_of_both_in_turn_with_their_rows_opened_again(work, requests):
    on, made = work
    alone = meet(IDLE, on, requests)
    both = meet(made, on, requests)
    commands = meet(made, on).pim_seconds
    openings = made.blocks * 2 * (on.channel.rp + on.channel.ras + on.channel.wr)
    assert both.seconds <= alone.seconds + (commands + openings) * 1.2 + 1e-6
