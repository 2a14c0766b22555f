"""Comparisons survive being written as JSON."""

import json

import numpy as np
import pytest

from weft.parallel import split
from weft.result.stored import as_record, from_record
from weft.simulation import compare
from weft.workload import SubLayer


@pytest.fixture(scope="module")
def comparison():
    overlaps = ("sequential", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
    return compare(split(SubLayer.custom(512, 512, 128), 4), "t3-paper", overlaps)


def restored(comparison, **options):
    return from_record(json.loads(json.dumps(as_record(comparison, **options))))


def test_everything_but_arrays_is_equal(comparison):
    again = restored(comparison)
    assert list(again.results) == list(comparison.results)
    for one, two in zip(comparison, again, strict=True):
        assert one.record() == two.record()
        for name in ("config", "times", "kernels", "stages", "chunks", "dmas"):
            assert getattr(one, name) == getattr(two, name)
        assert [part.times for part in one.parts] == [part.times for part in two.parts]
    assert again["t3-mca"].dmas


def test_series_are_equal(comparison):
    one, two = comparison["t3-mca"].series, restored(comparison)["t3-mca"].series
    assert one.bin_fs == two.bin_fs
    assert list(one.traffic) == list(two.traffic)
    assert all(np.array_equal(one.traffic[cause], two.traffic[cause]) for cause in one.traffic)
    assert np.array_equal(one.link, two.link)
    assert two.link.dtype == np.int64


def test_without_spans_times_bytes_and_counters_stay(comparison):
    short = restored(comparison, spans=False)
    assert short.rows() == comparison.rows()
    assert short["t3-mca"].series is None
    assert short["t3-mca"].kernels == ()
    assert len(json.dumps(as_record(comparison, spans=False))) < len(json.dumps(as_record(comparison))) / 3
