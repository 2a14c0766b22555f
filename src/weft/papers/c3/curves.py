"""The study's curves: GEMM slowdown over compute units lost, collective bandwidth over compute units given.

And the time of a collective by DMA engines relative to compute units, over its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, geometric_mean
from typing import Any

from weft.core.units import format_bytes
from weft.graph import Collective, Gemm
from weft.papers.c3.scenarios import Scenario
from weft.papers.headline import StudyFigure
from weft.sweep.simulations import Bench, Runs, Simulation

KIB, MIB = 1 << 10, 1 << 20
_LOST = (0, 8, 16, 32, 64, 96, 128)
"""Compute units taken off a GEMM."""
BOUNDS = ("compute-bound", "memory-bound")
"""What limits a GEMM, in words."""
_SATURATED = 0.95
"""Share of the best bandwidth at which a collective counts as saturated."""
GIVEN = (4, 8, 16, 32, 64, 128)
"""Compute units given to a collective."""
_GIVEN_BYTES = 896 * MIB
"""Size of the collectives in the curves of bandwidth, if the suite has no smaller largest one: gate and up of 70B
[bytes]."""
SIZES = (*(64 * KIB * 4**i for i in range(8)), 3328 * MIB)
"""Sizes at which DMA engines and compute units are compared, up to the suite's largest [bytes]."""
SMALL = 32 * 10**6
"""Size below which DMA engines are slower than compute units, as published [bytes]."""


@dataclass(frozen=True)
class Curves:
    """The curves as plain numbers.

    `slowdown` holds, by GEMM and compute units lost, the GEMM's time over that on all units; `boundness` what limits
    each GEMM. `bandwidth` holds, by collective and compute units given, bytes of the whole buffer per second, and
    `bandwidth_bytes` the size of that buffer. `cu_s` and `dma_s` hold, by collective and size [bytes], its time by
    compute units and by DMA engines [s].
    """

    slowdown: Mapping[str, Mapping[int, float]]
    boundness: Mapping[str, str | None]
    bandwidth: Mapping[str, Mapping[int, float]]
    bandwidth_bytes: int
    cu_s: Mapping[str, Mapping[int, float]]
    dma_s: Mapping[str, Mapping[int, float]]

    def figures(self) -> Iterator[StudyFigure]:
        """Values of the claims about the curves."""
        for bound, lost in (("compute", 32), ("compute", 64), ("memory", 8)):
            curves = (curve for gemm, curve in self.slowdown.items() if self.boundness[gemm] == bound)
            slower = [curve[lost] for curve in curves if lost in curve]
            if slower:
                words = {"count": len(slower), "s": "s" * (len(slower) != 1)}
                yield StudyFigure(f"c3.gemm_slowdown.{bound}_bound.minus{lost}", fmean(slower) - 1, words)
        for name, units in self.saturations.items():
            yield StudyFigure(f"c3.saturation.{name}", units, {"size": format_bytes(self.bandwidth_bytes)})
        yield StudyFigure("c3.dma_small_slowdown", self.small_slowdown())

    def of_bound(self, bound: str) -> dict[str, Mapping[int, float]]:
        """The curves of GEMMs that are "memory-bound", or of all others."""
        memory = bound == "memory-bound"
        return {gemm: curve for gemm, curve in self.slowdown.items() if (self.boundness[gemm] == "memory") == memory}

    @property
    def gemm_means(self) -> Iterator[tuple[Any, ...]]:
        """A GEMM's time over compute units lost: means of the GEMMs of each bound."""
        for bound in BOUNDS:
            curves = list(self.of_bound(bound).values())
            yield from ((bound, lost, fmean(curve[lost] for curve in curves)) for lost in (curves[0] if curves else ()))

    @property
    def each_gemm(self) -> Iterator[tuple[Any, ...]]:
        """The same of each GEMM."""
        for bound in BOUNDS:
            for gemm, curve in self.of_bound(bound).items():
                yield from ((gemm, bound, lost, value) for lost, value in curve.items())

    @property
    def bandwidth_shares(self) -> Iterator[tuple[Any, ...]]:
        """A collective's bandwidth over the compute units that it is given, as a share of its best."""
        for name, curve in self.bandwidth.items():
            best = max(curve.values())
            for units, value in curve.items():
                yield f"{name}, best {best / 1e9:,.0f} GB/s", units, value / best

    @property
    def drivers(self) -> Iterator[tuple[Any, ...]]:
        """Time of collectives by DMA engines relative to compute units, over size."""
        for name, curve in self.dma_s.items():
            for size, seconds in curve.items():
                yield name, size / MIB, format_bytes(size, 3), seconds / self.cu_s[name][size]

    @property
    def saturations(self) -> dict[str, int]:
        """The number of compute units that saturates each collective."""
        return {name: self.saturation(name) for name in self.bandwidth}

    def saturation(self, collective: str) -> int:
        """Return the least power of two of compute units that gives a collective 95 % of its best bandwidth."""
        curve = self.bandwidth[collective]
        return min(units for units, reached in curve.items() if reached >= _SATURATED * max(curve.values()))

    def small_slowdown(self) -> float:
        """Time by DMA engines over that by compute units below 32 MB: geometric mean over sizes and collectives."""
        return geometric_mean(
            self.dma_s[name][size] / self.cu_s[name][size]
            for name in self.dma_s
            for size in self.dma_s[name]
            if size < SMALL
        )


