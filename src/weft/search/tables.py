"""Slowdown tables of a machine: what GEMMs and collectives take, alone and beside each other, as a runtime needs it.

The numbers come from Weft's own simulations (`weft.search.probes`); here they are only kept, looked up and saved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from weft.errors import ConfigError, UnknownNameError
from weft.estimate import gemm_kernel
from weft.estimate.gemm_plans import cold_rates
from weft.files import read_json, write_json
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.lower.fit import tiling_for
from weft.options import SUSTAINED, Clock, RunOptions

SCHEMA = 2
"""Version of the file that tables are saved in."""
KIND = "weft slowdown tables"
AGAIN = "make the tables again with weft advise"
GIVEN, LOOKED_UP = "given", "looked up"
"""Where the times of a GEMM and a collective alone come from: the caller, or the tables."""


@dataclass(frozen=True)
class CollectiveTable:
    """A collective alone: seconds for every size of `bytes`, by what drives it.

    `library` is with the library's own number of workgroups, which is `library_units`; `units[u]` with `u` compute
    units, `dma` by DMA engines (empty where they cannot).
    """

    bytes: tuple[int, ...]
    library_units: int
    library: tuple[float, ...]
    units: Mapping[int, tuple[float, ...]]
    dma: tuple[float, ...] = ()

    def place(self, bytes_: float) -> tuple[int, float]:
        """Between which sizes `bytes_` lies: the index of the upper one, and how far from the lower, as a share.

        Beyond the largest size the last line goes on; below the smallest it is level, as latency rules there.
        """
        sizes = self.bytes
        right = min(max(1, bisect_right(sizes, bytes_)), len(sizes) - 1)
        return right, max(0.0, (bytes_ - sizes[right - 1]) / (sizes[right] - sizes[right - 1]))

    def seconds(self, column: Sequence[float], bytes_: float) -> float:
        """The time of `bytes_` in one column [s]."""
        return between(column, *self.place(bytes_))


def between(column: Sequence[float], right: int, share: float) -> float:
    """The value at a share of the way to the place `right` from the one before."""
    return column[right - 1] + share * (column[right] - column[right - 1])


@dataclass(frozen=True)
class Interference:
    """What a GEMM and a collective cost each other while both run, neither lacking compute units.

    For each `boundness` of a GEMM: how many times longer the GEMM (`gemm`) and the collective (`collective`) take.
    `rate` is what the collective moved alone when this was found [bytes of its buffer/s]; slower ones disturb less.
    """

    boundness: tuple[float, ...]
    gemm: tuple[float, ...]
    collective: tuple[float, ...]
    rate: float

    def at(self, boundness: float) -> tuple[float, float]:
        """Both slowdowns at a boundness, along straight lines between those that were simulated."""
        return interpolate(self.boundness, self.gemm, boundness), interpolate(
            self.boundness, self.collective, boundness
        )


@dataclass(frozen=True)
class Curve:
    """Values at rising places; straight lines join them, and the ends go on level."""

    places: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, place: float) -> float:
        """The value at a place."""
        return interpolate(self.places, self.values, place)


@dataclass(frozen=True)
class GemmTable:
    """Simulated over closed form by the boundness of a GEMM: where its tiles run in `one` wave, or in `more`."""

    one: Curve
    more: Curve


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


@dataclass(frozen=True)
class SlowdownTables:
    """Everything that `choose` looks up for a machine: `ranks` equal GPUs at a clock.

    `collectives` and `gemm` say what each takes alone, `interference` what they cost each other, by collective and
    its compute units, or 0 for DMA engines. `errors` are predicted over simulated makespans
    less one, for pairs that are in no table: where the times of both alone are given, and where they are looked up.
    """

    gpu: Gpu
    ranks: int
    clock: Clock
    gemm: GemmTable
    collectives: Mapping[str, CollectiveTable]
    interference: Mapping[str, Mapping[int, Interference]]
    errors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    _profiles: dict[Gemm, GemmProfile] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def splits(self) -> tuple[int, ...]:
        """Compute units that may be set apart for a collective."""
        return tuple(next(iter(self.collectives.values())).units)

    @property
    def parts(self) -> int:
        """Into how many parts workgroups are dealt: the dies of an AMD GPU."""
        return self.gpu.dies

    def error(self, given: bool) -> float:
        """By how much a predicted makespan is off, as the mean over what checked it, the times alone `given` or not."""
        found = self.errors.get(GIVEN if given else LOOKED_UP, ())
        return sum(map(abs, found)) / len(found) if found else 0.0

    def collective(self, name: str) -> CollectiveTable:
        """The table of a collective; UnknownNameError for one that is not there."""
        if name not in self.collectives:
            raise UnknownNameError("collective", name, self.collectives)
        return self.collectives[name]

    def profile(self, gemm: Gemm) -> GemmProfile:
        """The GEMM with its times as the simulation would give them; made once per shape and kept."""
        if gemm not in self._profiles:
            taken = {*self.splits, *(table.library_units for table in self.collectives.values())}
            plain = profile_of(gemm, self.gpu, sorted(taken), RunOptions(clock=self.clock))
            seconds = {units: time * self._ratio(plain, units) for units, time in plain.seconds.items()}
            self._profiles[gemm] = replace(plain, seconds=seconds)
        return self._profiles[gemm]

    def _ratio(self, plain: GemmProfile, units: int) -> float:
        curve = self.gemm.one if plain.waves(units) == 1 else self.gemm.more
        return curve.at(plain.boundness[units])

    def save(self, path: str | Path) -> Path:
        """Write the tables as JSON, whole or not at all; OutputError if the file cannot be written."""
        return write_json(path, self.record())

    def record(self) -> dict[str, Any]:
        """The tables as plain data; `from_record` makes equal tables of it."""
        plain = _adapter().dump_python(self, mode="json")
        return {"kind": KIND, "schema": SCHEMA, **{name: plain[name] for name in plain if name[0] != "_"}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], file: str | None = None) -> Self:
        """The tables that `record` was made of; ConfigError for anything else."""
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
    """The tables in a file; InputError if it cannot be read, ConfigError if it holds something else."""
    return SlowdownTables.from_record(read_json(path, KIND, AGAIN), str(path))


def interpolate(known: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at a place, along straight lines between rising known places; the ends go on level."""
    if at <= known[0]:
        return values[0]
    if at >= known[-1]:
        return values[-1]
    right = bisect_right(known, at)
    share = (at - known[right - 1]) / (known[right] - known[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])
