"""How a GEMM and a collective should share a GPU, from tables made by hand."""

import cProfile
import json
from dataclasses import replace
from pstats import Stats

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import hardware
from weft.core.errors import ConfigError, InputError, UnknownNameError
from weft.graph import Collective, Gemm
from weft.plan.tune import Choice, SlowdownTables, choose, load_tables
from weft.plan.tune.heuristics import Forecast, both, case_of, forecasts, last_start, plainest
from weft.plan.tune.tables import CollectiveTable, Curve, GemmTable, MutualSlowdowns, profile_of

MIB = 1 << 20
SHAPE = Gemm(4096, 8192, 8192, "bf16")


def of(name: str, size: int) -> Collective:
    return Collective(name, size, ranks=8)


LEVEL = Curve((0.0, 1.0), (1.0, 1.0))


def table(dma: tuple[float, ...] = ()) -> CollectiveTable:
    """A library with 32 workgroups that moves 1 MiB in 10 us; half as fast on 8 compute units."""
    return CollectiveTable(
        bytes=(MIB, 64 * MIB),
        library_units=32,
        library=(10e-6, 640e-6),
        units={8: (20e-6, 1280e-6), 32: (10e-6, 640e-6)},
        dma=dma,
    )


def tables(**changes) -> SlowdownTables:
    made = SlowdownTables(
        gpu=hardware.gpu("mi300x"),
        ranks=8,
        clock="sustained",
        gemm=GemmTable(LEVEL, LEVEL),
        collectives={"all_gather": table(dma=(40e-6, 640e-6)), "all_reduce": table()},
        interference={},
        errors={"given": (0.02, -0.04), "looked up": (0.1,)},
    )
    return replace(made, **changes)


def test_what_is_left_when_one_ends_runs_alone():
    # Beside each other 2 s and 6 s; after 2 s a third of the second is done, the rest takes 2/3 of its 3 s alone.
    assert both(2.0, 6.0, 1.0, 3.0) == pytest.approx(4.0)
    assert both(6.0, 2.0, 3.0, 1.0) == pytest.approx(4.0)


def test_tiles_start_on_held_places_when_they_are_freed():
    # Two free places start at 0, 1, 2, two held ones at 1.5, 2.5: the tenth tile starts at 2.5.
    assert last_start(10, 4, 2, 1.0, until=1.5) == pytest.approx(2.5)
    assert last_start(6, 4, 2, 1.0, until=99.0) == pytest.approx(2.0)


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 39), st.floats(0.0, 20.0))
def test_the_last_start_is_that_of_tiles_dealt_one_by_one(tiles, slots, held, until):
    held = min(held, slots - 1)
    free_at = [0.0] * (slots - held) + [until] * held
    started = 0.0
    for _ in range(tiles):
        place = min(range(slots), key=free_at.__getitem__)
        started = free_at[place]
        free_at[place] += 1.0
    assert last_start(tiles, slots, held, 1.0, until) == pytest.approx(started, abs=1e-6)


def test_dma_engines_win_where_they_are_as_fast_and_take_no_compute_unit():
    choice = choose(SHAPE, of("all_gather", 64 * MIB), tables())
    assert (choice.strategy, choice.units) == ("dma", None)
    assert choice.share == pytest.approx(1.0)
    assert choice.makespan_s == pytest.approx(max(choice.serial_s - 640e-6, 640e-6))


def test_a_reducing_collective_is_never_left_to_dma_engines():
    ways = forecasts(case_of(SHAPE, of("all_reduce", 64 * MIB), tables()))
    assert {one.strategy for one in ways} == {"streams", "priority", "partition"}


def test_small_collectives_are_not_worth_the_start_of_dma_engines():
    small = Gemm(64, 1024, 1024, "bf16")
    assert choose(small, of("all_gather", MIB), tables()).strategy != "dma"


def test_a_partition_slows_the_gemm_by_its_waves_and_keeps_the_collective_whole():
    known = tables()
    case = case_of(SHAPE, of("all_gather", 64 * MIB), known)
    found = next(one for one in forecasts(case) if (one.strategy, one.units) == ("partition", 32))
    # While the collective works on the other units, the clock does not rise: the GEMM is slower until it ends.
    profile, moved = known.profile(SHAPE), 640e-6
    beside, alone = profile.seconds[32] * profile.beside[32], profile.seconds[32]
    assert found.makespan_s == pytest.approx(moved + (1 - moved / beside) * alone)
    assert 1 < profile.beside[32] < 1.2


