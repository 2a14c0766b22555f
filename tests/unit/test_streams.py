"""A GEMM and a collective that do not depend on each other: who gets compute units, who waits, what moves."""

from dataclasses import replace

import numpy as np
import pytest
from machines import finish, gpu, interpret
from runs import CollectiveLoop, GemmLoop, Streams, beside, link_bytes, overlapped, ring_collective
from state import check_drained, dram_bytes, ended, launched, now, workgroups

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import build
from weft.graph import Gemm
from weft.hardware import System
from weft.hardware.systems import GENERATIONS, ring_kernels
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelRing, ChannelTiling
from weft.kernels.copies import DmaGather
from weft.overlaps.lower.collectives import library_ring
from weft.overlaps.lower.fit import most_resident
from weft.overlaps.lower.machine import machine_tables

KIB = 1024
GEMM = Gemm(512, 512, 256, "fp16")
SMALL = ChannelTiling(channels=2, threads=256, chunk=32 * KIB, in_flight=16 * KIB, sync=1e-6, start=2e-6, lds=0)


def machine(strict=True, **changes):
    """A small GPU whose dispatcher places kernels strictly in order, as NVIDIA's does, or not."""
    small = gpu(compute__compute_units=8, memory__channels=8, memory__bandwidth="256 GB/s", **changes)
    return small.model_copy(update={"vendor": "nvidia" if strict else "none"})


def ring(collective="all_reduce", bytes_=256 * KIB, ranks=4, tiling=SMALL):
    return ChannelRing(collective, bytes_, ranks, tiling)


def lowered(streams, on, gpus=1, ranks=4):
    plan = streams.plan(on, gpus)
    return build(
        plan,
        machine_tables(System(gpu=on, gpus=ranks), gpus, RunOptions(request_bytes=512), most_resident(plan, on)),
    )


def span(built, m, name):
    """When a kernel's launch was over, when it ended, and its workgroups."""
    k = built.kernel_names.index(name)
    return launched(m, k), ended(m, k), workgroups(m, k)


def full():
    """A tiling whose workgroup leaves no registers for a ring kernel's."""
    return GemmTiling(64, 64, 32, threads=1536)


def test_a_collective_launched_during_a_gemm_waits_until_the_gemms_last_workgroup_is_placed():
    on = machine()
    built = lowered(Streams(GemmLoop(GEMM, full(), 2), CollectiveLoop(ring(), 1), first="gemm"), on)
    m = finish(built)
    _, _, gemm = span(built, m, "gemm")
    since, _, ring_groups = span(built, m, "all_reduce")
    assert since < gemm.start.max()
    assert ring_groups.start.min() >= gemm.start.max()


def test_without_strict_order_a_collective_takes_what_fits_beside_the_gemm():
    half = GemmTiling(64, 64, 32, threads=1024)  # leaves no room for a second of its kind, but for a ring kernel's
    for strict in (False, True):
        built = lowered(Streams(GemmLoop(GEMM, half, 1), CollectiveLoop(ring(), 1), first="gemm"), machine(strict))
        m = finish(built)
        since, _, ring_groups = span(built, m, "all_reduce")
        assert (ring_groups.start.max() == since) is not strict


def test_a_collective_that_came_first_keeps_its_units_until_it_ends():
    built = lowered(Streams(GemmLoop(GEMM, full(), 1), CollectiveLoop(ring(), 1)), machine())
    m = finish(built)
    _, ends, ring_groups = span(built, m, "all_reduce")
    _, _, gemm = span(built, m, "gemm")
    taken = set(ring_groups.unit.tolist())
    early = gemm.unit[gemm.start < ring_groups.end.min()]
    assert len(taken) == SMALL.channels
    assert taken.isdisjoint(early.tolist())
    assert ends == ring_groups.end.max()


