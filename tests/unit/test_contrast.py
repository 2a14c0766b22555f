"""One question asked twice: before and after a change, and every overlap of a step."""

import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError

PLAN = {"tp": 2, "pp": 2, "batch": 16, "sequence": 2048, "fidelity": "estimate"}


def step(**changed):
    return weft.step("llama-3-8b", "8xa100", **{**PLAN, **changed})


def run(tmp_path, *words):
    file = tmp_path / "answer.json"
    done = CliRunner().invoke(cli, [*map(str, words), "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output, json.loads(file.read_text())


ASKED = ("step", "llama-3-8b", "--system", "8xa100", "--tp", 2, "--pp", 2, "--batch", 16, "--sequence", 2048)


@pytest.mark.parametrize(
    ("against", "changed"),
    [
        ("tp=4", lambda: step(tp=4)),
        ("micro-batch=2", lambda: step(micro_batch=2)),
        ("system=8xh100", lambda: weft.step("llama-3-8b", "8xh100", **PLAN)),
        ("clock=short", lambda: weft.step("llama-3-8b", "8xa100", options=weft.RunOptions(clock="short"), **PLAN)),
        (
            "link.bandwidth=600 GB/s",
            lambda: weft.step("llama-3-8b", weft.system("8xa100").replace({"link.bandwidth": "600 GB/s"}), **PLAN),
        ),
    ],
)
def test_against_answers_both_questions_as_if_each_was_asked(tmp_path, against, changed):
    said, written = run(tmp_path, *ASKED, "--fidelity", "estimate", "--against", against)
    before, after = (row["seconds"] for row in written["rows"])
    assert before == pytest.approx(step().seconds, rel=1e-9)
    assert after == pytest.approx(changed().seconds, rel=1e-9)
    assert written["rows"][1]["times_as_fast"] == pytest.approx(before / after)
    assert said.startswith(f"With {against.replace('=', ' ')} it takes")


def test_a_change_that_changes_nothing_is_called_so(tmp_path):
    said, _ = run(tmp_path, *ASKED, "--fidelity", "estimate", "--against", "dma.bandwidth=1 TB/s")
    assert "no difference that Weft can resolve" in said.splitlines()[0]


def test_a_change_of_something_unknown_is_refused_with_what_is_known():
    done = CliRunner().invoke(cli, [*map(str, ASKED), "--against", "speed=3"])
    assert isinstance(done.exception, InputError)
    assert "'speed'" in str(done.exception)
    assert "micro_batch" in str(done.exception)


def test_every_overlap_of_a_step_takes_what_the_step_with_it_takes():
    found = weft.step_overlaps("llama-3-8b", "8xa100", tp=8, batch=8, sequence=4096)
    assert {"tp=flux", "tp=sequential"} <= set(found.other_answers)
    for label, answer in found.other_answers.items():
        alone = weft.step("llama-3-8b", "8xa100", tp=8, batch=8, sequence=4096, overlap=label, fidelity="estimate")
        assert answer.seconds == pytest.approx(alone.seconds, rel=1e-9)
    assert "engine" in found.left_out["tp=t3-mca"]
    assert found.speedup(found.best) == max(map(found.speedup, found.other_answers))


def test_a_step_bound_by_one_axis_says_so():
    found = weft.step_overlaps("llama-3-70b", "64xh100", tp=8, zero=3, batch=128, sequence=8192)
    step = found.first
    under_way = (step.hidden["dp"] + step.exposed["dp"]) / (step.seconds - step.parts["calibration residual"])
    assert 0.9 < under_way < 1
    said = f"data parallelism is under way for {under_way:.0%} of the step without its calibration residual, and bounds"
    assert said in str(found)


def test_a_step_that_computes_for_longer_than_it_communicates_is_bound_by_no_axis():
    assert "bounds it" not in str(weft.step_overlaps("llama-3-8b", "8xh100", zero=3, batch=32, sequence=8192))


def test_a_plan_without_communication_has_nothing_to_compare():
    with pytest.raises(InputError, match="no axis of the plan communicates"):
        weft.step_overlaps("llama-3-8b", "1xh200", batch=1, sequence=2048)


def test_answers_that_are_no_single_time_are_refused():
    with pytest.raises(InputError, match="needs two answers"):
        weft.Contrast({"as asked": step()})
    with pytest.raises(InputError, match="'memory' is not one time"):
        weft.Contrast({"as asked": step(), "memory": step().memory})


def test_what_only_one_of_two_answers_assumes_is_told_of_it():
    """A purchase of one framework or the other depends on the versions that both were fitted to."""
    asked = ("serve", "llama-3-8b", "--system", "1xh100", "--rate", 2, "--requests", 40)
    told = CliRunner().invoke(cli, [*map(str, asked), "--against", "framework=sglang"]).output.splitlines()
    rules = [line for line in told if ": Scheduler rules and CPU overheads are those of " in line]
    assert [line.split(": Scheduler")[0] for line in rules] == ["As asked", "Framework sglang"]
    assert "SGLang, host times fitted to versions 0.5" in rules[1]
    alike = CliRunner().invoke(cli, [*map(str, asked), "--against", "rate=3"]).output
    assert "Rules and host times" not in alike
