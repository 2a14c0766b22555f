"""Laws of a collective and the latency of its links, on eight H100."""

from functools import cache
from itertools import pairwise

import pytest

import weft
from weft.graph import Collective
from weft.simulate import alone

LATENCIES = (250, 500, 1000, 2000, 4000)
"""Nanoseconds."""
TURNS = 0.01
"""What the order of turns at a link is worth: 5 ns more or less move the end of 64 MiB by up to 0.8 %."""


@cache
def seconds(name, size, latency):
    gpu = weft.gpu("h100-sxm").replace({"link.latency": f"{latency} ns"})
    return weft.simulate(alone(Collective(name, size, 8)), weft.system(gpu, gpus=8), "streams").seconds


@pytest.mark.parametrize("size", ["1 MiB", "8 MiB", "64 MiB"])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_reduce"])
def test_more_latency_never_makes_a_collective_faster(name, size):
    """Small ones are slower without exception; the end of large ones is that of the last of 192 channels."""
    allowed = TURNS if size == "64 MiB" else 0.0
    for less, more in pairwise(LATENCIES):
        assert seconds(name, size, more) >= seconds(name, size, less) * (1 - allowed)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_a_small_ring_takes_the_latency_once_for_each_hop(name):
    longer = seconds(name, "1 MiB", 2000) - seconds(name, "1 MiB", 1000)
    assert longer == pytest.approx(7 * 1e-6, rel=0.05)


def test_latency_moves_the_middle_of_a_large_collective_little_and_never_forward():
    """When half of the bytes have left a GPU does not hang on who comes last."""
    half = []
    for latency in (500, 2000):
        gpu = weft.gpu("h100-sxm").replace({"link.latency": f"{latency} ns"})
        run = weft.simulate(alone(Collective("all_gather", "64 MiB", 8)), weft.system(gpu, gpus=8), "streams")
        sent = run.series.link.mean(axis=0).cumsum()
        half.append((sent < sent[-1] / 2).sum() * run.series.bin_fs)
    assert half[0] <= half[1] <= half[0] * 1.02
