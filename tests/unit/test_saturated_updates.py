"""How many bytes a saturated channel takes of reads, writes and near-memory updates, and what decides it."""

import random

import pytest
from machines import NS, MemoryBench, gpu

from weft.engine import layout as y

BUS = 32.0
"""Bytes per ns of the paper's channel."""
GROUPS, ROW, PIECE = 4, 2048, 512


def rate(kind, groups_change_every, size, queue=64, at_random=False, bytes_=48 * 1024):
    """Bytes per ns of a stream that is always there, in pieces of 512 B, each in requests of `size`.

    Consecutive bytes stay in one bank group for `groups_change_every`.
    """
    draw = random.Random(1)
    bench = MemoryBench(gpu(memory__channels=1, memory__bandwidth="32 GB/s", memory__queue_entries=queue))
    for piece in range(bytes_ // PIECE):
        first = PIECE * (draw.randrange(1 << 16) if at_random else piece)
        for place in range(first, first + PIECE, size):
            run, within = divmod(place, groups_change_every)
            inside = run // GROUPS * groups_change_every + within  # the place among those of its group
            row = inside // ROW
            bench.request(kind, 0, run % GROUPS + row % 4 * GROUPS, row // 4, size)
    return bytes_ / (max(first for _, first, _ in bench.run()) / NS)


@pytest.mark.parametrize("kind", [y.READ, y.WRITE])
@pytest.mark.parametrize("size", [64, 512])
def test_reads_and_writes_in_sequence_fill_the_bus(kind, size):
    assert rate(kind, ROW, size) > 0.95 * BUS


@pytest.mark.parametrize("size", [64, 256])
def test_updates_fill_the_bus_if_the_queue_reaches_all_bank_groups(size):
    """An update keeps its group for four slots of the bus, and there are four groups: all of them must be at work."""
    assert rate(y.UPDATE, 256, size) > 0.95 * BUS
    assert rate(y.UPDATE, ROW, size, queue=256) > 0.95 * BUS


@pytest.mark.parametrize("size", [64, 512])
def test_updates_of_row_after_row_reach_only_the_groups_that_the_queue_holds(size):
    """64 accesses are one row: with the one in progress and the rest of a third, two to three of four groups work."""
    assert 2 / GROUPS < rate(y.UPDATE, ROW, size) / BUS < 3 / GROUPS


@pytest.mark.parametrize("at_random", [False, True])
def test_a_queue_of_coarse_requests_is_worth_that_of_their_accesses(at_random):
    """Four requests of 512 B are 64 accesses: the grain adds less than a fifth to the rate, and takes nothing."""
    fine, coarse = (rate(y.UPDATE, ROW, size, at_random=at_random) for size in (32, 512))
    assert fine < coarse < 1.2 * fine
