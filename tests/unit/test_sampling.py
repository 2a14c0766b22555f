"""Sampling of iterations: SeqPoint as published, strata, intervals, and logs that cannot be sampled."""

import numpy as np
import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.papers.sample import (
    allocate,
    baseline,
    draw,
    estimate,
    iterations,
    iterations_for,
    read_log,
    seqpoints,
    speedup,
    strata,
)

RNG = np.random.default_rng(7)
LENGTHS = RNG.integers(50, 1200, 500).astype(float)
SECONDS = 0.02 + 1e-4 * LENGTHS


def log(folder, *rows, head="iteration,seq_len,time_ms"):
    file = folder / "log.csv"
    file.write_text("\n".join([head, *rows, ""]))
    return file


# -- SeqPoint


def test_few_lengths_are_a_point_each_with_their_number_of_iterations():
    lengths = np.array([10.0, 20, 20, 30, 30, 30])
    found = seqpoints(lengths, lengths)
    assert (found.weights.tolist(), lengths[found.chosen].tolist()) == ([1, 2, 3], [10, 20, 30])
    assert found.total(lengths) == lengths.sum()


def test_many_lengths_fall_into_bins_of_equal_width_and_the_iteration_nearest_the_mean_stands_for_each():
    lengths = np.array([*range(100)], float)
    found = seqpoints(lengths, lengths**2, error=1.0)
    assert (found.bins, found.weights.tolist()) == (5, [20] * 5)
    first = np.mean(lengths[:20] ** 2)
    assert found.chosen[0] == np.abs(lengths**2 - first)[:20].argmin()


def test_a_bin_is_added_until_the_total_is_near_enough():
    lengths = np.array([*range(1, 101)], float)
    rough, fine = (seqpoints(lengths, lengths**3, error=error) for error in (0.05, 1e-4))
    assert fine.bins > rough.bins
    assert abs(fine.total(lengths**3) / (lengths**3).sum() - 1) <= 1e-4


def test_empty_bins_give_no_point():
    lengths = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1000])
    found = seqpoints(lengths, lengths, error=1.0)
    assert (found.bins, len(found.chosen), found.weights.sum()) == (5, 2, 12)


def test_bins_that_never_project_the_total_are_an_error():
    with pytest.raises(InputError, match="allow a larger error"):
        seqpoints(np.arange(1.0, 13), np.array([1.0, 9] * 6), error=1e-9, most=6)


def test_savings_count_points_in_turn_and_at_once():
    lengths = np.array([1.0, 1, 1, 2, 2, 3])
    assert seqpoints(lengths, lengths).savings(lengths) == (10 / 6, 10 / 3)


@pytest.mark.parametrize(("name", "length"), [("most-frequent", 3.0), ("median", 3.0), ("worst", 9.0), ("prior", 3.0)])
def test_a_baseline_stands_for_the_whole_epoch(name, length):
    lengths = np.array([3.0] * 40 + [9.0] * 20)
    found = baseline(name, lengths)
    assert (found.weights.sum(), lengths[found.chosen[0]]) == (60, length if name != "prior" else 9.0)


# -- strata and draws


def test_buckets_of_a_data_loader_become_strata():
    lengths = np.concatenate([RNG.normal(center, 1, 40) for center in (20, 50, 80, 110, 140)])
    own = strata(lengths)
    assert np.bincount(own).tolist() == [40] * 5


def test_evenly_spread_lengths_have_three_strata_in_their_order():
    own = strata(np.arange(1.0, 301))
    assert np.bincount(own).tolist() == [100] * 3
    assert (np.diff(own) >= 0).all()


def test_a_stratum_is_given_iterations_by_its_size_and_spread():
    given = allocate(np.array([100, 100, 100]), np.array([1.0, 2.0, 5.0]), 80, least=2)
    assert given.tolist() == [10, 20, 50]
    assert allocate(np.array([100, 3]), np.array([1.0, 100.0]), 20).tolist() == [17, 3]


def test_fewer_iterations_than_strata_need_are_refused():
    with pytest.raises(InputError, match="3 iterations are fewer than 4, 2 from each of 2 strata"):
        allocate(np.array([5, 5]), np.ones(2), 3)


def test_a_draw_takes_different_iterations_of_every_stratum():
    own = strata(LENGTHS)
    chosen = draw(own, np.array([4, 5, 6]), np.random.default_rng(0))
    assert np.bincount(own[chosen]).tolist() == [4, 5, 6]
    assert len(np.unique(chosen)) == 15


# -- estimates


def sampled(seconds, count=12, seed=0):
    own = strata(LENGTHS)
    given = allocate(np.bincount(own), np.ones(3), count, 4)
    chosen = draw(own, given, np.random.default_rng(seed))
    return own, chosen, seconds[chosen]


def test_a_line_is_estimated_without_error_and_without_interval():
    found = estimate(LENGTHS, *sampled(SECONDS))
    assert found.value == pytest.approx(SECONDS.sum())
    assert found.half_width < 1e-9


@pytest.mark.parametrize("method", ["stratified", "affine", "quadratic"])
def test_an_interval_covers_the_total_in_most_draws(method):
    noisy = (SECONDS + 2e-8 * LENGTHS**2) * (1 + 0.01 * RNG.standard_normal(len(LENGTHS)))
    hits = 0
    for seed in range(400):
        found = estimate(LENGTHS, *sampled(noisy, seed=seed), method)
        hits += found.low <= noisy.sum() <= found.high
    assert 0.9 <= hits / 400 <= 0.995


