"""A switch that merges stores to one place, and loads of one, in a table of limited room and for a limited time."""

import numpy as np
import pytest
from execution_plans import pairs_by_reading, read
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import PLAIN, interpreted
from machines import finish, gpu, interpret, layer, program
from runs import run, tiled

import weft
from weft.core.errors import InputError
from weft.engine import layout as y
from weft.hardware import FABRICS, System
from weft.kernels import GemmTiling
from weft.models.parallel import dependent

RANKS = 4
SMALL = layer(m=1024, n=1024, k=512, tp=RANKS)
CHUNK = SMALL["gemm"].op.output_bytes // RANKS
LONG = 20e-6
GEMM = weft.Gemm(2048, 512, 512, "fp16")
ROWS = dependent("ag_gemm", GEMM, RANKS)
"""A GEMM whose tiles load the rows of three other GPUs."""
SHARE = ROWS["all_gather"].op.bytes // RANKS
ALL_ROWS = RANKS * (RANKS - 1) * SHARE
"""What all GPUs load from each other without merging."""


def adding(entries=0, window=0.0, ranks=RANKS, **changes):
    """The paper's GPUs behind a switch that adds stores, with a table or without."""
    one = gpu(**changes)
    table = {"merge_entries": entries, "merge_window": window}
    joined = FABRICS["switch"](ranks, one.link.bandwidth, one.link.latency, reduces=True, **table)
    return System(gpu=one, gpus=ranks, fabric=joined)


def merged(entries=0, window=0.0, start=None):
    system = adding(entries, window)
    return run(SMALL, system if start is None else system._with(start=start), "t3-nvls", mode="explicit")


def updates(found):
    """What peers update in a GPU's memory [bytes]."""
    return found.traffic["reduce_scatter", "update"]


def test_in_time_and_with_room_all_stores_to_a_place_become_one_update():
    found, whole = merged(window=LONG), merged()
    assert updates(found) == updates(whole) == CHUNK
    assert (found.counters["merge_evicted"], found.counters["merge_expired"]) == (0, 0)
    assert found.seconds == pytest.approx(whole.seconds, rel=0.005)
    assert found.counters["link_bytes"] == whole.counters["link_bytes"]


def test_without_a_window_there_is_no_table():
    assert not any(name.startswith("merge_") for name in merged().counters)


@pytest.mark.parametrize("overlap", ["sequential", "t3-mca", "t3-direct"])
def test_a_table_leaves_overlaps_alone_that_add_nothing_in_the_switch(overlap):
    found, without = (run(SMALL, adding(*table), overlap) for table in ((16, 1e-6), (0, 0.0)))
    assert (found.seconds, found.events) == (without.seconds, without.events)
    assert dict(found.traffic) == dict(without.traffic)


def test_a_smaller_table_lets_more_updates_through_and_holds_no_more_than_it_has():
    found = [merged(entries, LONG) for entries in (0, 32, 8, 1)]
    amounts = list(map(updates, found))
    assert amounts == sorted(amounts)
    assert amounts[0] == CHUNK
    assert amounts[-1] > 2 * CHUNK
    assert all(amount <= (RANKS - 1) * CHUNK for amount in amounts)
    for entries, one in zip((32, 8, 1), found[1:], strict=True):
        assert one.counters["merge_most_entries"] <= entries
        assert one.counters["merge_evicted"] > 0


def test_stores_of_a_late_gpu_are_merged_while_the_window_lasts_and_not_after():
    """GPU 2 makes its tiles 8 us after the others: its own stores to their chunks are late, and theirs to its early."""
    found, missed = (merged(window=window, start={2: 8e-6}) for window in (LONG, 4e-6))
    assert updates(found) == CHUNK
    assert missed.counters["merge_expired"] > 0
    # Of the four owners, three get a second update of each place.
    assert updates(missed) >= (1 + 3 / 4) * CHUNK


def test_a_shorter_window_lets_more_updates_through():
    amounts = [updates(merged(window=window)) for window in (LONG, 1e-6, 0.2e-6)]
    assert CHUNK == amounts[0] < amounts[1] < amounts[2]


