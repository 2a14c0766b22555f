"""Workgroups of GEMMs that each compute at a clock of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Kernel, Plan

CLOCKS = 16
"""How many different clocks the workgroups have, in equal steps over the spread."""


def unequal_workgroups(plan: Plan, gpus: int, options: RunOptions) -> Plan:
    """Return the plan whose workgroups of GEMMs have clocks drawn by the spread and the seed of the options.

    A kernel gets a copy of each of its scripts for every clock, and each workgroup one of them. Raises InputError for a
    plan without a GEMM.
    """
    spread = options.workgroup_spread
    if not plan.work:
        raise InputError(
            f"workgroup_spread is {spread}, but no GEMM runs with workgroups to slow; leave it out, or add a GEMM"
        )
    clocks = 1 + spread * ((np.arange(CLOCKS) + 0.5) / CLOCKS - 0.5)
    random = np.random.default_rng(options.workgroup_seed)
    each = []
    for g in range(gpus):
        work = plan.work[g % len(plan.work)].copy()
        work[:, y.WORK_SCRIPT] = work[:, y.WORK_SCRIPT] * CLOCKS + random.integers(CLOCKS, size=len(work))
        each.append(work)
    kernels = (replace(one, kernel=_at_clocks(one.kernel, clocks.tolist())) for one in plan.kernels)
    return replace(plan, kernels=tuple(kernels), work=tuple(each))


def _at_clocks(kernel: Kernel, clocks: list[float]) -> Kernel:
    """The kernel with each of its scripts at every clock, relative to the usual one; others than GEMMs stay."""
    if not kernel.tiled:
        return kernel
    length = kernel.script_length
    parts = [kernel.phases[first : first + length] for first in range(0, len(kernel.phases), length)]
    phases = (replace(phase, cycles=phase.cycles / clock) for part in parts for clock in clocks for phase in part)
    return replace(kernel, phases=tuple(phases), script_of=tuple(range(len(parts) * len(clocks))))
