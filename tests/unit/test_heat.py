"""The load of memory channels and banks over time, and what address hashing does to it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.core.errors import InputError
from weft.graph import Gemv, Graph, Node
from weft.simulate.result import Heat, Timeline

STRIDED = Gemv(8192, 1024, stride=131072)
"""Rows as far apart as the 64 channels of a V100 with their stripes of 4 KiB."""


def run(op: weft.Op, gpu: str = "v100-sxm2-32gb", **options: object) -> Timeline:
    return weft.simulate(Graph((Node(op, "op"),)), gpu, options=weft.RunOptions(**options))


@pytest.fixture(scope="module", params=["channel", "bank"])
def sublayer(request):
    graph = weft.sublayer("t-nlg", "fc2", tp=8)
    return weft.simulate(graph, "t3-paper", "t3-mca", weft.RunOptions(heatmap=request.param))


def test_every_byte_request_and_activation_of_a_run_is_in_its_heat(sublayer):
    heat = sublayer.heat
    assert heat.moved_bytes.sum() == sublayer.total_bytes
    assert heat.requests.sum() == sublayer.requests
    assert heat.activates.sum() == sublayer.counters["dram_activations"]


def test_time_on_the_bus_is_what_the_counters_say(sublayer):
    heat = sublayer.heat
    channels = heat.read.shape[0] * heat.read.shape[1]
    shares = heat.busy_fs.sum() / channels / (heat.end_s * 1e15)
    assert shares == pytest.approx(sublayer.counters["dram_bus_utilization"], rel=1e-3)


def test_no_channel_is_busier_than_its_bus_or_busy_without_requests(sublayer):
    heat = sublayer.heat
    bin_fs = heat.bin_s * 1e15
    assert np.all(heat.pending_fs.sum(axis=-1) <= heat.end_s * 1e15 * 1.001)
    assert heat.pending_fs.max() <= bin_fs * 1.001
    # a bank group's columns overlap those of others: all banks of a channel together have the bus once
    assert heat.busy_fs.sum(axis=2).max() <= bin_fs * 1.05
    efficiency = heat.busy_fs.sum() / heat.pending_fs.sum()
    assert 0 < efficiency <= 1


def test_recording_the_load_changes_nothing():
    graph = weft.sublayer("t-nlg", "op", tp=8)
    plain = weft.simulate(graph, "t3-paper", "t3")
    watched = weft.simulate(graph, "t3-paper", "t3", weft.RunOptions(heatmap="bank"))
    assert watched.seconds == plain.seconds
    assert watched.traffic == plain.traffic
    assert plain.heat is None


@pytest.mark.parametrize("gpu", ["v100-sxm2-32gb", "t3-paper"])
def test_rows_a_round_of_stripes_apart_camp_on_few_channels_without_hashing(gpu):
    memory = weft.gpu(gpu).memory
    strided = Gemv(8192, 1024, stride=memory.channels * memory.interleave // 2)
    hashed, plain = (run(strided, gpu, heatmap="channel", hashing=on) for on in (True, False))
    assert hashed.heat.camping <= 1.1
    assert plain.heat.camping >= 2
    assert plain.seconds > 2 * hashed.seconds
    assert plain.total_bytes == pytest.approx(hashed.total_bytes, rel=0.01)


def test_a_window_of_the_heat_is_a_part_of_it():
    heat = run(STRIDED, heatmap="channel").heat
    half = heat.window(0, heat.end_s / 2)
    rest = heat.window(heat.end_s / 2, heat.end_s)
    assert 0 < half.moved_bytes.sum() < heat.moved_bytes.sum()
    assert half.moved_bytes.sum() + rest.moved_bytes.sum() >= heat.moved_bytes.sum()


def test_heat_is_saved_and_loaded_whole(tmp_path):
    made = run(STRIDED, heatmap="channel")
    found = Timeline.load(made.save(tmp_path / "run.json"))
    assert isinstance(found.heat, Heat)
    assert np.array_equal(found.heat.busy_fs, made.heat.busy_fs)
    assert found.heat.camping == made.heat.camping
    assert made.to_dict()["heat"]["camping"] == made.heat.camping


def test_a_memory_without_banks_has_no_heat_map_of_them():
    with pytest.raises(InputError, match='memory="bandwidth" leaves out banks'):
        weft.RunOptions(heatmap="bank", memory="bandwidth")


def test_a_heat_map_of_something_else_is_refused():
    with pytest.raises(InputError, match="unknown heat map 'row'"):
        weft.RunOptions(heatmap="row")
    with pytest.raises(InputError, match="hashing is 'on'; give True or False"):
        weft.RunOptions(hashing="on")


def test_a_stride_shorter_than_a_row_is_refused():
    with pytest.raises(InputError, match="the stride of a GEMV is 512, but its rows have 1024"):
        Gemv(64, 1024, stride=512)


def test_the_page_of_a_run_shows_its_channels_and_banks(tmp_path):
    made = run(STRIDED, heatmap="bank", hashing=False)
    page = made.save(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "How loaded is each bank? in-order, plain addresses" in page
    assert "How loaded is each bank over the whole run?" in page