def test_two_gpus_have_nothing_to_merge():
    graph = layer(m=1024, n=1024, k=512, tp=2)
    found = run(graph, adding(1, 1e-6, ranks=2), "t3-nvls")
    assert updates(found) == graph["gemm"].op.output_bytes // 2
    assert (found.counters["merge_evicted"], found.counters["merge_expired"]) == (0, 0)


@pytest.mark.parametrize(("entries", "window"), [(0, 1e-6), (4, 1e-6)])
def test_every_tile_gets_the_stores_of_all_gpus_however_many_sums_bring_them(entries, window):
    built = program(layer(m=512, n=512, k=128, tp=RANKS), "t3-nvls", adding(entries, window), explicit=True)
    state, plain = finish(built), interpret(built)
    assert (state.flow == plain.flow).all()
    assert (state.flow[:, y.FLOW_MERGE_HELD] == 0).all()
    for g in range(RANKS):
        tiles = state.tile[g]
        own = tiles[:, y.TILE_REGION] == built.region("output", RANKS - 1)
        seen = state.seen[g].reshape(len(tiles), -1).sum(axis=1)
        assert (seen[own] == RANKS * tiles[own, y.TILE_BYTES]).all()


def test_a_node_of_the_catalogue_takes_a_table():
    node = weft.system("dgx-h100").replace({"merge_window": "5 us", "merge_entries": 64})
    found = run(layer(m=1024, n=1024, k=512, tp=8), node, "t3-nvls")
    assert 0 < found.counters["merge_most_entries"] <= 64


# -- loads


def loaded(entries=0, window=0.0, start=None, work=ROWS, **options):
    system = adding(entries, window)
    system = system if start is None else system._with(start=start)
    return run(work, system, "remote-loads", **({"mode": "explicit"} | options))


def test_in_time_and_with_room_each_owner_sends_its_rows_once_for_all_readers():
    """Of N GPUs, N - 1 read every row, and 1 / (N - 1) of the bytes leave its owner."""
    found, apart = loaded(window=1e-4), loaded()
    assert apart.counters["link_bytes"] == ALL_ROWS
    assert found.counters["link_bytes"] == ALL_ROWS // (RANKS - 1)
    assert found.bytes("all_gather", "read") == SHARE == apart.bytes("all_gather", "read") // (RANKS - 1)
    assert found.counters["merge_saved_bytes"] == ALL_ROWS - RANKS * SHARE
    assert found.counters["merge_loads"] * 512 == found.counters["merge_saved_bytes"]


def test_without_a_window_loads_are_those_of_any_switch_to_the_digit():
    one = gpu()
    plain = System(gpu=one, gpus=RANKS, fabric=FABRICS["switch"](RANKS, one.link.bandwidth, one.link.latency))
    found, without = loaded(), run(ROWS, plain, "remote-loads", mode="explicit")
    assert (found.seconds, found.events) == (without.seconds, without.events)
    assert dict(found.traffic) == dict(without.traffic)


@pytest.mark.parametrize("work", [ROWS, dependent("ag_gemm", weft.Gemm(4096, 128, 512, "fp16"), RANKS)])
@pytest.mark.parametrize(("entries", "window"), [(0, 0.0), (0, 1e-4), (64, 2e-6), (8, 0.5e-6)])
def test_merged_or_not_no_gpu_is_faster_than_its_matrix_units_and_the_link_that_brings_its_rows(work, entries, window):
    """Merging halves no reader's bytes: all rows but its own come down the link of each GPU, once."""
    found, one, op = loaded(entries, window, work=work), gpu(), work["gemm"].op
    rows = work["all_gather"].op.bytes * (RANKS - 1) / RANKS
    reached = 2 * one.link.latency + rows / one.link.bandwidth
    assert found.seconds >= max(op.flops / one.matrix_rate("fp16", "boost"), reached)
    assert found.seconds <= 1.05 * loaded(work=work).seconds


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([0, 1, 7, 32, 320]),
    st.sampled_from([5e-8, 5e-7, 2e-6, 1e-4]),
    st.dictionaries(st.integers(0, RANKS - 1), st.sampled_from([1e-6, 8e-6]), max_size=2),
)
def test_every_byte_is_sent_or_saved_whatever_the_table_and_whoever_is_late(entries, window, start):
    small = dependent("ag_gemm", weft.Gemm(1024, 256, 128, "fp16"), RANKS)
    found = loaded(entries, window, start, small)
    whole = small["all_gather"].op.bytes * (RANKS - 1)
    assert found.counters["link_bytes"] + found.counters["merge_saved_bytes"] == whole
    assert found.bytes("all_gather", "read") * RANKS == found.counters["link_bytes"]
    assert not entries or found.counters["merge_most_entries"] <= entries


