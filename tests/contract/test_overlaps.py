"""What every overlap and every arbiter policy promises, on one small sub-layer."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from machines import OVERLAPS, SIMULATED, gpu, layer, program
from runs import run as simulate

from weft.core.errors import InputError
from weft.engine import layout as y
from weft.graph import Edge, FusedTiles, NearMemoryRing, Node, PaperRing, TrackedDirect, TrackedRing
from weft.kernels import GemmTiling
from weft.models.parallel import dependent
from weft.overlaps import BUILT_IN, Ideal
from weft.overlaps import OVERLAPS as METHODS
from weft.overlaps.arbiters import POLICIES, arbiter
from weft.overlaps.sequential import Sequential
from weft.testing import check_arbiter, check_overlap

TP = 4
LAYER = layer(m=1024, n=1024, k=512, tp=TP)
GPU = gpu()
CHUNK = LAYER["gemm"].op.output_bytes // TP
RINGS = ["sequential", "t3", "t3-mca"]


FROM_THE_GEMM = TrackedRing, TrackedDirect, FusedTiles
"""Kernels of a reduce-scatter that runs in the GEMM's stores."""


def in_steps(name):
    """Whether a pass leaves the GEMM whole, then a reduce-scatter by a known protocol, then an all-gather."""
    graph = METHODS[name].apply(LAYER, GPU)
    if [node.id for node in graph] != ["gemm", "reduce_scatter", "all_gather"]:
        return False
    reduced = reduced_by(name)
    return isinstance(graph["all_gather"].choice.kernel, PaperRing) and reduced is not None


def reduced_by(name):
    """The kernel of the reduce-scatter; of an ideal, that of the run that its time is from."""
    one = METHODS[name]
    source = METHODS[one.source("reduce_scatter")] if isinstance(one, Ideal) else one
    return source.apply(LAYER, GPU)["reduce_scatter"].choice.kernel


SCATTERED = dependent("gemm_rs", LAYER["gemm"].op, TP)
IN_STEPS = [name for name in OVERLAPS if in_steps(name)]


@pytest.fixture(scope="module")
def results():
    return {name: simulate(LAYER, GPU, name) for name in OVERLAPS}


@pytest.mark.parametrize("method", BUILT_IN, ids=lambda method: method.name)
def test_every_method_keeps_the_contract(method):
    check_overlap(method)


@pytest.mark.parametrize("name", OVERLAPS)
def test_no_run_beats_the_link(results, name):
    assert results[name].seconds >= 2 * (TP - 1) * CHUNK / GPU.link.bandwidth


@pytest.mark.parametrize("name", OVERLAPS)
def test_no_operator_of_the_graph_is_left_out(results, name):
    run = results[name]
    assert {node.name for node in run.graph} == set(run.durations)
    if not isinstance(METHODS[name], Ideal):
        ran = {(span.operator, span.iteration) for span in run.spans}
        kernels = {(n.name, n.iteration) for n in run.graph if not isinstance(n.choice.kernel, FROM_THE_GEMM)}
        assert ran >= kernels


@pytest.mark.parametrize("name", [p.name for p in BUILT_IN if p.accepts(SCATTERED) and p.name in OVERLAPS])
def test_behind_a_reduce_scatter_there_is_no_all_gather(results, name):
    run = simulate(SCATTERED, GPU, name)
    assert {node.name for node in run.graph} == set(run.durations)
    assert "all_gather" not in run.durations
    if name in IN_STEPS:
        whole = results[name]
        assert run.seconds == pytest.approx(whole.seconds - whole.duration("all_gather"), rel=0.01)


@dataclass(frozen=True)
class Changed(Sequential):
    """The baseline with its three nodes changed by a function."""

    change: Callable[..., tuple[Node, ...]] = lambda *nodes: nodes

    def apply(self, graph, gpu):
        return replace(graph, nodes=self.change(*super().apply(graph, gpu).nodes))


def changed(change):
    return simulate(LAYER, GPU, Changed("changed", "", "", change=change))


def test_a_step_that_a_pass_leaves_out_does_not_run():
    run = changed(lambda gemm, reduce, gather: (gemm, reduce))
    assert list(run.durations) == ["gemm", "reduce_scatter"]
    assert run.seconds == pytest.approx(run.duration("gemm") + run.duration("reduce_scatter"))


def test_a_step_that_waits_for_nobody_begins_at_once(results):
    run = changed(lambda gemm, reduce, gather: (gemm, replace(reduce, after=(), stream="communication"), gather))
    assert [span.start_fs for span in run.spans if span.operator != "all_gather"] == [0, 0]
    assert run.seconds < results["sequential"].seconds


