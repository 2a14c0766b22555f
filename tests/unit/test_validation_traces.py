"""A training trace of a mixture beside its prediction, kind by kind."""

import pytest

import weft
from weft.lab.traces import KINDS, SPAN, predicted_kinds

HEAD = "start_s,time_s,stream,kind,kernel,grid,block,source,licence\n"


def test_kernels_of_a_kind_are_added_and_the_span_lies_between_the_ends(tmp_path):
    rows = ("0.0,0.002,7,norm,a", "0.001,0.004,27,ep_dispatch,b", "0.006,0.003,7,norm,a")
    file = tmp_path / "moe_train_trace.csv"
    file.write_text(HEAD + "".join(f"{row},1x1x1,1x1x1,s,l\n" for row in rows))
    (found,) = weft.validate(file).predictions
    measured = dict(zip(found.subject.rows["what"], found.subject.measured.tolist(), strict=True))
    assert measured == pytest.approx({"norms": 0.005, "dispatch": 0.004, SPAN: 0.009})


def test_kernels_of_two_streams_at_once_count_once(tmp_path):
    """They share the GPU's units, so that each takes as much longer."""
    rows = ("0.0,0.003,7,gemm_fp8_accumulate,a", "0.001,0.004,23,gemm_fp8_accumulate,a", "0.007,0.001,7,norm,b")
    file = tmp_path / "moe_train_trace.csv"
    file.write_text(HEAD + "".join(f"{row},1x1x1,1x1x1,s,l\n" for row in rows))
    (found,) = weft.validate(file).predictions
    measured = dict(zip(found.subject.rows["what"], found.subject.measured.tolist(), strict=True))
    assert measured == pytest.approx({"gradients of weights": 0.005, "norms": 0.001, SPAN: 0.008})


def test_every_kind_has_a_prediction_and_computing_hides_exchanges():
    found = predicted_kinds()
    assert {*KINDS.values(), SPAN} == {*found}
    assert found["dispatch"] + found["combine"] < found[SPAN] < sum(found.values()) - found[SPAN]
