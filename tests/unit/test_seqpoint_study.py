"""The SeqPoint study's parts: epochs, methods, noise and measured logs."""

import numpy as np
import pytest

from weft import hardware
from weft.core.errors import InputError
from weft.papers.seqpoint import SeqPointStudy
from weft.papers.seqpoint.epochs import LONGEST, speech, translation, variants
from weft.papers.seqpoint.logs import carry_over, check_intervals, read_logs
from weft.papers.seqpoint.methods import SEQPOINT, geomean, noisy, outcomes, sample_epoch

GPU = hardware.gpu("vega-fe")


def test_a_sorted_epoch_of_speech_runs_from_short_to_long_and_leaves_the_last_batch_out():
    epoch, whole = speech(None, 64), speech(None, 64, whole=True)
    assert (np.diff(epoch.lengths) >= 0).all()
    assert len(whole) == len(epoch) + 1 == 446


def test_shuffled_batches_are_padded_to_longer_utterances():
    assert speech(None, 64, order="shuffled").lengths.mean() > 1.2 * speech(None, 64).lengths.mean()


def test_translation_pads_whole_batches_of_similar_pairs():
    epoch = translation(None, 64)
    assert epoch.inputs.max() <= LONGEST
    assert (epoch.lengths == epoch.inputs.max(axis=1)).all()
    assert translation(None, 64).inputs.tolist() == epoch.inputs.tolist()
    assert translation(None, 64, seed=1).inputs.tolist() != epoch.inputs.tolist()


def test_lengths_are_read_where_there_are_some(tmp_path):
    (tmp_path / "lengths_speech.csv").write_text(
        "split,samples\n" + "train-clean-100,16000\ntrain-clean-100,32000\ndev-clean,99\n"
    )
    epoch = speech(tmp_path, 1)
    assert epoch.lengths.tolist() == [101.0, 201.0]
    assert "2 utterances" in epoch.source


def test_every_variant_is_slower_than_the_machine_as_it_is():
    epoch = speech(None, 64)
    first, *others = [epoch.seconds(gpu).sum() for gpu in variants(GPU).values()]
    assert len(others) == 3
    assert all(other > first for other in others)


def test_seqpoints_are_exact_where_cost_is_a_line_and_single_lengths_are_not():
    epoch = speech(None, 64)
    times = {"one": 1.0 + 2 * epoch.lengths, "two": 3.0 + epoch.lengths}
    found = {(one.method, one.machine): one for one in outcomes(epoch, times)}
    assert abs(found[SEQPOINT, "two"].total) < 1e-3
    assert abs(found["worst", "two"].total) > 0.1
    assert found[SEQPOINT, "one"].speedup is None


def test_noise_of_iterations_is_noise_of_seqpoints_total_and_the_interval_knows():
    epoch = speech(None, 64)
    quiet, loud = (noisy(epoch, 1.0 + 2 * epoch.lengths, level, 60) for level in (0.0, 0.03))
    assert quiet.seqpoint < 1e-3 < loud.seqpoint
    assert quiet.half_width < 1e-3 < 0.005 < loud.half_width
    assert loud.covered >= 0.9


def test_the_geometric_mean_of_errors_ignores_signs_and_bears_zeros():
    assert geomean(iter([0.01, -0.0001])) == pytest.approx(0.001)
    assert geomean(iter([0.0, 0.0])) == pytest.approx(1e-6)


def log(tmp_path, **systems):
    """GNMT logs of systems with the given times of five buckets [ms], every tenth iteration of one epoch."""
    rng = np.random.default_rng(0)
    lines = ["system,run,epoch,iteration,iterations,time_ms,mean_so_far_ms,tokens_per_s"]
    for name, times in systems.items():
        total = 0.0
        for place in range(400):
            bucket = rng.choice(5, p=[0.1, 0.4, 0.3, 0.15, 0.05])
            time = times[bucket] * rng.normal(1, 0.005)
            total += time
            tokens = 1000 * (bucket + 1) * rng.normal(1, 0.01)
            mean = total / (place + 1)
            lines.append(f"{name},0,0,{10 * place},4000,{time:.3f},{mean:.3f},{tokens / time * 1e3:.3f}")
    (tmp_path / "sqnn_gnmt.csv").write_text("\n".join(lines) + "\n")
    return read_logs(tmp_path)


def test_buckets_carry_speedups_that_one_length_does_not(tmp_path):
    logs = log(tmp_path, a=(60, 120, 180, 240, 300), b=(40, 60, 80, 100, 120))
    (found,) = carry_over(logs)
    assert abs(found.error) < 0.05
    assert abs(found.one_bucket) > abs(found.error)


def test_intervals_of_a_log_hold_its_total_and_widen_with_the_spread_of_epochs(tmp_path):
    (one,) = log(tmp_path, a=(60, 120, 180, 240, 300))
    found = check_intervals(one, 12, 200)
    assert found.iterations == 12
    assert 0.9 <= found.covered <= 1.0
    assert check_intervals(one, 12, 20, again=0.07).half_width > 2 * found.half_width


def test_logs_of_rnnt_have_no_lengths_and_one_stratum(tmp_path):
    rows = [f"a,0,{epoch},{place},272,{4000 + 50 * (place % 7)}" for epoch in (2, 3) for place in range(100)]
    head = "system,run,epoch,iteration,iterations,utterances_per_s"
    (tmp_path / "sqnn_rnnt.csv").write_text("\n".join([head, *rows]))
    (one,) = read_logs(tmp_path)
    assert one.spread == pytest.approx(0.0, abs=1e-3)
    assert 0.85 <= check_intervals(one, 12, 200).covered <= 1.0


def test_a_sample_takes_four_of_each_stratum():
    own, chosen = sample_epoch(speech(None, 64).lengths, 0)
    assert np.bincount(own[chosen]).tolist() == [4, 4, 4]


def test_a_folder_that_is_not_there_is_named():
    with pytest.raises(InputError, match="'gone' does not exist"):
        SeqPointStudy.run(data="gone")