def test_a_graph_that_no_joined_form_carries_out_is_refused():
    with pytest.raises(InputError, match="'reduce_scatter', a step of a ring, waits for 'gemm' by tile"):
        changed(lambda gemm, reduce, gather: (gemm, replace(reduce, after=(Edge("gemm", "tile"),)), gather))
    with pytest.raises(InputError, match="gemm, reduce_scatter, all_gather, another are others"):
        changed(lambda *nodes: (*nodes, replace(nodes[2], name="another", after=("all_gather",))))


@pytest.mark.parametrize("name", OVERLAPS)
def test_the_link_carries_what_an_all_reduce_needs(results, name):
    if not isinstance(METHODS[name], Ideal):
        assert results[name].counters["link_bytes"] >= 2 * (TP - 1) * CHUNK


@pytest.mark.parametrize("name", IN_STEPS)
def test_three_steps_take_what_matrix_units_and_link_allow(results, name):
    run = results[name]
    roofline = LAYER["gemm"].op.flops / GPU.matrix_rate("fp16", "boost")
    link = (TP - 1) * CHUNK / GPU.link.bandwidth
    assert run.duration("gemm") >= roofline
    assert run.duration("all_gather") >= link + (TP - 1) * GPU.link.latency
    assert run.duration("reduce_scatter") >= 0
    assert run.seconds >= max(roofline, link) + link
    if not isinstance(METHODS[name], Ideal):
        assert run.seconds >= run.duration("gemm") + run.duration("all_gather")


def test_sequential_is_the_sum_of_its_parts(results):
    run = results["sequential"]
    assert run.seconds == pytest.approx(
        run.duration("gemm") + run.duration("reduce_scatter") + run.duration("all_gather")
    )
    assert run.duration("reduce_scatter") >= (TP - 1) * (CHUNK / GPU.link.bandwidth + GPU.link.latency)


@pytest.mark.parametrize("name", IN_STEPS)
def test_every_overlap_moves_the_bytes_that_its_protocol_needs(results, name):
    moved = {cause: n for cause, n in results[name].traffic.items() if cause != ("gemm", "read")}
    gather = {("all_gather", "read"): (TP - 1) * CHUNK, ("all_gather", "write"): (TP - 1) * CHUNK}
    on_units = {
        ("gemm", "write"): TP * CHUNK,
        ("reduce_scatter", "read"): (2 * TP - 1) * CHUNK,
        ("reduce_scatter", "write"): TP * CHUNK,
    }
    fused = {
        ("gemm", "update"): (TP - 1) * CHUNK,
        ("reduce_scatter", "read"): (TP - 2) * CHUNK,
        ("reduce_scatter", "update"): (TP - 1) * CHUNK,
    }
    scattered = {
        ("gemm", "write"): CHUNK,
        ("reduce_scatter", "read"): TP * CHUNK,
        ("reduce_scatter", "write"): TP * CHUNK,
    }
    near_memory = {
        ("gemm", "write"): TP * CHUNK,
        ("reduce_scatter", "read"): (TP - 1) * CHUNK,
        ("reduce_scatter", "update"): (TP - 1) * CHUNK,
    }
    stored_first = {
        ("gemm", "update"): TP * CHUNK,
        ("reduce_scatter", "read"): (TP - 1) * CHUNK,
        ("reduce_scatter", "update"): (TP - 1) * CHUNK,
    }
    to_owners = {("gemm", "update"): CHUNK, ("reduce_scatter", "update"): (TP - 1) * CHUNK}
    protocols = {
        TrackedRing(): fused,
        TrackedDirect(): to_owners,
        TrackedDirect(by_dma=True): stored_first,
        TrackedRing(two_level=True): fused,  # one node
        TrackedRing(split_k=True): fused,  # a K of four steps stays in one piece
        FusedTiles(): scattered,
        PaperRing(): on_units,
        NearMemoryRing(LAYER["gemm"].op): near_memory,
    }
    assert moved == protocols[reduced_by(name)] | gather


@pytest.mark.parametrize("name", IN_STEPS)
def test_operands_that_fit_the_cache_are_read_once(results, name):
    gemm = LAYER["gemm"].op
    assert results[name].traffic["gemm", "read"] == (gemm.m + gemm.n) * gemm.k * gemm.element_bytes


@pytest.mark.parametrize("name", RINGS)
def test_every_output_chunk_is_accounted_for(results, name):
    output = [chunk for chunk in results[name].chunks if chunk.buffer == "output"]
    complete = [chunk for chunk in output if chunk.complete_fs is not None]
    sent = [chunk for chunk in output if chunk.last_sent_fs is not None]
    if name == "sequential":
        assert (complete, sent) == ([], [])
        return
    assert len(complete) == TP - 1  # all but the one whose stores go to the neighbour
    assert len(sent) == TP - 2
    assert all(chunk.last_remote_fs <= chunk.complete_fs for chunk in complete)
    assert sum(dma.bytes for dma in results[name].dmas) == (TP - 2) * CHUNK


