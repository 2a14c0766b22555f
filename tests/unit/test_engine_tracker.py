"""T3's mechanisms in a whole small run, watched from inside: tracker, trigger, DMA, counters."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from interpreted import interpreted
from machines import gpu, interpret, layer, program
from state import commands, ended, requested

from weft.engine import layout as y

OTHERS = slice(y.OPERATOR_EARLIER * y.KINDS, None)
"""Causes of traffic but the tracker's."""


class Watched:
    """A small t3 run in plain Python, with a note of every tracked update, trigger, DMA read and wake-up."""

    def __init__(self, tp=3, explicit=False, n=384, **changes):
        self.updates, self.triggered, self.reads, self.counts = [], [], [], []
        self.lowered = program(layer(m=384, n=n, k=96, tp=tp), "t3", gpu(**changes), explicit=explicit)
        engine = interpreted(track=self.track, trigger=self.trigger, pump=self.pump, count=self.count)
        self.m = interpret(self.lowered, engine=engine)

    def track(self, original):
        def watched(m, g, region, tile, wavefront, bytes_, now):
            lead = original(m, g, region, tile, wavefront, bytes_, now)
            live = {int(key) for key in m.entry[m.entry != y.NONE]}
            self.updates.append((int(now), int(g), int(tile), int(wavefront), int(bytes_), int(lead), live))
            return lead

        return watched

    def trigger(self, original):
        def watched(m, g, lead, now):
            self.triggered.append((int(now), int(g), int(lead)))
            original(m, g, lead, now)

        return watched

    def pump(self, original):
        def watched(m, e, now):
            if m.engine[e, y.DMA_POSITION] == 0 and m.engine[e, y.DMA_TILE] == m.engine[e, y.DMA_BLOCK]:
                self.reads.append((int(now), int(m.engine[e, y.DMA_BLOCK])))
            original(m, e, now)

        return watched

    def count(self, original):
        def watched(m, g, counter, amount, now):
            self.counts.append((int(now), int(counter), int(amount)))
            original(m, g, counter, amount, now)

        return watched


@pytest.fixture(scope="module")
def run():
    return Watched()


