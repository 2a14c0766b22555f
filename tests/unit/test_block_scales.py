"""FP8 with a scale for each 128 elements: what vector units of Hopper add, and the casts of DeepSeek's trainer."""

import pytest

from weft import hardware
from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Gemm, GroupedGemm, Streaming
from weft.kernels.gemm import PROMOTED, main_loop_flops, promoted_share, running_clock
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.rank_parts import rank_parts

PLAN = TrainingPlan(dp=64, ep=64, batch=64, sequence=4096, precision="fp8-block")


def test_vector_units_scale_and_add_each_sum_of_128_products_after_the_matrix_units():
    gpu, options = hardware.gpu("h800"), RunOptions()
    rate = main_loop_flops("fp8", gpu, options)
    for scaled, instructions in enumerate(PROMOTED):
        step = 2 * 128**3 / rate
        adding = instructions * 128**2 / (gpu.vector_lanes * running_clock(gpu, options))
        assert promoted_share(scaled, "fp8", gpu, options) == pytest.approx(step / (step + adding))


def test_matrix_units_of_blackwell_scale_by_themselves():
    assert promoted_share(2, "fp8", hardware.gpu("b200"), RunOptions()) == 1


@pytest.mark.parametrize(
    "op", [Gemm(8192, 8192, 8192, "fp8", scaled=1), GroupedGemm(4, 32768, 4096, 7168, "fp8", scaled=1)]
)
def test_gradients_of_weights_are_slower_than_the_products_of_the_forward_pass(op):
    """Both of their operands have scales along the sum."""
    (weight,) = op.backward.weights
    assert weight.scaled == 2
    assert estimate(weight, "h800").seconds > 1.1 * estimate(op, "h800").seconds


def casts(phase, name="deepseek"):
    part = rank_parts(load_model("deepseek-v3"), PLAN, framework(name))["moe"]
    return {node.name: node.op for node in getattr(part, phase) if isinstance(node.op, Streaming)}


def test_tokens_are_cast_before_they_are_dispatched_and_turned_in_the_backward_pass():
    """Not again by the ranks that receive eight times as many rows."""
    forward, backward = casts("forward"), casts("backward")
    assert forward["permute.quantize"].elements == 4096 * 7168
    assert not [name for name in forward if name.startswith("experts_fc1.quantize")]
    assert backward["experts_fc1.turned"].name == "transpose"
    assert backward["experts_fc1.turned"].elements == 8 * 4096 * 7168
    assert [name for name in casts("forward", "megatron-core") if name.startswith("experts_fc1.quantize")]


def test_weights_are_turned_and_gradients_cast_along_rows_and_columns_apart():
    backward = casts("backward")
    assert backward["q_up.weights"].elements == 1536 * 24576
    assert [backward[f"q_up.{name}"].name for name in ("input.rows", "columns")] == ["quantize", "quantize"]
    assert [backward[f"q_up.{name}"].elements for name in ("input.rows", "columns")] == [4096 * 24576] * 2
