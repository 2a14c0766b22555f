"""T3's reason for communication-aware arbitration (ASPLOS 2024), where memory is scarce enough to show it."""

import pytest

from weft.hardware import load
from weft.kernels import GemmTiling
from weft.parallel import sublayer
from weft.simulation import compare


@pytest.fixture(scope="module")
def scarce():
    machine = load("t3-paper").with_values({"memory.bandwidth": "512 GB/s"})
    return compare(
        sublayer("t-nlg", "fc2", tp=8), machine, ["t3", "t3-mca", "ideal-overlap"], tiling=GemmTiling(step=16)
    )


def gemm_time(comparison, overlap):
    return comparison[overlap].times.gemm


def waited_for_memory(comparison, overlap):
    return comparison[overlap].kernels[0].waits["memory"]


def test_without_arbitration_communication_blocks_the_gemms_reads(scarce):
    assert gemm_time(scarce, "t3") > 1.1 * gemm_time(scarce, "sequential")
    assert waited_for_memory(scarce, "t3") > 2 * waited_for_memory(scarce, "sequential")


@pytest.mark.parametrize("measure", [gemm_time, waited_for_memory])
def test_arbitration_gives_the_gemm_most_of_what_it_lost_back(scarce, measure):
    alone, without, with_it = (measure(scarce, name) for name in ("sequential", "t3", "t3-mca"))
    assert with_it - alone < (without - alone) / 2


def test_the_published_order_holds(scarce):
    speedups = [scarce.speedup(name) for name in ("sequential", "t3", "t3-mca", "ideal-overlap")]
    assert speedups == sorted(speedups)
