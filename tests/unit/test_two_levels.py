"""T3 over several nodes: a ring inside each node, then DMA engines from node to node."""

from dataclasses import replace

import numpy as np
import pytest
from machines import gpu, layer
from runs import run, tiled

import weft
from weft.core.errors import InputError
from weft.hardware import FABRICS, System
from weft.kernels import GemmTiling
from weft.kernels.ring import fused_reduce_scatter, two_level_reduce_scatter
from weft.models.parallel import dependent
from weft.view.words import link_note

SHAPES = [(2, 2), (2, 4), (4, 2), (2, 1), (4, 1)]


def of_nodes(nodes, each, adapter=50e9, **changes):
    """The paper's GPUs in nodes of `each`, with an adapter [bytes/s] for every GPU."""
    one, gpus = gpu(**changes), nodes * each
    joined = FABRICS["nodes"](gpus, one.link.bandwidth, one.link.latency, each=each, adapter=adapter)
    return System(gpu=one, gpus=gpus, fabric=joined)


def work(ranks, size=768):
    return layer(m=size, n=size, k=64 * ranks, tp=ranks)


@pytest.mark.parametrize("system", ["t3-paper", "dgx-h100", of_nodes(1, 8), "torus"])
def test_on_one_node_it_is_t3_to_the_digit(system):
    if system == "torus":  # a single row
        one = gpu()
        joined = FABRICS["torus"](8, one.link.bandwidth, one.link.latency, columns=8)
        system = System(gpu=one, gpus=8, fabric=joined)
    two, ring = (run(work(8), system, overlap) for overlap in ("t3-two-level", "t3-mca"))
    assert (two.seconds, two.events) == (ring.seconds, ring.events)
    assert dict(two.traffic) == dict(ring.traffic)
    assert dict(two.counters) == dict(ring.counters)


@pytest.mark.parametrize(("nodes", "each"), SHAPES)
def test_a_chunk_goes_around_its_node_and_then_to_its_owner(nodes, each):
    gpus = nodes * each
    rules = two_level_reduce_scatter(gpus, nodes)
    assert rules[-1].updates_per_element == (each > 1) + nodes
    for q in range(nodes):
        *ring, last = rules[q * each : (q + 1) * each]
        assert all(rule.route.within == each for rule in ring)
        assert [rule.route.position for rule in ring] == list(range(q * each + 1, (q + 1) * each))
        if q < nodes - 1:  # GPU g makes chunks of the node q + 1 further on, and a distance counts ranks downwards
            assert -last.dma.distance % gpus == (q + 1) * each
            assert last.dma.position == gpus - 1
    if nodes == 1:
        assert [replace(rule, remote=None, dma=None) for rule in rules] == [
            replace(rule, remote=None, dma=None) for rule in fused_reduce_scatter(gpus)
        ]


@pytest.mark.parametrize(("nodes", "each"), SHAPES)
def test_bytes_of_each_level_are_those_of_a_hierarchical_reduce_scatter(nodes, each):
    """Inside a node (r - 1)/r of all, between nodes (n - 1)/n of 1/r of it, and an all-gather as much again."""
    gpus = nodes * each
    gemm = work(gpus)["gemm"].op
    for graph, times in ((dependent("gemm_rs", gemm, gpus), 1), (work(gpus), 2)):
        found = run(graph, of_nodes(nodes, each), "t3-two-level", mode="explicit").counters
        network = gpus * gemm.output_bytes * (nodes - 1) // nodes // each
        inside = gpus * gemm.output_bytes * (each - 1) // each
        assert found["network_bytes"] == times * network
        assert found["link_bytes"] == times * (network + inside)


def test_a_node_sends_its_sums_while_the_gemm_goes_on():
    graph = layer(m=2048, n=2048, k=4096 * 4, tp=4)
    found = run(graph, of_nodes(2, 2), "t3-two-level")
    (gemm,) = {span.end_fs for span in found.spans if span.operator == "gemm" and span.gpu == 0}
    first = [chunk for chunk in found.chunks if (chunk.gpu, chunk.buffer, chunk.position) == (0, "output", 1)]
    assert first[0].last_sent_fs < gemm


