"""Leaf switches whose uplinks carry less than their nodes send: rates by hand, laws, placement, and the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.core.errors import ConfigError, InputError
from weft.graph import Collective
from weft.kernels.library.interconnect import interconnect
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps.lower.machine import of_levels, ring_link
from weft.step.durations import group, place

WIDE = weft.system("256xh100")
NIC = WIDE.node.network.bandwidth


def tapered(oversubscription, leaf=1, gpus=256):
    values = {"network.oversubscription": oversubscription, "network.leaf": leaf}
    return weft.system(f"{gpus}xh100").replace(values)


@pytest.mark.parametrize(
    ("leaf", "nodes", "pattern", "share"),
    [
        (1, 32, "ring", 1 / 4),  # every node's traffic leaves its leaf, whose uplink carries a quarter
        (2, 32, "ring", 1 / 2),  # of two nodes one sends to the next leaf, by half of what both have
        (4, 32, "ring", 1.0),
        (8, 32, "ring", 1.0),
        (2, 32, "tree", 1 / 3),  # three quarters of what two nodes send, by a quarter
        (6, 32, "tree", 1.0),
        (8, 32, "exchange", 31 / 96),  # 24 of 31 parts go to other leaves
        (8, 8, "exchange", 1.0),
        (32, 32, "ring", 1.0),
    ],
)
def test_a_group_has_what_uplinks_leave_of_its_adapters(leaf, nodes, pattern, share):
    fabric = interconnect(tapered(4, leaf))
    assert fabric.adapter(nodes, pattern) == pytest.approx(share * NIC)


@given(
    st.floats(1, 16), st.floats(1, 4), st.sampled_from([1, 2, 4, 8, 32]),
    st.sampled_from(["all_reduce", "all_gather", "all_to_all"]), st.sampled_from([1e4, 1e6, 1e9]),
)  # fmt: skip
def test_more_oversubscription_never_speeds_up_a_collective(some, more, leaf, name, size):
    op = Collective(name, int(size), 256)
    one, other = (weft.estimate(op, tapered(factor, leaf)).seconds for factor in (some, some * more))
    assert other >= one


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_uplinks_that_carry_all_change_nothing(name):
    op = Collective(name, 64 << 20, 256)
    assert weft.estimate(op, tapered(1, 4)).seconds == weft.estimate(op, WIDE).seconds


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_to_all"])
def test_a_group_under_one_leaf_switch_is_as_fast_as_ever(name):
    op = Collective(name, 64 << 20, 32)
    assert weft.estimate(op, tapered(8, 4, 32)).seconds == weft.estimate(op, weft.system("32xh100")).seconds


def test_an_all_to_all_of_one_gpu_in_each_node_takes_as_many_times_longer_as_its_uplink_is_narrower():
    op = Collective("all_to_all", 8 << 30, 32)
    wide, narrow = (weft.system("256xh100").replace(values).with_gpus(32, 32) for values in (
        {"network.oversubscription": 1}, {"network.oversubscription": 4}
    ))  # fmt: skip
    assert weft.estimate(op, narrow).seconds / weft.estimate(op, wide).seconds == pytest.approx(4, rel=0.01)


def test_groups_whose_nodes_lie_apart_share_fewer_leaf_switches():
    """Replicas of pipelines are neighbours; stages lie 8 nodes apart, so that leaves of 8 hold one node of each."""
    plan = TrainingPlan(tp=8, pp=4, dp=8, batch=64)
    machine = tapered(4, 8)
    assert place(machine, plan, "dp", 8) == (8, 8, 1)
    assert place(machine, plan, "pp", 4) == (4, 4, 8)
    assert group(machine, plan, "dp").node.network.leaf == 8
    assert group(machine, plan, "pp").node.network.leaf == 1
    assert group(machine, plan, "tp").nodes == 1


def test_where_uplinks_carry_all_no_place_tells_how_far_nodes_lie_apart():
    plan = TrainingPlan(tp=8, pp=4, dp=8, batch=64)
    assert place(WIDE, plan, "pp", 4) == (4, 4, 1)


def seconds(system, **plan):
    return weft.step("llama-3-8b", system, fidelity="estimate", compare=False, sequence=4096, **plan).seconds


def test_a_step_waits_for_narrow_uplinks_only_where_groups_leave_their_leaf_switch():
    plan = {"zero": 3, "batch": 256}
    today = seconds("128xh100", **plan)
    assert seconds(tapered(8, 1, 128), **plan) > 1.05 * today
    assert seconds(tapered(8, 16, 128), **plan) == today
    assert seconds(tapered(1, 1, 128), **plan) == today


def test_a_ring_of_the_engine_has_the_rate_of_its_uplink():
    assert ring_link(tapered(4)).bandwidth == pytest.approx(8 * NIC / 4)
    assert ring_link(tapered(4, 4)).bandwidth == ring_link(WIDE).bandwidth


def test_the_engine_joins_nodes_by_uplinks_of_a_leaf_switch_each():
    up = [link for link in of_levels(tapered(4, 1, 16)).fabric.links if link.kind == "up"]
    assert [link.bandwidth for link in up] == [8 * NIC / 4] * 2
    assert not [link for link in of_levels(tapered(4, 2, 16)).fabric.links if link.kind == "up"]
    with pytest.raises(InputError, match=r"network\.leaf is 2, and the engine joins 4 nodes by a leaf switch each"):
        of_levels(tapered(4, 2, 32))


@pytest.mark.parametrize("factor", ["0.5", "0.99"])
def test_uplinks_carry_at_most_what_leaves_send(factor):
    with pytest.raises(ConfigError, match=r"oversubscription is .*; give 1 "):
        WIDE.replace({"network.oversubscription": factor})


def test_values_that_decide_nothing_leave_cached_runs_valid():
    assert "leaf" not in WIDE.inputs()["node"]["network"]
    assert tapered(4).inputs()["node"]["network"]["oversubscription"] == 4
