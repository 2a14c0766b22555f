"""Slowdown tables of a machine: times of GEMMs and collectives, alone and co-running, as a runtime needs them.

`weft.plan.tune.probes` simulates the numbers; this module stores, looks up and saves them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter

from weft.core.errors import ConfigError, UnknownNameError
from weft.core.files import read_json, write_json
from weft.core.options import SUSTAINED, Clock, RunOptions
from weft.estimate import gemm_kernel
from weft.estimate.gemm import cold_rates, rates_on
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels.compute_units import Placement, split_units
from weft.overlaps.lower.fit import tiling_for

SCHEMA = 2
"""Version of the file format of saved tables."""
KIND = "weft slowdown tables"
AGAIN = "make the tables again with weft advise corun"
GIVEN, LOOKED_UP = "given", "looked up"
"""Where isolated times of a GEMM and a collective come from: the caller, or the tables."""


@dataclass(frozen=True)
class CollectiveTable:
    """A collective alone: seconds for every size in `bytes`, by driver.

    `library` is the time with the library's own number of workgroups, `library_units`; `units[u]` with `u` compute
    units, `dma` by DMA engines (empty if they cannot run it).
    """

    bytes: tuple[int, ...]
    library_units: int
    library: tuple[float, ...]
    units: Mapping[int, tuple[float, ...]]
    dma: tuple[float, ...] = ()

    def place(self, bytes_: float) -> tuple[int, float]:
        """Position of `bytes_` in the table: the index of the next larger size, and the fraction of the way up to it.

        Beyond the largest size the last line is extrapolated; below the smallest the time is constant, as latency
        dominates.
        """
        sizes = self.bytes
        right = min(max(1, bisect_right(sizes, bytes_)), len(sizes) - 1)
        return right, max(0.0, (bytes_ - sizes[right - 1]) / (sizes[right] - sizes[right - 1]))

    def seconds(self, column: Sequence[float], bytes_: float) -> float:
        """Return the time of `bytes_` in one column [s]."""
        return between(column, *self.place(bytes_))


def between(column: Sequence[float], right: int, share: float) -> float:
    """Interpolate between the values at `right - 1` and at `right`."""
    return column[right - 1] + share * (column[right] - column[right - 1])


@dataclass(frozen=True)
class MutualSlowdowns:
    """Mutual slowdowns of a GEMM and a collective while both run and neither lacks compute units.

    For each `boundness` of a GEMM: the slowdown of the GEMM (`gemm`) and of the collective (`collective`). `rate` is
    the collective's isolated rate in these runs [bytes of its buffer/s]; slower ones disturb less.
    """

    boundness: tuple[float, ...]
    gemm: tuple[float, ...]
    collective: tuple[float, ...]
    rate: float

    def at(self, boundness: float) -> tuple[float, float]:
        """Return both slowdowns at a boundness, interpolated linearly."""
        gemm, collective = (np.interp(boundness, self.boundness, each) for each in (self.gemm, self.collective))
        return float(gemm), float(collective)


@dataclass(frozen=True)
class Curve:
    """Values at ascending places, interpolated linearly and constant beyond the ends."""

    places: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, place: float) -> float:
        """Return the value at a place."""
        return float(np.interp(place, self.places, self.values))


@dataclass(frozen=True)
class GemmTable:
    """Simulated over closed-form GEMM time by boundness, for tiles in `one` wave and in `more`."""

    one: Curve
    more: Curve


@dataclass(frozen=True)
class GemmProfile:
    """A GEMM on one GPU of `units` compute units: `tiles` workgroups, `resident` of them on a unit at once.

    With `u` units taken off by a mask, it takes `seconds[u]` [s]; `boundness[u]` is the share of that which memory
    alone would need: near 0 compute-bound, near 1 memory-bound. `beside[u]` is how many times as long it takes at the
    clock that it has while a collective works on those units, and `held[u]` the time if a collective holds that many
    and no mask divides the GPU [s].
    """

    tiles: int
    resident: int
    units: int
    seconds: Mapping[int, float]
    boundness: Mapping[int, float]
    beside: Mapping[int, float]
    held: Mapping[int, float]

    def waves(self, taken: int) -> int:
        """Waves of tiles on the remaining units."""
        return ceil(self.tiles / ((self.units - taken) * self.resident))


def profile_of(gemm: Gemm, gpu: Gpu, taken: Sequence[int], options: RunOptions = SUSTAINED) -> GemmProfile:
    """Return the closed-form profile of a GEMM with each number of compute units `taken` off it; 0 is always included.

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
    shape = gemm_kernel.GemmShape(gemm.m, gemm.n, gemm.k, 1)
    machine = cold_rates(gemm.dtype, gpu, options)
    whole = gemm_kernel.time_candidate(shape, tile, tile.columns, tiling.splits, machine)
    found, held, beside, workgroups = {0: whole}, {0: whole.total}, {0: 1.0}, tiling.workgroups(gemm)
    for units in sorted({*taken} - {0}):
        mask = split_units(gpu, units).gemm
        fewer = rates_on(machine, shape, tile, whole, gpu, options, mask)
        found[units] = gemm_kernel.time_candidate(shape, tile, tile.columns, tiling.splits, fewer)
        own, shared = (Placement(which, max(tiling.resident, 1)) for which in (mask, None))
        clock = own.clock_gain(workgroups, gpu, options, units)
        down = fewer._replace(unit_flops=machine.unit_flops * clock)
        slow = gemm_kernel.time_candidate(shape, tile, tile.columns, tiling.splits, down)
        beside[units] = _overlapped(slow) / _overlapped(found[units])
        slower = shared.clock_gain(workgroups, gpu, options, units)
        rest = machine._replace(units=machine.units - units, unit_flops=machine.unit_flops * slower)
        held[units] = gemm_kernel.time_candidate(shape, tile, tile.columns, tiling.splits, rest).total
    return GemmProfile(
        tiles=tiling.workgroups(gemm),
        resident=max(tiling.resident, 1),
        units=gpu.compute.compute_units,
        seconds={units: gpu.compute.launch_latency + one.total for units, one in found.items()},
        boundness={units: min(1.0, one.memory_time / one.total) for units, one in found.items()},
        beside=beside,
        held={units: gpu.compute.launch_latency + seconds for units, seconds in held.items()},
    )


