"""Methods of overlap in forward passes that are served: the same sub-layer as everywhere, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner
from deployments import decode_with, forward_with, plan_with, prefill_with, serve_with

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import SUSTAINED, RunOptions
from weft.graph import Collective, Gemm, Graph, Node
from weft.models import load_model
from weft.serving.step_times import INTERPOLATION_ERROR, Shape, StepTimes
from weft.step.forward import Forward, Group
from weft.step.overlaps import pairs

MODEL, NODE = "llama-3-8b", "8xh100"
T3 = "tp=t3-mca"
same = pytest.approx


@cache
def forward(overlap: str = "", node: str = NODE) -> Forward:
    return forward_with(load_model(MODEL), weft.system(node), tp=8, overlap=overlap)


def sub_layer(tokens: int, overlap: str, node: str = NODE) -> tuple[Gemm, Collective, float]:
    """The last GEMM of a layer, its all-reduce, and the time of both in a pass over a number of tokens [s]."""
    runs = forward(overlap, node)
    graph = runs._parts(tokens)["dense"]
    gemm, moved = list(pairs(graph))[-1]
    times = runs._time_graph("dense", graph).times
    return gemm.op, moved.op, times[moved.id][1] - times[gemm.id][0]


@pytest.mark.parametrize("tokens", [8, 512])
def test_a_sub_layer_of_a_pass_takes_what_simulate_says_of_it(tokens):
    gemm, moved, took = sub_layer(tokens, T3)
    scattered = Graph((Node(gemm, "gemm"), Node(replace(moved, name="reduce_scatter"), "rs", after=("gemm",))), 8)
    found = weft.compare(scattered, NODE, ["sequential", "t3-mca"], RunOptions(clock=SUSTAINED.clock))
    before, t3 = found["sequential"], found["t3-mca"]
    prices = forward()._prices
    gathered = prices.of(replace(moved, name="all_gather"), "tp")
    slower = t3.end("gemm") / before.end("gemm")
    assert took == same(prices.of(gemm) * slower + t3.seconds - t3.end("gemm") + gathered, rel=1e-9)


def test_a_sub_layer_of_a_prompt_takes_what_it_takes_in_a_training_step():
    """On a GPU whose clock in training is that of other long runs."""
    node = "8xmi300x"
    gemm, moved, took = sub_layer(512, T3, node)
    step = weft.step(MODEL, node, tp=8, sp=False, batch=1, sequence=512, overlap=T3, fidelity="estimate")
    layer = step.chunks[0].parts[1].forward
    mine = list(pairs(layer.graph))[-1]
    assert [one.op for one in mine] == [gemm, moved]
    assert took == same(layer.times[mine[1].id][1] - layer.times[mine[0].id][0], rel=1e-9)


@pytest.mark.parametrize("overlap", ["", {}, "tp=sequential"])
def test_next_tokens_without_a_method_take_what_they_took(overlap):
    ask = {"tp": 8, "batch": 32, "library": "vllm"}
    assert decode_with(MODEL, NODE, overlap=overlap, **ask).parts == decode_with(MODEL, NODE, **ask).parts


def test_t3_gains_more_in_prompts_than_in_next_tokens():
    def gain(ask, **sizes):
        return ask(MODEL, NODE, tp=8, **sizes).seconds / ask(MODEL, NODE, tp=8, overlap=T3, **sizes).seconds

    assert gain(prefill_with, sequence=2048) > 1.03
    assert gain(decode_with, batch=8) < 1.03


def test_t3_loses_to_a_one_shot_all_reduce_where_tiles_end_together():
    """All tiles of a GEMM of one wave end at once: hops of a ring follow, where one shot takes a single round."""
    took = {one: decode_with(MODEL, NODE, tp=8, library="vllm", overlap=one).seconds for one in ("", T3)}
    assert took[T3] > took[""]


def test_switches_that_add_never_slow_a_pass_down():
    for library in ("vendor", "vllm"):
        for batch in (1, 256):
            took = [
                decode_with(MODEL, NODE, tp=8, batch=batch, library=library, overlap=one).seconds
                for one in ("tp=in-network", "")
            ]
            assert took[0] <= took[1] * (1 + 1e-9)


@pytest.mark.parametrize("shape", [Shape(16, 16 * 1024), Shape(45, 45 * 1000), Shape(3, 3000, 1, 700, 245_350)])
def test_served_steps_take_what_a_pass_takes(shape):
    runs = forward(T3)
    groups = [Group(shape.decodes, 1, shape.context // shape.decodes - 1, writes=True)]
    if shape.prefills:
        groups.append(Group(1, shape.new, 0))
    whole = runs.batch(groups).seconds
    grid = shape.decodes + shape.new == 16
    assert StepTimes(runs).seconds(shape) == same(whole, rel=1e-9 if grid else INTERPOLATION_ERROR)


def test_a_served_load_gains_what_its_steps_gain():
    load = {"tp": 8, "concurrency": 8, "requests": 16, "input_len": 1024, "output_len": 16, "cpu_overhead": "0ms"}
    plain, t3 = (serve_with(MODEL, NODE, overlap=one, **load) for one in ("", {"tp": "t3-mca"}))
    assert t3.ttft["mean"] < plain.ttft["mean"]
    assert any("tracker" in sentence for sentence in t3.report().sentences())
    assert t3.to_dict()["overlap"] == {"tp": "t3-mca"}
    assert "tp=t3-mca" in t3.report().title()


def test_exchanges_of_tokens_start_their_experts():
    ask = {"ep": 8, "batch": 4}
    plain, t3 = (decode_with("qwen3-30b-a3b", NODE, overlap=one, **ask) for one in ("", "ep=t3-all-to-all"))
    assert t3.parts["exposed ep"] < plain.parts["exposed ep"]
    assert t3.parts["grouped_gemm"] == same(plain.parts["grouped_gemm"])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"overlap": T3}, "'t3-mca' overlaps the collectives of 'tp', but tp is 1"),
        ({"tp": 8, "overlap": "tp=flux"}, "closed form for GEMMs of many waves of tiles, .* tp=in-network, tp=t3,"),
        ({"tp": 8, "overlap": "tp=priority"}, "'priority' on 'tp' changes no collective of a forward pass"),
        ({"tp": 8, "overlap": "tp=t3-all-gather"}, "changes no collective of a forward pass"),
        ({"tp": 4, "overlap": "dp=dma"}, "'dma' on 'dp' changes no collective of a forward pass"),
        ({"tp": 8, "overlap": "ep=t3-all-to-all"}, "overlaps the collectives of 'ep', but ep is 1"),
        ({"tp": 8, "overlap": 3}, "overlap is 3"),
    ],
)
def test_a_method_that_has_nothing_to_overlap_is_refused(ask, says):
    with pytest.raises(InputError, match=says):
        decode_with(MODEL, NODE, **ask)
    with pytest.raises(InputError, match=says):
        serve_with(MODEL, NODE, rate=1, requests=2, **ask)


def test_experts_in_a_replica_of_tensor_parallelism_exchange_nothing():
    with pytest.raises(InputError, match="hold the same tokens, and exchange none; give tp 1"):
        decode_with("mixtral-8x7b", NODE, tp=8, ep=8, overlap="ep=t3-all-to-all")
    with pytest.raises(InputError, match="two_batch_overlap hides exchanges"):
        decode_with("mixtral-8x7b", NODE, ep=8, two_batch_overlap=True, overlap="ep=t3-all-to-all")


def test_unknown_methods_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 't3'"):
        decode_with(MODEL, NODE, tp=8, overlap="tp=t4")


def test_a_plan_of_serving_asks_for_the_ranks_of_its_overlap():
    load = {"rate": 1, "requests": 5, "ttft": "1 s", "tpot": "50 ms", "overlap": T3}
    with pytest.raises(InputError, match=r"the overlap names a method of tp, .* give tp"):
        plan_with(MODEL, NODE, **load)
    assert plan_with(MODEL, NODE, tp=8, **load).best.serving.plan.overlap == {"tp": "t3-mca"}


@pytest.mark.parametrize("command", ["prefill", "decode"])
def test_the_command_sets_twice_the_links_and_t3_beside_today(command):
    more = ["--against", "link.bandwidth=900 GB/s", "--against", f"overlap={T3}"]
    shown = CliRunner().invoke(cli, [command, MODEL, "--system", NODE, "--tp", "8", *more]).output
    assert "With link.bandwidth 900 GB/s, overlap tp=t3-mca it takes" in shown
    assert "t3-mca needs hardware that no GPU on sale has" in shown
    assert "exposed: TP" in shown