def test_a_collective_behind_a_gemm_that_leaves_no_place_waits_for_its_end():
    gpu = hardware.gpu("mi300x")
    full = next(
        shape
        for shape in (Gemm(256 * rows, 8192, 8192, "bf16") for rows in range(1, 40))
        if profile_of(shape, gpu, ()).tiles % 304 == 0
    )
    case = case_of(full, of("all_gather", 64 * MIB), tables())
    streams = next(forecasts(case))
    assert streams.makespan_s == pytest.approx(case.gemm_s + case.collective_s)


def test_what_both_cost_each_other_lengthens_every_way_to_share():
    costly = MutualSlowdowns((0.0, 1.0), (1.5, 1.5), (2.0, 2.0), rate=1e8)
    interference = {"all_gather": dict.fromkeys((0, 8, 32), costly)}
    quiet, loud = (
        {one[:2]: one.makespan_s for one in forecasts(case_of(SHAPE, of("all_gather", 64 * MIB), known))}
        for known in (tables(), tables(interference=interference))
    )
    # Behind the GEMM there is nobody to disturb.
    assert all(loud[way] > quiet[way] for way in quiet if way[0] != "streams")


def test_measured_times_replace_those_of_the_tables():
    choice = choose(SHAPE, of("all_gather", 64 * MIB), tables(), gemm_s=5e-3, collective_s=1e-3)
    assert choice.serial_s == pytest.approx(6e-3)


def test_doubt_is_smaller_where_times_were_measured():
    known = tables()
    looked_up = choose(SHAPE, of("all_gather", 64 * MIB), known)
    given_times = choose(SHAPE, of("all_gather", 64 * MIB), known, gemm_s=5e-3, collective_s=1e-3)
    for choice, error in ((looked_up, 0.1), (given_times, 0.03)):
        assert choice.low == pytest.approx(choice.speedup / (1 + error))
        assert choice.high == pytest.approx(choice.speedup / (1 - error))


def test_of_ways_that_are_as_good_the_plainest_is_taken():
    ways = [Forecast("streams", None, 1.5), Forecast("dma", None, 1.001), Forecast("dma-partition", 8, 1.0)]
    assert plainest(ways).strategy == "dma"


def test_an_answer_about_a_seen_shape_takes_two_hundred_calls():
    # Calls, not seconds: a machine that does other things makes no call more. 50 us are some 500 of them.
    known = tables()
    asked = of("all_gather", 64 * MIB)
    choose(SHAPE, asked, known)  # the shape is seen
    with cProfile.Profile() as profile:
        choose(SHAPE, asked, known)
    assert Stats(profile).total_calls < 200


def test_a_size_below_the_smallest_takes_that_one_s_time_and_a_larger_one_goes_on():
    known = table()
    assert known.seconds(known.library, 1024) == pytest.approx(10e-6)
    assert known.seconds(known.library, 127 * MIB) == pytest.approx(1270e-6)


def test_an_unknown_collective_and_an_empty_one_are_refused():
    with pytest.raises(UnknownNameError, match="all_gather, all_reduce"):
        choose(SHAPE, of("all_to_all", MIB), tables())
    with pytest.raises(InputError, match="must be a whole number above zero"):
        choose(SHAPE, of("all_gather", 0), tables())


def test_tables_come_back_from_their_file(tmp_path):
    interference = {"all_gather": {8: MutualSlowdowns((0.1, 0.9), (1.0, 1.1), (1.2, 1.3), 1e11)}}
    made = tables(interference=interference)
    back = load_tables(made.save(tmp_path / "tables.json"))
    assert back == made
    answer: Choice = choose(SHAPE, of("all_gather", 64 * MIB), back)
    assert answer == choose(SHAPE, of("all_gather", 64 * MIB), made)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 99}, "version 2"),
        ({"kind": "something"}, "slowdown tables"),
        ({"collectives": {"all_gather": {}}}, "damaged"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, change, told):
    file = tmp_path / "tables.json"
    file.write_text(json.dumps(tables().record() | change))
    with pytest.raises(ConfigError, match=told):
        load_tables(file)


def test_a_file_that_is_no_json_or_not_there_is_refused(tmp_path):
    (tmp_path / "half.json").write_text('{"kind": ')
    with pytest.raises(ConfigError, match="no JSON"):
        load_tables(tmp_path / "half.json")
    with pytest.raises(InputError, match="does not exist"):
        load_tables(tmp_path / "none.json")
