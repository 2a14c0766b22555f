"""Independent GEMMs on one GPU: their operands, their queues, and who gets which compute unit."""

from dataclasses import replace

import pytest
from small_gemms import GEMM, TILE, queue, small_mi100

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.graph import Gemm, gemm_queue
from weft.kernels import GemmTiling
from weft.overlaps import STRATEGIES
from weft.overlaps.lowering import lower
from weft.simulate.single import simulate

GPU = small_mi100()


def ends(timeline):
    return tuple(timeline.end(node.name) for node in timeline.graph)


def run(graph, overlap="streams"):
    return simulate(graph, GPU, overlap)


def test_every_gemm_has_operands_of_its_own_and_reads_them():
    timeline = run(queue(3))
    assert sum(timeline.bytes(name, "read") for name in timeline.graph.operators) == 3 * (GEMM.m + GEMM.n) * GEMM.k * 2


def test_gemms_of_one_queue_follow_each_other():
    alone = run(queue()).makespan
    one_by_one = ends(run(queue(3, queues=1)))
    assert one_by_one == tuple(sorted(one_by_one))
    assert one_by_one[2] == pytest.approx(3 * alone, rel=0.05)


def test_a_second_gemm_takes_the_units_that_the_first_leaves():
    launch = GPU.compute.launch_latency
    first, second = ends(run(queue(2)))
    assert second - first == pytest.approx(launch, rel=0.2)


def test_a_third_gemm_waits_for_units():
    alone = run(queue()).makespan
    _, second, third = ends(run(queue(3)))
    assert third - second > 0.5 * (alone - GPU.compute.launch_latency)


def test_first_kernels_of_queues_are_launched_a_launch_latency_apart():
    plan = lower(queue(4, queues=2), hardware.system(GPU, gpus=2), RunOptions()).plan
    launch = round(GPU.compute.launch_latency * 1e15)
    assert [placed.delay_fs for placed in plan.kernels] == [0, launch, 0, 0]
    assert [placed.after for placed in plan.kernels] == [(), (), (0,), (1,)]


def test_workgroups_share_a_unit_as_registers_and_local_memory_allow():
    shared = GemmTiling(rows=64, columns=64, step=64, resident=2)
    assert [span.resident for span in run(queue(tiling=shared)).spans] == [2]
    assert [span.resident for span in run(queue()).spans] == [1]


def test_gemms_of_several_shapes_run_together():
    other = GemmTiling(rows=32, columns=64, step=64, resident=2)
    timeline = run(gemm_queue([GEMM, Gemm(64, 192, 128)], tilings=[TILE, other]))
    assert [span.workgroups for span in timeline.spans] == [4, 6]
    assert (
        sum(timeline.bytes(name, "read") for name in ("gemm0", "gemm1")) == (128 + 128) * 256 * 2 + (64 + 192) * 128 * 2
    )


def test_fewer_units_take_longer():
    half = replace(STRATEGIES["partition"], units=4)
    assert run(queue(2), half).makespan > run(queue(2)).makespan


def test_equal_runs_have_equal_records():
    first, second = (replace(run(queue(2)), cpu_s=0.0).to_dict() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gemm_queue([]), "0 GEMMs are dealt"),
        (lambda: queue(queues=2), "dealt to 2 queues"),
        (lambda: run(queue(), replace(STRATEGIES["partition"], units=8)), "each side needs at least one"),
        (lambda: run(queue(tiling=GemmTiling(512, 512))), "choose a smaller tile"),
        (lambda: run(queue(tiling=GemmTiling(slots=9))), "between 1 and 8 iterations"),
    ],
)
def test_what_cannot_run_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
