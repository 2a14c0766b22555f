"""A whole training run: its days and its cost, goodput under failures, and how often checkpoints are written."""

import math

import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError, UnitError
from weft.step.run import DAY, LLAMA_3, goodput, tokens_of


@pytest.fixture(scope="module")
def step():
    return weft.step("llama-3-70b", "4096xh100", tp=8, pp=4, batch=2048, fidelity="estimate", compare=False)


@pytest.mark.parametrize(("text", "tokens"), [("15T", 15e12), ("15.6T", 15.6e12), ("300B", 3e11), ("2e12", 2e12)])
def test_tokens_are_a_number_with_a_prefix(text, tokens):
    assert tokens_of(text) == pytest.approx(tokens)


@pytest.mark.parametrize("text", ["T", "0", "-1B", "many", "nan", "1e30T"])
def test_what_is_no_number_of_tokens_is_refused(text):
    with pytest.raises(InputError, match="write it like '15T'"):
        tokens_of(text)


def test_a_run_takes_its_tokens_by_the_rate_of_the_step_and_costs_its_gpus(step):
    run = step.over(weft.TrainingRun(tokens="15T", price="3.6 USD/GPU/h")).run
    assert run.days * DAY == pytest.approx(15e12 / step.tokens * step.seconds)
    assert run.cost == pytest.approx(1e-3 * 4096 * run.days * DAY)
    assert run.million_tokens == pytest.approx(run.cost / 15e6)
    low, high = run.days_80
    assert (low / run.days, high / run.days) == pytest.approx(tuple(end / step.seconds for end in step.interval_s))


def test_a_duration_says_how_many_tokens_a_run_has(step):
    run = step.over(weft.TrainingRun(duration="30d")).run
    assert run.tokens == pytest.approx(30 * DAY / step.seconds * step.tokens)


def test_without_failures_a_run_is_what_it_was_to_the_digit(step):
    plain, without = (step.over(weft.TrainingRun(tokens="1T", failures=rate)).run for rate in (None, 0.0))
    assert (without.days, without.days_80) == (plain.days, plain.days_80)
    assert without.goodput.goodput == 1.0


def test_the_best_interval_is_that_of_young_and_daly(step):
    """Young: the root of twice the time of a checkpoint by the time between failures, for short checkpoints."""
    found = goodput(step, weft.TrainingRun(failures=LLAMA_3, duration="30d", restart="1min"))
    young = math.sqrt(2 * found.write_s * found.mtbf_s)
    assert found.interval_s == pytest.approx(young, rel=0.02)
    assert found.mtbf_s == pytest.approx(DAY / (LLAMA_3 * 4096))
    assert found.checkpoint_bytes == 14 * step.model.parameters


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_no_other_interval_loses_less(step, factor):
    best = goodput(step, weft.TrainingRun(failures=1e-3, duration="1d"))
    every = f"{best.interval_s * factor:.6f}s"
    other = goodput(step, weft.TrainingRun(failures=1e-3, duration="1d", checkpoint_every=every))
    assert other.goodput < best.goodput


def test_llama_3_kept_more_than_90_percent_of_its_time():
    """466 interruptions in 54 days on 16,384 H100, and more than 90 % effective training time (arXiv:2407.21783)."""
    step = weft.step(
        "llama-3.1-405b", "16384xh100", tp=8, pp=16, batch=2048, sequence=8192, fidelity="estimate", compare=False
    )
    found = goodput(step, weft.TrainingRun(failures=LLAMA_3, duration="54d"))
    assert 54 * DAY / found.mtbf_s == pytest.approx(466, rel=0.01)
    assert 0.9 < found.goodput < 0.97


def test_losses_add_up_and_grow_with_failures_restarts_and_checkpoints(step):
    def lost(**how):
        found = goodput(step, weft.TrainingRun(**{"failures": 1e-3, "duration": "1d", **how}))
        assert found.goodput + found.written + found.restarted + found.repeated == pytest.approx(1)
        return 1 - found.goodput

    plain = lost()
    assert lost(failures=2e-3) > plain
    assert lost(restart="20min") > plain
    assert lost(checkpoint_bandwidth="50 GB/s") > plain
    assert lost(checkpoint_bandwidth="50 GB/s", async_checkpoint=True) < lost(checkpoint_bandwidth="50 GB/s")


def test_spare_nodes_cover_nodes_in_repair(step):
    """4,096 GPUs at 1e-3 a day fail 4.1 times a day, so that 4.1 nodes are away on average: 9 in 1 % of the time."""
    assert goodput(step, weft.TrainingRun(failures=1e-3, duration="1d")).spares == 9
    assert goodput(step, weft.TrainingRun(failures=1e-3, duration="1d", repair="2h")).spares < 9


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tokens": "1T", "duration": "3d"}, "tokens or a duration, one of both"),
        ({}, "tokens or a duration"),
        ({"duration": "0d"}, "must be above zero"),
        ({"tokens": "1T", "checkpoint_every": "5min"}, "checkpoints are written for failures"),
        ({"tokens": "1T", "failures": 2.0}, "failures"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        weft.TrainingRun(**given)


def test_a_time_without_a_unit_is_refused():
    with pytest.raises(UnitError, match="seconds"):
        weft.TrainingRun(tokens="1T", failures=1e-3, restart="10")


def test_a_step_says_what_its_run_costs_and_loses():
    command = "step llama-3-8b --system 64xh100 --zero 3 --batch 256 --fidelity estimate --tokens 1T --failures 1e-3"
    done = CliRunner().invoke(cli, [*command.split(), "--price", "2.5 USD/GPU/h"])
    assert done.exit_code == 0, done.output
    for said in ("Run: 1T tokens take ", "Cost: ", "Goodput 9", "Checkpoint every "):
        assert said in done.output
    plain = CliRunner().invoke(cli, command.split()[:-4])
    assert "Goodput" not in plain.output
