"""T3 beyond its paper, in whole: what the cases must have in common with T3's study, and laws of unequal GPUs."""

import pytest

from weft.overlaps import SEQUENTIAL
from weft.papers import t3_beyond
from weft.papers.composed import PHASES
from weft.papers.t3_beyond import (
    BOTH,
    DMA,
    EXCHANGE,
    FLUX,
    LEVELS,
    LINES,
    LOADS,
    MCA,
    PARTS,
    PER_RANK,
    SHOWN_SHARE,
    SUMMED,
    TODAY,
    TWICE_RATE,
    TWICE_UNITS,
)

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def done():
    return t3_beyond.run()


def test_todays_machine_gives_the_figures_of_t3s_study(done):
    assert done.mean(done.twice, "t3", TODAY) == pytest.approx(1.207, abs=0.001)
    assert done.mean(done.twice, MCA, TODAY) == pytest.approx(1.266, abs=0.001)


def test_faster_compute_takes_away_what_compute_first_arbitration_is_worth(done):
    """More sub-layers then wait for the reduce-scatter, which compute-first arbitration delays."""
    worth = [
        done.mean(done.twice, MCA, setting) - done.mean(done.twice, "t3", setting)
        for setting in (TODAY, TWICE_RATE, TWICE_UNITS)
    ]
    assert worth[0] > 0.04
    assert max(worth[1:]) < 0.02
    for setting in (TODAY, TWICE_RATE, TWICE_UNITS):
        best = max(done.mean(done.twice, name, setting) for name in ("t3", MCA))
        assert done.mean(done.twice, "t3-critical", setting) > best


def test_a_faster_gpu_never_takes_longer(done):
    for point in done.twice:
        if point.setting == TODAY:
            continue
        today = next(one for one in done.twice if one.title == point.title and one.setting == TODAY)
        for name, found in point.run.timelines.items():
            assert found.seconds < 1.01 * today.run[name].seconds, (point.place, name)


def test_dma_engines_that_send_straight_beat_stores_that_wait(done):
    for point in done.routes:
        if DMA in point.run.timelines:
            assert point.run[DMA].seconds < point.run["t3-direct"].seconds, point.place


def test_tile_lines_never_lose_to_chunks_and_gain_most_on_a_full_mesh(done):
    gains = {point.place: point.run[FLUX].seconds / point.run[LINES].seconds for point in done.gathers}
    assert min(gains.values()) > 0.995
    for point in done.gathers:
        gemm, gather = (point.run.baseline.duration(name) for name in ("gemm", "all_gather"))
        assert point.run[LINES].seconds > 0.98 * max(gemm, gather), point.place
        if point.setting == "full":
            assert gains[point.place] > 1.2


def test_t3_beats_both_libraries_around_experts_and_deepep_gains_only_where_it_sends_less(done):
    for point in done.experts:
        assert point.run.speedup(EXCHANGE) > max(1.0, point.run.speedup(PER_RANK)), (point.layer, point.setting)
        assert (point.run.speedup(PER_RANK) > 1) == (point.layer == "DeepSeek-V3"), (point.layer, point.setting)


def test_two_levels_beat_one_ring_through_nodes(done):
    for point in done.nodes:
        assert point.run.speedup(LEVELS) > 2 * point.run.speedup(MCA), point.place


def test_a_switch_with_a_table_merges_less_and_takes_hardly_longer(done):
    """A request that leaves the table early is one more update of the owner's memory, not a byte more on its way up."""
    whole = next(point for point in done.merges if point.setting == "every sum" and not point.at)
    for point in done.merges:
        run, sums = point.run[SUMMED], whole.run[SUMMED]
        left = run.counters.get("merge_evicted", 0) + run.counters.get("merge_expired", 0)
        assert run.counters["link_bytes"] == pytest.approx(sums.counters["link_bytes"]), point.place
        assert (run.total_bytes > 1.01 * sums.total_bytes) == (left > 0), point.place
        assert run.seconds < 1.06 * sums.seconds, point.place


def test_a_switch_that_merges_loads_sends_a_third_and_saves_hardly_any_time(done):
    for share, most in ((0.0, 0.36), (SHOWN_SHARE, 0.65)):
        assert all(1 / 3 < sent < most for sent in done.of_loads("sent", share).values())
        assert all(0.98 < took < 1.01 for took in done.of_loads("took", share).values())
    apart = done.loads[0].run
    assert 1 < apart.speedup(LOADS) < apart.speedup(LINES)


def test_two_levels_are_worth_as_much_whatever_is_assumed(done):
    gains = [row.figures["levels"] for row in done.ranges]
    assert (min(gains), max(gains)) == pytest.approx((3.12, 3.41), abs=0.01)


def test_whole_steps_gain_from_both_halves_of_their_collectives(done):
    for one in done.steps:
        for phase in PHASES:
            half, both = (one.speedup(phase, f"tp={name}") for name in (MCA, BOTH))
            assert 1 < half < both, (one.asked.title, phase)
        assert one.found[f"tp={BOTH}"]["tp"] < one.found[f"tp={MCA}"]["tp"] < one.found["tp=sequential"]["tp"]


def test_experts_exchanges_hide_in_whole_steps(done):
    routed = [one for one in done.steps if "ep" in one.found["tp=sequential"]]
    assert {one.asked.model for one in routed} == {"deepseek-v3"}
    for one in routed:
        hidden = one.found[f"tp={BOTH},ep={EXCHANGE}"]
        assert hidden["ep"] < 0.5 * one.found[f"tp={BOTH}"]["ep"], one.asked.title


def test_k_in_parts_never_loses(done):
    for point in done.parts:
        assert point.run[PARTS].seconds <= 1.005 * point.run["t3"].seconds, point.place


def test_a_slow_gpu_costs_at_most_what_its_clock_loses(done):
    for point in done.late:
        for name in point.run.timelines:
            assert -0.005 <= done.lost(point, name) <= point.at / (1 - point.at) + 0.002, (point.place, name)


def test_every_figure_moves_with_assumed_values_by_less_than_an_eighth(done):
    first = done.ranges[0].figures
    for row in done.ranges:
        for name, value in row.figures.items():
            assert value == pytest.approx(first[name], rel=0.125), (row.what, row.setting, name)


def test_the_page_shows_every_question(done, tmp_path):
    page = done.page(tmp_path).read_text()
    assert page.count("<figure") == 9
    for words in ("Twice the compute", "straight to the owner", "before a GEMM", "in parts", "slow GPU", "whole steps"):
        assert words in page
    assert len(done.findings) == 10
    assert {SEQUENTIAL, DMA} <= set(done.to_dict()["late"][0]["seconds"])
