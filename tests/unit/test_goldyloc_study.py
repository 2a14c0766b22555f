"""The GOLDYLOC study: its suite, its figures, its page, and suites that cannot be run."""

import pytest
from small_gemms import small_mi100

from weft.errors import WeftError
from weft.report.goldyloc import goldyloc_report
from weft.studies.goldyloc import declared_suite, load_suite, run
from weft.studies.goldyloc.sensitivity import representatives
from weft.tuning.kernels import DEGREES

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
    return run(load_suite(file), gpu=small_mi100())


def test_the_declared_suite_names_the_source_of_every_network():
    suite = declared_suite()
    assert {entry.network for entry in suite.entries} == set(suite.networks)
    assert {len(queue.gemms) for entry in suite.entries for queue in entry.queues()} >= {2, 4, 8, 16}
    assert len(suite.shapes) == len([entry for entry in suite.entries if hasattr(entry, "queued")])


def test_a_study_judges_every_queue(done):
    assert len(done.cases) == 4
    for case in done.cases:
        assert case.of_oracle <= 1
        assert case.degree in case.judged.at_degree


def test_published_figures_stand_only_beside_their_own_suite_and_gpu(done):
    rows = {row.id: row for row in done.headline()}
    assert not done.comparable
    assert all(row.published is None for row in rows.values())
    assert rows["goldyloc.over_default.max"].weft >= rows["goldyloc.over_default.geomean"].weft
    assert rows["goldyloc.of_oracle"].weft <= 1


def test_fixed_degrees_and_losses_come_from_the_same_runs(done):
    assert {degree: done.at_degree(degree) > 0 for degree in DEGREES} == dict.fromkeys(DEGREES, True)
    assert all(row.loss >= 0 for row in done.losses.rows)
    assert 0 <= done.losses.changed <= 1


def test_the_study_is_written_whole(done, tmp_path):
    assert '"goldyloc.of_oracle"' in done.save(tmp_path / "goldyloc.json").read_text()
    page = goldyloc_report(done, tmp_path, small_mi100(), done.watch()).read_text()
    assert page.count("<svg") == 5
    assert "Every queue" in page


def test_a_queue_that_is_watched_takes_what_was_judged(done):
    queue = done.watch()
    case = next(case for case in done.cases if case.title == queue.title)
    for runs, seconds in ((queue.default, case.judged.default), (queue.chosen, case.goldyloc)):
        ends = [run.residency.rows[:, 4].max() * 1e-15 for run in runs]
        assert sum(ends) == pytest.approx(seconds, rel=0.01)
    assert sum(queue.sizes) == len(queue.names) == len(case.judged.queue.gemms)


def test_the_longest_queue_of_an_entry_stands_for_it(done):
    assert [len(case.judged.queue.gemms) for case in representatives(done.cases)] == [4, 2, 2]


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
        load_suite(file)
    assert words in str(error.value)


def test_a_suite_without_gemms_is_refused(tmp_path):
    file = tmp_path / "empty.toml"
    file.write_text('title = "nothing"\n')
    with pytest.raises(WeftError, match="there are no GEMMs"):
        load_suite(file)