def gemms_of(scenarios: Sequence[Scenario]) -> dict[Gemm, str | None]:
    """Return every distinct GEMM, and what limits it."""
    return {s.product: s.bound for s in reversed(scenarios)}


@dataclass(frozen=True)
class CurveRuns:
    """The runs behind the curves of a suite on a bench: slowdowns of `gemms`, each with what limits it."""

    scenarios: Sequence[Scenario]
    bench: Bench
    gemms: Mapping[Gemm, str | None]

    @property
    def largest(self) -> int:
        """The size of the largest collective of the suite [bytes]."""
        return max(scenario.size for scenario in self.scenarios)

    @property
    def given_bytes(self) -> int:
        """Size of the collectives in the curves of bandwidth [bytes]."""
        return min(_GIVEN_BYTES, self.largest)

    @cached_property
    def every(self) -> dict[str, dict[str, dict[int, Simulation]]]:
        """All runs: of each GEMM by units lost, of each collective by units given, and by size."""
        names = sorted({scenario.collective for scenario in self.scenarios})
        units, bench = self.bench.gpu.compute.compute_units, self.bench
        # Sizes up to the suite's largest, but at least one.
        sizes = [size for size in SIZES if size <= max(self.largest, SIZES[0])]

        def time_collective(name: str, size: int, units: int | None) -> Simulation:
            return bench.collective(Collective(name, size, bench.system.gpus), units)

        return {
            "gemms": {
                str(gemm): {lost: bench.gemm(gemm, lost) for lost in _LOST if lost < units} for gemm in self.gemms
            },
            "given": {
                name: {u: time_collective(name, self.given_bytes, u) for u in GIVEN if u < units} for name in names
            },
            "cu": {name: {size: time_collective(name, size, None) for size in sizes} for name in names},
            "dma": {name: {size: time_collective(name, size, 0) for size in sizes} for name in names},
        }

    def tasks(self) -> Iterator[Simulation]:
        """Return the tasks of the curves."""
        return (task for curves in self.every.values() for curve in curves.values() for task in curve.values())

    def curves(self, runs: Runs) -> Curves:
        """Return the curves from the simulated runs."""
        seconds = {
            what: {name: {at: runs[task].makespan for at, task in curve.items()} for name, curve in curves.items()}
            for what, curves in self.every.items()
        }
        size = self.given_bytes
        return Curves(
            slowdown={
                gemm: {lost: s / curve[0] for lost, s in curve.items()} for gemm, curve in seconds["gemms"].items()
            },
            boundness={str(gemm): bound for gemm, bound in self.gemms.items()},
            bandwidth={name: {u: size / s for u, s in curve.items()} for name, curve in seconds["given"].items()},
            bandwidth_bytes=size,
            cu_s=seconds["cu"],
            dma_s=seconds["dma"],
        )
