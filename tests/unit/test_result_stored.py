"""Timelines survive being written as JSON, every field of them."""

import json
from dataclasses import fields

import numpy as np
import pytest

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.graph import Collective, Gemm, concurrent
from weft.models import SubLayer
from weft.models.parallel import split
from weft.simulate import compare
from weft.simulate.result import MemoryInterference, Residency, Series, Timeline
from weft.simulate.result.stored import as_record, from_record, summary
from weft.simulate.single import simulate


@pytest.fixture(scope="module")
def timelines():
    overlaps = ("sequential", "t3-mca", "flux", "ideal-overlap", "ideal-rs-nmc")
    graph = split(SubLayer.custom(512, 512, 128), 4)
    shared = concurrent(Gemm(512, 512, 512, "bf16"), Collective("all_gather", 1 << 20, 8), 2, 2)
    return [
        *compare(graph, "t3-paper", overlaps),
        simulate(shared, "mi300x", "partition", RunOptions(clock="short", request_bytes=4096)),
        simulate(graph, "t3-paper", "t3-mca", RunOptions(interference=True)),
    ]


def restored(timeline):
    return from_record(json.loads(json.dumps(as_record(timeline))))


def same(one, two):
    """Whether two values of a timeline are equal, arrays by their elements."""
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, MemoryInterference | Series | Residency | Timeline):
        return all(same(getattr(one, field.name), getattr(two, field.name)) for field in fields(one))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def test_every_field_of_every_timeline_is_equal(timelines):
    for timeline in timelines:
        again = restored(timeline)
        for field in fields(Timeline):
            assert same(getattr(timeline, field.name), getattr(again, field.name)), field.name


def test_a_summary_keeps_times_bytes_and_counters(timelines):
    for timeline in timelines:
        short = restored(summary(timeline))
        assert short.to_dict() == timeline.to_dict()
        assert short.series is None
        assert short.stages == ()


def test_a_record_of_something_else_is_refused():
    with pytest.raises(InputError, match="no record of a timeline"):
        from_record({"map": []})
