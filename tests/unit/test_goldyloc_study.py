"""The GOLDYLOC study: its suite, its figures, its page, and suites that cannot be run."""

import json
from dataclasses import replace
from statistics import geometric_mean

import pytest
from small_gemms import small_mi100

from weft import hardware
from weft.core.errors import WeftError
from weft.graph import Gemm
from weft.kernels import GemmTiling
from weft.papers.goldyloc import GoldylocStudy, QueueSuite, run
from weft.papers.goldyloc.shares import ShareLoss, ShareLosses
from weft.papers.goldyloc.study import FIGURES

SUITE = """
title = "tiny"
[[gemm]]
network = "one"
layer = "wide"
gemm = [64, 192, 64]
queued = [2, 4]
[[gemm]]
network = "two"
layer = "tall"
gemm = [192, 64, 128]
queued = [2]
[[mixed]]
network = "two"
layer = "both"
gemms = [[64, 192, 64], [192, 64, 128]]
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    file = tmp_path_factory.mktemp("suite") / "tiny.toml"
    file.write_text(SUITE)
    return run(QueueSuite.load(file), jobs=1, gpu=small_mi100())


def test_the_declared_suite_names_the_source_of_every_network():
    suite = QueueSuite.declared()
    assert {entry.network for entry in suite.entries} == set(suite.networks)
    assert {len(queue.gemms) for entry in suite.entries for queue in entry.queues()} >= {2, 4, 8, 16}
    assert len(suite.shapes) == len([entry for entry in suite.entries if hasattr(entry, "queued")])


def test_a_study_judges_every_queue(done):
    assert [len(case.judged.queue.gemms) for case in done.cases] == [2, 4, 2, 2]
    assert [sorted(case.judged.at_degree) for case in done.cases] == [[1, 2], [1, 2, 4], [1, 2], [1, 2]]
    for case in done.cases:
        assert case.judged.at_degree[1] == pytest.approx(case.judged.sequential)


def test_gemms_of_few_tiles_gain_from_running_together(done):
    """One alone leaves most of the GPU idle, and each pays its launch."""
    for case in done.cases:
        assert case.judged.default < 0.75 * case.judged.sequential


def test_published_figures_stand_only_beside_their_own_suite_and_gpu(done):
    rows = {row.id: row for row in done.headline()}
    assert not done.comparable
    assert all(row.published is None for row in rows.values())
    assert "no published figures stand beside these: the machine was changed" in done.notes[-1]
    alone = replace(done, machine=hardware.gpu("mi100"))
    assert "the suite is not the declared one" in alone.notes[-1]
    renamed = replace(alone, suite=done.suite.model_copy(update={"title": QueueSuite.declared().title}))
    assert not renamed.comparable
    assert replace(alone, suite=QueueSuite.declared()).comparable


def test_a_wrong_degree_costs_what_the_runs_say(done):
    """The predictor of a network has seen the other one only, in which no four GEMMs are queued."""
    (case,) = (case for case in done.cases if len(case.judged.queue.gemms) == 4)
    assert (case.degree, case.judged.best_degree) == (2, 4)
    took = case.judged.at_degree
    assert case.of_oracle == pytest.approx(took[4] / took[2])
    assert done.accuracy == 3 / 4
    (share,) = (row.weft for row in done.headline() if row.id == "goldyloc.of_oracle")
    assert share == pytest.approx((took[4] / took[2]) ** (1 / 4))


def test_a_fixed_degree_of_one_is_one_after_another(done):
    gains = [case.judged.default / case.judged.sequential for case in done.cases]
    assert done.at_degree(1) == pytest.approx(geometric_mean(gains))
    assert done.at_degree(1) < done.at_degree(2) < done.at_degree(4)


def test_the_whole_gpus_kernel_loses_most_on_the_smallest_part(done):
    """Small tiles that fill eight compute units need more rounds than large ones on two."""
    by_gemm = {}
    for row in done.losses.rows:
        by_gemm.setdefault(row.gemm, []).append((row.share, row.loss))
    for (half, on_half), (quarter, on_quarter) in by_gemm.values():
        assert (half, quarter) == (2, 4)
        assert on_quarter > on_half + 0.1


def test_losses_are_medians_and_changed_tiles_are_counted_by_gemm():
    small, large = GemmTiling(rows=32), GemmTiling(rows=64)
    kept, moved = Gemm(64, 64, 64), Gemm(128, 64, 64)
    losses = ShareLosses(
        (
            ShareLoss(kept, 2, small, small, 2e-6, 2e-6),
            ShareLoss(kept, 4, small, small, 4e-6, 4e-6),
            ShareLoss(moved, 2, small, small, 3e-6, 3e-6),
            ShareLoss(moved, 4, small, large, 6e-6, 5e-6),
        )
    )
    assert losses.median(2) == 0
    assert losses.median(4) == pytest.approx(0.1)
    assert losses.changed == 0.5


def test_sensitivity_moves_values_of_the_longest_queues(done, tmp_path):
    moved = GoldylocStudy.sensitivity(done.suite, jobs=1, gpu=small_mi100())
    rows = {(row.what, row.setting): row.figures for row in moved.rows}
    assert len(moved.cases) == 3
    assert {"clock", "compute.launch_latency"} <= {what for what, _ in rows}
    low, high = (figures for (what, _), figures in rows.items() if what == "compute.launch_latency")
    assert low["default over sequential"] != high["default over sequential"]
    heads, cells = moved.table()
    assert heads[2:] == list(FIGURES)
    assert cells[0][0] == "as chosen"
    assert json.loads(moved.save(tmp_path / "s.json").read_text())["study"] == "goldyloc sensitivity"


def test_the_study_is_written_whole(done, tmp_path):
    assert '"goldyloc.of_oracle"' in done.save(tmp_path / "goldyloc.json").read_text()
    page = done.page(tmp_path, done.watch()).read_text()
    assert page.count("<figure") == 5
    assert "Every queue" in page


def test_the_page_states_the_requests_that_were_used(done, tmp_path):
    coarse = replace(done, request_bytes=32 << 10)
    page = coarse.page(tmp_path, done.watch()).read_text()
    assert "32 KiB" in page or "32768 B" in page


def test_a_queue_that_is_watched_takes_what_was_judged(done):
    queue = done.watch()
    case = next(case for case in done.cases if case.title == queue.title)
    for runs, seconds in ((queue.default, case.judged.default), (queue.chosen, case.goldyloc)):
        ends = [run.residency.rows[:, 4].max() * 1e-15 for run in runs]
        assert sum(ends) == pytest.approx(seconds, rel=0.01)
    assert sum(queue.sizes) == len(queue.names) == len(case.judged.queue.gemms)


def test_the_longest_queue_of_an_entry_stands_for_it(done):
    queues = [queue for entry in done.suite.longest().entries for queue in entry.queues()]
    assert [len(queue.gemms) for queue in queues] == [4, 2, 2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[64, 192, 64]\nqueued", "[64, 0, 64]\nqueued", "GEMM 1: GEMM dimension N is 0"),
        ("queued = [2, 4]", "queued = [2, 40]", "GEMM 1: 40 GEMMs are queued; write 2 to 16"),
        ("queued = [2, 4]", "queued = []", "GEMM 1"),
        ("layer = \"wide\"", "layers = \"wide\"", "GEMM 1"),
        ("gemms = [[64, 192, 64], [192, 64, 128]]", "gemms = [[64, 192, 64]]", "mixed set 1: 1 GEMMs"),
        ("title = \"tiny\"", "title = \"tiny\"\ncolour = 3", "colour"),
    ],
)  # fmt: skip
def test_suites_that_cannot_be_run_are_told_by_entry(tmp_path, old, new, words):
    file = tmp_path / "bad.toml"
    file.write_text(SUITE.replace(old, new, 1))
    with pytest.raises(WeftError) as error:
        QueueSuite.load(file)
    assert words in str(error.value)


def test_a_suite_without_gemms_is_refused(tmp_path):
    file = tmp_path / "empty.toml"
    file.write_text('title = "nothing"\n')
    with pytest.raises(WeftError, match="there is no GEMM"):
        QueueSuite.load(file)
