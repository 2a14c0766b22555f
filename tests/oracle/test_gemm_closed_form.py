"""The engine beside the closed form: one tile plan, two models of how it runs."""

import statistics

import numpy as np
import pytest
from runs import run

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, PlacedKernel, Plan, build
from weft.engine.program.plan import CACHED_STORE
from weft.engine.run import execute
from weft.estimate.gemm import ranked_plans
from weft.graph import Gemm, gemm_queue
from weft.hardware import System
from weft.kernels import gemm_kernel, operand_sizes, tile_table
from weft.kernels.gemm import main_loop_flops
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.machine import machine_tables, stripe

GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "mi210", "mi250x-gcd", "mi300x", "l40s")
SHAPES = ((8192, 8192, 2048), (4096, 4096, 4096), (8192, 4256, 2128), (2048, 6144, 1536), (16384, 3072, 1536))


def in_the_engine(gemm, gpu, tiling, clock="short", request=512):
    """The time of the GEMM alone, without its launch [s]."""
    sizes = operand_sizes(gemm, tiling)
    buffers = [Buffer(name, ((size,),)) for name, size in zip("ab", sizes, strict=True)]
    output = Buffer("output", ((gemm.output_bytes,),), (CACHED_STORE,))
    plan = Plan(
        kernels=(PlacedKernel(gemm_kernel(gemm, gpu, tiling, RunOptions(clock))),),
        buffers=(*buffers, output),
        work=(tile_table(gemm, tiling, 1),),
    )
    built = build(plan, machine_tables(System(gpu=gpu, gpus=2), 1, RunOptions(clock, request), 8))
    status, machine = execute(built.tables, ROUND_ROBIN.compiled, 10**8)
    assert status == y.FINISHED
    run = machine.kernel_run[0, 0]
    return float(run[y.RUN_END] - run[y.RUN_LAUNCHED]) * 1e-15


def difference(gpu, shape, dtype="bf16", clock="short"):
    gemm = Gemm(*shape, dtype)
    plan = ranked_plans(gemm, gpu, RunOptions(clock))[0]
    return in_the_engine(gemm, gpu, plan.tiling, clock) / plan.seconds - 1


@pytest.mark.slow
def test_both_are_within_5_percent_in_the_median_over_shapes_and_machines():
    found = [difference(hardware.gpu(name), shape) for name in GPUS for shape in SHAPES]
    assert statistics.median(map(abs, found)) <= 0.05


WAVES = {
    "h100-sxm": {1: (1536, 1408), 2: (1536, 4864), 5: (7680, 3072)},
    "mi300x": {1: (1024, 4864), 2: (8192, 2048), 5: (5120, 4864)},
}
"""Output shapes of bf16 whose tiles, as the library cuts them, take a GPU's compute units so many times."""


@pytest.mark.parametrize("k", [1024, 2048])
@pytest.mark.parametrize("waves", [1, 2, 5])
@pytest.mark.parametrize("name", WAVES)
def test_short_gemms_of_whole_waves_take_as_long_in_both(name, waves, k):
    """With memory and units overlapped in full, as in the engine, and without the launches."""
    gpu, gemm = hardware.gpu(name), Gemm(*WAVES[name][waves], k, "bf16")
    plan = ranked_plans(gemm, gpu, RunOptions("short"))[0]
    assert plan.tiling.workgroups(gemm) == pytest.approx(waves * gpu.compute.compute_units, rel=0.12)
    ran = run(gemm_queue([gemm], 1, [plan.tiling]), gpu, "streams", clock="short")
    assert plan.overlapped == pytest.approx(ran.makespan - gpu.compute.launch_latency, rel=0.05)


SMALL = ((512, 64, 4096), (128, 512, 2048), (256, 256, 4096), (512, 512, 2048), (512, 1024, 4096))


