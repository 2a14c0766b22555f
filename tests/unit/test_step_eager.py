"""Layers of experts whose operators the host launches one by one, and what of them is said and searched."""

from dataclasses import replace

import pytest

import weft
from weft import hardware
from weft.estimate.streaming import streaming
from weft.estimate.target import target
from weft.graph import Streaming
from weft.models import load_model
from weft.models.block import FusionStyle, Tokens, layer
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train
from weft.step.launches import _period, add_launch_gaps
from weft.step.rank_parts import rank_parts
from weft.view.step import _exchanges

MODEL = load_model("qwen3-30b-a3b").replace({"layers": 2})
PLAN = TrainingPlan(dp=8, ep=8, batch=8, micro_batch=1, sequence=4096)
EAGER = framework("megatron-bridge")


def step(launch, graphs=(), plan=PLAN, system="8xh100"):
    used = replace(EAGER, launch_experts=launch, launch_each=0.0, graphs=graphs)
    return train(MODEL, hardware.system(system), plan, used, fidelity="estimate")


def passes(launch):
    """A forward and a backward pass over a layer of experts, before they wait for a host of that launch time."""
    part = next(part for part in step(0.0).chunks[0].parts if part.name == "moe")
    return part.forward, part.backward, replace(EAGER, launch_experts=launch, launch_each=0.0)


def test_a_step_in_a_graph_never_waits_for_its_host():
    assert step(1e-3, ("full_iteration",)).seconds == step(0.0).seconds


def test_a_graph_of_attention_takes_its_launches_from_the_host():
    none, router, attention = (
        step(1e-3, held).parts["launch gaps"] for held in ((), ("moe_router",), ("attn", "moe_router"))
    )
    assert none > router > attention > 0


def test_a_pass_bound_by_its_host_takes_as_long_as_its_launches():
    _, backward, host = passes(1e-2)
    slow = add_launch_gaps(backward, host, far=False)
    assert slow.seconds == pytest.approx(len(backward.graph.nodes) * 1e-2)
    assert slow.parts["launch gaps"] == pytest.approx(slow.seconds - backward.seconds)


def test_a_host_that_is_ahead_of_the_gpu_costs_nothing():
    _, backward, host = passes(1e-6)
    assert add_launch_gaps(backward, host, far=False) is backward


def test_a_host_that_waits_for_counts_of_tokens_is_not_ahead():
    forward, _, host = passes(3e-5)
    ahead, waiting = (add_launch_gaps(forward, host, far=False, syncs=syncs).seconds for syncs in (False, True))
    assert ahead <= waiting
    assert forward.seconds < waiting <= forward.seconds + len(forward.graph.nodes) * 3e-5


def test_a_library_over_the_network_keeps_the_host_that_its_exchanges_take():
    forward, _, host = passes(1e-2)
    sent = replace(forward, graph=replace(forward.graph, nodes=tuple(map(by_uccl, forward.graph.nodes))))
    near, far = (add_launch_gaps(sent, host, far=far).seconds for far in (False, True))
    assert far - near == pytest.approx(2 * 600e-6)


def by_uccl(node):
    return replace(node, op=replace(node.op, library="uccl")) if node.stream == "ep" else node


def test_the_report_says_how_long_a_dispatch_and_a_combine_take_and_who_waits():
    exchanges, waits = _exchanges(step(5e-4))
    assert exchanges.startswith("MoE dispatch ")
    assert " ms, combine " in exchanges
    assert "4 of each per GPU and step" in exchanges
    assert waits.startswith("GPUs wait ")
    assert len(_exchanges(step(5e-4, ("full_iteration",)))) == 1


def test_experts_with_biases_and_scaled_rotations_are_elementary_kernels_in_megatron():
    model = load_model("gpt-oss-20b")

    def names(style):
        pieces = layer(model, model.layer_kinds[0], Tokens(1, 1024), style, "bf16")
        return {piece.op.name for piece in pieces if hasattr(piece.op, "name")}

    new = {"weighted_bias_add", "scaled_rotary", "clamp"}
    assert names(EAGER.style) >= new
    assert not names(FusionStyle()) & new
    assert {
        piece.op.name for piece in layer(MODEL, "moe", Tokens(1, 64), EAGER.style, "bf16") if hasattr(piece.op, "name")
    }.isdisjoint(new)


