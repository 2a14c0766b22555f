"""Independent GEMMs on one GPU: their operands, their queues, and who gets which compute unit."""

import pytest
from small_gemms import GEMM, small_mi100, tiled

from weft.errors import InputError
from weft.kernels import GemmTiling
from weft.overlap.gemms import ConcurrentGemms, TiledGemm
from weft.simulation.gemms import concurrent_gemms
from weft.workload import Gemm

GPU = small_mi100()


def test_every_gemm_has_operands_of_its_own_and_reads_them():
    run = concurrent_gemms([tiled()] * 3, GPU)
    assert run.bytes["gemm_read"] == 3 * (GEMM.m + GEMM.n) * GEMM.k * 2


def test_gemms_of_one_queue_follow_each_other():
    alone = concurrent_gemms([tiled()], GPU).makespan_s
    ends = concurrent_gemms([tiled()] * 3, GPU, queues=1).ends_s
    assert ends == tuple(sorted(ends))
    assert ends[2] == pytest.approx(3 * alone, rel=0.05)


def test_a_second_gemm_takes_the_units_that_the_first_leaves():
    launch = GPU.compute.launch_latency
    first, second = concurrent_gemms([tiled()] * 2, GPU).ends_s
    assert second - first == pytest.approx(launch, rel=0.2)


def test_a_third_gemm_waits_for_units():
    alone = concurrent_gemms([tiled()], GPU).makespan_s
    _, second, third = concurrent_gemms([tiled()] * 3, GPU).ends_s
    assert third - second > 0.5 * (alone - GPU.compute.launch_latency)


def test_first_kernels_of_queues_are_launched_a_launch_latency_apart():
    plan = ConcurrentGemms((tiled(),) * 4, queues=2).plan(GPU)
    launch = round(GPU.compute.launch_latency * 1e15)
    assert [placed.delay_fs for placed in plan.kernels] == [0, launch, 0, 0]
    assert [placed.after for placed in plan.kernels] == [None, None, 0, 1]


def test_workgroups_share_a_unit_as_registers_and_local_memory_allow():
    shared = GemmTiling(rows=64, columns=64, step=64, resident=2)
    assert concurrent_gemms([tiled(tiling=shared)], GPU).held == (2,)
    assert concurrent_gemms([tiled()], GPU).held == (1,)


def test_gemms_of_several_shapes_run_together():
    other = TiledGemm(Gemm(64, 192, 128), GemmTiling(rows=32, columns=64, step=64, resident=2))
    run = concurrent_gemms([tiled(), other], GPU)
    assert run.workgroups == (4, 6)
    assert run.bytes["gemm_read"] == (128 + 128) * 256 * 2 + (64 + 192) * 128 * 2


def test_fewer_units_take_longer():
    whole, half = (concurrent_gemms([tiled()] * 2, GPU, units=units).makespan_s for units in (8, 4))
    assert half > whole


def test_equal_runs_have_equal_records():
    assert concurrent_gemms([tiled()] * 2, GPU).record() == concurrent_gemms([tiled()] * 2, GPU).record()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: concurrent_gemms([], GPU), "0 GEMMs are queued"),
        (lambda: concurrent_gemms([tiled()], GPU, queues=2), "dealt to 2 queues"),
        (lambda: concurrent_gemms([tiled()], GPU, units=0), "0 compute units are asked for"),
        (lambda: concurrent_gemms([tiled(tiling=GemmTiling(512, 512))], GPU), "choose a smaller tile"),
        (lambda: tiled(tiling=GemmTiling(slots=9)), "between 1 and 8 iterations"),
    ],
)
def test_what_cannot_run_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
