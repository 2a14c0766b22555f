"""A study's figure, and the published one beside it where it holds: how it is stated, measured and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, geometric_mean
from typing import Any, Protocol

from weft.result import Comparison, Result

Case = tuple[str, int, str]
"""Model, degree of tensor parallelism, sub-layer."""
Measure = Callable[[Sequence[Comparison]], float]
Published = float | tuple[float, float]
"""A published figure, or the range that is published, low and high end."""


@dataclass(frozen=True)
class HeadlineRow:
    """Weft's figure and the published one or range, both in `unit`; None where nothing is published for the machine.

    `unit` is "ratio", "fraction" (a change, told with its sign), "share" (of a whole), or what is counted ("CUs").
    """

    id: str
    what: str
    published: Published | None
    weft: float
    unit: str

    @property
    def difference(self) -> float | None:
        """How far Weft's figure lies above the published one, or outside of the range; None without one."""
        if self.published is None:
            return None
        low, high = self.published if isinstance(self.published, tuple) else (self.published, self.published)
        return self.weft - min(max(self.weft, low), high)

    def as_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {**asdict(self), "difference": self.difference}


class Stated(Protocol):
    """What every study says of itself."""

    @property
    def gpu(self) -> str:
        """The GPU's name."""

    @property
    def changed(self) -> Sequence[str]:
        """The machine's values that the user set."""

    @property
    def request_bytes(self) -> int:
        """Size of a memory request [bytes]."""

    @property
    def comparable(self) -> bool:
        """Whether the published figures hold for what was simulated."""

    @property
    def wall_s(self) -> float:
        """What the study took [s]."""

    @property
    def notes(self) -> Sequence[str]:
        """What must be known to read the figures."""

    def headline(self) -> Sequence[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""


def stated(study: Stated, name: str, published: str) -> dict[str, Any]:
    """How the JSON of every study begins: what was run, where the published figures stand, notes and headline."""
    return {
        "study": name,
        "published": published,
        "gpu": study.gpu,
        "changed": list(study.changed),
        "notes": list(study.notes),
        "request_bytes": study.request_bytes,
        "wall_s": study.wall_s,
        "headline": [row.as_json() for row in study.headline()],
    }


def unlike(
    gpu: str, published_gpu: str, changed: Sequence[str] = (), declared_suite: bool = True
) -> str | None:
    """Why published figures cannot stand beside those of such a run, as a note; None where they can."""
    if gpu != published_gpu:
        why = f"the published ones are of {published_gpu}, these of {gpu}"
    elif changed:
        why = f"the machine was changed ({', '.join(changed)})"
    elif not declared_suite:
        why = "the suite is not the declared one"
    else:
        return None
    return f"no published figures stand beside these: {why}"


@dataclass(frozen=True)
class Claim:
    """A published figure: over which cases it was taken, and how it is measured on their comparisons.

    `unit` is "ratio" (1.30: 30 % faster, or that many times fewer) or "fraction" (-0.22: 22 % less).
    """

    id: str
    what: str
    published: float
    unit: str
    cases: tuple[Case, ...]
    measure: Measure

    def row(self, comparisons: Mapping[Case, Comparison], comparable: bool = True) -> HeadlineRow | None:
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