def test_sent_to_its_owner_a_chunk_is_complete_at_the_owner_alone(results):
    run = results["t3-direct"]
    output = {chunk.position: chunk for chunk in run.chunks if chunk.buffer == "output"}
    assert [position for position, chunk in output.items() if chunk.complete_fs is not None] == [TP - 1]
    own = output[TP - 1]
    assert own.complete_fs == max(own.last_local_fs, own.last_remote_fs)
    assert not run.dmas


@pytest.mark.parametrize("name", [*RINGS, "t3-direct", "t3-direct-dma"])
def test_the_link_carries_each_step_of_both_collectives_once(results, name):
    assert results[name].counters["link_bytes"] == 2 * (TP - 1) * CHUNK
    assert results[name].series.link.sum() == 2 * (TP - 1) * CHUNK


@pytest.mark.parametrize("name", [*RINGS, "t3-direct"])
def test_the_series_add_up_to_the_counters(results, name):
    result = results[name]
    assert {cause: int(part.sum()) for cause, part in result.series.traffic.items()} == dict(result.traffic)


@pytest.mark.parametrize("name", SIMULATED)
def test_a_plan_names_kernels_and_buffers_that_exist(name):
    lowered = program(LAYER, name, GPU)
    assert len(set(lowered.regions)) == len(lowered.regions)
    assert len(lowered.kernel_names) == lowered.tables.kernel.shape[1]


def test_the_gemm_kernel_is_the_same_in_sequential_and_t3():
    plans = [program(LAYER, name, GPU).plan for name in RINGS]
    assert all(plan.kernels[0].kernel == plans[0].kernels[0].kernel for plan in plans)
    assert all(np.array_equal(plan.work[0], plans[0].work[0]) for plan in plans)


def test_lowered_the_gemm_differs_only_in_the_address_map():
    sequential, fused = (program(LAYER, name, GPU).tables for name in ("sequential", "t3"))
    columns = [c for c in range(y.KERNEL_COLUMNS) if c not in (y.KERNEL_RELEASE, y.KERNEL_MONITOR)]
    assert np.array_equal(sequential.kernel[0, 0, columns], fused.kernel[0, 0, columns])
    phases = int(sequential.kernel[0, 0, y.KERNEL_PHASES])
    assert np.array_equal(sequential.phase[0, :phases], fused.phase[0, :phases])
    accesses = 3  # A, B and the output
    assert np.array_equal(sequential.access[0, :accesses], fused.access[0, :accesses])
    workgroups = int(sequential.kernel[0, 0, y.KERNEL_WORKGROUPS])
    assert np.array_equal(sequential.work[0, :workgroups], fused.work[0, :workgroups])
    assert np.array_equal(sequential.tile, fused.tile)
    regions = 2 + TP
    same = [y.REGION_BASE, y.REGION_SIZE, y.REGION_FIRST_TILE, y.REGION_TILES]
    assert np.array_equal(sequential.region[0, :regions, same], fused.region[0, :regions, same])
    assert not np.array_equal(sequential.region[0, :regions], fused.region[0, :regions])


@pytest.mark.parametrize("name", POLICIES)
def test_an_arbiter_keeps_every_law_of_its_contract(name):
    check_arbiter(name)


def test_a_policy_of_ones_own_is_a_function_of_a_few_lines(results):
    @arbiter
    def longest_first(view):
        if view.communication > view.compute:
            return 1
        return 0

    result = simulate(LAYER, GPU, "t3", arbiter=longest_first)
    assert result.arbiter == "longest_first"
    check_arbiter(longest_first)
    assert dict(result.traffic) == dict(results["t3"].traffic)


@pytest.mark.parametrize("name", RINGS)
def test_other_tilings_move_the_same_output(name):
    result = simulate(LAYER, GPU, name, tiling=GemmTiling(rows=64, columns=256))
    chunks = TP if name == "sequential" else TP - 1
    assert result.bytes("gemm", "write", "update") == chunks * CHUNK


@pytest.mark.parametrize(("m", "n", "tp"), [(300, 400, 2), (384, 264, 3), (260, 264, 4), (1000, 136, 4)])
@pytest.mark.parametrize("name", ["t3"])
def test_sizes_that_fit_neither_tiles_nor_cache_lines_lose_no_byte(m, n, tp, name):
    odd = layer(m, n, 16 * tp, tp)
    moved = simulate(odd, GPU, name)
    assert moved.bytes("gemm", "read") == (m + n) * 16 * 2
    assert moved.bytes("gemm", "update") * tp == m * n * 2 * (tp - 1)


@pytest.mark.parametrize(("m", "n", "tp"), [(300, 400, 2), (260, 264, 4), (1000, 136, 4)])
def test_cached_stores_of_tiles_that_share_lines_lose_no_byte(m, n, tp):
    assert simulate(layer(m, n, 16 * tp, tp), GPU, "sequential").traffic["gemm", "write"] == m * n * 2
