"""Compute units that a kernel may use: masks, how many rounds its workgroups take there, and the clock then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.hardware import Gpu
from weft.kernels.gemm import running_clock


class Split(NamedTuple):
    """The compute units that a GEMM may use, and those reserved for the collective, as indices from 0."""

    gemm: tuple[int, ...]
    apart: tuple[int, ...]


def split_units(gpu: Gpu, apart: int) -> Split:
    """Partition the compute units of a GPU, with `apart` of them reserved.

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
    """Return the last compute units of an XCD: its share of those reserved."""
    end = -(-(part + 1) * units // parts)
    return range(end - (apart // parts + (part < apart % parts)), end)


def units_left(gpu: Gpu, count: int | None) -> tuple[int, ...] | None:
    """Return a mask of `count` compute units, the first ones of each XCD (None: all); InputError for more than all."""
    units = gpu.compute.compute_units
    if count is None or count == units:
        return None
    if not 1 <= count < units:
        raise InputError(f"compute_units is {count}, but {gpu.name} has {units}; choose 1 to {units}")
    return split_units(gpu, units - count).gemm


def units_of_mask(gpu: Gpu, bits: Iterable[int]) -> tuple[int, ...]:
    """Return the compute units that the set bits of a stream's mask allow, in ascending order.

    Bit i is the next compute unit of XCD i modulo XCDs; those of an XCD are taken from one shader engine after the
    other (linux drivers/gpu/drm/amd/amdkfd/kfd_mqd_manager.c, `mqd_symmetrically_map_cu_mask`, of GFX 9.4.3 and later:
    fc6efed2c728, 1ec06c2dee67). Raises InputError for a bit that the GPU has no unit for.
    """
    units, parts = gpu.compute.compute_units, gpu.dies
    first = [-(-part * units // parts) for part in range(parts)]
    chosen = set()
    for bit in bits:
        if not 0 <= bit < units:
            raise InputError(f"bit {bit} of a mask has no compute unit; {gpu.name} has 0 to {units - 1}")
        chosen.add(first[bit % parts] + bit // parts)
    return tuple(sorted(chosen))


def _ceil(count: int, parts: int) -> int:
    return -(-count // parts)


class Placement(NamedTuple):
    """How workgroups are placed: on the units `mask` (None: all), `each` on one, at most `grid` at once (0: all)."""

    mask: tuple[int, ...] | None = None
    each: int = 1
    grid: int = 0

    def shaders(self, gpu: Gpu) -> int:
        """Return to how many shader engines of an XCD workgroups are dealt evenly; 1 if they go wherever there is room.

        Under a mask each shader engine that has compute units for the kernel gets equally many workgroups. Those of a
        persistent kernel all run at once, and take tiles as they come. Without a mask a dispatcher passes by a shader
        engine that is full: 304 tiles of 256 x 224 (4096^3) take one round on the 10, 10, 9 and 9 units of each XCD.
        """
        return 1 if self.mask is None or self.grid else gpu.compute.shader_engines

    def rounds(self, workgroups: int, gpu: Gpu, held: int = 0) -> int:
        """Return in how many rounds the workgroups of a kernel run if each takes the same time.

        Without a mask, another kernel may have `held` units, equally many of each die.
        """
        units, parts, shaders = gpu.compute.compute_units, gpu.dies, self.shaders(gpu)
        allowed: dict[int, Counter[int]] = {}
        for unit in range(units) if self.mask is None else self.mask:
            part = unit * parts // units
            place = unit - _ceil(part * units, parts)
            allowed.setdefault(part, Counter())[place % shaders] += 1
        most = 0
        for rank, part in enumerate(sorted(allowed)):
            own = _ceil(workgroups - rank, len(allowed))
            for place, shader in enumerate(sorted(allowed[part])):
                free = allowed[part][shader] - (_ceil(held - rank, len(allowed)) if self.mask is None else 0)
                at_once = max(free, 1) * self.each
                if self.grid:
                    at_once = min(at_once, max(_ceil(self.grid - rank, len(allowed)), 1))
                most = max(most, _ceil(_ceil(own - place, len(allowed[part])), at_once))
        return most

    def clock_gain(self, workgroups: int, gpu: Gpu, options: RunOptions, held: int = 0) -> float:
        """Return by how much the clock of a GEMM is higher here than on the whole GPU, in a run at the power limit.

        At the limit the units that work share the GPU's power, and the power of each grows with the clock to
        `clocks.power_exponent`. Over a run, the units that work are on average the workgroups by the rounds, and the
        `held` ones of a collective, each of which draws as much [assumed]; beside it the clock may be lower than alone.
        It is at most the boost clock; 1 for a GPU without the exponent and in short runs.
        """
        exponent, clock = gpu.clocks.power_exponent, running_clock(gpu, options)
        whole_gpu = self.mask is None and not self.grid and not held
        if not exponent or clock >= gpu.compute.clock or whole_gpu or self.mask == ():  # no unit: the plan is refused
            return 1.0
        whole = workgroups / Placement(each=self.each).rounds(workgroups, gpu) / self.each
        here = workgroups / self.rounds(workgroups, gpu, held) / self.each + held
        return float(min((whole / here) ** (1 / exponent), gpu.compute.clock / clock))
