"""T3's reduce-scatter on real numbers: the order of updates as the simulated memory performed them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import parallel
from weft.cli.main import main
from weft.errors import InputError, SimulationError, UnknownNameError
from weft.kernels import GemmTiling
from weft.models import SubLayer
from weft.result.timeline import TileUpdates
from weft.run.replay import ROUNDED, performed, products, ring_sums

GPU = weft.gpu("t3-paper")


def graph(ranks: int) -> weft.Graph:
    return parallel.split(SubLayer.custom(512, 512, 512 * ranks // 8, "fp16"), ranks)


def replayed(ranks: int = 4, overlap: str = "t3", system: object = "t3-paper", **options: object):
    return weft.replay(graph(ranks), system, overlap, weft.RunOptions(**options))


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_bit_is_that_of_a_ring_by_the_book(ranks, dtype):
    done = weft.replay(graph(ranks), "t3-paper", "t3-mca", dtype=dtype)
    assert done.errors.same_as_ring == 1
    tiles = np.count_nonzero(done.run.updates.here_fs >= 0) + np.count_nonzero(done.run.updates.peer_fs >= 0)
    assert done.updates == tiles


def test_the_result_does_not_depend_on_the_arbiter_or_on_a_slow_gpu():
    slow = weft.System(gpu=GPU, gpus=4, variants={2: GPU.replace({"compute.clock": "0.5 GHz"})})
    first = replayed()
    others = replayed(arbiter="communication-first"), replayed(overlap="t3-mca"), replayed(system=slow)
    assert others[-1].run.seconds > first.run.seconds
    for other in others:
        assert np.array_equal(other.result, first.result)


def test_rounding_near_memory_costs_more_the_more_gpus_add():
    two, four, eight = (replayed(ranks).errors for ranks in (2, 4, 8))
    assert two.near_memory == two.fp32
    assert 1.3 < four.near_memory / four.fp32 < 1.9
    assert 1.8 < eight.near_memory / eight.fp32 < 2.6


def test_sent_straight_to_their_owners_tiles_depend_on_who_comes_first():
    slow = weft.System(gpu=GPU, gpus=4, variants={2: GPU.replace({"compute.clock": "0.5 GHz"})})
    assert replayed(2).errors.same_by_arrival == 1
    assert replayed(8).errors.same_by_arrival < 0.95
    assert replayed(4).errors.same_by_arrival != replayed(4, system=slow).errors.same_by_arrival


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([3, 4, 6]), st.sampled_from([*ROUNDED]))
def test_a_ring_gives_the_same_bits_whatever_order_its_updates_come_in(seed, ranks, dtype):
    """Of each tile its own part and the peer's sum come in any order that the ring allows."""
    rng = np.random.default_rng(seed)
    tiling = GemmTiling(rows=4, columns=4, threads=64)
    tiles = np.array([[[p, (g + 1 + p) % ranks, 0, 4, 4] for p in range(ranks)] for g in range(ranks)])
    here, peer = np.full((ranks, ranks, 1, 1), -1), np.full((ranks, ranks, 1, ranks - 1), -1)
    for p in range(1, ranks):
        own, came = rng.integers(0, 5, (2, ranks))
        here[:, p, 0, 0] = 10 * p + own
        peer[:, p, 0, 0] = 10 * p + came
    partials = products(4 * ranks, 4, 16, ranks, dtype, seed % 1000)
    chunks, count = performed(TileUpdates(tiles, here, peer), partials, tiling, dtype)
    owner = np.repeat(np.arange(ranks), 4)[:, None] * np.ones((1, 4), dtype=int)
    result = np.nanmax(np.where(np.isnan(chunks), -np.inf, chunks), axis=0)
    assert count == 2 * ranks * (ranks - 1)
    assert np.array_equal(result, ring_sums(partials, owner, dtype).astype(np.float32))


def test_an_update_that_comes_before_its_sum_is_found():
    tiles = np.array([[[p, (g + 1 + p) % 3, 0, 4, 4] for p in range(3)] for g in range(3)])
    here, peer = np.full((3, 3, 1, 1), -1), np.full((3, 3, 1, 2), -1)
    here[:, 1], peer[:, 1, 0, 0], here[:, 2], peer[:, 2, 0, 0] = 10, 11, 5, 6
    with pytest.raises(SimulationError, match="had summed it"):
        performed(
            TileUpdates(tiles, here, peer),
            products(12, 4, 8, 3, "fp16"),
            GemmTiling(rows=4, columns=4, threads=64),
            "fp16",
        )


def test_recording_updates_changes_nothing():
    plain, logged = (
        weft.simulate(graph(4), "t3-paper", "t3", weft.RunOptions(mode="explicit", updates=on)) for on in (False, True)
    )
    assert plain.seconds == logged.seconds
    assert plain.updates is None


def test_bf16_rounds_to_the_nearest_and_of_two_to_the_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.0e38], dtype=np.float32)
    assert ROUNDED["bf16"](values)[:4].tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7]


def test_what_updates_nothing_near_memory_is_refused():
    with pytest.raises(InputError, match="'sequential' updates no tiles near memory"):
        replayed(overlap="sequential")
    with pytest.raises(UnknownNameError, match="fp8"):
        weft.replay(graph(4), "t3-paper", dtype="fp8")


def run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["replay", *words])
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


def test_the_command_says_what_rounding_costs(capsys, tmp_path):
    file = tmp_path / "replay.json"
    status, said, _ = run(capsys, "t3", "--tp", "4", "--gemm", "512,512,512", "--slow", "1", "--json", str(file))
    assert status == 0
    assert "100% of the elements have the bits of a ring by the book" in said
    assert json.loads(file.read_text())["same_as_ring"] == 1


def test_a_slow_gpu_that_is_not_there_is_refused(capsys):
    status, _, said = run(capsys, "t3", "--tp", "4", "--slow", "4")
    assert status != 0
    assert "--slow is 4, but there are GPUs 0 to 3" in said
