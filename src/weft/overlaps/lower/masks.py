"""Compute units: how a GPU is split between a GEMM and a collective, and workgroups whose clocks differ."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.units import count_words
from weft.engine import layout as y
from weft.engine.program import Kernel, Plan
from weft.hardware import Gpu
from weft.kernels.compute_units import split_units


def units_needed(workgroups: int, resident: int, gpu: Gpu) -> int:
    """Return the least number of compute units to reserved that run all workgroups at once, `resident` on each.

    Workgroups are dealt round robin to the XCDs of an AMD GPU, so each gives equally many.
    """
    parts = min(gpu.dies, workgroups)
    return -(-workgroups // (parts * resident)) * parts


def _run_at_once(mask: tuple[int, ...], resident: int, gpu: Gpu) -> int:
    """The most workgroups that run at once on the compute units of a mask, `resident` on each, dealt as above."""
    held = Counter(unit * gpu.dies // gpu.compute.compute_units for unit in mask)
    return len(held) * min(held.values()) * resident


def rounds_of(workgroups: int, mask: tuple[int, ...] | None, resident: int, gpu: Gpu) -> int:
    """Rounds in which the workgroups of a kernel run on the compute units of a mask; 1 if all fit at once."""
    return 1 if mask is None else -(-workgroups // _run_at_once(mask, resident, gpu))


def why_in_rounds(name: str, workgroups: int, mask: tuple[int, ...], resident: int, gpu: Gpu) -> str:
    """Return why the channels of a collective run in rounds on the compute units of a mask, and what to set instead."""
    units, at_once = len(mask), _run_at_once(mask, resident, gpu)
    needed = units_needed(workgroups, resident, gpu)
    return (
        f"the {workgroups} channels of the {name} run in {rounds_of(workgroups, mask, resident, gpu)} rounds, as "
        f"{count_words(units, 'compute unit')} {'holds' if units == 1 else 'hold'} no more at once: give it "
        f"{count_words(at_once, 'channel')} (--channels {at_once}) or {count_words(needed, 'compute unit')}"
    )


def apart_of(gemm: int, apart: int, gpu: Gpu) -> int:
    """Units reserved by a split "gemm-apart"; InputError if both numbers do not add up to the GPU's."""
    units = gpu.compute.compute_units
    if gemm + apart != units:
        raise InputError(
            f"the split {gemm}-{apart} has {gemm + apart} compute units, but {gpu.name} has {units}; "
            f"write {units - apart}-{apart}"
            if 0 < apart < units
            else f"the split {gemm}-{apart} does not add up to the {units} compute units of {gpu.name}"
        )
    split_units(gpu, apart)
    return apart


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
    """Return the kernel with each of its scripts at every clock, relative to the usual one; others than GEMMs stay."""
    if not kernel.tiled:
        return kernel
    length = kernel.script_length
    parts = [kernel.phases[first : first + length] for first in range(0, len(kernel.phases), length)]
    phases = (replace(phase, cycles=phase.cycles / clock) for part in parts for clock in clocks for phase in part)
    return replace(kernel, phases=tuple(phases), script_of=tuple(range(len(parts) * len(clocks))))
