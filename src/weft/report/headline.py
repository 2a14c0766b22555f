"""What a report needs to know of a study: its comparisons and its headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from weft.result import Comparison

CaseKey = tuple[str, int, str]
"""Model, degree of tensor parallelism, sub-layer."""
Published = float | tuple[float, float]
"""A published figure, or the range that is published, low and high end."""


class HeadlineRow(Protocol):
    """A figure of Weft's, beside a published one if there is one for the machine."""

    @property
    def id(self) -> str:
        """A stable name such as "t3.speedup.geomean"."""

    @property
    def what(self) -> str:
        """What the figure says, for people."""

    @property
    def published(self) -> Published | None:
        """The published figure or range."""

    @property
    def weft(self) -> float:
        """Weft's figure."""

    @property
    def unit(self) -> str:
        """The unit of all three figures."""

    @property
    def difference(self) -> float | None:
        """Weft's figure minus the published one, or the nearer end of a range that it lies outside of."""


class Study(Protocol):
    """Sub-layers compared under several overlaps, with published figures to stand beside."""

    @property
    def comparisons(self) -> Mapping[CaseKey, Comparison]:
        """One comparison per model, degree and sub-layer."""

    @property
    def notes(self) -> Sequence[str]:
        """What must be known to read the figures."""

    def headline(self) -> Sequence[HeadlineRow]:
        """Weft's figures, beside published ones if there are any for the machine."""


def published_means(rows: Sequence[HeadlineRow], prefix: str = "") -> dict[str, float]:
    """Published geometric means of speedups by overlap, of the rows whose ids begin with `prefix`."""
    means = {}
    for row in rows:
        parts = row.id.removeprefix(prefix).split(".")
        if (
            isinstance(row.published, float)
            and row.id.startswith(prefix)
            and parts[1:] == ["speedup", "geomean"]
        ):
            means[parts[0].replace("_", "-")] = row.published
    return means
