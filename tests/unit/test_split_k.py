"""K cut into parts: as much work as in one piece, sums that go out and come back once, and who may do it."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from runs import isolated_gemm, run, together
from runs import run as simulate
from small_gemms import small_mi100

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.estimate.gemm import ranked_plans
from weft.graph import Gemm, gemm_queue
from weft.kernels import (
    GemmTiling,
    gemm_kernel,
    operand_sizes,
    running_clock,
    stored_sizes,
    tile_table,
)
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps.flux import GatherGemm, GemmScatter
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lowering import lower
from weft.overlaps.userbuffers import ChunkedGather, ChunkedScatter
from weft.plan.tune.lists import GoKernel
from weft.plan.tune.queues import WatchedQueue
from weft.view.run_trace import write_trace
from weft.view.tune import held_by_gemms

GPU = small_mi100()
DEEP = Gemm(128, 64, 2048)
"""Two tiles of 32 K steps: a quarter of the compute units."""
TILE = GemmTiling(rows=64, columns=64, step=64, resident=1)
CUT = replace(TILE, splits=4)


def alone(gemm, tiling, gpu=GPU, **options):
    return run(gemm_queue([gemm], 1, [tiling]), gpu, "streams", **options)


@pytest.mark.parametrize(
    ("k", "splits", "steps"), [(512, 1, (8,)), (512, 4, (2, 2, 2, 2)), (500, 3, (3, 3, 2)), (65, 2, (1, 1))]
)
def test_the_parts_of_k_are_as_even_as_can_be(k, splits, steps):
    assert replace(TILE, splits=splits).part_steps(Gemm(64, 64, k)) == steps


@pytest.mark.parametrize("k", [512, 500, 65])
@pytest.mark.parametrize("splits", [1, 2])
def test_together_the_parts_load_all_of_k_and_no_more(k, splits):
    gemm, tiling = Gemm(64, 64, k), replace(TILE, splits=splits)
    kernel = gemm_kernel(gemm, GPU, tiling)
    loops = [phase for phase in kernel.phases if phase.loads]
    for side in (0, 1):
        loads = [(phase.iterations, phase.loads[side]) for phase in loops]
        row = sum((steps - 1) * load.unit_bytes + load.last_unit_bytes for steps, load in loads)
        assert row == k * gemm.element_bytes


def test_workgroups_of_different_parts_read_different_slabs():
    gemm, tiling = Gemm(200, 100, 500), replace(TILE, splits=3)
    work = tile_table(gemm, tiling, 1)
    kernel = gemm_kernel(gemm, GPU, tiling)
    slabs = set()
    for row in work:
        main = kernel.phases[row[y.WORK_SCRIPT] * kernel.script_length]
        first = row[y.WORK_ROW] * main.loads[0].row_stride
        for step in range(main.iterations):
            slabs.add((first + step * main.loads[0].step_stride, int(row[y.WORK_COLUMN]) % 2))
    size, _ = operand_sizes(gemm, tiling)
    tiles, steps = 4 * 2, 8
    assert len(slabs) == tiles * steps
    assert max(at for at, _ in slabs) < size


def test_every_part_has_a_chunk_of_partial_sums_that_its_tiles_fill():
    tiling = replace(TILE, splits=3)
    gemm = Gemm(200, 100, 500)
    work = tile_table(gemm, tiling, 1)
    sizes = np.bincount(work[:, y.WORK_REGION], weights=work[:, y.WORK_BYTES])
    assert tuple(sizes) == stored_sizes(gemm, tiling) == (200 * 100 * 4,) * 3


def test_as_much_is_multiplied_as_in_one_piece():
    whole, cut = (busy_cycles(alone(DEEP, tiling)) for tiling in (TILE, CUT))
    adding = 3 * DEEP.m * DEEP.n / GPU.vector_lanes
    assert cut == pytest.approx(whole + adding, rel=0.001)


def busy_cycles(run):
    """Of all compute units."""
    units, clock = GPU.compute.compute_units, running_clock(GPU, RunOptions())
    return run.counters["compute_unit_utilization"] * run.makespan * units * clock


def test_partial_sums_that_the_cache_cannot_keep_are_written_once():
    gpu = small_mi100(cache__capacity="32 KiB", cache__banks="1")
    gemm = Gemm(256, 256, 2048, "fp16")
    whole, cut = (alone(gemm, tiling, gpu, request_bytes=512).traffic for tiling in (TILE, CUT))
    assert cut["gemm0", "write"] - whole["gemm0", "write"] == sum(stored_sizes(gemm, CUT))


def test_partial_sums_that_fit_the_cache_do_not_reach_the_memory():
    whole, cut = (alone(DEEP, tiling).traffic for tiling in (TILE, CUT))
    assert cut["gemm0", "read"] == whole["gemm0", "read"]


@pytest.mark.parametrize(("gemm", "faster"), [(DEEP, True), (Gemm(1024, 1024, 512), False)])
def test_few_deep_tiles_are_faster_in_parts_and_many_are_not(gemm, faster):
    assert (alone(gemm, CUT).makespan < alone(gemm, TILE).makespan) is faster


def test_the_sums_are_launched_when_all_parts_are_stored():
    plan = lower(gemm_queue([DEEP] * 4, 2, [CUT, TILE] * 2), hardware.system(GPU), RunOptions()).plan
    names = [placed.kernel.name for placed in plan.kernels]
    assert names == ["gemm0", "gemm0 sum", "gemm1", "gemm2", "gemm2 sum", "gemm3"]
    assert [placed.after for placed in plan.kernels] == [(), (0,), (), (1,), (3,), (2,)]


def test_a_gemm_ends_with_its_sums():
    found = alone(DEEP, CUT)
    assert found.ends("gemm0") == (found.makespan,)
    assert found.spans[0].workgroups == 8


def test_cut_and_whole_gemms_share_a_run():
    found = run(gemm_queue([DEEP] * 2, 2, [CUT, TILE]), GPU, "streams")
    assert found.end("gemm1") > 0
    assert found.bytes("gemm0", "read") + found.bytes("gemm1", "read") == 2 * (DEEP.m + DEEP.n) * DEEP.k * 2


def test_dies_meet_in_memory_and_one_cache_does_not():
    for name, released in (("mi300x", [True, False]), ("mi100", [False, False])):
        gpu = hardware.gpu(name)
        plan = lower(gemm_queue([DEEP], 1, [CUT]), hardware.system(gpu), RunOptions()).plan
        assert [placed.release for placed in plan.kernels] == released


def test_a_library_cuts_k_where_few_tiles_are_deep():
    for name in ("mi100", "mi300x", "h100-sxm"):
        gpu = hardware.gpu(name)
        assert tiling_for(Gemm(256, 256, 4096), gpu, split=True).splits > 1
        assert tiling_for(Gemm(256, 256, 4096), gpu).splits == 1
        assert tiling_for(Gemm(8192, 8192, 4096), gpu, split=True).splits == 1


def test_what_memory_bounds_is_left_whole_as_parts_would_only_cost_it_time():
    gpu, gemm = hardware.gpu("mi300x"), Gemm(16, 8192, 8192, "bf16")
    whole, cut = tiling_for(gemm, gpu, split=True), ranked_plans(gemm, gpu, split=True)[0].tiling
    assert whole.splits == 1 < cut.splits
    assert isolated_gemm(gemm, gpu).makespan < isolated_gemm(gemm, gpu, tiling=cut).makespan


def test_alone_and_beside_a_collective_k_is_cut_as_the_library_would():
    gemm = Gemm(256, 256, 4096, "bf16")
    whole = tiling_for(gemm, hardware.gpu("mi300x"))
    own = isolated_gemm(gemm, "mi300x")
    assert own.makespan < isolated_gemm(gemm, "mi300x", tiling=whole).makespan / 2
    both = together(gemm, "all_gather", 1 << 20, "mi300x", strategy="dma")
    assert both.end("gemm") == pytest.approx(own.makespan, rel=0.2)


def test_a_kernel_library_keeps_the_parts_and_reads_tiles_of_one_piece_without_them():
    written = asdict(CUT)
    assert GoKernel(tile=written, seconds=1.0).tile == CUT
    del written["splits"]
    assert GoKernel(tile=written, seconds=1.0).tile == TILE


def test_pictures_and_traces_show_both_kernels_as_the_gemms_own(tmp_path):
    found = run(gemm_queue([DEEP] * 2, 2, [CUT, TILE]), GPU, "streams")
    queue = WatchedQueue("two", ("in parts", "whole"), (found,), (found,), (2,))
    assert "in parts" in held_by_gemms(queue).svg()
    (file, *_) = write_trace(found, tmp_path / "two.json")
    names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
    assert {name.split("_bf16")[0] for name in names} >= {"gemm0", "gemm0_sum", "gemm1"}


LAYER = split(SubLayer.custom(512, 512, 512), 4)
IN_TWO = GemmTiling(splits=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: alone(Gemm(64, 64, 128), CUT), "splits is 4, but the K of 64 x 64 x 128 bf16 has 2 steps of 64"),
        (lambda: simulate(LAYER, "t3-paper", "rs-nmc", tiling=IN_TWO), "needs K in one piece"),
        (lambda: simulate(LAYER, "t3-paper", "sequential", tiling=IN_TWO), "set splits to 1"),
        (lambda: GatherGemm(DEEP, CUT, 2).plan(GPU), "needs K in one piece"),
        (lambda: GemmScatter(DEEP, CUT, 2).plan(GPU), "needs K in one piece"),
        (lambda: ChunkedGather(DEEP, CUT, 2).plan(GPU), "needs K in one piece"),
        (lambda: ChunkedScatter(DEEP, CUT, 2).plan(GPU), "needs K in one piece"),
    ],
)  # fmt: skip
def test_who_cannot_cut_k_says_so(call, words):
    with pytest.raises(InputError, match=words):
        call()
