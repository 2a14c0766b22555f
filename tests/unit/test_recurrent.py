"""Recurrent layers: what a pass computes and moves, and how its time follows from steps, weights and gaps."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.graph import Gemm, Recurrent
from weft.kernels.library.tiles import FITTED, RULES, recurrent_bounds, recurrent_values

STATED = {"lstm": 4, "gru": 3, "vanilla": 1}


@pytest.mark.parametrize(("cell", "gates"), STATED.items())
def test_a_step_multiplies_the_state_once_for_each_gate(cell, gates):
    assert Recurrent(cell, 512, 16, 25).flops == 2 * gates * 512 * 512 * 16 * 25


def test_every_pass_has_the_same_products():
    layer = Recurrent("gru", 800, 5, 100, inputs=672)
    (data,), (weights,) = layer.backward
    assert (data.computes, weights.computes) == ("data", "weights")
    assert layer.flops == data.flops == weights.flops == 2 * 3 * 800 * (672 + 800) * 5 * 100


def test_the_products_of_the_inputs_are_one_gemm_over_all_steps():
    layer = Recurrent("lstm", 1024, 64, 25, inputs=2048)
    assert layer.input_product == Gemm(64 * 25, 4096, 2048)
    assert layer.backward.inputs[0].input_product == Gemm(64 * 25, 2048, 4096)
    assert Recurrent("lstm", 1024, 64, 25).input_product is None


def test_the_gradient_of_weights_is_one_gemm_over_sequences_and_steps():
    weights = Recurrent("lstm", 1024, 64, 25, inputs=512, dtype="fp32").backward.weights[0]
    alone = weft.estimate(Gemm(4096, 1536, 1600, "fp32"), "v100").seconds
    assert weft.estimate(weights, "v100").seconds == pytest.approx(alone)


@pytest.mark.parametrize("gpu", ["v100", "vega-fe", "p100", "mi25", "h100-sxm", "mi300x"])
@pytest.mark.parametrize("cell", STATED)
def test_time_is_proportional_to_steps(gpu, cell):
    seconds = weft.estimate(Recurrent(cell, 1024, 32, np.array([50, 100, 400]), dtype="fp32"), gpu).seconds
    assert seconds / seconds[0] == pytest.approx([1, 2, 8])


def test_no_step_is_faster_than_its_products_or_its_weights_from_memory():
    layer = Recurrent("lstm", 4096, np.array([16, 128]), 25, dtype="fp32")
    step = weft.estimate(layer, "v100").seconds / 25
    gpu = weft.hardware.gpu("v100")
    assert step[0] > 4 * 4096**2 * 4 / gpu.memory.bandwidth
    assert step[1] > 8 * 4096**2 * 128 / gpu.matrix_rate("fp32")


def test_more_cells_and_larger_batches_are_never_faster():
    cells = weft.estimate(Recurrent("gru", np.arange(128, 4096, 64), 32, 100, dtype="fp32"), "v100").seconds
    batches = weft.estimate(Recurrent("gru", 1024, np.arange(1, 256), 100, dtype="fp32"), "v100").seconds
    assert np.all(np.diff(cells) > 0)
    assert np.all(np.diff(batches) >= 0)


def test_a_persistent_kernel_saves_launches_and_loads_where_its_registers_hold_the_weights():
    layer = Recurrent("gru", 1024, 64, 1500, dtype="fp16")
    kept = Recurrent("gru", 1024, 64, 1500, dtype="fp16", persistent=True)
    assert weft.estimate(kept, "v100").seconds < weft.estimate(layer, "v100").seconds / 2
    with pytest.raises(InputError, match="give fewer hidden cells, or leave persistent out"):
        weft.estimate(Recurrent("lstm", 4096, 64, 25, dtype="fp16", persistent=True), "v100")


def test_an_unfused_library_pays_for_each_kernel_of_a_step():
    step = {
        cell: weft.estimate(Recurrent(cell, 64, 1, 100, dtype="fp32"), "vega-fe").parts["launch"] for cell in STATED
    }
    assert step["vanilla"] < step["lstm"] < step["gru"]


@pytest.mark.parametrize("architecture", ["pascal", "volta", "vega", "blackwell", "cdna4"])
def test_every_value_of_a_library_lies_in_its_range(architecture):
    values, bounds = recurrent_values(architecture), recurrent_bounds(architecture)
    assert values.keys() == RULES["recurrent"].keys()
    assert all(bounds[path][0] <= values[path] <= bounds[path][1] for path in values)
    assert set(FITTED) <= set(RULES["recurrent"])


def test_wrong_input_is_refused():
    with pytest.raises(UnknownNameError, match="unknown recurrent cell 'lstn'"):
        Recurrent("lstn", 8, 8, 8)
    with pytest.raises(InputError, match="hidden of lstm layer is 0; it must be a whole number above zero"):
        Recurrent("lstm", 0, 8, 8)
    with pytest.raises(InputError, match="a persistent kernel is for the steps"):
        Recurrent("lstm", 8, 8, 8, persistent=True, computes="weights")
    with pytest.raises(InputError, match="vega-fe has no matrix rate for 'bf16'"):
        weft.estimate(Recurrent("lstm", 8, 8, 8, dtype="bf16"), "vega-fe")
