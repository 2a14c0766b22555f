from dataclasses import replace

import pytest

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.estimate import estimate
from weft.graph import Collective
from weft.hardware import System
from weft.overlaps.lower.machine import ring_link, ring_note


def test_within_a_switched_node_the_link_is_the_gpus_own():
    system = hardware.system("h100-sxm", 8)
    assert ring_link(system) == hardware.gpu("h100-sxm").link
    assert ring_note(system) == ""


def test_through_nodes_the_slower_of_links_and_a_nodes_adapters_paces():
    system = hardware.system("h100-sxm", 16)
    assert (system.gpus, system.nodes) == (16, 2)
    link = ring_link(system)
    assert link.bandwidth == pytest.approx(8 * 50e9)
    assert link.latency == pytest.approx((7 * 500e-9 + 2e-6) / 8)
    assert link.kernel_efficiency == link.dma_efficiency == pytest.approx(0.92)  # 371 GB/s of stores within a node
    assert "2 nodes of dgx-h100" in ring_note(system)


def test_slow_links_pace_where_the_network_is_faster():
    link, own = ring_link(hardware.system("h800", 16)), hardware.gpu("h800").link
    assert link.bandwidth == pytest.approx(own.bandwidth * 8 / 7)
    assert link.kernel_efficiency == own.kernel_efficiency


@pytest.mark.parametrize(
    ("topology", "gpus", "gain"),
    [("switch", 8, 8 / 7), ("switch", 2, 2), ("mesh", 8, 8 / 7), ("mesh", 4, 1), ("pcie", 8, 1), ("switch", 1, 1)],
)
def test_rings_over_nodes_pass_one_link_less_in_each_than_it_has_gpus(topology, gpus, gain):
    assert hardware.chain_gain(topology, gpus, 8) == pytest.approx(gain)


def test_rings_over_whole_nodes_of_a_mesh_move_more_than_rings_inside_one():
    gather = Collective("all_gather", 2**33, 16)
    over, inside = (estimate(replace(gather, ranks=n), hardware.system("mi300x", n)) for n in (16, 8))
    rates = [gather.bytes * (n - 1) / n / float(each.parts["link"]) for n, each in ((16, over), (8, inside))]
    assert rates[0] / rates[1] == pytest.approx(8 / 7, rel=0.01)


def test_a_large_node_needs_no_network():
    assert ring_link(hardware.system("gb200", 64)).bandwidth == hardware.gpu("gb200").link.bandwidth


def test_in_a_mesh_a_gpu_has_a_link_to_each_of_the_others():
    one = hardware.gpu("mi300x").link.bandwidth / 7
    assert ring_link(hardware.system("mi300x", 2)).bandwidth == pytest.approx(one)
    assert ring_link(hardware.system("mi300x", 4)).bandwidth == pytest.approx(3 * one)


def test_a_node_may_be_named_or_given():
    assert hardware.system("p4de", 8).gpu.name == "a100-sxm-80gb"
    by_name = hardware.system("p4de", 16)
    assert by_name == hardware.system(by_name.node, 16)
    assert ring_link(by_name).bandwidth < ring_link(hardware.system("dgx-a100", 16)).bandwidth


def test_values_that_the_user_changed_reach_the_ring():
    faster = hardware.gpu("mi300x").replace({"link.bandwidth": "896 GB/s"})
    assert ring_link(hardware.system(faster, 8)).bandwidth == pytest.approx(896e9)
    assert ring_link(hardware.system("mi300x").replace({"link.bandwidth": "896 GB/s"})) == ring_link(
        hardware.system(faster)
    )


def test_a_gpu_of_ones_own_and_the_papers_form_a_plain_ring(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "h100-sxm"\nname = "own"\n')
    for gpu in (hardware.gpu(own), hardware.gpu("t3-paper")):
        system = hardware.system(gpu, 64)
        assert system == System(gpu=gpu, gpus=64)
        assert ring_link(system) == gpu.link


def test_what_cannot_be_is_said():
    with pytest.raises(InputError, match="cannot be spread evenly over"):
        hardware.system("h100-sxm", 17)
    with pytest.raises(UnknownNameError, match="unknown system 'h1000'"):
        hardware.system("h1000", 8)