def test_kernels_of_one_stream_follow_each_other():
    built = lowered(Streams(GemmLoop(GEMM, full(), 3), CollectiveLoop(ring(), 3)), machine())
    m = finish(built)
    launch = int(m.kernel[0, 0, y.KERNEL_LAUNCH])
    for name in ("gemm", "all_reduce"):
        for number in range(2):
            _, end, _ = span(built, m, f"{name}.{number}" if number else name)
            begun, _, _ = span(built, m, f"{name}.{number + 1}")
            assert begun == end + launch


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("wire", [1.0, 16 / 15, 2.0])
def test_a_ring_kernel_moves_what_its_collective_needs(collective, ranks, wire):
    tiling = replace(SMALL, wire=wire, slices=1 if wire > 1 else 2, depth=8 if wire > 1 else 4)
    kernel = ring(collective, 96 * KIB * ranks, ranks, tiling)
    m = finish(lowered(Streams(None, CollectiveLoop(kernel, 2)), machine(), ranks=ranks))
    data, hops = kernel.share, ranks - 1
    sent = {"all_reduce": 2 * hops, "reduce_scatter": hops, "all_gather": hops}[collective] * data
    linked = link_bytes(kernel, machine())
    assert m.link_run[0, y.LINK_BYTES] == 2 * linked
    assert linked == pytest.approx(sent * wire, rel=1e-4)
    kept = {"all_reduce": ranks, "reduce_scatter": 1, "all_gather": ranks}[collective] * data
    assert dram_bytes(m, "write") == pytest.approx(2 * (linked + kept))
    own = {"all_reduce": ranks, "reduce_scatter": ranks, "all_gather": 1}[collective] * data
    assert dram_bytes(m, "read") == pytest.approx(2 * (linked + own))


def test_a_channel_waits_for_its_own_data_only():
    """One channel that starts late holds back nobody but itself."""
    on = machine()
    built = lowered(Streams(None, CollectiveLoop(ring("reduce_scatter"), 1)), on)
    alone = finish(built)
    busy = lowered(Streams(GemmLoop(GEMM, full(), 1), CollectiveLoop(ring("reduce_scatter"), 1), "gemm"), on)
    m = finish(busy)
    _, _, log = span(busy, m, "reduce_scatter")
    _, _, quick = span(built, alone, "reduce_scatter")
    lives = log.end - log.start
    assert lives.max() < 3 * (quick.end - quick.start).max()


def test_a_copy_takes_no_compute_unit_and_ends_when_its_last_byte_has_left():
    on = machine()
    gather = DmaGather("all_gather", 1024 * KIB, 4)
    built = lowered(Streams(None, CollectiveLoop(gather, 1)), on)
    m = finish(built)
    begun, end, groups = span(built, m, "all_gather")
    assert len(groups.start) == 0
    assert m.link_run[0, y.LINK_BYTES] == 3 * gather.share == 3 * 256 * KIB
    assert (end - begun) * 1e-15 >= 3 * gather.share / (on.link.bandwidth * on.link.dma_efficiency)
    assert dram_bytes(m, "read") == dram_bytes(m, "write") == 3 * gather.share


def test_copies_reach_the_gpu_that_is_as_many_neighbours_away_as_they_say():
    gather = DmaGather("all_gather", 256 * KIB, 4)
    built = lowered(Streams(None, CollectiveLoop(gather, 1)), machine(), gpus=4)
    m = finish(built)
    rows = [r for r, (name, _) in enumerate(built.regions) if name == "collected"]
    assert (m.chunk_log[:, rows, y.CHUNK_LAST_REMOTE] > 0).all()
    assert (m.link_run[:, y.LINK_BYTES] == 3 * gather.share).all()


@pytest.mark.parametrize("driver", ["ring", "dma"])
def test_one_gpu_for_all_and_each_for_itself_take_the_same_time(driver):
    moved = ring("all_gather") if driver == "ring" else DmaGather("all_gather", 256 * KIB, 4)
    streams = Streams(GemmLoop(GEMM, full(), 1), CollectiveLoop(moved, 2))
    ends = [now(finish(lowered(streams, machine(), gpus))) for gpus in (1, 4)]
    assert ends[1] == pytest.approx(ends[0], rel=0.02)


def test_compiled_and_interpreted_are_the_same_machine():
    streams = Streams(GemmLoop(Gemm(128, 128, 64, "fp16"), full(), 2), CollectiveLoop(ring("all_reduce", 64 * KIB), 2))
    built = lowered(streams, machine())
    for one, other in zip(finish(built), interpret(built), strict=True):
        assert np.array_equal(one, other)


def test_nothing_is_left_over_with_several_kernels_resident():
    moved = (ring(), ring("all_gather"), DmaGather("all_to_all", 512 * KIB, 4))
    for collective in moved:
        for first in ("gemm", "collective"):
            streams = Streams(GemmLoop(GEMM, GemmTiling(64, 64, 32), 2), CollectiveLoop(collective, 3), first)
            check_drained(finish(lowered(streams, machine())))


def test_the_library_takes_the_protocol_of_its_own_cost_model():
    small, large = (library_ring("reduce_scatter", size << 20, 8, hardware.system("dgx-a100")) for size in (8, 16))
    assert small.tiling.wire == pytest.approx(16 / 15)
    assert large.tiling.chunk == 2 << 20
    assert large.tiling.channels == 24


