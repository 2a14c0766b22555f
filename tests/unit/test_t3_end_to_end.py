"""T3 end to end: how a step is tallied and composed, by hand and by laws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft import hardware
from weft.core.options import SUSTAINED
from weft.graph import Gemm
from weft.models import load_model
from weft.models.parallel import sublayer
from weft.models.parallel.plan import TrainingPlan
from weft.papers.composed import COMMUNICATION, Composed, StepWork, work
from weft.papers.t3_end_to_end import ACCUMULATED, DECLARED, MEASURES, accumulate_gradients
from weft.step.overlaps import SEQUENTIAL

SHAPE = Gemm(1024, 1024, 512, "fp16")


class Run:
    """A stand-in of a timeline: times of its operators."""

    def __init__(self, seconds, **durations):
        self.seconds, self.durations = seconds, durations

    def duration(self, name):
        return self.durations[name]


class Runs(dict):
    """A stand-in of a comparison."""

    baseline = property(lambda self: self[SEQUENTIAL])
    timelines = property(lambda self: self)


RUNS = Runs({SEQUENTIAL: Run(4.0, gemm=2.0, reduce_scatter=1.0, all_gather=1.0), "t3-mca": Run(3.0)})
STEP = Composed(
    "t-nlg", 8, "training", StepWork({SHAPE: 3}, {"gemm": 4.0, "norm": 3.0, "optimizer": 8.0}), {SHAPE: RUNS}
)


def tally(name, tp, phase, **plan):
    model = load_model(name)
    stated = {"batch": model.batch, "micro_batch": model.batch, "sequence": model.sequence_length, **plan}
    plan = TrainingPlan(tp=tp, dtype="fp16", overlap={"tp": SEQUENTIAL}, **stated)
    return model, work(model, hardware.gpu("t3-paper"), plan, phase, SUSTAINED)


def test_a_step_is_its_sublayers_and_everything_else_in_turn():
    assert STEP.seconds() == 3 * 4 + 15
    assert STEP.seconds("t3-mca") == 3 * 3 + 15
    assert STEP.speedup("t3-mca") == pytest.approx(27 / 24)


def test_communication_is_what_the_sublayers_take_beyond_their_gemms():
    assert STEP.parts == {"gemm": 10.0, "norm": 3.0, "optimizer": 8.0, COMMUNICATION: 6.0}
    assert STEP.share() == pytest.approx(6 / 27)


def test_faster_gemms_shorten_the_gemms_alone_and_faster_computing_all_but_communication():
    assert STEP.share(gemms=2) == pytest.approx(6 / 22)
    assert STEP.share(computing=2) == pytest.approx(6 / (6 + 21 / 2))


def test_sequence_parallelism_moves_the_all_gather_out_of_the_sublayer():
    apart = replace(STEP, work=replace(STEP.work, sp=True, gathers=3))
    assert apart.seconds() == STEP.seconds()
    assert apart.seconds("t3-mca") == STEP.seconds("t3-mca")


def test_the_optimizer_is_spread_over_the_micro_batches_of_an_update():
    assert STEP.seconds() - accumulate_gradients(STEP).seconds() == pytest.approx(8 - 8 / ACCUMULATED)


@pytest.mark.parametrize(("phase", "layers"), [("training", 4), ("prompt", 2)])
def test_every_layer_has_the_sublayers_of_the_study_in_training_and_half_of_them_in_a_prompt(phase, layers):
    model, found = tally("t-nlg", 16, phase)
    assert sum(found.sublayers.values()) == layers * model.layers
    studied = {sublayer("t-nlg", name, 16)["gemm"].op for name in ("op", "fc2", "fc1", "ip")}
    assert set(found.sublayers) <= studied
    assert found.gathers == 0


def test_a_prompt_has_neither_optimizer_nor_loss():
    _, found = tally("mega-gpt-2", 8, "prompt")
    assert not {"optimizer", "loss"} & set(found.rest)


def test_sequence_parallelism_shares_norms_and_keeps_the_sublayers():
    _, whole = tally("mega-gpt-2", 8, "training")
    model, shared = tally("mega-gpt-2", 8, "training", sp=True)
    assert shared.sublayers == whole.sublayers
    assert shared.rest["norm"] < whole.rest["norm"] / 4
    assert shared.gathers == 6 * model.layers  # two forward; two of gradients and two again of inputs backward


def test_longer_sequences_of_as_many_tokens_only_lengthen_attention():
    _, short = tally("mega-gpt-2", 8, "prompt")
    _, long = tally("mega-gpt-2", 8, "prompt", sequence=4096, batch=4, micro_batch=4)
    assert long.sublayers == short.sublayers
    assert long.rest["attention"] > 2 * short.rest["attention"]
    assert long.rest["norm"] == pytest.approx(short.rest["norm"])


def test_every_claim_has_a_measure():
    assert set(MEASURES) == set(DECLARED.claims)
