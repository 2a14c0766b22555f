"""Quantised numbers: bits, sizes, errors and speed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.estimate.quantization import FORMATS, Format, quantized_format, weight_only
from weft.graph import Gemm
from weft.graph.op import width
from weft.kernels.formats import FORMATS as ENCODED
from weft.models.counts import parameters
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import states
from weft.models.parallel.plan import TrainingPlan
from weft.papers.textbook.quantization import both_narrow, cache_bytes, quantize, signal_to_noise, state_bytes

DRAWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("int4-g128", 4.125), ("int4-g128-zero", 4.15625), ("mxfp4", 4.25), ("nvfp4", 4.5), ("mxfp8", 8.25), ("int8", 8)],
)
def test_scales_and_zero_points_count_to_each_element(name, bits):
    assert quantized_format(name).bits_per_element == bits


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4", "fp8", "bf16", "fp32"])
def test_formats_have_the_widths_that_operators_move(name):
    assert quantized_format(name).bytes(1) == width(name)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_formats_have_the_bits_that_encoding_them_takes(name):
    assert quantized_format(name).bits_per_element == ENCODED[name].bits


@pytest.mark.parametrize(("name", "gigabytes"), [("fp32", 700), ("bf16", 350), ("int8", 175), ("int4-g128", 90)])
def test_weights_of_gpt3_shrink_with_their_format(name, gigabytes):
    count = parameters(weft.load_model("gpt-3")).total
    assert quantized_format(name).bytes(count) / 1e9 == pytest.approx(gigabytes, rel=0.004)


@pytest.mark.parametrize(
    ("array", "ratio", "decibels"),
    [
        (DRAWN.uniform(-1, 1, 1 << 18), 3**0.5, 48.2),
        (np.sin(np.linspace(0, 1000 * np.sqrt(2), 1 << 18)), 2**0.5, 49.9),
    ],
)
def test_measured_noise_of_8_bits_is_that_of_the_closed_form(array, ratio, decibels):
    assert signal_to_noise(8, ratio) == pytest.approx(decibels, abs=0.05)
    assert quantize(array, 8).snr(array) == pytest.approx(decibels, abs=0.15)


def test_each_bit_adds_6_decibels():
    array = DRAWN.uniform(-1, 1, 1 << 16)
    found = [quantize(array, bits).snr(array) for bits in (8, 10, 12)]
    assert np.diff(found) == pytest.approx([12.04, 12.04], abs=0.1)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=8, max_size=64).filter(
        lambda one: len(one) % 4 == 0
    ),
    st.integers(2, 8),
    st.booleans(),
)
def test_no_element_is_off_by_more_than_half_a_step(listed, bits, symmetric):
    array = np.array(listed)
    found = quantize(array, bits, 4, symmetric)
    error = np.abs(found.values - array).reshape(-1, 4)
    slack = 1e-9 * np.abs(array).max() + 1e-300
    # An asymmetric zero point is itself rounded: an end of the range may lie half a step beyond the last code.
    assert (error.max(axis=1) <= (0.5 if symmetric else 1.0) * found.scale + slack).all()


def test_asymmetric_codes_serve_values_of_one_sign_better():
    array = DRAWN.uniform(0, 1, 4096)
    assert quantize(array, 8, symmetric=False).snr(array) > quantize(array, 8).snr(array) + 5


def test_smaller_groups_follow_outliers():
    array = DRAWN.normal(size=4096)
    array[::512] *= 50
    found = [quantize(array, 4, group).snr(array) for group in (0, 128, 16)]
    assert found == sorted(found)


@pytest.mark.parametrize(("tokens", "ratio"), [(1, 16 / 4.125), (8, 16 / 4.125), (4096, 1.0)])
def test_weight_only_formats_speed_up_small_batches_by_the_ratio_of_bytes(tokens, ratio):
    found = weight_only(Gemm(tokens, 8192, 8192, "bf16"), "h100-sxm", "int4-g128")
    assert found.speedup == pytest.approx(ratio, rel=0.02)
    assert found.bound == ("memory" if tokens < 4096 else "compute")


def test_narrower_weights_than_vector_units_can_convert_gain_nothing_more():
    fast = weft.gpu("h100-sxm").replace({"memory.bandwidth": "30 TB/s"})
    found = weight_only(Gemm(8, 8192, 8192, "bf16"), fast, "int4-g128")
    assert found.bound == "dequantise"
    assert found.speedup < 16 / 4.125
    assert found.seconds == found.dequantise


def test_narrow_operands_nearly_double_the_rate_of_large_products():
    large = both_narrow(Gemm(8192, 8192, 8192, "bf16"), "h100-sxm", "fp8")
    assert large.bound == "compute"
    assert 1.5 < large.speedup <= 2.0
    assert both_narrow(Gemm(1, 8192, 8192, "bf16"), "h100-sxm", "fp8").speedup == pytest.approx(2, rel=0.1)


def test_mixed_precision_takes_16_bytes_a_parameter_as_plans_do():
    plan = states(1000, TrainingPlan(), Framework(gradients="bf16"))
    assert sum(plan.values()) == 1000 * sum(state_bytes().values()) == 16_000
    owned = {name: size for name, size in state_bytes().items() if name not in ("weights", "gradients")}
    assert sum(owned.values()) == Framework().optimizer_bytes == 12


def test_12_bytes_beside_fp32_weights_are_not_the_12_of_mixed_precision():
    mixed, plain = state_bytes(), state_bytes("fp32")
    beside = {name for name in plain if name != "weights"}
    assert sum(plain[name] for name in beside) == 12
    assert "gradients" in beside
    assert "master weights" in mixed
    assert "master weights" not in plain


def test_cache_is_that_of_a_step_of_decode():
    model = weft.load_model("llama-3-8b")
    found = cache_bytes(4, 1024, model.layers, model.key_heads, model.head_size)
    step = weft.decode(model, weft.system("dgx-h100").with_gpus(1), batch=4, context=1024)
    assert found == step.cache
    assert cache_bytes(4, 1024, model.layers, model.key_heads, model.head_size, "fp8") == found / 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quantize(np.ones(10), 8, 4), "10 elements do not divide into groups of 4"),
        (lambda: quantize(np.array([]), 8), "0 elements"),
        (lambda: signal_to_noise(8, 0.5), "no peak is below it"),
        (lambda: Format("one bit", 1), "bits is 1"),
    ],
)
def test_what_cannot_be_quantised_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_unknown_formats_list_the_known_ones():
    with pytest.raises(UnknownNameError, match="int4-g128"):
        quantized_format("int4")
    assert set(FORMATS) >= {"mxfp4", "nvfp4"}