def test_larger_collectives_take_longer_and_never_beat_the_link():
    times = [ring_collective("all_gather", size << 20, "dgx-h100", ranks=8) for size in (16, 64, 256)]
    assert times == sorted(times)
    assert all(t > (size << 20) * 7 / 8 / 450e9 for t, size in zip(times, (16, 64, 256), strict=True))


def test_what_each_costs_the_other_is_at_least_nothing_and_at_most_everything():
    shape = Gemm(4096, 4096, 1024, "bf16")
    answer = beside(shape, "all_reduce", 16 << 20, "h100-sxm", ranks=4, gemms=6, collectives=4, first="gemm")
    longest = max(answer.gemm.alone * answer.gemm.count, answer.collective.alone * answer.collective.count)
    assert 0.95 * longest <= answer.makespan
    assert 1 < answer.gemm.slowdown < 3
    assert answer.collective.slowdown > 1
    assert answer.record()["makespan_us"] == pytest.approx(answer.makespan * 1e6)
    assert answer.collective.waits["dispatch"] > 0 == answer.collective.waits_alone["dispatch"]
    assert "all_reduce" in str(answer)


def test_what_both_cost_while_both_run_does_not_depend_on_what_is_left_over():
    shape = Gemm(4096, 4096, 1024, "bf16")
    few, many = (
        beside(shape, "all_reduce", 16 << 20, "h100-sxm", ranks=4, gemms=4, collectives=count) for count in (6, 20)
    )
    assert many.collective.slowdown < few.collective.slowdown < few.collective.slowdown_both
    assert many.collective.slowdown_both == pytest.approx(few.collective.slowdown_both)
    assert many.gemm.slowdown_both == pytest.approx(many.gemm.slowdown)
    assert many.record()["collective"]["while_both_run_us"] == pytest.approx(many.collective.both * 1e6)


def test_a_gemm_of_a_wave_more_says_so_and_waits_neither_for_masked_units_nor_for_another_gpu():
    shape = Gemm(4096, 4096, 512, "bf16")
    how = {"strategy": "partition", "units": 32, "channels": 32}
    answer = beside(shape, "all_gather", 1 << 20, "mi300x", gemms=1, collectives=1, **how)
    grid = answer.grid
    assert (grid.tiles, grid.waves_on_all, grid.waves_on_given) == (304, 1, 2)
    assert "2 waves of tiles instead of 1" in answer.causes
    assert answer.record()["grid"]["waves_on_given"] == 2
    assert answer.gemm.waits["dispatch"] < 0.01 * answer.gemm.alone
    assert "chunk" not in answer.gemm.waits
    assert "chunk" in answer.collective.waits


def test_a_ring_in_the_place_of_the_switchs_reduction_is_told():
    shape = Gemm(1024, 1024, 1024, "bf16")
    own, ring_ = (beside(shape, name, 64 << 20, "h100-sxm", gemms=1) for name in ("all_reduce", "all_gather"))
    assert not own.differs
    assert own.algorithm == "nvls"
    nvls = beside(shape, "all_reduce", 64 << 20, "h100-sxm", gemms=1, algorithm="ring")
    assert nvls.differs
    assert nvls.record()["library_algorithm"] == "nvls"
    assert nvls.choice.seconds < nvls.collective.alone
    assert ring_.record()["library_algorithm"] == "ring"
    assert not ring_.differs
    copied = beside(shape, "all_gather", 64 << 20, "h100-sxm", gemms=1, strategy="dma")
    assert copied.record()["library_algorithm"] is None
    assert beside(shape, "all_reduce", 16 << 20, "t3-paper", gemms=1).choice is None


@pytest.mark.parametrize("gpu_name", ["a100-sxm-80gb", "h800", "b200", "mi300x"])
def test_an_all_reduce_takes_a_reduce_scatter_and_an_all_gather_in_one_kernel(gpu_name):
    for protocol in ("ll", "ll128", "simple"):
        scatter, gather, both = (
            ring_collective(name, 8 << 20, gpu_name, protocol=protocol)
            for name in ("reduce_scatter", "all_gather", "all_reduce")
        )
        start = hardware.system(gpu_name).library.cost(protocol).start
        # One launch instead of two, and one step that ends the one and begins the other.
        assert 0.85 * (scatter + gather - start) < both < scatter + gather


def test_a_one_step_kernel_is_what_the_library_takes_and_as_long_as_its_closed_form():
    answer = beside(Gemm(512, 512, 512, "bf16"), "all_gather", 2 << 20, "mi300x", gemms=1)
    assert answer.choice.algorithm == answer.algorithm == "direct"
    assert answer.choice.seconds == pytest.approx(answer.collective.alone, rel=0.12)


