"""Tile search: what is pruned and why, the best against brute force, and annealing on the same candidates."""

from itertools import product

import numpy as np
import pytest

from weft import hardware
from weft.core.errors import InputError
from weft.estimate import gemm_kernel
from weft.estimate.gemm import effective_rates, time_each
from weft.estimate.target import target
from weft.graph import Gemm
from weft.kernels.gemm import GemmTiling
from weft.plan.tune.tiles import KNOBS, REASONS, Template, measured_regret, search_tiles, tiles
from weft.view.answers import report

SMALL = Template((64, 128, 256), (64, 128), (32, 64), (2, 4), (128, 256), (1, 4))


@pytest.fixture(scope="module")
def found():
    return tiles(Gemm(512, 1024, 4096, "bf16"), "h100-sxm", SMALL)


def test_every_candidate_is_timed_or_pruned_for_one_reason(found):
    assert found.candidates == len(list(product(*(getattr(SMALL, name) for name in KNOBS)))) == 3 * 2**5
    assert sum(found.pruned.values()) + len(found.seconds) == found.candidates
    assert set(found.pruned) == set(REASONS)


def test_the_best_equals_a_loop_over_all_candidates(found):
    """One by one, with the occupancy of the hardware, instead of arrays."""
    gpu = hardware.gpu("h100-sxm")
    rates = effective_rates("bf16", target(gpu))
    shape, best = gemm_kernel.GemmShape(512, 1024, 4096, 1), np.inf
    for rows, columns, step, stages, threads, splits in product(*(getattr(SMALL, name) for name in KNOBS)):
        local, registers = stages * (rows + columns) * step * 2, rows * columns * 4 + 32 * threads * 4
        if local > gpu.compute.lds_per_cu or registers > min(gpu.compute.registers_per_cu, 255 * 4 * threads):
            continue
        resident = gpu.compute.resident_workgroups(threads, registers, local)
        grid, steps = -(-512 // rows) * -(-1024 // columns), -(-4096 // step)
        if splits > 1 and (steps < 4 * splits or grid * splits > 3 * gpu.compute.compute_units * resident):
            continue
        tile = gemm_kernel.Tile(rows, columns, step, stages, resident, 0, 1)
        best = min(best, gemm_kernel.time_candidate(shape, tile, columns, splits, rates).total)
    assert found.best.seconds == pytest.approx(best, rel=1e-12)


def test_tiles_that_cannot_run_are_pruned_by_the_resource_that_is_missing():
    one = {"rows": (256,), "columns": (256,), "threads": (256,), "splits": (1,)}
    with pytest.raises(InputError, match="registers"):
        tiles(Gemm(4096, 4096, 4096, "bf16"), "h100-sxm", Template(**one, step=(32,), stages=(2,)))
    with pytest.raises(InputError, match="local memory"):
        tiles(Gemm(4096, 4096, 4096, "bf16"), "h100-sxm", Template(**one, step=(128,), stages=(4,)))


def test_few_rows_prune_tall_tiles_and_many_rows_small_ones():
    few = tiles(Gemm(16, 8192, 8192, "bf16"), "a100-sxm-80gb").pruned
    many = tiles(Gemm(8192, 8192, 8192, "bf16"), "a100-sxm-80gb").pruned
    assert few["padding"] > 0 == many["padding"]
    assert many["too small"] > 0 == few["too small"]


def test_pruning_never_removes_a_kernel_that_is_faster_than_the_best_by_more_than_two_percent():
    """Pruned for what it would waste, not for what it cannot hold: the time of all that could run."""
    gpu, gemm = hardware.gpu("h100-sxm"), Gemm(1024, 1024, 1024, "bf16")
    kept = tiles(gemm, gpu)
    rates = effective_rates("bf16", target(gpu))
    every = Template().candidates()
    rows, columns, step, stages, threads, _ = every.T
    local, registers = stages * (rows + columns) * step * 2, rows * columns * 4 + 128 * threads
    runs = (local <= gpu.compute.lds_per_cu) & (registers <= np.minimum(1020 * threads, gpu.compute.registers_per_cu))
    resident = np.minimum.reduce([
        np.full(len(every), gpu.compute.max_workgroups_per_cu), gpu.compute.threads_per_cu // threads,
        gpu.compute.registers_per_cu // registers, gpu.compute.lds_per_cu // local,
    ])  # fmt: skip
    shaped = np.column_stack([rows, columns, step, stages, resident, 0 * rows, 0 * rows + 1])[runs].astype(float)
    warped = (rows * columns >= 256 * (threads // 32))[runs]
    seconds = time_each(gemm, shaped, every[runs, 5], rates)
    assert seconds[warped].min() >= 0.98 * kept.best.seconds


def test_each_tile_is_timed_as_if_alone():
    rates = effective_rates("bf16", target(hardware.gpu("mi300x")))
    shape = gemm_kernel.GemmShape(300, 700, 900, 2)
    shapes = np.array([[64, 128, 64, 3, 2, 0, 1], [16, 32, 32, 2, 4, 0, 1.0]])
    times = np.empty(2)
    gemm_kernel.each(shape, shapes, np.array([1.0, 3.0]), rates, times)
    direct = [gemm_kernel.time_candidate(shape, gemm_kernel.Tile(*row), row[1], cut, rates).total
              for row, cut in zip(shapes, (1.0, 3.0), strict=True)]  # fmt: skip
    assert times.tolist() == direct


def test_annealing_finds_a_good_kernel_and_the_same_seed_repeats_it(found):
    one, again = search_tiles(found, starts=5), search_tiles(found, starts=5)
    assert one == again
    assert 1 <= one.annealed <= one.exhaustive == len(found.seconds)
    assert search_tiles(found, within=10.0, starts=3).annealed == 1


def test_random_draws_need_on_average_what_sampling_needs(found):
    good = found.seconds <= 1.01 * found.best.seconds
    random = np.random.default_rng(3)
    draws = [1 + int(np.argmax(good[random.permutation(len(good))])) for _ in range(4000)]
    assert search_tiles(found, starts=1).random == pytest.approx(np.mean(draws), rel=0.05)


def test_regret_is_zero_if_the_best_was_chosen_and_at_least_the_slowest_listed_if_unmeasured():
    gemm, large, small = Gemm(4096, 4096, 4096, "bf16"), GemmTiling(128, 128, 64, 256, 4, stages=4), GemmTiling(
        16, 16, 16, 64, 2, stages=2
    )  # fmt: skip
    right = measured_regret(gemm, "h100-sxm", {large: 1.0, small: 2.0})
    assert (right.value, right.listed) == (0, True)
    wrong = measured_regret(gemm, "h100-sxm", {large: 2.0, small: 1.0})
    assert (wrong.value, wrong.chosen) == (1.0, large)
    unlisted = measured_regret(gemm, "h100-sxm", {small: 1.5}, among=[large])
    assert (unlisted.value, unlisted.listed) == (0, False)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Template(rows=()), "rows of a template"),
        (lambda: Template(stages=(1, 2)), "at least 2"),
        (lambda: tiles(Gemm(64, 64, 64, "fp4x"), "h100-sxm"), "fp4x"),
        (lambda: measured_regret(Gemm(64, 64, 64, "bf16"), "h100-sxm", {}), "no tile was measured"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_an_answer_says_what_was_searched(found):
    said = found.to_dict()
    assert said["candidates"] == said["timed"] + sum(said["pruned"].values())
    assert said["best"][0]["seconds"] == found.best.seconds <= said["best"][1]["seconds"]
    assert found.over_library == pytest.approx(found.library.seconds / found.best.seconds - 1)


def test_a_library_that_is_as_fast_to_a_percent_is_not_called_faster():
    lead = report(tiles(Gemm(128, 4096, 4096, "bf16"), "mi300x")).sentences()[0]
    assert lead.endswith("K in 4 parts, is as fast.")