def _overlapped(one: gemm_kernel.Attempt) -> float:
    """Return the time of an attempt if memory and compute units overlap in full, as they do in the engine [s]."""
    return max(one.units_time, one.memory_time) + one.split_time


@dataclass(frozen=True)
class SlowdownTables:
    """Everything that `choose` looks up for a machine: `ranks` equal GPUs at a clock.

    `collectives` and `gemm` hold isolated times, `interference` mutual slowdowns, by collective and its compute units
    (0: DMA engines). `errors` are predicted over simulated makespans minus one, for pairs that no table contains: with
    isolated times given, and with those looked up.
    """

    gpu: Gpu
    ranks: int
    clock: Clock
    gemm: GemmTable
    collectives: Mapping[str, CollectiveTable]
    interference: Mapping[str, Mapping[int, MutualSlowdowns]]
    errors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    _profiles: dict[Gemm, GemmProfile] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def splits(self) -> tuple[int, ...]:
        """Compute units that may be reserved for a collective."""
        return tuple(next(iter(self.collectives.values())).units)

    @property
    def parts(self) -> int:
        """Number of parts to which workgroups are dealt: the dies of an AMD GPU."""
        return self.gpu.dies

    def error(self, given: bool) -> float:
        """Return mean error of predicted makespans over the check runs, with isolated times `given` or looked up."""
        found = self.errors.get(GIVEN if given else LOOKED_UP, ())
        return sum(map(abs, found)) / len(found) if found else 0.0

    def collective(self, name: str) -> CollectiveTable:
        """Return the table of a collective; UnknownNameError for one that is not there."""
        if name not in self.collectives:
            raise UnknownNameError("collective", name, self.collectives)
        return self.collectives[name]

    def profile(self, gemm: Gemm) -> GemmProfile:
        """Return the GEMM's profile scaled to simulated times; computed once per shape."""
        if gemm not in self._profiles:
            taken = {*self.splits, *(table.library_units for table in self.collectives.values())}
            plain = profile_of(gemm, self.gpu, sorted(taken), RunOptions(clock=self.clock))
            seconds = {units: time * self._ratio(plain, units) for units, time in plain.seconds.items()}
            held = {units: time * self._ratio(plain, units) for units, time in plain.held.items()}
            self._profiles[gemm] = replace(plain, seconds=seconds, held=held)
        return self._profiles[gemm]

    def _ratio(self, plain: GemmProfile, units: int) -> float:
        curve = self.gemm.one if plain.waves(units) == 1 else self.gemm.more
        return curve.at(plain.boundness[units])

    def save(self, path: str | Path) -> Path:
        """Write the tables as JSON, whole or not at all; OutputError if the file cannot be written."""
        return write_json(path, self.record())

    def record(self) -> dict[str, Any]:
        """Return the tables as plain data, from which `from_record` rebuilds equal tables."""
        plain = _adapter().dump_python(self, mode="json")
        return {"kind": KIND, "schema": SCHEMA, **{name: plain[name] for name in plain if name[0] != "_"}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], file: str | None = None) -> Self:
        """Rebuild tables from the plain data of `record`; ConfigError for anything else."""
        own = {name: value for name, value in record.items() if name not in ("kind", "schema")}
        if (record.get("kind"), record.get("schema")) != (KIND, SCHEMA):
            raise ConfigError(f"these are no {KIND} of version {SCHEMA}; {AGAIN}", file)
        try:
            return _adapter().validate_python(own)  # type: ignore[no-any-return]
        except (TypeError, ValueError) as error:
            why = f"the tables are damaged ({error}); {AGAIN}"
            raise ConfigError(why, file) from error


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(SlowdownTables)


def load_tables(path: str | Path) -> SlowdownTables:
    """Load tables from a file; InputError if it cannot be read, ConfigError if it holds something else."""
    return SlowdownTables.from_record(read_json(path, KIND, AGAIN), str(path))