def test_with_k_in_parts_both_are_within_10_percent_in_the_median():
    found = []
    for name in ("mi100", "mi210", "mi300x", "a100-sxm-80gb", "h100-sxm"):
        gpu = hardware.gpu(name)
        for shape in SMALL:
            gemm = Gemm(*shape, "fp16")
            plan = ranked_plans(gemm, gpu, RunOptions("short"), split=True)[0]
            if plan.tiling.splits > 1:
                alone = run(gemm_queue([gemm], 1, [plan.tiling]), gpu, "streams", clock="short")
                found.append((alone.makespan - gpu.compute.launch_latency) / plan.seconds - 1)
    assert len(found) > 15
    assert statistics.median(map(abs, found)) <= 0.10


def test_k_in_parts_is_never_slower_in_the_plans_than_in_one_piece():
    gpu = hardware.gpu("h100-sxm")
    for shape in (*SMALL, *SHAPES):
        whole, cut = (ranked_plans(Gemm(*shape), gpu, split=split)[0].seconds for split in (False, True))
        assert cut <= whole * (1 + 1e-9)


@pytest.mark.parametrize("dtype", ["fp16", "fp8", "int8", "fp32", "tf32"])
def test_other_dtypes_run_in_the_engine_near_the_closed_form(dtype):
    assert abs(difference(hardware.gpu("h100-sxm"), (4096, 4096, 4096), dtype)) <= 0.15


@pytest.mark.slow
def test_a_sustained_run_is_no_faster_than_a_short_one_and_below_the_rate_at_its_clock():
    gpu, gemm = hardware.gpu("mi300x"), Gemm(8192, 8192, 4096, "bf16")
    times = {}
    for clock in ("short", "sustained"):
        tiling = ranked_plans(gemm, gpu, RunOptions(clock))[0].tiling
        times[clock] = in_the_engine(gemm, gpu, tiling, clock)
    assert times["sustained"] >= times["short"]
    assert gemm.flops / times["sustained"] < gpu.matrix_rate("bf16", "sustained")


def test_plans_come_fastest_first_and_store_every_tile_once():
    plans = ranked_plans(Gemm(8192, 4256, 2128, "bf16"), hardware.gpu("h100-sxm"))
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    assert all(1 <= plan.tiling.slots <= y.SLOTS for plan in plans)


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200", "mi300x", "mi355x"])
@pytest.mark.parametrize("chunks", [2, 8, 16])
def test_a_tile_is_chosen_that_cuts_the_output_into_equal_chunks(gpu, chunks):
    gemm = Gemm(4096, 12288, 1536, "bf16")
    work = tile_table(gemm, tiling_for(gemm, hardware.gpu(gpu), chunks=chunks), chunks)
    sizes = np.bincount(work[:, y.WORK_REGION], weights=work[:, y.WORK_BYTES])
    assert len(set(sizes)) == 1


def test_the_papers_machine_keeps_its_tile_and_knows_no_power_limit():
    gpu = hardware.gpu("t3-paper")
    assert tiling_for(Gemm(8192, 8192, 8192), gpu) == tiling_for(Gemm(128, 128, 64), gpu)
    slower = gpu.replace({"compute.clock": "1 GHz"})
    assert main_loop_flops("fp16", slower, RunOptions("sustained")) == pytest.approx(1024e9)


def test_what_a_gpu_cannot_do_is_said():
    with pytest.raises(InputError, match="a100-sxm-80gb has no matrix rate for 'fp8'; it has fp64"):
        tiling_for(Gemm(512, 512, 512, "fp8"), hardware.gpu("a100-sxm-80gb"))
    with pytest.raises(UnknownNameError, match="unknown clock 'fast'; known: short, sustained"):
        RunOptions("fast")


def test_channels_are_striped_as_finely_as_requests_allow():
    assert [stripe(hardware.gpu("h100-sxm"), size) for size in (64, 512, 1024, 4096)] == [
        512,
        512,
        1024,
        4096,
    ]
    assert stripe(hardware.gpu("t3-paper"), 64) == 512
