"""The C3 study on a small suite of one's own, and in whole against the published figures (slow)."""

import json

import pytest

from published import broken
from weft.core.store import Store
from weft.overlaps import STRATEGIES
from weft.papers import c3
from weft.papers.c3.study import SHOWN

PUBLISHED = {
    "c3.base": 0.21,
    "c3.priority": 0.42,
    "c3.partition": 0.41,
    "c3.priority_partition": 0.42,
    "c3.dma": 0.66,
    "c3.dma_partition": 0.72,
    "c3.max_speedup": 1.67,
    "c3.gemm_slowdown.compute_bound.minus32": 0.17,
    "c3.gemm_slowdown.compute_bound.minus64": 0.27,
    "c3.gemm_slowdown.memory_bound.minus8": (-0.10, 0.0),
    "c3.saturation.all_gather": 32,
    "c3.saturation.all_to_all": 64,
    "c3.dma_small_slowdown": 4,
    "c3.mi355x.dma": 1.41,
    "c3.mi355x.cu": 1.23,
}
SUITE = """
title = "small"

[[scenario]]
layer = "square"
gemm = [8192, 8192, 2048]
bound = "compute"
collective = "all_gather"
size = "32 MiB"
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    file = tmp_path_factory.mktemp("c3") / "small.toml"
    file.write_text(SUITE)
    return c3.run(c3.ScenarioSuite.load(file), jobs=1, heuristics=False)


def test_a_suite_of_ones_own_gives_every_strategy_and_no_published_figure(small):
    data = json.loads(json.dumps(small.to_dict()))
    (case,) = data["scenarios"]
    assert set(case["strategies"]) == set(STRATEGIES)
    assert all(row["published"] is None for row in data["headline"])
    assert case["best"]["makespan_us"] <= min(s["makespan_us"] for s in case["strategies"].values())


def test_the_collective_waits_for_the_gemms_last_wave_without_priority(small):
    case = small.cases[0]
    assert case.collective_slowdown("streams") > 1.1 * case.collective_slowdown("priority")
    assert case.gemm_slowdown("streams") < case.gemm_slowdown("priority")


def test_copies_by_dma_engines_leave_the_gemm_its_compute_units(small):
    case = small.cases[0]
    assert case.comparison["dma"].held["gemm"] == case.comparison.alone["gemm"].held["gemm"]
    assert case.gemm_slowdown("dma") < case.gemm_slowdown("partition")


def test_the_page_shows_every_part_of_the_study(small, tmp_path):
    page = small.page(tmp_path, small.watch()).read_text()
    for title in (
        "Headline",
        "How much of the ideal",
        "What each costs the other",
        "Why",
        "Who held which compute unit",
        "Every scenario",
    ):
        assert f">{title}</h2>" in page
    assert page.count("<figure") == 6 + len(SHOWN)


def test_timelines_repeat_what_the_study_simulated(small):
    runs = small.cases[0].comparison
    for name, drawn in small.watch().items():
        assert drawn.makespan == pytest.approx(runs[name].makespan)


@pytest.mark.study
def test_the_whole_study_stands_beside_every_published_figure():
    done = c3.run(jobs=2, store=Store())
    rows = {row.id: row for row in done.headline()}
    assert {id_: row.published for id_, row in rows.items() if row.published is not None} == PUBLISHED
    assert all(case.declared for case in done.cases)
    assert rows["c3.base"].weft < min(rows["c3.priority"].weft, rows["c3.partition"].weft)
    assert max(rows["c3.priority"].weft, rows["c3.partition"].weft) < rows["c3.dma"].weft
    assert rows["c3.heuristic_loss"].weft <= 0.03
    assert broken(done.headline(), c3.STUDY.DECLARED.claims) == []
