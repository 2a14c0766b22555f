"""In what order kernels of several hardware queues are served: by priority, then age, and nobody is driven out."""

from __future__ import annotations

import numpy as np
import pytest
from machines import finish, gpu

from weft.engine import layout as y
from weft.engine.state import Machine
from weft.hardware import System
from weft.overlap.machine import machine_tables
from weft.program import Kernel, Phase, PlacedKernel, Plan, build

UNITS, CYCLES = 4, 1000.0
ON = gpu(compute__compute_units=UNITS)
WAVE = round(CYCLES * 1e15 / ON.compute.clock)


def kernel(name: str, workgroups: int) -> Kernel:
    """Workgroups that compute for `CYCLES` and leave no room beside them on a compute unit."""
    return Kernel(name, workgroups, 256, 0, ON.compute.lds_per_cu, (Phase(1, 1, CYCLES),))


def run(*placed: PlacedKernel) -> Machine:
    rows, shape = machine_tables(System(gpu=ON, gpus=2), 1, 512, 1)
    return finish(build(Plan(tuple(placed), (), (), (0,)), rows, shape))


def starts(m: Machine, k: int) -> list[int]:
    """In which wave each workgroup of kernel `k` began."""
    first, count = m.kernel[0, k, [y.K_FIRST_WORK, y.K_WORKGROUPS]]
    since = m.work_log[0, first : first + count, y.WL_START] - int(m.gpu[0, y.G_LAUNCH])
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


def test_a_priority_drives_nobody_out():
    late = PlacedKernel(kernel("collective", 1), priority=5, delay_fs=WAVE // 2)
    m = run(PlacedKernel(kernel("gemm", 4)), late)
    lives = m.work_log[0, :4, y.WL_END] - m.work_log[0, :4, y.WL_START]
    assert (lives == lives[0]).all()
    assert starts(m, 1) == [1]


def test_kernels_of_one_stream_follow_each_other_and_pay_a_launch_each():
    m = run(PlacedKernel(kernel("one", 4)), PlacedKernel(kernel("two", 4), after=0))
    ended = int(m.kernel_run[0, 0, y.KR_END])
    assert m.kernel_run[0, 1, y.KR_FIRST_START] == ended + m.gpu[0, y.G_LAUNCH]


@pytest.mark.parametrize("delay", [0, 1_000_000, WAVE])
def test_a_kernel_that_the_host_launches_later_starts_so_much_later(delay):
    m = run(PlacedKernel(kernel("late", 1), delay_fs=delay))
    assert m.work_log[0, 0, y.WL_START] == m.gpu[0, y.G_LAUNCH] + delay
