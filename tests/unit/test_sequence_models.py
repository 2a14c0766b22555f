"""Networks of sequences: the shapes of their layers, and iterations whose time follows the padded length."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.graph import Recurrent
from weft.models.sequence import SEQUENCE_MODELS, deepspeech_steps, iteration

LENGTHS = {"deepspeech2": (1200, 0), "deepspeech2-first": (1200, 0), "gnmt": (25, 25), "rnnt": (1200, 40)}


def layers(model, **kinds):
    graph = iteration(model, 64, *LENGTHS[model])
    found = [node.op for node in graph if isinstance(node.op, Recurrent) and node.op.computes == "forward"]
    return [(one.cell, one.hidden, one.inputs) for one in found]


def test_deepspeech2_has_the_layers_of_its_two_references():
    assert layers("deepspeech2") == [("gru", 2560, 672), ("gru", 2560, 2560), ("gru", 2560, 2560)]
    first = layers("deepspeech2-first")
    assert first == [("gru", 800, 672)] * 2 + [("gru", 800, 800)] * 8


def test_the_convolutions_leave_a_step_for_two_frames():
    assert [deepspeech_steps(frames) for frames in (142, 2454)] == [56, 1212]
    conv2 = next(node.op for node in iteration("deepspeech2", 8, 1000) if node.name == "conv2")
    assert (conv2.rows, conv2.columns, conv2.rows * conv2.filters) == (21, deepspeech_steps(1000), 672)


def test_gnmt_has_92_million_flops_for_a_token_of_each_side():
    graph = iteration("gnmt", 1, 100, 100)
    sides = {"encoder": 0.0, "decoder": 0.0}
    for node in graph:
        if isinstance(node.op, Recurrent) and node.op.computes == "forward":
            sides[node.name.split()[0]] += node.op.flops / 100e6
    assert sides == pytest.approx({"encoder": 92.3, "decoder": 92.3}, rel=0.001)


@pytest.mark.parametrize("model", SEQUENCE_MODELS)
@pytest.mark.parametrize("gpu", ["v100", "vega-fe"])
def test_an_iteration_takes_longer_the_longer_its_sequences(model, gpu):
    source, target = LENGTHS[model]
    factor = np.array([1, 2, 3])
    seconds = weft.estimate(iteration(model, 16, factor * source, factor * target), gpu).seconds
    assert np.all(np.diff(seconds) > 0)
    one = weft.estimate(iteration(model, 16, source, target), gpu).seconds
    assert seconds[0] == pytest.approx(one)


def test_the_backward_pass_runs_every_layer_in_reverse():
    names = [node.name for node in iteration("deepspeech2", 64, 1200)]
    assert names.index("gru3 data") < names.index("gru2 data") < names.index("conv2 data")
    assert {"gru1 weights", "conv1 weights", "linear weights"} <= set(names)


def test_wrong_lengths_are_refused():
    with pytest.raises(InputError, match="30 frames are too few"):
        iteration("deepspeech2", 64, 30)
    with pytest.raises(InputError, match="GNMT also needs the number of target tokens"):
        iteration("gnmt", 64, 30)
    with pytest.raises(UnknownNameError, match=r"unknown model of sequences 'gnm'.*gnmt"):
        iteration("gnm", 64, 30)