def test_a_smaller_table_merges_fewer_loads():
    """It is full of loads whose answers are under way: those that come meanwhile go on alone."""
    found = [loaded(entries, LONG) for entries in (0, 64, 16, 4)]
    saved = [one.counters["merge_saved_bytes"] for one in found]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] == ALL_ROWS - RANKS * SHARE > 3 * saved[-1]
    assert [one.counters["merge_refused"] > 0 for one in found] == [False, True, True, True]


def test_answers_are_kept_for_a_late_gpu_while_the_window_lasts_and_not_after():
    found, missed = (loaded(window=window, start={2: 8e-6}) for window in (LONG, 2e-6))
    assert found.counters["link_bytes"] == RANKS * SHARE
    assert missed.counters["merge_expired"] > 0
    # Three owners send their rows again for the late GPU; its own rows are asked for by all others, early.
    assert missed.counters["link_bytes"] >= 1.5 * RANKS * SHARE


@pytest.mark.parametrize(("entries", "window"), [(0, 1e-6), (4, 1e-6), (2, 1e-7)])
def test_every_request_is_answered_and_no_entry_stays(entries, window):
    small = dependent("ag_gemm", weft.Gemm(1024, 256, 64, "fp16"), RANKS)
    built = program(small, "remote-loads", adding(entries, window), explicit=True)
    state, plain = finish(built), interpret(built)
    assert (state.flow == plain.flow).all()
    assert not state.flow[:, y.FLOW_MERGE_HELD].any()
    assert not state.merging.any()
    assert state.clock[y.CLOCK_LIVE_REQUESTS] == 0


