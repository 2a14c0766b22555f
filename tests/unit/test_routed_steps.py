"""Experts in a step under T3: the same answer as of the layer alone."""

from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.graph import GroupedGemm
from weft.models.parallel.framework import framework

TOKENS, HIDDEN, FFN, LAYERS = 256, 4096, 14336, 32
PLAN = {"ep": 8, "batch": 8, "sequence": TOKENS, "fidelity": "estimate"}


@pytest.fixture(scope="module")
def steps():
    ask = {"default": {}, "t3": {"overlap": "ep=t3-all-to-all"}}
    held = replace(framework("megatron-core"), graphs=("full_iteration",))  # so that no kernel waits for its host
    return {name: weft.step("mixtral-8x7b", "8xh100", framework=held, **PLAN, **more) for name, more in ask.items()}


def beyond(graph):
    """What `weft simulate moe` says of a layer: its time under T3 less that of its GEMMs in sequence [s]."""
    machine = weft.system("8xh100")
    found = weft.compare(graph, machine, ["sequential", "t3-all-to-all"], RunOptions(clock=SUSTAINED.clock))
    alone = found["sequential"].durations
    return found["t3-all-to-all"].seconds - alone["up"] - alone["down"]


def test_a_step_waits_for_exchanges_as_long_as_the_layer_alone_does(steps):
    forward = weft.experts(weft.Routing(TOKENS, 2, 8, 8), HIDDEN, FFN)
    rows = TOKENS * 2
    gradients = {"up": GroupedGemm(1, rows, FFN, HIDDEN, "bf16"), "down": GroupedGemm(1, rows, HIDDEN, 2 * FFN, "bf16")}
    backward = forward.map(lambda node: replace(node, op=gradients.get(node.id, node.op)))
    # Gradients of weights run beside the second exchange of a backward pass.
    assert steps["t3"].exposed["ep"] == pytest.approx(LAYERS * (beyond(forward) + beyond(backward) / 2), rel=1e-9)


def test_experts_under_t3_need_no_kernel_that_adds_up_and_wait_less(steps):
    before, t3 = steps["default"], steps["t3"]
    assert t3.exposed["ep"] < before.exposed["ep"]
    assert t3.seconds < before.seconds - (before.exposed["ep"] - t3.exposed["ep"])
    assert t3.parts["grouped_gemm"] == pytest.approx(before.parts["grouped_gemm"], rel=1e-9)


def test_a_step_says_what_hardware_experts_under_t3_need(steps):
    (needed,) = steps["t3"].needs
    assert needed == "t3-all-to-all needs hardware that no GPU on sale has: tracker, near-memory update, triggered DMA."
    said = " ".join(steps["t3"].notes)
    assert "t3-all-to-all has no closed form: the engine timed its GEMMs and exchanges of experts" in said


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"overlap": "ep=t3-all-to-all", "precision": "fp8-delayed"}, "joins whole experts in 16 bits"),
        ({"overlap": "tp=t3-all-to-all"}, "does not apply to the collectives of tensor parallelism"),
        ({"overlap": "ep=t3-mca"}, "does not apply to the collectives of expert parallelism"),
    ],
)
def test_what_t3_cannot_join_in_a_step_is_refused(more, says):
    with pytest.raises(InputError, match=says):
        weft.step("mixtral-8x7b", "8xh100", **PLAN, **more)


def test_experts_in_several_nodes_are_refused_under_t3():
    with pytest.raises(InputError, match="sends tokens straight to their experts, among the 8 GPUs of a node"):
        weft.step("deepseek-v3", "64xh100", ep=64, batch=64, fidelity="estimate", overlap="ep=t3-all-to-all")
