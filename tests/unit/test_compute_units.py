"""GEMMs on some of a GPU's compute units: which units a mask allows, rounds of workgroups, and the clock."""

from collections import Counter
from dataclasses import replace

import pytest

import weft
from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT, SUSTAINED
from weft.graph import Gemm, TiledGemm
from weft.kernels.compute_units import Placement, split_units, units_left, units_of_mask
from weft.overlaps.lower.fit import tiling_for
from weft.simulate.single import alone, simulate

GPU = hardware.gpu("mi300x")
SQUARE = Gemm(4096, 4096, 4096, "bf16")
"""304 tiles of 256 x 224: 38 for each of MI300X's eight XCDs."""


def shaders_of(mask):
    """Units of a mask by XCD and shader engine: unit u lies in XCD u // 38, and its units go to the engines in turn."""
    return Counter((unit // 38, unit % 38 % 4) for unit in mask)


def test_bits_of_a_mask_go_to_the_dies_in_turn_and_then_to_their_shader_engines():
    assert set(shaders_of(units_of_mask(GPU, range(8))).values()) == {1}
    assert shaders_of(units_of_mask(GPU, range(8))).keys() == {(xcd, 0) for xcd in range(8)}
    assert shaders_of(units_of_mask(GPU, range(16))).keys() == {(xcd, engine) for xcd in range(8) for engine in (0, 1)}
    everything = shaders_of(units_of_mask(GPU, range(304)))
    assert [everything[0, engine] for engine in range(4)] == [10, 10, 9, 9]
    with pytest.raises(InputError, match="bit 304 of a mask has no compute unit; mi300x has 0 to 303"):
        units_of_mask(GPU, [304])


def test_a_mask_of_so_many_units_takes_equally_many_of_each_shader_engine():
    counts = shaders_of(units_left(GPU, 256))
    assert set(counts.values()) == {8}
    assert units_left(GPU, 304) is units_left(GPU, None) is None
    with pytest.raises(InputError, match="compute_units is 305, but mi300x has 304; choose 1 to 304"):
        units_left(GPU, 305)


@pytest.mark.parametrize(
    ("placement", "rounds"),
    [
        (Placement(), 1),  # a dispatcher passes by a shader engine without room
        (Placement(units_left(GPU, 296)), 2),  # 10 tiles for each engine, 9 units in some
        (Placement(units_left(GPU, 256)), 2),
        (Placement(units_left(GPU, 128)), 3),  # 10 tiles on 4 units
        (Placement(units_of_mask(GPU, range(40))), 10),  # one engine of each XCD has two units, the others one
        (Placement(units_of_mask(GPU, range(16))), 19),  # two engines of each XCD share its 38 tiles
        (Placement(grid=128), 3),  # 38 tiles on 16 units, taken as they come
    ],
)
def test_each_shader_engine_of_a_mask_gets_equally_many_workgroups(placement, rounds):
    assert placement.rounds(304, GPU) == rounds


def test_the_clock_rises_as_fewer_units_share_the_power():
    few = Placement(units_left(GPU, 128))
    assert few.clock_gain(304, GPU, SUSTAINED) == pytest.approx(3 ** (1 / 3))
    assert Placement(units_left(GPU, 8)).clock_gain(304, GPU, SUSTAINED) == pytest.approx(2100 / 1207)
    assert few.clock_gain(304, GPU, SHORT) == Placement().clock_gain(304, GPU, SUSTAINED) == 1
    other = hardware.gpu("h100-sxm")
    assert Placement(units_left(other, 66)).clock_gain(304, other, SUSTAINED) == 1  # no exponent is known
    assert few.clock_gain(304, GPU.replace({"clocks.power_exponent": 2.4}), SUSTAINED) == pytest.approx(3 ** (1 / 2.4))


@pytest.mark.parametrize("units", [296, 256, 200, 128, 64])
@pytest.mark.parametrize("gemm", [SQUARE, Gemm(8192, 8192, 2048, "bf16")])
def test_closed_form_and_engine_agree_under_a_mask(gemm, units):
    graph = alone(gemm, compute_units=units_left(GPU, units))
    assert weft.estimate(graph, GPU).seconds == pytest.approx(simulate(graph, GPU).seconds, rel=0.02)
    assert weft.estimate(graph, GPU).seconds > weft.estimate(gemm, GPU).seconds


def test_as_many_units_take_longer_where_shader_engines_have_unequally_many():
    """128 units, 16 of each XCD: four of each engine, or the first 16 bits of each run of 38, two of one engine."""
    even = simulate(alone(SQUARE, compute_units=units_left(GPU, 128)), GPU).seconds
    mask = units_of_mask(GPU, [38 * run + bit for run in range(8) for bit in range(16)])
    assert len(mask) == 128
    uneven = simulate(alone(SQUARE, compute_units=mask), GPU).seconds
    assert uneven == pytest.approx((5 / 3) ** (2 / 3) * even, rel=0.05)  # five rounds for three, at a higher clock


def test_a_persistent_kernel_runs_at_most_its_grid_at_once_and_takes_tiles_as_they_come():
    tiling = replace(tiling_for(SQUARE, GPU), persistent=128)
    run = simulate(alone(SQUARE, kernel=TiledGemm(tiling)), GPU)
    whole = simulate(alone(SQUARE), GPU)
    assert run.seconds == pytest.approx(3 ** (2 / 3) * whole.seconds, rel=0.05)
    assert run.held["gemm"] == 128
    assert whole.held["gemm"] == 304


def test_a_machine_without_shader_engines_deals_as_before():
    """The paper's machine has no power limit and one group of units: a mask of half of them takes twice the rounds."""
    paper, gemm = hardware.gpu("t3-paper"), Gemm(2048, 2560, 1024)
    half = simulate(alone(gemm, compute_units=split_units(paper, 40).gemm), paper).seconds
    assert Placement(split_units(paper, 40).gemm).shaders(paper) == 1
    assert half / simulate(alone(gemm), paper).seconds == pytest.approx(2, rel=0.1)


def test_a_library_of_inference_is_not_timed_under_a_mask():
    from weft.estimate import BenchmarkProtocol

    harness = BenchmarkProtocol(served="sglang", mask=(0, 1))
    with pytest.raises(InputError, match="kernels of sglang are timed on all compute units, not under a mask"):
        weft.estimate(Gemm(64, 4096, 4096, "fp8"), "h100-sxm", harness=harness)
    with pytest.raises(InputError, match=r"the mask of a GEMM is .*; give one or more of 0 to 303, or None"):
        weft.estimate(SQUARE, GPU, harness=BenchmarkProtocol(mask=(0, 304)))


def test_beside_a_collective_the_power_is_shared_by_the_units_of_both():
    """304 tiles in one round leave no unit to spare; in two rounds beside 56 held units 208 of 304 work."""
    assert Placement().rounds(304, GPU, held=56) == 2
    assert Placement().clock_gain(304, GPU, SUSTAINED, held=56) == pytest.approx((304 / (152 + 56)) ** (1 / 3))
    assert Placement().rounds(256, GPU, held=32) == 1
    assert Placement().clock_gain(256, GPU, SUSTAINED, held=32) == pytest.approx((256 / 288) ** (1 / 3))
    mask = Placement(units_left(GPU, 128))  # three rounds, and a collective on the units left out
    assert mask.clock_gain(304, GPU, SUSTAINED, held=176) == pytest.approx((304 / (304 / 3 + 176)) ** (1 / 3))
    assert Placement().clock_gain(304, hardware.gpu("h100-sxm"), SUSTAINED, held=24) == 1