def part_of(m, tile):
    return -(-int(m.tile[0, tile, y.TILE_BYTES]) // int(m.shape[y.SIZE_WAVEFRONTS]))


def test_every_wavefront_tile_gets_exactly_its_two_updates(run):
    received = Counter()
    for _, _, tile, wavefront, bytes_, _, _ in run.updates:
        received[tile, wavefront] += bytes_
    tracked = [
        t for t in range(run.m.tile.shape[1]) if run.m.region[0, run.m.tile[0, t, y.TILE_REGION], y.REGION_TRACKED]
    ]
    assert {tile for tile, _ in received} == set(tracked)
    for (tile, _), bytes_ in received.items():
        assert bytes_ == 2 * part_of(run.m, tile)


def test_a_tile_waits_for_its_second_update_and_its_entry_lives_exactly_until_then(run):
    received = Counter()
    wavefronts = int(run.m.shape[y.SIZE_WAVEFRONTS])
    for _, _, tile, wavefront, bytes_, _, live in run.updates:
        received[tile, wavefront] += bytes_
        complete = received[tile, wavefront] == 2 * part_of(run.m, tile)
        assert (tile * wavefronts + wavefront in live) == (not complete)
    assert (run.m.entry == y.NONE).all()


def test_a_block_is_triggered_at_once_by_the_last_update_of_its_last_wavefront_tile(run):
    last = {tile: now for now, _, tile, *_ in run.updates}
    completed = [(lead, now) for now, _, _, _, _, lead, _ in run.updates if lead != y.NONE]
    assert sorted(tile for tile, _ in completed) == sorted(last)
    assert all(last[tile] == now for tile, now in completed)
    forwarded = {t for t in last if run.m.region[0, run.m.tile[0, t, y.TILE_REGION], y.REGION_DMA_MODE] != y.NONE}
    assert {(lead, now) for now, _, lead in run.triggered} == {(t, last[t]) for t in forwarded}


def test_a_dma_reads_nothing_before_its_set_up_is_over(run):
    first = {}
    for now, block in run.reads:
        first.setdefault(block, now)
    setup = int(run.m.gpu[0, y.GPU_DMA_SETUP])
    for _, _, lead in run.triggered:
        log = run.m.dma_log[0, lead]
        assert log[y.COMMAND_READY] <= log[y.COMMAND_START]
        assert first[lead] == log[y.COMMAND_START] + setup
        assert log[y.COMMAND_END] > first[lead]


def test_commands_start_in_the_order_of_their_triggers(run):
    starts = [int(run.m.dma_log[0, lead, y.COMMAND_START]) for _, _, lead in run.triggered]
    assert starts == sorted(starts)


def test_no_more_commands_run_at_once_than_there_are_engines():
    m = Watched(dma__engines=1).m
    log = commands(m)
    spans = sorted(zip(log.start.tolist(), log.end.tolist(), strict=True))
    assert len(spans) > 2
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_the_all_gather_waits_for_the_whole_own_chunk_and_for_what_was_sent(run):
    counter = int(run.m.kernel[0, 1, y.KERNEL_AFTER_COUNTER])
    wanted = int(run.m.kernel[0, 1, y.KERNEL_AFTER_VALUE])
    total = 0
    reached = None
    for now, which, amount in run.counts:
        if which == counter and reached is None:
            total += amount
            reached = now if total >= wanted else None
    assert requested(run.m, 1) == max(reached, ended(run.m, 0))


def test_waiting_workgroups_go_on_at_the_moment_their_chunk_is_complete(run):
    gather = run.m.kernel[0, 1]
    phases = run.m.phase[0, gather[y.KERNEL_FIRST_PHASE] : gather[y.KERNEL_FIRST_PHASE] + gather[y.KERNEL_PHASES]]
    last = phases[-1]
    total, moment = 0, None
    for now, which, amount in run.counts:
        if which == last[y.PHASE_WAIT_COUNTER]:
            total, moment = total + amount, now
    assert total == last[y.PHASE_WAIT_VALUE]
    assert ended(run.m, 1) == moment


def test_an_overflowing_tracker_spills_refills_and_still_completes_every_tile():
    tiny, wide = Watched(tracker__sets=1, tracker__ways=1), Watched()
    spills, refills = (int(tiny.m.flow[0, column]) for column in (y.FLOW_SPILLS, y.FLOW_REFILLS))
    assert spills == refills > 0
    assert wide.m.flow[0, y.FLOW_SPILLS] == 0
    spilled = int(tiny.m.gpu[0, y.GPU_SPILL_BYTES]) * (spills + refills)
    assert tiny.m.traffic[0, [y.CAUSE_SPILL, y.CAUSE_REFILL]].sum() == spilled
    assert (tiny.m.traffic[0, OTHERS] == wide.m.traffic[0, OTHERS]).all()
    assert tiny.m.flow[0, y.FLOW_MAX_LIVE] == 1


def test_the_set_of_a_tile_is_the_low_part_of_its_workgroup_number():
    run = Watched(tracker__sets=4)
    m, wavefronts = run.m, int(run.m.shape[y.SIZE_WAVEFRONTS])
    seen = defaultdict(set)
    for *_, live in run.updates:
        for key in live:
            seen[key // wavefronts % 4].add(key)
    assert m.entry.shape[0] == 4
    assert m.flow[0, y.FLOW_MAX_LIVE] <= 4 * m.entry.shape[1]
    assert set(seen) == {0, 1, 2, 3}


def test_a_full_set_spills_its_oldest_tile():
    """Two entries in all: a further tile takes the place of the one that has been there longest."""
    run = Watched(tracker__sets=1, tracker__ways=2)
    wavefronts, table = int(run.m.shape[y.SIZE_WAVEFRONTS]), []
    for _, _, tile, wavefront, _, _, live in run.updates:
        key = tile * wavefronts + wavefront
        if key not in table:
            table = [*table[-1:], key]
        if key not in live:  # complete
            table.remove(key)
        assert set(table) == live
    assert run.m.flow[0, y.FLOW_SPILLS] > 0
