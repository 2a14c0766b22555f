"""A GEMM as a runtime sees it before it launches it: its tiles, and its time in closed form on fewer compute units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor

from weft.estimate import gemm_kernel
from weft.estimate.gemm_plans import cold_rates
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.lower.fit import tiling_for
from weft.options import SUSTAINED, RunOptions

_ROUNDING = 1e-9


@dataclass(frozen=True)
class GemmProfile:
    """A GEMM on one GPU of `units` compute units: `tiles` workgroups, `resident` of them on a unit at once.

    With `u` units taken off it, it takes `seconds[u]` [s], of which memory alone would need the share `boundness[u]`:
    near 0 bound by compute, towards 1 by memory.
    """

    tiles: int
    resident: int
    units: int
    seconds: Mapping[int, float]
    boundness: Mapping[int, float]

    def waves(self, taken: int) -> int:
        """How many times over the tiles fill the units that are left."""
        return ceil(self.tiles / ((self.units - taken) * self.resident))


def profile_of(gemm: Gemm, gpu: Gpu, taken: Sequence[int], options: RunOptions = SUSTAINED) -> GemmProfile:
    """The profile of a GEMM in closed form, with each number of compute units `taken` off it; 0 is always among them.

    Raises InputError for a data type that the GPU's matrix units lack.
    """
    tiling = tiling_for(gemm, gpu, options, split=True)
    tile = gemm_kernel.Tile(
        float(tiling.rows),
        float(tiling.columns),
        float(tiling.step),
        float(tiling.stages),
        float(max(tiling.resident, 1)),
        0.0,
        float(max(tiling.share_rows, tiling.share_columns)),
    )
    shape = gemm_kernel.Shape(gemm.m, gemm.n, gemm.k, 1)
    machine = cold_rates(gemm.dtype, gpu, options)
    found = {
        units: gemm_kernel.fixed(
            shape, tile, tile.columns, tiling.splits, machine._replace(units=machine.units - units)
        )
        for units in sorted({0, *taken})
    }
    return GemmProfile(
        tiles=tiling.workgroups(gemm),
        resident=max(tiling.resident, 1),
        units=gpu.compute.compute_units,
        seconds={units: gpu.compute.launch_latency + one.total for units, one in found.items()},
        boundness={units: min(1.0, one.memory_time / one.total) for units, one in found.items()},
    )


def last_start(tiles: int, slots: float, held: float, tile_s: float, until: float) -> float:
    """When the last of `tiles` starts, each `tile_s` long, if `held` of `slots` places are taken `until` a time [s].

    Free places start tiles at multiples of `tile_s`, those that were held at the same distances from `until` on.
    """
    without = (ceil(tiles / (slots - held)) - 1) * tile_s
    if without <= until:
        return without
    fluid = ((tiles + held * until / tile_s) / slots - 1) * tile_s  # no start can come before
    first = max(0, ceil(fluid / tile_s - _ROUNDING)) * tile_s
    second = until + max(0, ceil((fluid - until) / tile_s - _ROUNDING)) * tile_s
    for start in sorted((first, first + tile_s, second, second + tile_s)):
        begun = (slots - held) * (floor(start / tile_s + _ROUNDING) + 1)
        if start >= until:
            begun += held * (floor((start - until) / tile_s + _ROUNDING) + 1)
        if begun >= tiles:
            return start
    return max(first, second) + tile_s
