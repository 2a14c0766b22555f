"""Choose how a GEMM and a collective share a GPU, in microseconds: arithmetic on slowdown tables, no simulation.

Each way to share is timed as two stretches: while both run, each is slowed by the other; when one has ended, the other
continues alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from weft.graph import Collective, Gemm
from weft.plan.tune.tables import CollectiveTable, GemmProfile, SlowdownTables, between
from weft.simulate.result.metrics import ideal_speedup, share_of_ideal

_DMA_SPLITS = 3
"""Number of smallest splits tried on the GEMM if DMA engines drive the collective."""
_ROUNDING = 1e-9
_UNDISTURBED = (1.0, 1.0, 1.0)
TIE = 0.002
"""Among ways whose makespans differ by at most this share, the plainest is chosen."""


@dataclass(frozen=True)
class Choice:
    """How to share a GPU between a GEMM and a collective, and the expected gain.

    `units` compute units are reserved (None: the strategy sets none apart). `speedup` is over running both one after
    the other with the library's own kernel, between `low` and `high` by the known error of the tables. `share` is the
    fraction of the ideal gain (neither slows the other); times are in seconds.
    """

    strategy: str
    units: int | None
    speedup: float
    share: float
    low: float
    high: float
    serial_s: float
    makespan_s: float


class Forecast(NamedTuple):
    """The expected makespan of a strategy with `units` reserved [s]."""

    strategy: str
    units: int | None
    makespan_s: float


def choose(
    gemm: Gemm,
    collective: Collective,
    tables: SlowdownTables,
    gemm_s: float | None = None,
    collective_s: float | None = None,
) -> Choice:
    """Return the best way to share a GPU between `gemm` and `collective`, by the tables.

    `gemm_s` and `collective_s` are isolated times measured by the caller, the collective's by the library's own kernel
    (None: from the tables) [s]. A shape's tiles are worked out when it is first seen; from then on an answer takes
    microseconds. Raises UnknownNameError for a collective that the tables lack.
    """
    case = case_of(gemm, collective, tables, gemm_s, collective_s)
    best, error = plainest(list(forecasts(case))), tables.error(given=None not in (gemm_s, collective_s))
    serial = case.gemm_s + case.collective_s
    speedup = serial / best.makespan_s
    return Choice(
        best.strategy,
        best.units,
        speedup,
        share_of_ideal(speedup, case.ideal),
        low=speedup / (1 + error),
        high=speedup / (1 - error),
        serial_s=serial,
        makespan_s=best.makespan_s,
    )


def plainest(ways: Sequence[Forecast]) -> Forecast:
    """Return the first way that is at most `TIE` slower than the fastest."""
    fastest = min(one.makespan_s for one in ways)
    return next(one for one in ways if one.makespan_s <= (1 + TIE) * fastest)


class LookedUpPair(NamedTuple):
    """A GEMM concurrent with a collective with all table lookups done: alone they take `gemm_s` and `collective_s` [s].

    `place` is the size's position in the collective's table. The scales are measured over tabulated times, of the GEMM
    and of the collective by compute units and by DMA engines. `slow` holds, by the collective's units (0: DMA engines),
    the costs while both run: the GEMM's factor, the collective's factor, and the collective's rate at which they hold.
    """

    profile: GemmProfile
    table: CollectiveTable
    parts: int
    bytes_: int
    place: tuple[int, float]
    gemm_s: float
    collective_s: float
    scale_g: float
    scale_c: float
    scale_dma: float
    slow: Mapping[int, tuple[float, float, float]]

    @property
    def ideal(self) -> float:
        """Speedup if neither slowed the other."""
        return ideal_speedup(self.gemm_s, self.collective_s)

    def off(self, gemm: float, collective: float) -> LookedUpPair:
        """Return the same pair with the isolated times multiplied by the given factors."""
        return self._replace(
            gemm_s=self.gemm_s * gemm,
            collective_s=self.collective_s * collective,
            scale_g=self.scale_g * gemm,
            scale_c=self.scale_c * collective,
            scale_dma=self.scale_dma * collective,
        )

    def slowdowns(self, units: int, alone_s: float) -> tuple[float, float]:
        """Slowdowns of the GEMM and the collective while both run, if the collective takes `alone_s` alone."""
        gemm, moved, rate = self.slow.get(units, _UNDISTURBED)
        demand = min(1.0, self.bytes_ / (alone_s * rate))
        return 1 + (gemm - 1) * demand, 1 + (moved - 1) * demand


def case_of(
    gemm: Gemm,
    collective: Collective,
    tables: SlowdownTables,
    gemm_s: float | None = None,
    collective_s: float | None = None,
) -> LookedUpPair:
    """Look up everything that `choose` needs."""
    table, profile = tables.collective(collective.name), tables.profile(gemm)
    place, boundness = table.place(collective.bytes), profile.boundness[0]
    g, c = profile.seconds[0], between(table.library, *place)
    scale_g = 1.0 if gemm_s is None else gemm_s / g
    scale_c = 1.0 if collective_s is None else collective_s / c
    known = tables.interference.get(collective.name, {})
    slow = {units: (*found.at(boundness), found.rate) for units, found in known.items()}
    return LookedUpPair(
        profile,
        table,
        tables.parts,
        collective.bytes,
        place,
        g * scale_g,
        c * scale_c,
        scale_g,
        scale_c,
        1.0,
        slow,
    )


def forecasts(case: LookedUpPair) -> Iterator[Forecast]:
    """Forecasts of every way to share in the tables, the plainest first."""
    table, place = case.table, case.place
    yield Forecast("streams", None, _gemm_first(case))
    yield Forecast("priority", None, _collective_first(case))
    for units, column in table.units.items():
        alone = between(column, *place) * case.scale_c
        yield Forecast("partition", units, _apart(case, units, alone, units))
    if table.dma:
        alone = between(table.dma, *place) * case.scale_dma
        yield Forecast("dma", None, _apart(case, 0, alone, 0))
        for units in list(table.units)[:_DMA_SPLITS]:
            yield Forecast("dma-partition", units, _apart(case, units, alone, 0))


def _apart(case: LookedUpPair, units: int, alone: float, moving: int) -> float:
    """Return the makespan with `units` taken off the GEMM throughout, the collective taking `alone` [s] by `moving`.

    The clock that a GEMM gains on fewer units it has while the collective does not work on the others.
    """
    gemm = case.profile.seconds[units] * case.scale_g
    slow_g, slow_c = case.slowdowns(moving, alone)
    lost = case.profile.beside[units] if moving else 1.0
    return both(gemm * lost * slow_g, alone * slow_c, gemm, alone)


def both(gemm_beside: float, moved_beside: float, gemm_after: float, moved_after: float) -> float:
    """The makespan of two operators from their times while both run and their times alone [s]."""
    if moved_beside <= gemm_beside:
        return moved_beside + (1 - moved_beside / gemm_beside) * gemm_after
    return gemm_beside + (1 - gemm_beside / moved_beside) * moved_after


def _collective_first(case: LookedUpPair) -> float:
    """The makespan if the collective's workgroups are placed first; the GEMM gets their units when it ends [s]."""
    profile, held = case.profile, case.table.library_units
    slow_g, slow_c = case.slowdowns(_nearest(case, held), case.collective_s)
    whole, less = case.gemm_s, profile.held[held] * case.scale_g
    moved = case.collective_s * slow_c
    tiles, slots = _tiles(case)
    places = min(ceil(held / case.parts) * profile.resident, slots - 1)
    tile_s = less / ceil(tiles / (slots - places))
    end = last_start(tiles, slots, places, tile_s, moved) + tile_s
    end = min(max(end, whole), less) + min(moved, whole) * (1 - 1 / slow_g)
    # After the GEMM's end the rest of the collective is not slowed.
    return max(end, moved if moved <= end else end + (moved - end) / slow_c)