def test_a_search_chooses_the_library_of_exchanges_and_times_it_as_a_step():
    fix = {"tp": 1, "cp": 1, "pp": 1, "ep": 8, "zero": 1, "recompute": "none", "micro_batch": 1}
    found = weft.plan(MODEL, "8xh100", batch=8, sequence=4096, framework="megatron-bridge", fix=fix)
    assert {one.plan.dispatcher for one in found.plans} == {"", "deepep", "hybridep"}
    best = found.plans[0]
    same = train(MODEL, hardware.system("8xh100"), best.plan, EAGER, fidelity="estimate")
    assert best.estimated_s == pytest.approx(same.seconds)
    dense = weft.plan("llama-3-8b", "8xh100", batch=8, sequence=4096, fix=fix | {"ep": 1, "tp": 8})
    assert {one.plan.dispatcher for one in dense.plans} == {""}


def test_kernels_on_strided_operands_take_longer_than_their_bytes():
    def of(name):
        op = Streaming(name, 1 << 26, 1, "bf16")
        return streaming(op, target("gb300")).seconds / sum(each.bytes for each in (*op.reads, *op.writes))

    assert of("scaled_rotary") > 1.2 * of("rotary")
    assert of("scaled_rotary_backward") > 1.2 * of("rotary")


def test_attention_in_8_bits_casts_queries_keys_values_and_the_gradient_of_its_output():
    new, plan = framework("megatron-bridge-2026"), replace(PLAN, precision="mxfp8")
    part = rank_parts(MODEL, plan, new)["moe"]
    cast = {
        node.name: node.op.elements
        for node in (*part.forward, *part.backward)
        if node.name.startswith("attention.") and isinstance(node.op, Streaming)
    }
    queries, keys = MODEL.attention_heads * MODEL.head_size, MODEL.key_heads * MODEL.head_size
    assert cast == {"attention.quantize.0": 4096 * (queries + 2 * keys), "attention.input.0": 4096 * queries}
    plain = rank_parts(MODEL, plan, replace(new, attention=""))["moe"]
    assert not [node for node in plain.forward if node.name.startswith("attention.")]


def test_a_graph_of_the_step_copies_what_experts_keep_to_pages_and_back():
    new, plan = framework("megatron-bridge-2026"), replace(PLAN, precision="mxfp8")
    part, rows, wide = rank_parts(MODEL, plan, new)["moe"], 4096 * 8, MODEL.expert_wide
    sizes = [
        {node.name: node.op.elements for node in graph if node.name.endswith(".page")}
        for graph in (part.forward, part.backward)
    ]
    assert (
        sizes[0]
        == sizes[1]
        == {
            "experts_fc1.page": pytest.approx(rows * (33 / 32 * MODEL.hidden + 4 * wide)),
            "experts_fc2.page": pytest.approx(rows * 33 / 32 * wide),
        }
    )
    assert not [node for node in rank_parts(MODEL, PLAN, new)["moe"].forward if node.name.endswith(".page")]


def test_rows_of_experts_are_copied_to_whole_blocks_unless_the_library_aligns_them():
    def copied(library, precision="mxfp8"):
        part = rank_parts(MODEL, replace(PLAN, dispatcher=library, precision=precision), EAGER)["moe"]
        return [node.op.elements for node in (*part.forward, *part.backward) if node.name.endswith(".blocks")]

    assert copied("nccl") == copied("deepep") == [4096 * 8 * MODEL.hidden] * 4
    assert not copied("hybridep")
    assert not copied("nccl", "")


def test_a_host_that_launches_each_experts_gemm_is_not_ahead_of_its_dispatch():
    def gaps(each):
        used = replace(EAGER, dispatcher="hybridep", launch_experts=5e-5, style=replace(EAGER.style, each_expert=each))
        return train(MODEL, hardware.system("8xh100"), PLAN, used, fidelity="estimate").parts.get("launch gaps", 0.0)

    assert gaps(True) > gaps(False)


def test_a_host_that_waits_for_what_it_launched_hides_nothing_behind_the_gpu():
    launches = [(1.0, 4.0), (1.0, 4.0)]
    assert _period(launches, [False, False]) == 8  # ahead: the GPU alone
    assert _period(launches, [True, False]) == 9
    assert _period(launches, [True, True]) == 10
    assert _period([(5.0, 1.0), (5.0, 1.0)], [False, False]) == 10  # behind: the host alone


def test_the_host_spends_more_on_gemms_of_more_experts():
    _, backward, _ = passes(0.0)
    per_operator, per_expert = 1e-2, 1e-3
    host = replace(EAGER, launch_experts=per_operator, launch_each=per_expert)
    local = MODEL.experts // PLAN.ep
    whole = len(backward.graph.nodes) * per_operator + 4 * local * per_expert
    assert add_launch_gaps(backward, host, far=False).seconds == pytest.approx(whole)
