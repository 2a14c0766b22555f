from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from estimates import gemm

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import SHORT
from weft.estimate import GEMM_PARAMETERS, Bound, gemm_kernel, ranked_plans
from weft.estimate.gemm import effective_rates
from weft.estimate.target import target
from weft.graph import DTYPE_BYTES, Gemm
from weft.graph.op import OUTPUT_DTYPES
from weft.kernels.library.tiles import candidates, most_parts

GPUS = [name for name in hardware.gpu_names() if name != "t3-paper"]


def random_shapes(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    m, n, k = (np.ceil(2 ** random.uniform(0, 14, count)) for _ in range(3))
    return m, n, k


@pytest.mark.parametrize("name", GPUS)
def test_the_parts_add_up_and_none_is_negative(name: str) -> None:
    found = gemm(*random_shapes(60), "fp16", hardware.gpu(name))
    assert np.allclose(np.sum(list(found.parts.values()), axis=0), found.seconds, rtol=1e-12)
    for part, seconds in found.parts.items():
        assert (seconds >= -1e-15).all(), part


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp32"])
def test_nothing_is_faster_than_the_matrix_units(name: str, dtype: str) -> None:
    gpu = hardware.gpu(name)
    if not gpu.supports(dtype):
        pytest.skip(f"{name} has no {dtype}")
    m, n, k = random_shapes(60, seed=1)
    assert (gemm(m, n, k, dtype, gpu).seconds >= 2 * m * n * k / gpu.matrix_rate(dtype, "boost")).all()


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200", "l40s", "mi210", "mi300x"])
def test_cold_operands_come_at_most_at_the_rate_of_the_memory(name: str) -> None:
    gpu = hardware.gpu(name)
    m, n, k = np.array([1.0, 16.0]), np.array([65536.0, 8192.0]), np.array([65536.0, 65536.0])
    found = gemm(m, n, k, "fp16", gpu, rotation=float("inf"))
    assert (found.seconds >= 2 * n * k / gpu.memory.bandwidth).all()
    assert (found.bound == Bound.MEMORY).all()


@pytest.mark.parametrize("name", GPUS)
def test_much_more_work_takes_longer(name: str) -> None:
    gpu = hardware.gpu(name)
    m, n, k = random_shapes(40, seed=2)
    base = gemm(m, n, k, "fp16", gpu).seconds
    # A longer K may be split where a short one is not, and a slower tile be left for a faster one: both save time.
    least = 0.95 if gpu.vendor == "nvidia" else 0.7
    for more in ((4 * m, n, k), (m, 4 * n, k), (m, n, 4 * k)):
        assert (gemm(*more, "fp16", gpu).seconds >= least * base).all()


def test_clear_cases_have_their_bounds() -> None:
    gpu = hardware.gpu("h100-sxm")
    assert gemm(16384, 16384, 16384, "bf16", gpu).bound == Bound.COMPUTE
    assert gemm(1, 32768, 32768, "bf16", gpu).bound == Bound.MEMORY
    assert gemm(1, 8, 8, "bf16", gpu).bound == "launch"


def test_one_more_row_than_the_tiles_hold_costs_a_wave() -> None:
    gpu = hardware.gpu("a100-sxm-80gb")
    exact, above = gemm([3456, 3457], 4096, 8192, "bf16", gpu).parts["tail"]
    assert above > exact


def test_weights_that_take_turns_leave_the_cache() -> None:
    gpu = hardware.gpu("a100-sxm-80gb")
    once, many = (gemm(16, 2048, 2048, "bf16", gpu, rotation=turns).seconds for turns in (1, 100))
    assert many > 1.1 * once


def test_a_long_run_is_no_faster_than_a_short_one() -> None:
    for name in GPUS:
        gpu = hardware.gpu(name)
        short = gemm(8192, 8192, 8192, "fp16", gpu)
        assert gemm(8192, 8192, 8192, "fp16", gpu, clock="sustained").seconds >= short.seconds


def test_a_batch_fills_the_gpu_that_one_gemm_leaves_idle() -> None:
    gpu = hardware.gpu("h100-sxm")
    one, eight = (gemm(256, 256, 1024, "bf16", gpu, batch=count).seconds for count in (1, 8))
    assert one < eight < 4 * one


def test_converting_the_operand_costs_time_in_eight_bits_only() -> None:
    gpu = hardware.gpu("h100-sxm")
    plain, converted = (gemm(4096, 4096, 4096, "fp8", gpu, quantize=on) for on in (False, True))
    assert converted.seconds > plain.seconds
    assert converted.parts["convert"] > 0
    with pytest.raises(InputError, match="quantize goes with fp8"):
        gemm(64, 64, 64, "bf16", gpu, quantize=True)


def test_the_host_adds_its_own_time() -> None:
    gpu = hardware.gpu("h100-sxm")
    device, host = (gemm(512, 512, 512, "fp32", gpu, timed=how) for how in ("device", "host"))
    extra = gpu.achieved.gemm_host - gpu.achieved.gemm_launch
    assert np.isclose(host.seconds - device.seconds, extra)


def test_arrays_broadcast_and_agree_with_single_shapes() -> None:
    gpu = hardware.gpu("b200")
    grid = gemm(np.array([[64], [512]]), [1024, 2048, 4096], 4096, "bf16", gpu)
    assert grid.seconds.shape == grid.bound.shape == (2, 3)
    assert grid.seconds[1, 2] == gemm(512, 4096, 4096, "bf16", gpu).seconds


def test_machine_code_and_plain_python_agree() -> None:
    gpu = hardware.gpu("a100-sxm-80gb")
    on = effective_rates("fp16", target(gpu))
    library = candidates(gpu.architecture, "fp16")
    tiles = np.array([[float(getattr(one, name)) for name in gemm_kernel.Tile._fields] for one in library])
    shapes = np.stack([*random_shapes(200, seed=3), *np.ones((3, 200))], axis=1)
    results = []
    for run in (gemm_kernel.run, gemm_kernel.compile_kernel()):
        chosen, times = np.empty(200, dtype=np.int64), np.empty((200, 9))
        run(shapes, tiles, on, chosen, times, np.empty((len(tiles), 11)), np.empty(len(tiles)))
        results.append((chosen, times))
    assert (results[0][0] == results[1][0]).all()
    assert np.allclose(results[0][1], results[1][1], rtol=1e-9)


@pytest.mark.parametrize("name", ["h100-sxm", "mi210", "l40s"])
def test_what_is_left_out_untimed_is_never_the_best(name: str) -> None:
    gpu = hardware.gpu(name)
    on = effective_rates("bf16", target(gpu, SHORT))
    fields = gemm_kernel.Tile._fields
    tiles = [
        gemm_kernel.Tile(*(float(getattr(one, f)) for f in fields)) for one in candidates(gpu.architecture, "bf16")
    ]
    for m, n, k in zip(*random_shapes(100, seed=4), strict=True):
        shape = gemm_kernel.GemmShape(m, n, k, 1.0)
        moved = gemm_kernel.traffic(shape, on)
        tried = [tiles[0], *(tile for tile in tiles[1:] if not gemm_kernel.wasteful(shape, tile, on))]
        every = [gemm_kernel.under(shape, moved, tile, gemm_kernel.costs(tile, on), np.inf, on)[0] for tile in tried]
        found = gemm(m, n, k, "bf16", gpu)
        assert np.isclose(found.seconds - found.parts["launch"], min(every), rtol=1e-9)


def test_the_fastest_plan_is_a_kernel_of_the_library_and_cuts_k_where_tiles_are_few() -> None:
    gpu = hardware.gpu("h100-sxm")
    plan = ranked_plans(Gemm(8192, 8192, 8192, "bf16"), gpu)[0].tiling
    assert plan.rows in {one.rows for one in candidates("hopper", "bf16")}
    assert ranked_plans(Gemm(64, 512, 65536, "bf16"), gpu, split=True)[0].tiling.splits > 1


@pytest.mark.parametrize("name", ["mi300x", "mi308x", "mi325x", "mi355x"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_library_by_itself_cuts_a_long_k_into_at_most_eight_parts(name: str, dtype: str) -> None:
    plans = ranked_plans(Gemm(16, 256, 65536, dtype), hardware.gpu(name), split=True)
    assert max(plan.tiling.splits for plan in plans) == most_parts(hardware.gpu(name).architecture, dtype) == 8


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_tuned_kernel_is_at_least_as_fast_as_the_choice_of_the_library(name: str, dtype: str) -> None:
    m, n, k = random_shapes(60, seed=5)
    gpu = hardware.gpu(name)
    own, tuned = (gemm(m, n, k, dtype, gpu, tuned=on).seconds for on in (False, True))
    assert (tuned <= own * (1 + 1e-9)).all()
    if dtype == "fp32" or not gpu.architecture.startswith(("cdna3", "cdna4")):
        assert (tuned == own).all()


def test_tuning_pays_where_few_tiles_have_a_long_k() -> None:
    gpu = hardware.gpu("mi355x")
    own, tuned = (gemm([32, 8192], [384, 8192], 16384, "bf16", gpu, tuned=on).seconds for on in (False, True))
    assert own[0] > 1.2 * tuned[0]
    assert own[1] == tuned[1]


@pytest.mark.parametrize("name", ["mi300x", "mi308x", "mi325x", "mi355x"])
def test_cutting_k_costs_at_least_the_launch_of_a_second_kernel(name: str) -> None:
    gpu = hardware.gpu(name)
    assert gpu.achieved.gemm_split > gpu.compute.launch_latency


def test_rows_in_few_channels_crowd_only_where_addresses_are_not_hashed() -> None:
    on = effective_rates("fp32", target(hardware.gpu("mi210")))
    assert gemm_kernel.crowding(32768 * 4, 4096, on) == 32
    assert gemm_kernel.crowding(50272 * 4, 4096, on) == 1
    assert gemm_kernel.crowding(32768 * 4, 4096, effective_rates("fp32", target(hardware.gpu("h100-sxm")))) == 1


@pytest.mark.parametrize("size", [0, -1, 2.5, float("nan"), float("inf")])
def test_impossible_sizes_are_refused(size: float) -> None:
    with pytest.raises(InputError, match="GEMM dimension K is"):
        gemm(64, 64, [64, size], "bf16", hardware.gpu("h100-sxm"))


def test_what_no_memory_holds_is_refused() -> None:
    gpu = hardware.gpu("h100-sxm")
    with pytest.raises(
        InputError, match=r"take 16 TiB at least, but the memory of h100-sxm holds 85\.52 GB; give smaller"
    ):
        gemm(2**20, 2**20, [2**10, 2**22], "bf16", gpu)


def test_other_bad_input_is_refused_in_a_sentence() -> None:
    gpu = hardware.gpu("a100-sxm-80gb")
    with pytest.raises(InputError, match="no matrix rate for 'fp8'"):
        gemm(64, 64, 64, "fp8", gpu)
    with pytest.raises(InputError, match="rotation is 0"):
        gemm(64, 64, 64, "bf16", gpu, rotation=0)
    with pytest.raises(InputError, match="tuned is 'yes'"):
        gemm(64, 64, 64, "bf16", gpu, tuned="yes")
    with pytest.raises(UnknownNameError, match="clock"):
        gemm(64, 64, 64, "bf16", gpu, clock="fast")
    with pytest.raises(UnknownNameError, match="unknown way of timing 'sundial'; known: device, host"):
        gemm(64, 64, 64, "bf16", gpu, timed="sundial")


def test_every_parameter_is_a_value_of_the_catalog_within_its_bounds() -> None:
    for name in GPUS:
        gpu = hardware.gpu(name)
        for parameter in GEMM_PARAMETERS:
            assert parameter.low <= gpu.value(parameter.path) <= parameter.high, (name, parameter.path)


def test_every_candidate_fits_its_compute_unit() -> None:
    for name in ("a100-sxm-80gb", "l40s", "h100-sxm", "b200", "mi210", "mi355x"):
        gpu = hardware.gpu(name)
        for dtype in ("bf16", "fp32"):
            for one in candidates(gpu.architecture, dtype):
                buffers = one.stages - (gpu.vendor == "amd")  # AMD's kernels hold one step in registers
                slab = max(one.rows, one.columns) / one.cluster + min(one.rows, one.columns)
                local = buffers * slab * one.step * DTYPE_BYTES[dtype]
                sums = one.rows * one.columns * 4
                assert local * one.resident <= gpu.compute.lds_per_cu, (name, one)
                assert sums * one.resident <= gpu.compute.registers_per_cu, (name, one)


def test_output_formats_are_those_of_the_workload() -> None:
    on = effective_rates("fp8", target(hardware.gpu("h100-sxm")))
    assert (on.element, on.output) == (1, DTYPE_BYTES[OUTPUT_DTYPES["fp8"]])
    assert replace(candidates("hopper", "bf16")[0], columns=64).tiling().columns == 64
