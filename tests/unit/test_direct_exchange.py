"""All-gathers and all-to-alls in one step: what they move, whom they wait for, and where the library takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from estimates import collective as closed_form
from machines import finish, gpu
from runs import CollectiveLoop, Streams, beside, isolated_collective, link_bytes
from state import dram_bytes, workgroups

from weft import hardware
from weft.core.options import RunOptions
from weft.engine.program import build
from weft.graph import Gemm
from weft.hardware import System
from weft.kernels.channels import ChannelTiling
from weft.kernels.direct import DirectExchange
from weft.kernels.exchange import ChannelExchange
from weft.overlaps.lower.collectives import cu_collective
from weft.overlaps.lower.fit import most_resident
from weft.overlaps.lower.machine import machine_tables

KIB, MIB = 1024, 1 << 20
TILING = ChannelTiling(channels=1, threads=256, chunk=4 * KIB, slices=1, in_flight=8 * KIB, lds=0, sync=0, start=0)


def exchange(collective, workgroups=None, bytes_=96 * KIB, ranks=4, parts=2, **changes):
    own = DirectExchange.workgroups(collective, ranks, parts)
    tiling = replace(TILING, channels=workgroups or own, **changes)
    return DirectExchange(collective, bytes_, ranks, tiling, parts)


def run(kernel, count=1):
    on = gpu(compute__compute_units=16, memory__channels=8, memory__bandwidth="256 GB/s")
    plan = Streams(None, CollectiveLoop(kernel, count)).plan(on)
    return finish(
        build(
            plan,
            machine_tables(
                System(gpu=on, gpus=kernel.ranks), 1, RunOptions(request_bytes=512), most_resident(plan, on)
            ),
        )
    )


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("workgroups", [None, 5, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_every_byte_for_a_peer_is_staged_once_however_few_workgroups_there_are(collective, workgroups, count):
    kernel = exchange(collective, workgroups)
    m = run(kernel, count)
    sent = (kernel.ranks - 1) * kernel.share
    kept = kernel.share if collective == "all_to_all" else 0
    assert m.link_series.sum() == count * sent == count * link_bytes(kernel, gpu())
    assert dram_bytes(m, "read") == count * (2 * sent + kept)
    assert dram_bytes(m, "write") == count * (2 * sent + kept)


def test_flags_double_what_crosses_the_links():
    plain, flagged = exchange("all_gather"), exchange("all_gather", wire=2.0)
    assert run(flagged).link_series.sum() == 2 * run(plain).link_series.sum()
    assert link_bytes(flagged, gpu()) == 2 * link_bytes(plain, gpu())


def test_a_receiver_goes_on_when_data_have_come_and_not_before():
    """What senders lose at the start receivers lose at the end; every slice costs a wait of its own."""
    early = workgroups(run(exchange("all_gather")), 0).end.max()
    late = workgroups(run(exchange("all_gather", start=1e-6)), 0).end.max()
    waited = workgroups(run(exchange("all_gather", sync=1e-6)), 0).end.max()
    slices = exchange("all_gather").part // TILING.chunk
    assert late - early == 10**9
    assert slices == 3
    assert waited - early == pytest.approx(slices * 10**9, rel=0.15)


@pytest.mark.parametrize(
    ("collective", "bytes_", "wire", "parts", "workgroups"),
    [
        ("all_gather", 64 * KIB, 2.0, 2, 28),
        ("all_gather", MIB, 1.0, 4, 56),
        ("all_to_all", 128 * KIB, 2.0, 2, 30),
        ("all_to_all", 512 * KIB, 2.0, 4, 60),
        ("all_to_all", 40 * MIB, 1.0, 8, 120),
    ],
)
def test_rccl_takes_one_step_for_small_sizes_on_eight_mi300x(collective, bytes_, wire, parts, workgroups):
    kernel = cu_collective(collective, bytes_, 8, hardware.system("mi300x"))
    assert isinstance(kernel, DirectExchange)
    assert (kernel.tiling.wire, kernel.parts, kernel.tiling.channels) == (wire, parts, workgroups)
    assert cu_collective(collective, bytes_, 8, hardware.system("mi300x"), channels=8).tiling.channels == 8


@pytest.mark.parametrize(
    ("collective", "bytes_", "ranks", "machine"),
    [
        ("all_gather", 32 * MIB, 8, "mi300x"),
        ("all_to_all", 64 * MIB, 8, "mi300x"),
        ("all_to_all", MIB, 4, "mi300x"),
        ("all_gather", MIB, 8, "mi355x"),
        ("reduce_scatter", MIB, 8, "mi300x"),
        ("all_to_all", MIB, 8, "h100-sxm"),
    ],
)
def test_one_step_kernels_are_for_these_sizes_on_eight_mi300x_alone(collective, bytes_, ranks, machine):
    assert not isinstance(cu_collective(collective, bytes_, ranks, hardware.system(machine)), DirectExchange)


def test_small_collectives_by_copy_engines_take_several_times_as_long_as_one_step_kernels():
    """DMA-Latte (arXiv:2511.06605) publishes 4.5 times as long for all-gathers and 2.5 times for all-to-alls."""
    for collective in ("all_gather", "all_to_all"):
        units, copies = (
            isolated_collective(collective, 64 * KIB, "mi300x", driver=driver, request_bytes=4 * KIB)
            for driver in ("cu", "dma")
        )
        assert 2.5 < copies.makespan / units.makespan < 4.5


@pytest.mark.parametrize(
    ("collective", "sizes"),
    [
        ("all_gather", (64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)),
        ("all_to_all", (64 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB)),
    ],
)
def test_the_closed_form_of_one_step_is_near_the_engine(collective, sizes):
    """Within 5 % in the median and 12 % at most: the form knows nothing of slices and of few bytes in flight."""
    engine = [isolated_collective(collective, size, "mi300x", request_bytes=4 * KIB).makespan for size in sizes]
    off = np.abs(closed_form(collective, sizes, 8, "mi300x-x8").seconds / engine - 1)
    assert np.median(off) <= 0.05
    assert off.max() <= 0.12


def test_one_step_beats_sends_and_receives_in_rounds():
    kernel = cu_collective("all_to_all", 64 * KIB, 4, hardware.system("mi300x"))
    assert isinstance(kernel, ChannelExchange)
    rounds = isolated_collective("all_to_all", 64 * KIB, "mi355x", request_bytes=4 * KIB).makespan
    step = isolated_collective("all_to_all", 64 * KIB, "mi300x", request_bytes=4 * KIB).makespan
    assert step < rounds


def test_an_answer_says_that_the_library_pushes_in_one_step():
    answer = beside(
        Gemm(2048, 2048, 1024), "all_gather", 256 * KIB, "mi300x", gemms=1, collectives=1, strategy="priority"
    )
    assert answer.record()["algorithm"] == "direct"
    assert not answer.differs
