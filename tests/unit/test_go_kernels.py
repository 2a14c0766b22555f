"""GO-kernels, degrees and the predictor: what is tried, what is best, and what is told from a queue alone."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_gemms import TILE, small_mi100

from weft import hardware
from weft.core.errors import InputError
from weft.graph import Gemm
from weft.papers.goldyloc.predictor import FEATURES, Example, example, train, train_without
from weft.plan.tune.perturb import gemm_values, moves
from weft.plan.tune.queues import (
    DEGREES,
    Queue,
    asked_degrees,
    batch_sizes,
    candidates,
    degrees_up_to,
    go_kernels,
    judge,
    needed_simulations,
)
from weft.sweep.simulations import Bench, Jobs, Tiled, drain_seconds

GPU = small_mi100()
BENCH = Bench.of(GPU)
SMALL, OTHER = Gemm(128, 192, 128, "fp16"), Gemm(192, 64, 128, "fp16")


def judged(queue):
    kernels = go_kernels(asked_degrees([queue]), BENCH)
    return judge(queue, kernels, BENCH, Jobs().run(needed_simulations(queue, kernels, BENCH))), kernels


def test_a_part_of_the_gpu_ranks_larger_tiles_first():
    mi100 = hardware.gpu("mi100")
    gemm = Gemm(1024, 1024, 1024)
    first, *_, last = candidates(gemm, mi100)
    assert last.rows * last.columns > first.rows * first.columns
    assert len(set(candidates(gemm, mi100))) == len(candidates(gemm, mi100))


def test_a_machine_without_a_library_has_one_tile():
    assert len(candidates(SMALL, hardware.gpu("t3-paper"))) == 1


def test_the_kernel_of_a_degree_is_the_fastest_of_all_that_were_tried():
    kernels = go_kernels({SMALL: [2, 4]}, BENCH)[SMALL]
    assert kernels.degrees == (1, 2, 4)
    for degree in kernels.degrees:
        assert kernels.seconds(degree) == min(drain_seconds(run) for run in kernels.runs[degree].values())
    assert kernels.fastest_alone == kernels.best(1)


@given(queued=st.integers(1, 64), degree=st.sampled_from(DEGREES))
def test_batches_hold_every_gemm_once_and_never_more_than_the_degree(queued, degree):
    sizes = batch_sizes(queued, degree)
    assert sum(sizes) == queued
    assert max(sizes) <= degree


@pytest.mark.parametrize(("queued", "degrees"), [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, DEGREES)])
def test_degrees_are_powers_of_two_and_all_together(queued, degrees):
    assert degrees_up_to(queued) == degrees


@pytest.mark.parametrize("gemms", [(SMALL,) * 4, (SMALL, OTHER, SMALL)])
def test_no_way_to_run_a_queue_beats_the_oracle(gemms):
    answer, _ = judged(Queue(gemms))
    others = [answer.sequential, answer.default, *answer.at_degree.values()]
    assert answer.oracle <= min(others)
    assert answer.at_degree[1] == pytest.approx(answer.sequential)
    assert answer.best_degree in answer.at_degree


def test_a_fixed_degree_beyond_the_queue_is_all_of_it():
    answer, _ = judged(Queue((SMALL,) * 2))
    assert answer.at(16) == answer.at_degree[2]


def test_a_queue_teaches_its_features_and_its_best_degree():
    answer, kernels = judged(Queue((SMALL,) * 4))
    learned = example(answer, kernels, GPU)
    assert learned.degree == answer.best_degree
    assert len(learned.features) == len(FEATURES)
    assert learned.features[-1] == 2  # log2 of four
    assert learned.features[0] == pytest.approx(7)


def examples(*degrees):
    """Queues whose best degree is the higher, the more are queued."""
    random = np.random.default_rng(1)
    return [
        Example((*random.normal(0, 0.1, len(FEATURES) - 1), np.log2(degree)), degree)
        for degree in degrees
        for _ in range(20)
    ]


@pytest.mark.parametrize("degrees", [(4,), (2, 8), (1, 4, 16)])
def test_the_predictor_learns_what_can_be_told_apart(degrees):
    seen = examples(*degrees)
    predictor = train(seen)
    assert [predictor.choose(one.features, DEGREES) for one in seen] == [one.degree for one in seen]
    assert json.loads(json.dumps(predictor.record()))["degrees"] == list(degrees)


def test_a_degree_that_the_queue_does_not_allow_gives_way_to_the_next_below():
    predictor = train(examples(16))
    assert predictor.choose((0.0,) * len(FEATURES), (1, 2, 4)) == 4


def test_a_small_rest_runs_with_the_others():
    predictor = train(examples(4))
    nothing = (0.0,) * len(FEATURES)
    assert predictor.choose(nothing, (1, 2, 4, 5)) == 5
    assert predictor.choose(nothing, (1, 2, 4, 8)) == 4


def test_a_network_that_is_left_out_teaches_nothing():
    groups = {"seen": examples(2, 4), "unseen": examples(16)}
    assert train_without(groups, "unseen").degrees == (2, 4)
    with pytest.raises(InputError, match="nothing to learn"):
        train_without({"unseen": examples(16)}, "unseen")


def test_every_value_with_a_range_is_moved_to_both_ends():
    path = "achieved.matrix_fp16"
    found = {(one.what, one.setting): one for one in moves(BENCH.system, gemm_values("fp16"), measured=True)}
    low, high = (getattr(GPU.provenance[path], end) for end in ("low", "high"))
    assert {(path, low), (path, high)} <= set(found)
    task = BENCH.queue([Tiled(SMALL, TILE)])
    assert all(move(task).system.gpu.value(what) != GPU.value(what) for (what, _), move in found.items())


def test_the_matrix_rate_of_a_data_type_moves_its_gemms_alone():
    task = BENCH.queue([Tiled(SMALL, TILE)])
    rates = [one for one in moves(BENCH.system, gemm_values("fp16", "bf16"), measured=True) if "matrix" in one.what]
    assert {one.what for one in rates if one(task) != task} == {"achieved.matrix_fp16"}
    assert "achieved.matrix_bf16" in {one.what for one in rates}
