"""T3's reduce-scatter on real numbers: the order of updates as the simulated memory performed them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from runs import tiled

import weft
from weft.cli.main import main
from weft.core.errors import InputError, SimulationError, UnknownNameError
from weft.graph import TrackedArrivals
from weft.hardware import FABRICS
from weft.kernels import GemmTiling
from weft.models import SubLayer, parallel
from weft.overlaps import OVERLAPS
from weft.overlaps.registry import BUILT_IN
from weft.simulate.gathered import perform_tiles as replay_gather
from weft.simulate.replay import ROUNDED, perform_updates, products, ring_sums
from weft.simulate.result.timeline import TileUpdates

GPU = weft.gpu("t3-paper")
PAGE = 4096
"""What lines are padded to in memory [bytes]."""


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
    chunks, count = perform_updates(TileUpdates(tiles, here, peer), partials, tiling, dtype)
    owner = np.repeat(np.arange(ranks), 4)[:, None] * np.ones((1, 4), dtype=int)
    result = np.nanmax(np.where(np.isnan(chunks), -np.inf, chunks), axis=0)
    assert count == 2 * ranks * (ranks - 1)
    assert np.array_equal(result, ring_sums(partials, owner, dtype).astype(np.float32))


def test_an_update_that_comes_before_its_sum_is_found():
    tiles = np.array([[[p, (g + 1 + p) % 3, 0, 4, 4] for p in range(3)] for g in range(3)])
    here, peer = np.full((3, 3, 1, 1), -1), np.full((3, 3, 1, 2), -1)
    here[:, 1], peer[:, 1, 0, 0], here[:, 2], peer[:, 2, 0, 0] = 10, 11, 5, 6
    with pytest.raises(SimulationError, match="had summed it"):
        perform_updates(
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


WHERE = {
    **dict.fromkeys(("t3", "t3-mca", "t3-critical", "t3-split-k", "t3-two-level"), tuple(FABRICS)),
    **dict.fromkeys(("t3-direct", "t3-direct-dma"), ("full", "switch")),
}
"""Overlaps that add up tiles in memory, and the fabrics on which they can."""


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("overlap", "fabric"), [(name, one) for name in WHERE for one in WHERE[name]])
def test_every_reduce_scatter_of_t3_sums_right_on_every_fabric(overlap, fabric, splits):
    """With K whole and in parts, and with one GPU slow and another late."""
    shaped = {"nodes": {"each": 2}, "torus": {"columns": 2}}.get(fabric, {})
    equal = weft.System(gpu=GPU, gpus=4, fabric=FABRICS[fabric](4, 50e9, 500e-9, **shaped))
    work = tiled(graph(4), GemmTiling(rows=64, columns=64, splits=splits))
    for system in (equal, equal._with(variants={2: GPU.replace({"compute.clock": "0.5 GHz"})}, start={1: "20 us"})):
        done = weft.replay(work, system, overlap)
        exact = done.partials.astype(np.float64).sum(axis=0)
        assert np.abs(done.result - exact).max() < 0.002 * np.abs(exact).max()
        assert done.errors.fp32 <= done.errors.near_memory < 3 * done.errors.fp32


def test_all_of_t3s_reduce_scatters_but_one_are_replayed():
    ways = {one.name for one in BUILT_IN if one.name.startswith("t3") and one.accepts(graph(4))}
    assert ways - set(WHERE) <= {"t3-nvls"}  # sums of a switch are in no log


@pytest.mark.parametrize("overlap", ["sequential", "rs-nmc", "ideal-rs-nmc"])
def test_what_updates_no_tiles_near_memory_is_refused(overlap):
    with pytest.raises(InputError, match=f"'{overlap}' updates no tiles near memory"):
        replayed(overlap=overlap)


def test_an_unknown_format_of_sums_is_refused():
    with pytest.raises(UnknownNameError, match="fp8"):
        weft.replay(graph(4), "t3-paper", dtype="fp8")


# -- an all-gather before a GEMM

GATHERED = parallel.dependent("ag_gemm", weft.Gemm(1024, 256, 64, "fp16"), 4)
WAYS = ["sequential", "flux", "userbuffers", "t3-all-gather"]


def joined(fabric: str, **changes: object) -> weft.System:
    """Four GPUs, each with its own rate to each peer in a full mesh."""
    return weft.System(gpu=GPU, gpus=4, fabric=FABRICS[fabric](4, 50e9, 500e-9))._with(**changes)


@pytest.mark.parametrize("fabric", ["switch", "ring", "full"])
@pytest.mark.parametrize("overlap", WAYS)
def test_no_tile_multiplies_rows_that_are_not_there_yet(overlap, fabric):
    done = weft.replay(GATHERED, joined(fabric), overlap)
    lines = 2 if overlap == "t3-all-gather" else 1
    assert (done.pieces, done.tiles) == (4 * 3 * lines, 4 * 8 * 2)
    assert done.same == 1
    whole = done.operand.astype(np.float64) @ done.weights.astype(np.float64)
    assert np.allclose(done.products, whole, rtol=1e-4, atol=1e-3)


def test_rows_that_are_not_copied_cannot_be_early():
    with pytest.raises(InputError, match="under 'remote-loads' tiles load rows from where they lie before the run"):
        weft.replay(GATHERED, joined("switch"), "remote-loads")


def test_products_are_the_same_however_slow_a_gpu_is_and_whatever_the_grain():
    ways = [OVERLAPS["t3-all-gather"], replace(OVERLAPS["t3-all-gather"], kernel=TrackedArrivals(2))]
    done = [weft.replay(GATHERED, joined("ring", start=start), way) for way in ways for start in ({}, {2: "40 us"})]
    assert len({one.run.seconds for one in done}) == 4
    assert all(np.array_equal(one.products, done[0].products) for one in done)


@example(4, 3, 1, 1, "ring", "20 GB/s")
@example(4, 3, 46, 46, "full", "900 GB/s")
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([2, 3, 4]),
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(1, 90),
    st.sampled_from(["switch", "ring", "full"]),
    st.sampled_from(["20 GB/s", "150 GB/s", "900 GB/s"]),
)
def test_lines_of_any_shape_on_any_fabric_multiply_the_right_rows(ranks, lines, columns, k, fabric, rate):
    """Also where lines do not fill pages of memory, and links are far slower or faster than the GEMM.

    Lines that DMA engines have read at one femtosecond leave in the order of their requests, which is not that of other
    GPUs: a mirrored run, whose GPUs all choose alike, is up to a line's time on a link away for each engine, of which
    there is one for every other GPU, and two at least.
    """
    one = GPU.replace({"link.bandwidth": rate})
    each = one.link.bandwidth / (ranks - 1 if fabric == "full" else 1)
    on = weft.System(gpu=one, gpus=ranks, fabric=FABRICS[fabric](ranks, each, one.link.latency))
    work = parallel.dependent("ag_gemm", weft.Gemm(64 * lines * ranks, columns, k, "fp16"), ranks)
    tiled = work.with_tiling(GemmTiling(rows=64, columns=64))
    done = weft.replay(tiled, on, "t3-all-gather")
    assert done.pieces == ranks * (ranks - 1) * lines
    assert done.same == 1
    mirrored = weft.simulate(tiled, on, "t3-all-gather")
    line = math.ceil(64 * k * 2 / PAGE) * PAGE / each
    assert mirrored.seconds == pytest.approx(done.run.seconds, rel=0.01, abs=max(2, ranks - 1) * line)


@pytest.mark.parametrize("fabric", ["switch", "ring"])
def test_a_tile_or_a_line_that_is_early_is_found(fabric):
    """Every time of the log matters: a tile begun before its line, and a line passed on before it came."""
    done = weft.replay(GATHERED, joined(fabric), "t3-all-gather")
    tiling = done.run.graph.gemms[0].choice.tiling

    def again(begun_fs=done.run.updates.begun_fs, chunks=done.run.chunks):
        updates = replace(done.run.updates, begun_fs=begun_fs)
        return replay_gather(updates, chunks, done.operand, done.weights, tiling)[0]

    assert np.array_equal(again(), done.products)
    early = done.run.updates.begun_fs.copy()
    early[1, -1] = min(one.last_remote_fs for one in done.run.chunks if one.last_remote_fs) - 1
    with pytest.raises(SimulationError, match="tile 15 of GPU 1 began before its rows were there"):
        again(begun_fs=early)
    if fabric == "ring":
        hasty = [
            replace(one, first_sent_fs=0) if one.last_remote_fs and one.first_sent_fs else one
            for one in done.run.chunks
        ]
        with pytest.raises(SimulationError, match="passed rows on before it had them"):
            again(chunks=tuple(hasty))


def test_the_command_replays_an_all_gather(capsys):
    status, said, _ = run(capsys, "t3-all-gather", "--tp", "4", "--gemm", "1024,512,64")
    assert status == 0
    assert "no tile began before its rows were there, and 100% of the elements" in said
    status, said, _ = run(capsys, "flux", "--form", "ag_gemm", "--tp", "2", "--gemm", "512,512,64")
    assert (status, "under flux, 2 pieces" in said) == (0, True)


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
