"""Published figures of sub-layers: over which cases each was taken, and how it is measured on their comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from weft.result import Comparison, Result
from weft.studies.headline import HeadlineRow

CaseKey = tuple[str, int, str]
"""Model, degree of tensor parallelism, sub-layer."""
Measure = Callable[[Sequence[Comparison]], float]


@dataclass(frozen=True)
class Claim:
    """A published figure: over which cases it was taken, and how it is measured on their comparisons.

    `unit` is "ratio" (1.30: 30 % faster, or that many times fewer) or "fraction" (-0.22: 22 % less).
    """

    id: str
    what: str
    published: float
    unit: str
    cases: tuple[CaseKey, ...]
    measure: Measure

    def row(self, comparisons: Mapping[CaseKey, Comparison], comparable: bool = True) -> HeadlineRow | None:
        """The claim beside what was simulated, saying so if that is a part of its cases; None without any.

        Where the machine is not the published one (not `comparable`), Weft's figure stands alone.
        """
        found = [comparisons[case] for case in self.cases if case in comparisons]
        if not found:
            return None
        part = "" if len(found) == len(self.cases) else f" ({len(found)} of {len(self.cases)})"
        published = self.published if comparable else None
        return HeadlineRow(self.id, self.what + part, published, self.measure(found), self.unit)


def geomean_speedup(overlap: str) -> Measure:
    """Geometric mean of the speedups over sequential."""
    return lambda found: geometric_mean(c.speedup(overlap) for c in found)


def largest_speedup(overlap: str) -> Measure:
    """Largest speedup over sequential."""
    return lambda found: max(c.speedup(overlap) for c in found)


def reduce_scatter_gain(overlap: str) -> Measure:
    """Mean of how much faster the reduce-scatter is than in sequential: 0.07 is 7 %."""
    return lambda found: fmean(
        c.baseline.times.reduce_scatter / c[overlap].times.reduce_scatter - 1 for c in found
    )


def traffic(result: Result, *causes: str) -> int:
    """DRAM traffic of the given causes, or of all without any [bytes]."""
    return sum(result.bytes.get(cause, 0) for cause in causes) if causes else result.total_bytes


def times_fewer(overlap: str, *causes: str) -> Measure:
    """Geometric mean of sequential's traffic over the overlap's: 2.5 is 2.5 times fewer."""
    return lambda found: geometric_mean(
        traffic(c.baseline, *causes) / traffic(c[overlap], *causes) for c in found
    )


def traffic_change(overlap: str, *causes: str) -> Measure:
    """Geometric mean of the overlap's traffic over sequential's, less one: -0.22 is 22 % less."""
    return lambda found: 1 / times_fewer(overlap, *causes)(found) - 1


def largest_saving(overlap: str) -> Measure:
    """The change of all traffic where most is saved, a negative fraction."""
    return lambda found: min(traffic(c[overlap]) / traffic(c.baseline) - 1 for c in found)
