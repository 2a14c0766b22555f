"""Masks of compute units: how a GPU is split between a GEMM and a collective, and how many workgroups a mask holds."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from weft.core.errors import InputError
from weft.core.units import counted
from weft.hardware import Gpu


class Split(NamedTuple):
    """The compute units that a GEMM may use, and those set apart for the collective, as indices from 0."""

    gemm: tuple[int, ...]
    apart: tuple[int, ...]


def split_units(gpu: Gpu, apart: int) -> Split:
    """Partition the compute units of a GPU, with `apart` of them set apart.

    On AMD GPUs each XCD gives equally many (the first ones one more if `apart` is no multiple), so that no XCD becomes
    the slowest; unit u lies in XCD u * XCDs // units. On other GPUs they are the last ones. Raises InputError if either
    side has no unit.
    """
    units = gpu.compute.compute_units
    if not 1 <= apart < units:
        raise InputError(
            f"{apart} of {units} compute units cannot be set apart on {gpu.name}: each side needs at least one; "
            f"choose 1 to {units - 1}"
        )
    parts = gpu.dies
    chosen = tuple(unit for part in range(parts) for unit in _last(units, parts, part, apart))
    return Split(tuple(unit for unit in range(units) if unit not in chosen), chosen)


def _last(units: int, parts: int, part: int, apart: int) -> range:
    """The last compute units of an XCD: its share of those set apart."""
    end = -(-(part + 1) * units // parts)
    return range(end - (apart // parts + (part < apart % parts)), end)


def units_needed(workgroups: int, resident: int, gpu: Gpu) -> int:
    """The least number of compute units to set apart that run all workgroups at once, `resident` on each.

    Workgroups are dealt round robin to the XCDs of an AMD GPU, so each gives equally many.
    """
    parts = min(gpu.dies, workgroups)
    return -(-workgroups // (parts * resident)) * parts


def run_at_once(mask: tuple[int, ...], resident: int, gpu: Gpu) -> int:
    """The most workgroups that run at once on the compute units of a mask, `resident` on each, dealt as above."""
    held = Counter(unit * gpu.dies // gpu.compute.compute_units for unit in mask)
    return len(held) * min(held.values()) * resident


def rounds_of(workgroups: int, mask: tuple[int, ...] | None, resident: int, gpu: Gpu) -> int:
    """Rounds in which the workgroups of a kernel run on the compute units of a mask; 1 if all fit at once."""
    return 1 if mask is None else -(-workgroups // run_at_once(mask, resident, gpu))


def why_in_rounds(name: str, workgroups: int, mask: tuple[int, ...], resident: int, gpu: Gpu) -> str:
    """Why the channels of a collective run in rounds on the compute units of a mask, and what to set instead."""
    units, at_once = len(mask), run_at_once(mask, resident, gpu)
    needed = units_needed(workgroups, resident, gpu)
    return (
        f"the {workgroups} channels of the {name} run in {rounds_of(workgroups, mask, resident, gpu)} rounds, as "
        f"{counted(units, 'compute unit')} {'holds' if units == 1 else 'hold'} no more at once: give it "
        f"{counted(at_once, 'channel')} (--channels {at_once}) or {counted(needed, 'compute unit')}"
    )


def apart_of(gemm: int, apart: int, gpu: Gpu) -> int:
    """Units set apart by a split "gemm-apart"; InputError if both numbers do not add up to the GPU's."""
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