@pytest.mark.parametrize("nodes", [2, 4])
def test_no_run_beats_its_links_inside_or_between_nodes(nodes):
    each, gpus = 4, 4 * nodes
    graph = work(gpus, 1024)
    system, whole = of_nodes(nodes, each), graph["gemm"].op.output_bytes
    found = run(graph, system, "t3-two-level")
    inside = whole * (each - 1) / each / system.gpu.link.bandwidth
    between = whole * (nodes - 1) / nodes / each / (50e9 * 0.92)
    assert found.duration("reduce_scatter") + found.duration("gemm") >= max(inside, between)
    assert found.duration("all_gather") >= max(inside, between)


def test_a_ring_through_all_nodes_waits_for_one_adapter_and_two_levels_use_all():
    system, graph = of_nodes(2, 8), work(16, 1024)
    assert run(graph, system, "t3-two-level").seconds < 0.7 * run(graph, system, "t3-mca").seconds


def test_a_slow_network_leaves_the_rings_inside_alone():
    graph = work(8, 1024)
    slow, fast = (run(graph, of_nodes(2, 4, adapter), "t3-two-level") for adapter in (2e9, 50e9))

    def rings(found):
        return max(c.last_sent_fs for c in found.chunks if c.buffer == "output" and c.position % 4 in (1, 2))

    assert rings(slow) == pytest.approx(rings(fast), rel=0.1)
    assert slow.seconds > 5 * fast.seconds


@pytest.mark.parametrize(("nodes", "each"), SHAPES)
def test_summed_on_two_levels_tiles_sum_right(nodes, each):
    done = weft.replay(layer(m=512, n=512, k=1024, tp=nodes * each), of_nodes(nodes, each), "t3-two-level")
    exact = done.partials.astype(np.float64).sum(axis=0)
    assert np.abs(done.result - exact).max() < 0.002 * np.abs(exact).max()
    assert done.errors.near_memory < 3 * done.errors.fp32


def test_parts_of_k_sum_right_on_two_levels():
    graph = tiled(layer(m=256, n=256, k=1024, tp=4), GemmTiling(rows=64, columns=64, splits=2))
    done = weft.replay(graph, of_nodes(2, 2), "t3-two-level")
    assert done.errors.near_memory < 3 * done.errors.fp32


def test_a_late_gpu_of_one_node_holds_up_the_other():
    graph, late = work(4), of_nodes(2, 2)._with(start={3: "100 us"})
    found, equal = run(graph, late, "t3-two-level"), run(graph, of_nodes(2, 2), "t3-two-level")
    assert found.seconds >= equal.seconds + 99e-6


def test_nodes_of_a_catalogue_have_their_links_and_their_network():
    graph = weft.sublayer("t-nlg", "op", tp=16)
    found = run(graph, "16xh100", "t3-two-level", mode="mirrored", request_bytes=4096)
    share = graph["gemm"].op.output_bytes // 16
    assert found.counters["network_bytes"] == 8 * 2 * share
    assert found.duration("all_gather") >= share / 50e9


@pytest.mark.parametrize(
    ("system", "ranks", "words"),
    [
        (
            lambda: of_nodes(2, 4)._with(fabric=replace(of_nodes(2, 4).fabric, period=0)), 8,
            r"the fabric 'nodes' has no equal nodes or rows to reduce in first; say how many GPUs each has",
        ),
        (lambda: of_nodes(3, 4), 6, "6 ranks are no whole nodes of the fabric 'nodes', which has 4 GPUs in each"),
    ],
)  # fmt: skip
def test_levels_need_equal_nodes(system, ranks, words):
    with pytest.raises(InputError, match=words):
        run(work(ranks), system(), "t3-two-level", mode="explicit")


def test_a_run_on_two_levels_names_no_ring_through_all_nodes():
    ring, two = (run(work(16), "16xh100", overlap, mode="mirrored") for overlap in ("t3-mca", "t3-two-level"))
    assert "ring of 16 GPUs through 2 nodes" in link_note(ring)
    assert not link_note(two)
