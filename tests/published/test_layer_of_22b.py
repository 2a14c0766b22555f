"""One layer of a 22B GPT, forward and backward, beside the measurements of arXiv:2205.05198, Table 4.

A100 80 GB, tensor parallelism 8, micro-batch 4, 2048 tokens, fp16, attention in separate kernels, dropout.
"""

import pytest

import weft
from weft.core.options import SUSTAINED
from weft.models import load_model
from weft.models.block import FusionStyle, Tokens, layer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import part
from weft.step.durations import OperatorTimes
from weft.step.spans import time_nodes

MODEL = load_model("gpt-3").model_copy(update={"hidden": 6144, "layers": 48, "heads": 64})
STYLE = FusionStyle(flash=False, dropout=True, fused=True)
SETTINGS = {
    "plain": (False, "none", 7.7, 11.9),
    "sequence parallelism": (True, "none", 7.2, 11.8),
    "full recomputation": (False, "full", 7.7, 19.5),
    "selective recomputation": (False, "selective", 7.7, 13.2),
    "both": (True, "selective", 7.2, 13.1),
}


@pytest.fixture(scope="module")
def system():
    return weft.system("8xa100-sxm")


KNOWN_GAP = pytest.mark.xfail(strict=True, reason="the backward pass is 6.7 % short: docs/deviations.md, step by step")


@pytest.mark.parametrize("setting", [pytest.param("plain", marks=KNOWN_GAP), *list(SETTINGS)[1:]])
def test_a_layer_takes_as_long_as_measured(system, setting):
    sp, recompute, forward, backward = SETTINGS[setting]
    plan = TrainingPlan(tp=8, batch=4, micro_batch=4, sp=sp, recompute=recompute, dtype="fp16")
    pieces = tuple(layer(MODEL, "dense", Tokens(4, 2048), STYLE, "fp16"))
    mine = part("layer", pieces, plan, Framework(style=STYLE))
    prices = OperatorTimes(system, plan, SUSTAINED)
    graphs = (mine.forward, mine.backward, *([mine.recompute] if mine.recompute else ()))
    first, *others = (1e3 * time_nodes(graph, prices.graph(graph)).seconds for graph in graphs)
    assert first == pytest.approx(forward, rel=0.06)
    assert sum(others) == pytest.approx(backward, rel=0.06)


def test_the_forward_pass_of_the_plain_layer_takes_as_long_as_measured(system):
    sp, recompute, forward, _ = SETTINGS["plain"]
    plan = TrainingPlan(tp=8, batch=4, micro_batch=4, sp=sp, recompute=recompute, dtype="fp16")
    pieces = tuple(layer(MODEL, "dense", Tokens(4, 2048), STYLE, "fp16"))
    graph = part("layer", pieces, plan, Framework(style=STYLE)).forward
    seconds = time_nodes(graph, OperatorTimes(system, plan, SUSTAINED).graph(graph)).seconds
    assert 1e3 * seconds == pytest.approx(forward, rel=0.06)