def test_every_cost_of_a_ring_kernel_has_a_source_and_bounds():
    for generation in GENERATIONS:
        for value in ring_kernels("amd" if generation == "cdna" else "nvidia", generation).provenance.values():
            assert value.source
            assert value.kind in ("calibrated", "derived", "assumed")
            assert value.low is not None
            assert value.high is not None


def test_stores_below_the_links_rate_leave_the_memorys_traffic_as_it_is():
    system = hardware.system("dgx-h100")
    slow = library_ring("reduce_scatter", 64 << 20, 8, system)
    assert slow.tiling.wire == 1
    assert slow.tiling.link < 1
    assert link_bytes(slow, system.gpu) == pytest.approx(7 / 8 * (64 << 20), rel=0.01)


def test_copy_engines_slow_a_gemm_less_than_a_ring_kernel_does():
    shape = Gemm(4096, 4096, 2048, "bf16")
    by = {
        strategy: beside(shape, "all_gather", 64 << 20, "dgx-a100", gemms=3, strategy=strategy)
        for strategy in ("streams", "dma")
    }
    assert by["dma"].gemm.slowdown < by["streams"].gemm.slowdown
    assert by["dma"].speedup > by["streams"].speedup


@pytest.mark.parametrize("pattern", ["ag_gemm", "gemm_rs"])
@pytest.mark.parametrize("method", ["flux", "userbuffers"])
def test_an_overlapped_gemm_is_no_faster_than_its_parts_allow(pattern, method):
    answer = overlapped(pattern, 2048, 4096, 4096, "dgx-a100", method=method)
    link = 7 / 8 * 2048 * 4096 * 2 / hardware.gpu("a100-sxm-80gb").link.bandwidth
    assert answer.overlapped > max(0.8 * answer.gemm, link)
    assert answer.overlapped < 2 * answer.sequential


def test_rows_come_over_all_links_at_once_where_each_leads_to_one_peer():
    answer = overlapped("ag_gemm", 8192, 1024, 4096, "mi308x")
    link = hardware.gpu("mi308x").link
    one_by_one = 7 / 8 * 8192 * 4096 * 2 / (link.bandwidth / link.links)
    assert one_by_one / 7 < answer.overlapped < one_by_one / 3


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda: beside(GEMM, "all_reduc", 1 << 20, "h100-sxm"),
            UnknownNameError,
            "did you mean 'all_reduce'",
        ),
        (lambda: beside(GEMM, "all_reduce", 1 << 20, "h100-sxm", strategy="dma"), InputError, "cannot add"),
        (
            lambda: library_ring("all_to_all", 1 << 20, 8, hardware.system("h100-sxm")),
            InputError,
            "no ring kernel drives",
        ),
        (
            lambda: beside(GEMM, "all_reduce", 1 << 20, "h100-sxm", strategy="gpu"),
            UnknownNameError,
            "overlap",
        ),
        (lambda: beside(GEMM, "all_reduce", 1 << 20, "h100-sxm", gemms=0), InputError, "at least 1"),
        (lambda: beside(GEMM, "all_reduce", 100, "h100-sxm"), InputError, "less than 1 KiB each"),
        (lambda: overlapped("gemm_rs", 64, 64, 65, "h100-sxm"), InputError, "K is 65"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


def test_a_real_gpu_places_kernels_strictly_in_order_where_its_vendor_does():
    rows = {
        name: machine_tables(System(gpu=hardware.gpu(name), gpus=2), 1, RunOptions(request_bytes=1024), 1)[0]
        for name in ("h100-sxm", "mi300x")
    }
    assert rows["h100-sxm"][0, y.GPU_STRICT] == 1
    assert rows["mi300x"][0, y.GPU_STRICT] == 0


def test_a_gemm_of_too_many_tiles_is_refused_before_anything_is_simulated():
    huge = Gemm(65536 * 4, 65536 * 4, 64, "bf16")
    with pytest.raises(InputError, match=r"tiles of .* x .*, more than the 1000000 that a run can hold"):
        beside(huge, "all_reduce", 2**20, "mi300x", gemms=1)


def test_the_output_of_a_gemm_takes_its_own_bytes_and_no_more():
    gemm = Gemm(512, 256, 64, "bf16")
    plan = Streams(GemmLoop(gemm, GemmTiling(), 1), None).plan(hardware.gpu("h100-sxm"))
    output = next(buffer for buffer in plan.buffers if buffer.name == "output")
    assert output.sizes == ((512 * 256 * 2,),)