@pytest.mark.parametrize(("entries", "window"), [(0, 0.0), (0, 1e-4), (4, 1e-6)])
def test_tiles_multiply_the_rows_that_lie_at_the_places_they_load(entries, window):
    """Each GPU's memory holds its own rows, and no number where those of its peers would lie."""
    tiling, gemm = GemmTiling(rows=64, columns=64), weft.Gemm(512, 128, 64, "fp16")
    graph = dependent("ag_gemm", gemm, RANKS)
    built = program(graph, "remote-loads", adding(entries, window), explicit=True, tiling=tiling)
    begin, rows = built.tables.region[:, built.region("a", 0), y.REGION_BASE], gemm.m // RANKS
    rng = np.random.default_rng(0)
    operand, weights = rng.integers(-8, 9, (gemm.m, gemm.k)), rng.integers(-8, 9, (RANKS, gemm.k, gemm.n))
    memory = np.full((RANKS, gemm.m * gemm.k), np.nan)
    for g in range(RANKS):  # tile line by tile line, slab by slab of K
        slabs = operand[g * rows : (g + 1) * rows].reshape(rows // tiling.rows, tiling.rows, -1, tiling.step)
        memory[g, : rows * gemm.k] = slabs.swapaxes(1, 2).ravel()
    read = {}

    def note(m, q, g, address, bytes_):
        first, w = (address - begin[g]) // 2, q // y.SLOTS
        if first < gemm.m * gemm.k:  # of A
            tile = read.setdefault((m.resident[w, y.WG_GPU], PLAIN.work_row(m, w)), {})
            tile.setdefault(m.slot[q, y.SLOT_ITERATION], []).append(memory[g, first : first + bytes_ // 2])

    def noted(near):
        def load(m, g, part, address, bytes_, *others):
            note(m, others[-1], g, address, bytes_)
            near(m, g, part, address, bytes_, *others)

        return load

    def noted_afar(afar):
        def load_afar(m, g, part, a, address, bytes_, time, q):
            source, stride = m.access[g, a, [y.ACCESS_SOURCE, y.ACCESS_MEMBER_STRIDE]]
            note(m, q, source, address + stride, bytes_)
            afar(m, g, part, a, address, bytes_, time, q)

        return load_afar

    interpret(built, engine=interpreted(load=noted, load_afar=noted_afar))
    found = np.full((RANKS, gemm.m, gemm.n), np.nan)
    for (g, t), steps in read.items():
        slabs = [np.concatenate(steps[it]).reshape(tiling.rows, tiling.step) for it in sorted(steps)]
        row, column = built.tables.work[g, t, [y.WORK_ROW, y.WORK_COLUMN]]
        first, left = (row * tiling.rows + g * rows) % gemm.m, column * tiling.columns
        place = slice(first, first + tiling.rows), slice(left, left + tiling.columns)
        found[g][place] = np.hstack(slabs) @ weights[g][:, place[1]]
    assert (found == operand @ weights).all()


def test_links_of_owners_are_in_use_for_what_they_send():
    found, apart = (loaded(window=window).counters["link_utilization"] for window in (2e-6, 0.0))
    assert apart == pytest.approx(ALL_ROWS / RANKS / gpu().link.bandwidth / loaded().seconds, rel=0.02)
    assert found == pytest.approx(apart / (RANKS - 1), rel=0.1)


def test_a_switch_that_adds_nothing_merges_loads_as_one_that_adds():
    one = gpu()
    joined = FABRICS["switch"](RANKS, one.link.bandwidth, one.link.latency, merge_window=1e-4)
    found = run(ROWS, System(gpu=one, gpus=RANKS, fabric=joined), "remote-loads")
    assert found.counters["merge_saved_bytes"] == ALL_ROWS - RANKS * SHARE
    assert found.seconds == loaded(window=1e-4).seconds


def test_two_gpus_have_no_loads_to_merge():
    found = run(dependent("ag_gemm", GEMM, 2), adding(4, 1e-6, ranks=2), "remote-loads", mode="explicit")
    assert not any(name.startswith("merge_") for name in found.counters)


def test_plain_loads_are_not_merged_as_others_may_write_between_them(tmp_path):
    graph, node = read(pairs_by_reading(8, 3), tmp_path).graph("1 MiB"), weft.system("dgx-h100")
    table = {"merge_window": "5 us", "merge_entries": 64}
    found, without = (weft.simulate(graph, on) for on in (node.replace(table), node))
    assert (found.seconds, found.events) == (without.seconds, without.events)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ((64, 0.0), "merge_entries is 64 with a merge_window of 0.0 s"),
        ((-1, 1e-6), "merge_entries is -1"),
        ((0, 1.0), r"merge_window is 1.0 s; give 0 \(none\) to 0.001 s"),
        ((0, -1e-6), "merge_window is -1e-06 s"),
    ],
)
def test_tables_that_cannot_be_are_refused(table, words):
    with pytest.raises(InputError, match=words):
        adding(*table)


@pytest.mark.parametrize(
    ("work", "options", "words"),
    [
        (SMALL, {"mode": "mirrored"}, "because the switch merges what their stores bring at the same time"),
        (
            tiled(layer(m=1000, n=1024, k=512, tp=RANKS), GemmTiling(rows=96, columns=40)), {},
            "wavefronts no multiple of 64 B",
        ),
    ],
)  # fmt: skip
def test_what_a_table_cannot_represent_is_refused(work, options, words):
    with pytest.raises(InputError, match=words):
        run(work, adding(0, 1e-6), "t3-nvls", **options)