def _gemm_first(case: LookedUpPair) -> float:
    """Return the makespan if the GEMM takes every unit and the collective gets what the last wave leaves free [s]."""
    profile, wanted = case.profile, case.table.library_units
    tiles, slots = _tiles(case)
    waves = ceil(tiles / slots)
    tail = case.gemm_s / waves
    free = min(wanted, int((waves * slots - tiles) / profile.resident * case.parts))
    if not free:
        return case.gemm_s + case.collective_s
    alone = _with_units(case, free)
    slow_g, slow_c = case.slowdowns(_nearest(case, free), alone)
    # Every workgroup has its own part of the data: those without a place move nothing yet.
    moved = min(free / wanted, tail / (alone * slow_c))
    slowed = min(tail, alone * slow_c) * (1 - 1 / slow_g)
    return case.gemm_s + slowed + (1 - moved) * case.collective_s


def _nearest(case: LookedUpPair, units: int) -> int:
    """Return the split in the tables that is nearest to `units`."""
    return min(case.table.units, key=lambda known: abs(known - units))


def _tiles(case: LookedUpPair) -> tuple[int, float]:
    """Tiles and places of the GPU part with the most tiles: an XCD of an AMD GPU, or the whole GPU."""
    profile = case.profile
    return ceil(profile.tiles / case.parts), profile.units / case.parts * profile.resident


def _with_units(case: LookedUpPair, units: int) -> float:
    """The collective's time on `units` units [s], interpolated in the table and no longer than with the fewest."""
    times = [between(column, *case.place) for column in case.table.units.values()]
    return float(np.interp(units, list(case.table.units), times)) * case.scale_c


def last_start(tiles: int, slots: float, held: float, tile_s: float, until: float) -> float:
    """When the last of `tiles` tiles of `tile_s` starts [s], `held` of `slots` places being taken `until` a time.

    Free places start tiles at multiples of `tile_s`; the held places do so at the same intervals from `until` on.
    """
    without = (ceil(tiles / (slots - held)) - 1) * tile_s
    if without <= until:
        return without
    fluid = ((tiles + held * until / tile_s) / slots - 1) * tile_s  # lower bound of the start
    first = max(0, ceil(fluid / tile_s - _ROUNDING)) * tile_s
    second = until + max(0, ceil((fluid - until) / tile_s - _ROUNDING)) * tile_s
    for start in sorted((first, first + tile_s, second, second + tile_s)):
        begun = (slots - held) * (floor(start / tile_s + _ROUNDING) + 1)
        if start >= until:
            begun += held * (floor((start - until) / tile_s + _ROUNDING) + 1)
        if begun >= tiles:
            return start
    return max(first, second) + tile_s
