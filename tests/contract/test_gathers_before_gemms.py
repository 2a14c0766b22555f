"""What every overlap of an all-gather and the GEMM behind it promises, on every fabric."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from machines import gpu, lowered
from runs import run as simulate

from weft.core.errors import InputError
from weft.engine import layout as y
from weft.graph import Edge, Gemm, TrackedArrivals
from weft.hardware import FABRICS, System
from weft.kernels import GemmTiling
from weft.models.parallel import dependent
from weft.overlaps import BUILT_IN
from weft.overlaps import OVERLAPS as METHODS
from weft.overlaps.joined import fit_rows

TP = 4
GPU = gpu()
LINES = METHODS["t3-all-gather"]
GEMM = Gemm(2048, 512, 512, "fp16")
"""Four lines of tiles in a chunk."""
LAYER = dependent("ag_gemm", GEMM, TP)
CHUNK = LAYER["all_gather"].op.bytes // TP
OVERLAPS = [one.name for one in BUILT_IN if one.accepts(LAYER)]
FABRIC = ["switch", "ring", "full", "torus", "nodes"]
LOADS = "remote-loads"
"""The overlap that copies no rows, for GPUs that reach each other without passing a third."""
EACH = [(fabric, name) for fabric in FABRIC for name in OVERLAPS if name != LOADS or fabric in ("switch", "full")]


def by_lines(lines):
    """The overlap whose tiles begin as soon as a number of tile rows of a chunk have arrived."""
    return replace(LINES, kernel=TrackedArrivals(lines))


def joined(fabric="switch", tp=TP, **changes):
    """GPUs whose fabric lets each send as much as by its link; a node holds two of them."""
    one, shaped = gpu(**changes), {"each": 2} if fabric == "nodes" else {}
    each = one.link.bandwidth / (tp - 1 if fabric == "full" else 1)
    return System(gpu=one, gpus=tp, fabric=FABRICS[fabric](tp, each, one.link.latency, **shaped))


@pytest.fixture(scope="module")
def runs():
    return {(fabric, name): simulate(LAYER, joined(fabric), name) for fabric, name in EACH}


def test_in_sequence_is_one_of_them():
    assert OVERLAPS == ["sequential", "flux", "userbuffers", "t3-all-gather", LOADS]


@pytest.mark.parametrize(("fabric", "name"), EACH)
def test_every_overlap_moves_the_same_bytes_as_in_sequence(runs, fabric, name):
    run = runs[fabric, name]
    moved = {cause: count for cause, count in run.traffic.items() if cause[0] == "all_gather"}
    kinds = ("read",) if name == LOADS else ("read", "write")  # loads bring rows into the cache alone
    assert moved == {("all_gather", kind): (TP - 1) * CHUNK for kind in kinds}
    assert run.counters["link_bytes"] == runs[fabric, "sequential"].counters["link_bytes"]
    assert run.bytes("gemm", "write") <= GEMM.output_bytes


@pytest.mark.parametrize(("fabric", "name"), EACH)
def test_no_overlap_beats_the_matrix_units_or_the_link_and_waiting_tiles_end_within_the_sum(runs, fabric, name):
    run = runs[fabric, name]
    roofline = GEMM.flops / GPU.matrix_rate("fp16", "boost")
    link = (TP - 1) * CHUNK / GPU.link.bandwidth
    assert run.seconds >= max(roofline, link / (2 if fabric in ("ring", "torus") else 1))  # links both ways
    if name in ("flux", "t3-all-gather") and fabric != "nodes":  # where copies end long before they arrive
        assert run.seconds <= runs[fabric, "sequential"].duration("gemm") + run.duration("all_gather")


@pytest.mark.parametrize("fabric", ["switch", "full"])  # elsewhere lines are passed on
def test_a_chunk_at_a_time_tile_lines_are_flux_to_the_digit(runs, fabric):
    flux, lines = runs[fabric, "flux"], simulate(LAYER, joined(fabric), by_lines(4))
    assert lines.seconds == flux.seconds
    assert dict(lines.traffic) == dict(flux.traffic)


@pytest.mark.parametrize(("fabric", "name"), [one for one in EACH if one[0] in ("switch", "ring", "full")])
def test_one_gpu_stands_for_all(runs, fabric, name):
    every = simulate(LAYER, joined(fabric), name, mode="explicit")
    assert every.seconds == pytest.approx(runs[fabric, name].seconds, rel=0.01)
    for kind in ("read", "write"):
        assert every.bytes("all_gather", kind) == runs[fabric, name].bytes("all_gather", kind)


@pytest.mark.parametrize("fabric", ["switch", "full"])
@pytest.mark.parametrize("lines", [1, 2])
def test_tile_lines_end_no_later_than_the_longer_of_both_allows(fabric, lines):
    """What is left after the last line has come is its own tiles, in one stage of the GEMM."""
    narrow = dependent("ag_gemm", Gemm(4096, 256, 1024, "fp16"), TP)
    run = simulate(narrow, joined(fabric, compute__stages_in_step=0), by_lines(lines))
    alone = simulate(narrow, joined(fabric), "sequential").duration("gemm")
    gather = run.duration("all_gather")
    waves = -(-GemmTiling().workgroups(narrow["gemm"].op) // (GPU.compute.compute_units * 2))
    assert max(alone, gather) <= 1.01 * run.seconds
    assert run.seconds <= max(alone, gather) + lines * alone / waves


@pytest.mark.parametrize("wide", [256, 1024])
def test_on_a_full_mesh_lines_of_all_peers_arrive_together_and_need_no_chunk(wide):
    work = dependent("ag_gemm", Gemm(4096, wide, 1024, "fp16"), TP)
    flux, fine, coarse = (simulate(work, joined("full"), one) for one in ("flux", LINES, by_lines(4)))
    assert fine.seconds < coarse.seconds < flux.seconds


def test_a_tile_waits_for_its_line_and_the_gpus_own_tiles_for_nothing():
    """With a link that takes longer than everything else, tiles end in the order in which their lines come."""
    slow = joined(link__bandwidth="1 GB/s", compute__stages_in_step=0)
    run = simulate(LAYER, slow, LINES)
    ends = run.residency.rows[run.residency.rows[:, 1] == list(run.residency.kernels).index("gemm"), 4]
    come = {chunk.position: chunk.last_remote_fs for chunk in run.chunks if chunk.buffer == "a"}
    per_line = GEMM.n // GemmTiling().columns
    own, others = ends[: 4 * per_line], ends[4 * per_line :].reshape(-1, per_line)
    assert own.max() < min(when for when in come.values() if when is not None)
    for line, each in enumerate(others, 4):
        assert come[line] < each.min()
        assert line == 15 or each.max() < come[line + 1]


def test_lines_need_a_tracker_and_chunks_nothing_that_cannot_be_bought(runs):
    assert runs["switch", "t3-all-gather"].hypothetical == ("a tracker of tile lines that arrive",)
    assert runs["switch", LOADS].hypothetical == ("a cache of other GPUs' memory",)
    assert not any(runs["switch", name].hypothetical for name in OVERLAPS if name not in ("t3-all-gather", LOADS))


def test_rows_are_loaded_where_no_third_gpu_is_passed():
    with pytest.raises(InputError, match="tiles load rows from the GPUs that have them, but in the fabric 'ring'"):
        simulate(LAYER, joined("ring"), LOADS)


def test_lines_come_in_the_order_in_which_tiles_need_them():
    for fabric, order in (("switch", np.arange(4, 16)), ("full", np.arange(4, 16).reshape(3, 4).T.ravel())):
        made = lowered(LAYER, LINES, joined(fabric))
        lanes = made.tables.work[0, :, y.WORK_LANE]
        awaited = list(dict.fromkeys(lanes[lanes >= 0].tolist()))
        assert awaited == order.tolist()


@pytest.mark.parametrize("fabric", ["ring", "torus"])
def test_where_chunks_would_pass_other_gpus_lines_are_passed_on_as_they_arrive(fabric):
    work = dependent("ag_gemm", Gemm(4096, 256, 1024, "fp16"), 8)
    found = {name: simulate(work, joined(fabric, 8), name) for name in ("sequential", "flux", "t3-all-gather")}
    assert found["t3-all-gather"].duration("all_gather") <= found["sequential"].duration("all_gather")
    assert found["t3-all-gather"].seconds < min(found["flux"].seconds, found["sequential"].seconds)
    pieces = [chunk for chunk in found["t3-all-gather"].chunks if chunk.buffer == "a" and chunk.gpu == 0]
    passed = [chunk for chunk in pieces if chunk.last_remote_fs is not None and chunk.first_sent_fs is not None]
    assert len(passed) == 4 * 6
    assert all(chunk.first_sent_fs > chunk.last_remote_fs for chunk in passed)
    for earlier, later in pairwise(passed):
        assert earlier.last_remote_fs < later.last_remote_fs


def test_a_late_gpu_holds_up_its_own_lines_alone():
    late = joined()._with(start={2: "200 us"})
    run, equal = (simulate(LAYER, on, LINES, mode="explicit") for on in (late, joined()))
    assert equal.seconds + 150e-6 <= run.seconds <= equal.seconds + 201e-6


@pytest.mark.parametrize(
    ("work", "one", "words"),
    [
        (dependent("gemm_ar", GEMM, TP), LINES, "choose 'sequential', 'flux', .*'t3'"),
        (LAYER, by_lines(3), "4 tile lines of 128, which 3 at a time do not divide"),
        (dependent("ag_gemm", Gemm(2050, 512, 512, "fp16"), TP), LINES, "not chunks of whole tiles"),
    ],
)
def test_what_cannot_be_cut_into_lines_is_refused_with_the_next_step(work, one, words):
    with pytest.raises(InputError, match=words):
        simulate(work, GPU, one)


@pytest.mark.parametrize("lines", [-1, 0, 1.5])
def test_lines_at_a_time_are_a_whole_number(lines):
    with pytest.raises(InputError, match=rf"tile_rows is {lines}; it must be a whole number of at least 1"):
        by_lines(lines)


@pytest.mark.parametrize("rows", [320, 192, 96])
def test_a_tile_whose_halves_make_up_no_chunk_gives_way_to_a_power_of_two(rows):
    fitted = fit_rows(GEMM, GemmTiling(rows=rows, columns=96), TP)
    assert fitted.rows >= 32
    assert GEMM.m // TP % fitted.rows == 0
    assert fit_rows(GEMM, GemmTiling(rows=256), TP) == GemmTiling(rows=256)


def test_k_in_parts_has_no_tile_lines():
    with pytest.raises(InputError, match="K"):
        simulate(LAYER, GPU, LINES, tiling=GemmTiling(splits=2))


def test_a_gemm_that_waits_for_tiles_of_a_ring_is_refused():
    class ByTile(type(METHODS["sequential"])):
        def apply(self, graph, gpu):
            gather, gemm = super().apply(graph, gpu).nodes
            return replace(graph, nodes=(gather, replace(gemm, after=(Edge(gather.id, "tile"),))))

    with pytest.raises(InputError, match="let it wait by kernel"):
        simulate(LAYER, GPU, ByTile("by-tile", "", ""))
