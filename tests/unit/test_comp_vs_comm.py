"""Scenarios of computation against communication: which there are, and what their layers do."""

import pytest

from weft.hardware import System, gpu
from weft.papers.comp_vs_comm import DECLARED, ScaledLayer, _layer, _projections, scenarios

ON = System(gpu=gpu("mi210"), gpus=1)
GPT3 = ScaledLayer("GPT-3", 2020, 12288, 2048, 96, 32, 1, 1, True)


def test_there_are_hundreds_of_scenarios_each_once():
    found = scenarios()
    assert len(found) == len(set(found)) >= 200
    assert {one.compute for one in found} == set(DECLARED.cases["compute"])


def test_every_model_has_its_own_degrees_on_every_machine():
    own = [one for one in scenarios() if one.own]
    expected = sum(len(degrees) for *_, degrees in DECLARED.cases["models"])
    assert len(own) == expected * len(DECLARED.cases["compute"]) * len(DECLARED.cases["batches"])


def test_the_share_grows_with_compute_and_degree_and_falls_with_hidden_size():
    base = _layer(GPT3, ON).share
    assert _layer(GPT3._replace(compute=4), ON).share > base
    assert _layer(GPT3._replace(tp=64), ON).share > base
    assert _layer(GPT3._replace(hidden=2 * GPT3.hidden), ON).share < base


def test_the_closed_form_is_above_the_clock_but_orders_machines_alike():
    found = [_layer(GPT3._replace(compute=factor), ON) for factor in (1, 2, 4)]
    assert all(one.closed > one.share for one in found)
    assert [one.closed for one in found] == sorted(one.closed for one in found)


def test_gradients_hide_behind_the_backward_pass_of_more_tokens():
    one, four = (_layer(GPT3._replace(batch=batch, compute=4), ON) for batch in (1, 4))
    assert one.gradients > one.backward
    assert one.with_gradients > one.share
    assert four.with_gradients == four.share


@pytest.mark.parametrize("method", DECLARED.cases["overlaps"][:2])
def test_methods_shorten_a_layer(method):
    assert _layer(GPT3, ON, method).seconds < _layer(GPT3, ON).seconds


def test_without_measurements_nothing_is_projected(monkeypatch, tmp_path):
    monkeypatch.setattr("weft.papers.comp_vs_comm.data_folder", _none)
    assert _projections(None) == {}


def _none(given):
    from weft.core.errors import InputError

    raise InputError("there are no measurements here")
