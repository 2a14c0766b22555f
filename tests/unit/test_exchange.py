"""Exchanges of tokens by libraries: bytes by routing, compute units, time and its parts, and what is refused."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from weft import hardware
from weft.cli.predict import predict
from weft.core.errors import InputError, UnknownNameError
from weft.estimate import estimate
from weft.estimate.exchange import HOST_SYNC, Exchange, count_bytes, exchange, traffic
from weft.graph import EXCHANGES, Collective, TokenExchange
from weft.graph.routing import count_reached
from weft.kernels.library.dispatchers import bounds, dispatcher, dispatchers, leaves, shipped_values
from weft.models import load_model
from weft.models.block import Routing
from weft.models.parallel.cut import copies
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train
from weft.step.exchange_overlap import pair_passes, paired_share
from weft.step.result.step import Pass

NODE = Exchange("dispatch", 4096, 7168, 8, 256, 8)
NODES = Exchange("dispatch", 4096, 7168, 8, 256, 64)
ON_NODE = {"nvlink-one-sided", "nvlink-two-sided"}
BETWEEN = {"uccl-ll"}


def seconds(what, system, library, **how):
    return exchange(what, system, library, **how).seconds


def places(name):
    return [(NODE, "dgx-h100")] * (name not in BETWEEN) + [(NODES, "64xh100")] * (name not in ON_NODE)


@pytest.mark.parametrize("library", dispatchers())
@pytest.mark.parametrize("rate", ["450 GB/s", "45 GB/s", "4.5 GB/s"])
def test_an_exchange_is_never_faster_than_the_wires_of_a_node(library, rate):
    for what, name in places(library):
        system = hardware.system(name).replace({"link.bandwidth": rate})
        amount = traffic(what, system, library)["link_bytes"]
        assert seconds(what, system, library) >= 0.999 * amount / system.gpu.link.bandwidth


def test_many_experts_are_reached_as_if_drawn_with_replacement():
    assert count_reached(8, 1e9, 8) == pytest.approx(8 * (1 - (1 - 1 / 8) ** 8))


def test_a_token_with_as_many_experts_as_ranks_of_one_expert_reaches_each():
    assert count_reached(8, 8, 8) == pytest.approx(8)
    assert count_reached(8, 8, 2) == pytest.approx(2)


def test_deduplicated_layers_send_as_many_copies():
    routing = Routing(experts=256, each=8, hidden=7168, dtype="bf16")
    assert copies(routing, 64, "rank") == pytest.approx(float(count_reached(64, 256, 8)))


def test_a_two_level_library_sends_each_token_once_to_a_node():
    deepep, flat = count_bytes(NODES, dispatcher("deepep"), 8), count_bytes(NODES, dispatcher("deepep-ll"), 8)
    assert deepep.network_bytes == pytest.approx(4096 * count_reached(8, 256, 8) * 7 / 8 * 7168 * (1 + 4 / 128))
    assert deepep.network_bytes < flat.network_bytes == pytest.approx(4096 * 8 * 7 / 8 * 7168 * (1 + 4 / 128))


def test_what_a_rank_keeps_crosses_no_link():
    wire = 7168 * (1 + 4 / 128)
    inside, across = (count_bytes(what, dispatcher("deepep-ll"), nodes) for what, nodes in ((NODE, 1), (NODES, 8)))
    assert inside.link_bytes == pytest.approx(4096 * 8 * 7 / 8 * wire)
    assert across.link_bytes == pytest.approx(4096 * 8 * 7 / 64 * wire)
    forwarded = count_bytes(NODES, dispatcher("deepep"), 8)
    assert forwarded.link_bytes == pytest.approx(4096 * count_reached(64, 256, 8) * 7 / 8 * wire)


def test_combine_brings_bf16_back():
    there, back = (
        count_bytes(Exchange(name, 4096, 7168, 8, 256, 64), dispatcher("deepep"), 8) for name in ("dispatch", "combine")
    )
    assert back.network_bytes / there.network_bytes == pytest.approx(2 / (1 + 4 / 128))


def test_group_limited_routing_reaches_fewer_nodes():
    limited = count_bytes(Exchange("dispatch", 4096, 7168, 8, 256, 64, reach=4), dispatcher("deepep"), 8)
    free = count_bytes(NODES, dispatcher("deepep"), 8)
    assert limited.network_bytes < free.network_bytes
    assert limited.network_bytes == pytest.approx(4096 * count_reached(4, 128, 8) * 7 / 8 * free.wire)


def test_low_latency_kernels_take_a_compute_unit_for_a_group_of_experts():
    units = dispatcher("deepep-ll").units([8, 128, 256, 288], 132)
    assert units.tolist() == [8, 128, 128, 96]


@pytest.mark.parametrize("library", ["nccl", "deepep", "hybridep"])
def test_a_step_exchanges_tokens_in_the_time_that_is_predicted_of_one(library):
    plan = TrainingPlan(ep=8, dp=8, batch=16, micro_batch=2, sequence=4096, dispatcher=library)
    found = train(
        load_model("qwen3-30b-a3b"), hardware.system("8xh100"), plan, framework("megatron-core"), fidelity="estimate"
    )
    took = {
        node.op.operation: end - begin
        for part in found.chunks[0].parts
        for one in (part.forward, part.backward)
        for node in one.graph or ()
        if isinstance(node.op, TokenExchange)
        for begin, end in [one.times[node.name]]
    }
    for operation, seconds in took.items():
        what = Exchange(operation, 8192, 2048, 8, 128, 8, "bf16")
        assert seconds == pytest.approx(exchange(what, "8xh100", library).seconds, rel=1e-6)
    assert set(took) == {"dispatch", "combine"}


def test_a_dispatcher_without_ranks_that_share_experts_is_refused():
    with pytest.raises(InputError, match="ep is 1"):
        TrainingPlan(dp=8, batch=8, dispatcher="deepep")


def test_paired_passes_hide_exchanges_behind_the_other_micro_batch():
    forward = Pass(3.0, {"gemm": 2.0, "exposed ep": 1.0})
    backward = Pass(6.0, {"gemm": 4.0, "exposed ep": 2.0})
    one, two = pair_passes(forward, backward, 1.0, 0.25)
    assert one.seconds + two.seconds == pytest.approx(6.0 + 0.25 * 3.0)
    assert one.hidden["ep"] + two.hidden["ep"] == pytest.approx(3.0)
    assert sum(one.parts.values()) == pytest.approx(one.seconds)
    bound = [Pass(9.0, {"gemm": 1.0, "exposed ep": 8.0}), Pass(9.0, {"gemm": 1.0, "exposed ep": 8.0})]
    assert sum(each.seconds for each in pair_passes(*bound, 1.0, 0.25)) == pytest.approx(16.0)
    assert pair_passes(forward, backward, 0.0, 0.25) == (forward, backward)
    held = pair_passes(forward, backward, 1.0, 0.25, held=True)
    assert sum(each.seconds for each in held) == pytest.approx(6.0 / (1 - 0.25))


def test_fewer_micro_batches_pair_fewer_passes():
    few, many = (TrainingPlan(ep=8, dp=8, batch=8 * count) for count in (1, 64))
    assert paired_share(few) == 0.0
    assert paired_share(many) == pytest.approx(63 / 64)


def test_the_library_of_exchanges_and_its_copies_are_declared_once():
    assert {name: one.copies for name, one in dispatchers().items()} == dict(EXCHANGES)


@pytest.mark.parametrize("name", dispatchers())
def test_parts_add_up_and_more_tokens_take_longer(name):
    for what, system in places(name):
        found = exchange(what, system, name)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        twice = Exchange(what.operation, 8192, 7168, 8, 256, what.ranks)
        assert found.seconds < seconds(twice, system, name) < 2.01 * found.seconds


@pytest.mark.parametrize("name", dispatchers())
def test_no_library_beats_the_links_or_the_network(name):
    for what, system in places(name):
        amount = traffic(what, system, name)
        assert seconds(what, system, name) > max(amount["link_bytes"] / 450e9, amount["network_bytes"] / 50e9)


def test_more_compute_units_never_take_longer():
    times = [seconds(NODE, "dgx-h100", "deepep", compute_units=units) for units in (4, 8, 16, 24)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 2 * times[-1]


def test_the_host_waits_for_the_counts_of_a_dispatch_only():
    assert exchange(NODE, "dgx-h100", "deepep").parts["host"] == HOST_SYNC
    back = Exchange("combine", 4096, 7168, 8, 256, 8)
    assert "host" not in exchange(back, "dgx-h100", "deepep").parts
    assert "host" not in exchange(NODE, "dgx-h100", "deepep-ll").parts


def test_arrays_of_tokens_answer_arrays():
    found = exchange(Exchange("dispatch", np.array([1, 128, 4096]), 7168, 8, 256, 8), "dgx-h100", "deepep")
    assert found.seconds.shape == (3,)
    assert found.seconds[2] == pytest.approx(seconds(NODE, "dgx-h100", "deepep"))


def test_every_value_lies_in_its_range_and_has_a_source():
    for path, value in shipped_values().items():
        low, high = bounds()[path]
        assert low <= value <= high, path
        assert leaves()[path].provenance.source


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (lambda: Exchange("scatter", 1, 1, 1, 8, 8), UnknownNameError, "dispatch"),
        (lambda: Exchange("dispatch", 0, 1, 1, 8, 8), InputError, "tokens is 0"),
        (lambda: Exchange("dispatch", 1, 1, 9, 8, 8), InputError, "top_k is 9"),
        (lambda: Exchange("dispatch", 1, 1, 1, 8, 16), InputError, "16 ranks cannot share 8 experts"),
        (lambda: Exchange("dispatch", 1, 1, 1, 8, 8, reach=0), InputError, "reach is 0"),
        (lambda: Exchange("dispatch", 1, 1, 1, 8, 8, dtype="fp7"), UnknownNameError, "fp8"),
        (lambda: exchange(NODE, "dgx-h100", "deep"), UnknownNameError, "deepep"),
        (lambda: exchange(NODE, "dgx-h100", compute_units=0), InputError, "compute_units is 0"),
        (lambda: exchange(NODES, "64xh100", "nvlink-one-sided"), InputError, "on 8 nodes"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(asked, error, says):
    with pytest.raises(error, match=says):
        asked()


def test_the_command_answers_as_python_does(tmp_path):
    file = tmp_path / "exchange.json"
    text = "dispatch:4096x7168,top8/256 --ep 64 --system 64xh100 --library deepep,hybridep --json"
    result = CliRunner().invoke(predict, ["exchange", *text.split(), str(file)])
    assert result.exit_code == 0, result.output
    assert "One dispatch takes" in result.output
    assert "80 % interval" in result.output
    for row in json.loads(file.read_text())["predictions"]:
        assert row["time_us"] == pytest.approx(1e6 * seconds(NODES, "64xh100", row["library"]))
        assert row["network_bytes"] > 0


def test_an_all_gather_brings_every_rank_all_tokens_whatever_the_routing():
    few, many = (Exchange("dispatch", 256, 4096, k, 64, ranks=8) for k in (1, 8))
    gathered = [exchange(one, "8xh100", "allgather-reducescatter").seconds for one in (few, many)]
    assert gathered[0] == gathered[1]
    sent = 256 * 4096 * 2 * 8
    alone = estimate(Collective("all_gather", sent, 8), "8xh100").seconds
    assert gathered[0] == pytest.approx(alone)
    back = exchange(Exchange("combine", 256, 4096, 8, 64, ranks=8), "8xh100", "allgather-reducescatter").seconds
    assert back == pytest.approx(estimate(Collective("reduce_scatter", sent, 8), "8xh100").seconds)
