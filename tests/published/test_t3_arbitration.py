"""T3's reason for communication-aware arbitration (ASPLOS 2024): bursts of communication hold up the GEMM's accesses.

On the paper's machine the GEMM's bursts of updates wait; where memory is scarce, its loads wait as well.
"""

import pytest
from runs import tiled

from weft import hardware
from weft.kernels import GemmTiling
from weft.models.parallel import sublayer
from weft.simulate import compare

OVERLAPS = ["t3", "t3-mca", "ideal-overlap"]


@pytest.fixture(scope="module")
def paper():
    return compare(sublayer("t-nlg", "fc2", tp=8), "t3-paper", OVERLAPS)


@pytest.fixture(scope="module")
def scarce():
    machine = hardware.gpu("t3-paper").replace({"memory.bandwidth": "512 GB/s"})
    return compare(tiled(sublayer("t-nlg", "fc2", tp=8), GemmTiling(step=16)), machine, OVERLAPS)


def waits(comparison, overlap):
    """Time of a workgroup slot of the GEMM by what it waits for [s]."""
    return comparison[overlap].spans[0].per_workgroup


def loads(comparison, overlap):
    return waits(comparison, overlap)["memory"]


def stores(comparison, overlap):
    return waits(comparison, overlap)["store"]


def gemm_time(comparison, overlap):
    """The GEMM's time without what its stores wait for the link: arbitration of memory cannot give that back."""
    return comparison[overlap].duration("gemm") - waits(comparison, overlap)["link"]


def given_back(comparison, measure):
    """The share of what the GEMM loses under T3 that arbitration gives back."""
    alone, without, with_it = (measure(comparison, name) for name in ("sequential", "t3", "t3-mca"))
    return (without - with_it) / (without - alone)


def test_without_arbitration_the_gemms_bursts_of_updates_wait_for_memory(paper):
    assert gemm_time(paper, "t3") > 1.08 * gemm_time(paper, "sequential")
    assert stores(paper, "t3") > 5 * stores(paper, "sequential")


def test_where_memory_is_scarce_its_loads_wait_as_well(scarce):
    assert gemm_time(scarce, "t3") > 1.1 * gemm_time(scarce, "sequential")
    assert loads(scarce, "t3") > 2 * loads(scarce, "sequential")


@pytest.mark.parametrize("measure", [gemm_time, stores])
def test_arbitration_gives_the_gemm_most_of_what_it_lost_back(paper, measure):
    assert given_back(paper, measure) > 0.5


@pytest.mark.parametrize("measure", [gemm_time, loads])
def test_arbitration_gives_most_back_where_memory_is_scarce(scarce, measure):
    assert given_back(scarce, measure) > 0.5


@pytest.mark.parametrize("machine", ["paper", "scarce"])
def test_the_published_order_holds(machine, request):
    compared = request.getfixturevalue(machine)
    speedups = [compared.speedup(name) for name in ("sequential", *OVERLAPS)]
    assert speedups == sorted(speedups)