def test_a_curve_under_a_line_is_told():
    found = estimate(LENGTHS, *sampled(1e-6 * LENGTHS**2 + 0.01), "affine")
    assert found.curved
    assert estimate(LENGTHS, *sampled(1e-6 * LENGTHS**2 + 0.01)).method == "quadratic"


def test_variation_between_runs_widens_the_interval():
    narrow, wide = (estimate(LENGTHS, *sampled(SECONDS), again=again).half_width for again in (0.0, 0.01))
    assert wide > narrow + 0.02


def test_the_ratio_of_two_machines_has_an_interval_that_holds_it():
    noise = 1 + 0.01 * RNG.standard_normal((2, len(LENGTHS)))
    before, after = SECONDS * noise[0], SECONDS / 2.5 * noise[1]
    real, hits = before.sum() / after.sum(), 0
    for seed in range(300):
        own, chosen, _ = sampled(before, seed=seed)
        found = speedup(LENGTHS, own, chosen, before[chosen], after[chosen])
        hits += found.low <= real <= found.high
    assert hits / 300 >= 0.9


def test_half_the_interval_takes_about_four_times_the_iterations():
    sizes, spread = np.full(3, 1_000_000), np.full(3, 0.1)
    wide, narrow = (iterations_for(sizes, spread, 3e6, half) for half in (0.01, 0.005))
    assert 3.5 <= narrow / wide <= 4.5


# -- weft.sample and its logs


def test_without_times_the_answer_is_what_to_measure():
    found = weft.sample(iterations(LENGTHS))
    plain = found.to_dict()
    assert plain["estimate"] is None
    assert plain["iterations"] == len(plain["representatives"]) <= 12
    assert found.weights.sum() == pytest.approx(len(LENGTHS))
    assert found.expected <= 0.01


def test_with_all_times_the_estimate_stands_beside_the_real_total_and_seqpoint():
    found = weft.sample(iterations(LENGTHS, {"a": SECONDS, "b": SECONDS / 3}))
    assert found.total.value == pytest.approx(found.real("a"))
    assert found.speedups["b"].value == pytest.approx(3)
    assert set(found.others) == {"seqpoint", "most-frequent", "median", "worst", "prior"}


def test_iterations_that_were_measured_are_the_sample():
    times = np.full(len(LENGTHS), np.nan)
    times[::40] = SECONDS[::40]
    found = weft.sample(iterations(LENGTHS, {"a": times}))
    assert found.chosen.tolist() == list(range(0, 500, 40))
    assert found.real("a") is None
    assert "drawn at random" in found.notes[0]


def test_a_log_without_lengths_is_sampled_as_one_stratum(tmp_path):
    rows = [f"{at},{100 + at % 7}" for at in range(1, 201)]
    found = weft.sample(log(tmp_path, *rows, head="iteration,time_ms"), iterations=40)
    assert found.strata.max() == 0
    assert found.total.low <= found.real("time_ms") <= found.total.high


def test_every_tenth_iteration_stands_for_ten(tmp_path):
    rows = [f"{at},{100 + at},{10 + at}" for at in range(0, 500, 10)]
    found = weft.sample(log(tmp_path, *rows))
    assert found.to_dict()["of"] == 500
    assert found.total.value == pytest.approx(sum(10 * (10 + at) for at in range(0, 500, 10)) / 1e3, rel=0.01)


def test_iterations_of_the_warm_up_can_be_left_out():
    slow = SECONDS.copy()
    slow[:10] *= 5
    found = weft.sample(iterations(LENGTHS, {"a": slow}), skip=10)
    assert found.total.value == pytest.approx(SECONDS[10:].sum())


@pytest.mark.parametrize(
    ("rows", "head", "said"),
    [
        (["1,10,5", "3,20,6", "4,30,7"], None, "line 4: iteration 4 follows 3 in steps of 2"),
        (["1,10,5", "2,20,0"], None, "time of time_ms 0"),
        (["1,10,5", "2,-3,6"], None, "iteration 2 has the length -3"),
        (["1,10,5", "2,10,6"], None, "the length 10; any one of them"),
        (["1,10,5", "2,ten,6"], None, "line 3: 'ten' in column 'seq_len' is no number"),
        ([], None, "a header and no iterations"),
        (["1,10", "0,20"], "epoch,seq_len", "epoch 0 follows 1; sort the log"),
        (["1,10"], "a,b", "neither lengths nor times; name their columns, of a, b"),
    ],
)
def test_a_log_that_cannot_be_sampled_is_refused_with_its_line(tmp_path, rows, head, said):
    with pytest.raises(InputError, match=said):
        weft.sample(log(tmp_path, *rows, **({"head": head} if head else {})))


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    with pytest.raises(InputError, match="no column 'sl'; its columns are iteration, seq_len, time_ms"):
        read_log(log(tmp_path, "1,10,5"), length="sl")


@pytest.mark.parametrize("wrong", [{"half_width": 0}, {"noise": 2.0}, {"skip": 499}, {"iterations": 1}])
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        weft.sample(iterations(LENGTHS), **wrong)


def test_an_unknown_method_is_refused():
    with pytest.raises(UnknownNameError, match="stratified"):
        weft.sample(iterations(LENGTHS), method="neyman")


def test_times_that_no_chosen_iteration_has_are_named(tmp_path):
    rows = "\n".join(f"{64 + 8 * (n % 9)},{10 + n % 9}.5" for n in range(40))
    (tmp_path / "log.csv").write_text(f"length,tih,tih,time_ms\n{rows}\n")
    with pytest.raises(InputError, match=r"the times time_ms lack some of the chosen iterations; measure them"):
        weft.sample(read_log(tmp_path / "log.csv", "length", ("time_ms",)))
