"""T3's reason for communication-aware arbitration (ASPLOS 2024), where memory is scarce enough to show it."""

import pytest
from runs import tiled

from weft import hardware
from weft.kernels import GemmTiling
from weft.parallel import sublayer
from weft.run import compare


@pytest.fixture(scope="module")
def scarce():
    machine = hardware.gpu("t3-paper").replace({"memory.bandwidth": "512 GB/s"})
    graph = tiled(sublayer("t-nlg", "fc2", tp=8), GemmTiling(step=16))
    return compare(graph, machine, ["t3", "t3-mca", "ideal-overlap"])


def gemm_time(comparison, overlap):
    return comparison[overlap].duration("gemm")


def waited_for_memory(comparison, overlap):
    return comparison[overlap].spans[0].waits["memory"]


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
