"""The study's curves: a GEMM's slowdown against compute units lost, a collective's bandwidth against those given.

And what a collective by DMA engines takes beside one by compute units, over its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from weft.simulation.concurrent import SATURATED
from weft.studies.c3.runs import Run, Runs
from weft.studies.c3.scenarios import Scenario
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting
from weft.workload import Gemm

KIB, MIB = 1 << 10, 1 << 20
LOST = (0, 8, 16, 32, 64, 96, 128)
"""Compute units taken off a GEMM."""
GIVEN = (4, 8, 16, 32, 64, 128)
"""Compute units given to a collective."""
GIVEN_BYTES = 896 * MIB
"""The size of the collectives whose bandwidth is compared, or the suite's largest: gate and up of 70B [bytes]."""
SIZES = (*(64 * KIB * 4**i for i in range(8)), 3328 * MIB)
"""Sizes of the collectives that DMA engines are compared on, up to the suite's largest, 64 KiB to 3.25 GiB [bytes]."""
SMALL = 32 * 10**6
"""Below it collectives by DMA engines are published to lose [bytes]."""


@dataclass(frozen=True)
class Curves:
    """The curves as plain numbers.

    `slowdown` holds, by GEMM and compute units lost, the GEMM's time over that on all; `boundness` says what limits
    each of them. `bandwidth` holds, by collective and compute units given, bytes of the whole buffer per second, and
    `bandwidth_bytes` how large that is. `cu_s` and `dma_s` hold, by collective and size [bytes], the time by either
    driver [s].
    """

    slowdown: Mapping[str, Mapping[int, float]]
    boundness: Mapping[str, str | None]
    bandwidth: Mapping[str, Mapping[int, float]]
    bandwidth_bytes: int
    cu_s: Mapping[str, Mapping[int, float]]
    dma_s: Mapping[str, Mapping[int, float]]

    def gemms(self, bound: str) -> int:
        """How many GEMMs of that boundness there are."""
        return sum(found == bound for found in self.boundness.values())

    def mean_slowdown(self, bound: str, lost: int) -> float | None:
        """How much longer GEMMs of that boundness take on average with so many compute units less; None without any."""
        found = [
            curve[lost]
            for name, curve in self.slowdown.items()
            if self.boundness[name] == bound and lost in curve
        ]
        return fmean(found) - 1 if found else None

    def saturation(self, collective: str) -> int:
        """The least power of two of compute units that gives a collective 95 % of its best bandwidth."""
        curve = self.bandwidth[collective]
        return min(units for units, reached in curve.items() if reached >= SATURATED * max(curve.values()))

    def small_slowdown(self) -> float:
        """How many times longer DMA engines take below 32 MB: geometric mean over sizes and collectives."""
        return geometric_mean(
            self.dma_s[name][size] / self.cu_s[name][size]
            for name in self.dma_s
            for size in self.dma_s[name]
            if size < SMALL
        )

    def crossover(self, collective: str) -> int | None:
        """The smallest size of the curve from which on DMA engines are the faster driver [bytes]; None without one."""
        slower = [size for size, time in self.dma_s[collective].items() if time > self.cu_s[collective][size]]
        later = [size for size in self.dma_s[collective] if size > max(slower, default=0)]
        return min(later, default=None)


Gemms = Mapping[Gemm, str | None]
"""GEMMs and what limits each."""


def gemms_of(scenarios: Sequence[Scenario]) -> dict[Gemm, str | None]:
    """Every GEMM once, and what limits it."""
    return {s.product: s.bound for s in reversed(scenarios)}


def collectives_of(scenarios: Sequence[Scenario]) -> tuple[str, ...]:
    """Every collective of a suite, by name."""
    return tuple(sorted({scenario.collective for scenario in scenarios}))


def largest(scenarios: Sequence[Scenario]) -> int:
    """The size of the largest collective of a suite [bytes]."""
    return max(scenario.size for scenario in scenarios)


def sizes(scenarios: Sequence[Scenario]) -> list[int]:
    """The sizes that DMA engines are compared on: none above the suite's largest, but at least one [bytes]."""
    return [size for size in SIZES if size <= max(largest(scenarios), SIZES[0])]


def curve_runs(scenarios: Sequence[Scenario], setting: Setting, gemms: Gemms) -> Iterator[Run]:
    """What the curves need, those of slowdowns for `gemms`."""
    for gemm in gemms:
        for lost in _losable(setting):
            yield _with_less(gemm, setting, lost)
    yield from given_runs(scenarios, setting)
    for collective in collectives_of(scenarios):
        for size in sizes(scenarios):
            for driver in ("cu", "dma"):
                yield _sized(collective, size, setting, driver)


def given_runs(scenarios: Sequence[Scenario], setting: Setting) -> Iterator[CollectiveAlone]:
    """What the curves of bandwidth against compute units need."""
    for collective in collectives_of(scenarios):
        for units in _givable(setting):
            yield _given(collective, units, scenarios, setting)


def _given(collective: str, units: int, scenarios: Sequence[Scenario], setting: Setting) -> CollectiveAlone:
    return CollectiveAlone(collective, _given_bytes(scenarios), setting, units=units)


def _given_bytes(scenarios: Sequence[Scenario]) -> int:
    return min(GIVEN_BYTES, largest(scenarios))


def curves(scenarios: Sequence[Scenario], setting: Setting, gemms: Gemms, runs: Runs) -> Curves:
    """The curves from what was simulated, those of slowdowns for `gemms`."""
    return Curves(
        slowdown={str(gemm): _slowdown(gemm, setting, runs) for gemm in gemms},
        boundness={str(gemm): bound for gemm, bound in gemms.items()},
        bandwidth=_bandwidths(scenarios, setting, runs),
        bandwidth_bytes=_given_bytes(scenarios),
        cu_s=_times("cu", scenarios, setting, runs),
        dma_s=_times("dma", scenarios, setting, runs),
    )


def _bandwidths(scenarios: Sequence[Scenario], setting: Setting, runs: Runs) -> dict[str, dict[int, float]]:
    """By collective and compute units given: bytes of the whole buffer per second."""
    found: dict[str, dict[int, float]] = {}
    for collective in collectives_of(scenarios):
        tasks = {units: _given(collective, units, scenarios, setting) for units in _givable(setting)}
        found[collective] = {units: task.bytes_ / runs[task].makespan_s for units, task in tasks.items()}
    return found


def _slowdown(gemm: Gemm, setting: Setting, runs: Runs) -> dict[int, float]:
    whole = runs[_with_less(gemm, setting, 0)].makespan_s
    return {lost: runs[_with_less(gemm, setting, lost)].makespan_s / whole for lost in _losable(setting)}


def _times(
    driver: str, scenarios: Sequence[Scenario], setting: Setting, runs: Runs
) -> dict[str, dict[int, float]]:
    return {
        collective: {
            size: runs[_sized(collective, size, setting, driver)].makespan_s for size in sizes(scenarios)
        }
        for collective in collectives_of(scenarios)
    }


def _losable(setting: Setting) -> Iterable[int]:
    return [lost for lost in LOST if lost < setting.gpu.compute.compute_units]


def _givable(setting: Setting) -> Iterable[int]:
    return [units for units in GIVEN if units < setting.gpu.compute.compute_units]


def _with_less(gemm: Gemm, setting: Setting, lost: int) -> GemmAlone:
    return GemmAlone(gemm, setting, setting.gpu.compute.compute_units - lost if lost else None)


def _sized(collective: str, size: int, setting: Setting, driver: str) -> CollectiveAlone:
    return CollectiveAlone(collective, size, setting, driver)
