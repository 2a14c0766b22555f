import pytest

from weft.errors import InputError, UnknownNameError
from weft.hardware import load, load_system
from weft.overlap.nodes import ring_note, system_for


def test_within_a_switched_node_the_link_is_the_gpus_own():
    system = system_for("h100-sxm", 8)
    assert system.gpu == load("h100-sxm")
    assert ring_note(system) == ""


def test_through_nodes_the_slower_of_links_and_a_nodes_adapters_paces():
    system = system_for("h100-sxm", 16)
    assert system.gpus == 16
    assert system.gpu.link.bandwidth == pytest.approx(8 * 50e9)
    assert system.gpu.link.latency == pytest.approx((7 * 500e-9 + 2e-6) / 8)
    link = system.gpu.link
    assert (
        link.kernel_efficiency == link.dma_efficiency == pytest.approx(0.92)
    )  # 371 GB/s of stores within a node
    assert "2 nodes of dgx-h100" in ring_note(system)
    assert system.gpu.provenance["link.bandwidth"].kind == "derived"


def test_slow_links_pace_where_the_network_is_faster():
    system = system_for("h800", 16)
    own = load("h800").link
    assert system.gpu.link.bandwidth == own.bandwidth
    assert system.gpu.link.kernel_efficiency == own.kernel_efficiency


def test_a_large_node_needs_no_network():
    assert system_for("gb200", 64).gpu.link.bandwidth == load("gb200").link.bandwidth


def test_in_a_mesh_a_gpu_has_a_link_to_each_of_the_others():
    one = load("mi300x").link.bandwidth / 7
    assert system_for("mi300x", 2).gpu.link.bandwidth == pytest.approx(one)
    assert system_for("mi300x", 4).gpu.link.bandwidth == pytest.approx(3 * one)


def test_a_machine_may_be_named_or_given():
    assert system_for("p4de", 8).gpu.name == "a100-sxm-80gb"
    by_name, given = system_for("p4de", 16), system_for(load_system("p4de"), 16)
    assert by_name == given
    assert given.gpu.link.bandwidth < system_for("dgx-a100", 16).gpu.link.bandwidth


def test_values_that_the_user_changed_reach_the_ring():
    faster = load("mi300x").with_values({"link.bandwidth": "896 GB/s"})
    assert system_for(faster, 8).gpu.link.bandwidth == pytest.approx(896e9)


def test_a_gpu_of_ones_own_and_the_papers_form_a_plain_ring(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('extends = "h100-sxm"\nname = "own"\n')
    for gpu in (load(own), load("t3-paper")):
        assert system_for(gpu, 64).gpu == gpu


def test_what_cannot_be_is_said():
    with pytest.raises(InputError, match="cannot be spread evenly over"):
        system_for("h100-sxm", 17)
    with pytest.raises(UnknownNameError, match="unknown GPU 'h1000'"):
        system_for("h1000", 8)
