"""In what order kernels of several hardware queues are served: by priority, then age, and nobody is driven out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from machines import finish, gpu
from state import ended, launched, requested, workgroups

from weft.core.options import RunOptions
from weft.core.units import to_fs
from weft.engine.program import Kernel, Phase, PlacedKernel, Plan, build
from weft.engine.state import Machine
from weft.hardware import System
from weft.overlaps.lower.machine import machine_tables

UNITS, CYCLES = 4, 1000.0
ON = gpu(compute__compute_units=UNITS)
WAVE = round(CYCLES * 1e15 / ON.compute.clock)
LAUNCH = to_fs(ON.compute.launch_latency)


def kernel(name: str, workgroups: int) -> Kernel:
    """Workgroups that compute for `CYCLES` and leave no room beside them on a compute unit."""
    return Kernel(name, workgroups, 256, 0, ON.compute.lds_per_cu, (Phase(1, 1, CYCLES),))


def run(*placed: PlacedKernel) -> Machine:
    return finish(
        build(
            Plan(tuple(placed), (), ()),
            machine_tables(System(gpu=ON, gpus=2), 1, RunOptions(request_bytes=512), 1),
        )
    )


def starts(m: Machine, k: int) -> list[int]:
    """In which wave each workgroup of kernel `k` began."""
    since = workgroups(m, k).start - LAUNCH
    return [int(wave) for wave in np.round(since / WAVE)]


def test_of_two_kernels_launched_together_the_first_takes_all_compute_units():
    m = run(PlacedKernel(kernel("gemm", 6)), PlacedKernel(kernel("collective", 2)))
    assert starts(m, 0) == [0] * 4 + [1] * 2
    assert starts(m, 1) == [1, 1]


def test_the_host_decides_by_its_order_who_is_first():
    m = run(PlacedKernel(kernel("collective", 2)), PlacedKernel(kernel("gemm", 6)))
    assert starts(m, 0) == [0, 0]
    assert starts(m, 1) == [0] * 2 + [1] * 4


def test_a_higher_priority_is_served_first_however_late_it_is_launched():
    late = PlacedKernel(kernel("collective", 3), priority=1, delay_fs=WAVE // 2)
    m = run(PlacedKernel(kernel("gemm", 12)), late)
    assert starts(m, 1) == [1] * 3
    assert starts(m, 0) == [0] * 4 + [1] + [2] * 4 + [3] * 3


def test_kernels_of_one_priority_are_served_by_their_launch_however_different():
    narrow = replace(kernel("narrow", 4), threads=128)
    late = PlacedKernel(kernel("wide", 4), delay_fs=2)
    m = run(late, PlacedKernel(kernel("wide", 8)), PlacedKernel(narrow, delay_fs=1))
    assert [starts(m, k) for k in (1, 2, 0)] == [[0] * 4 + [1] * 4, [2] * 4, [3] * 4]


def test_a_priority_drives_nobody_out():
    late = PlacedKernel(kernel("collective", 1), priority=5, delay_fs=WAVE // 2)
    m = run(PlacedKernel(kernel("gemm", 4)), late)
    gemm = workgroups(m, 0)
    lives = gemm.end - gemm.start
    assert (lives == lives[0]).all()
    assert starts(m, 1) == [1]


def test_kernels_of_one_stream_follow_each_other_and_pay_a_launch_each():
    m = run(PlacedKernel(kernel("one", 4)), PlacedKernel(kernel("two", 4), after=(0,)))
    assert launched(m, 1) == ended(m, 0) + LAUNCH


@pytest.mark.parametrize("after", [(0, 1), (1, 0), (1, 1, 0)])
def test_a_kernel_follows_the_last_of_its_predecessors(after):
    m = run(
        PlacedKernel(kernel("one", 4)),
        PlacedKernel(kernel("two", 4)),
        PlacedKernel(kernel("join", 1), after=after),
    )
    assert ended(m, 0) < ended(m, 1) == requested(m, 2)


def test_every_successor_of_a_kernel_starts_when_it_ends():
    later = [PlacedKernel(kernel(name, 1), after=(0,)) for name in ("left", "right")]
    m = run(PlacedKernel(kernel("fork", 4)), *later)
    assert requested(m, 1) == requested(m, 2) == ended(m, 0)


@pytest.mark.parametrize("delay", [0, 1_000_000, WAVE])
def test_a_kernel_that_the_host_launches_later_starts_so_much_later(delay):
    m = run(PlacedKernel(kernel("late", 1), delay_fs=delay))
    assert workgroups(m, 0).start[0] == LAUNCH + delay
