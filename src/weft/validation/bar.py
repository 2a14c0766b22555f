"""What the models must reach, line by line, and whether they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from weft.validation.metrics import Errors, errors_of
from weft.validation.subjects import Predicted, Subject, joined

Protocol = Literal["held out", "leave one out", "as shipped"]
"""On which rows an error counts: a random 30 %, a machine whose rows no fit saw, or all."""

BoolArray = npt.NDArray[np.bool_]
Which = Callable[[Subject], BoolArray]


@dataclass(frozen=True)
class Line:
    """One demand: what, on which rows, the statistic and its limit; and what was reached (None without rows)."""

    what: str
    protocol: Protocol
    statistic: str
    limit: float
    reached: float | None
    rows: int
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the demand is met; None if there were no rows to tell."""
        if self.reached is None:
            return None
        return self.reached >= self.limit if self.at_least else self.reached <= self.limit

    @property
    def verdict(self) -> str:
        """The answer in a word."""
        return {True: "pass", False: "MISS", None: "no rows"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        """The line as plain data."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**fields, "verdict": self.verdict}


@dataclass(frozen=True)
class Demand:
    """Limits on the errors of some rows of one kind, by statistic: mean, p90 or geomean of the absolute error."""

    what: str
    kind: str
    protocol: Protocol
    limits: Mapping[str, float]
    which: Which

    def lines(self, predictions: Sequence[Predicted]) -> list[Line]:
        """The demand measured on predictions made by its protocol."""
        chosen = [_part(part, self.which) for part in predictions if part.subject.kind == self.kind]
        chosen = [part for part in chosen if len(part.subject)]
        errors = errors_of(*joined(chosen)) if chosen else None
        return [
            Line(self.what, self.protocol, name, limit, _statistic(errors, name), errors.rows if errors else 0)
            for name, limit in self.limits.items()
        ]


def _part(part: Predicted, which: Which) -> Predicted:
    mask = which(part.subject)
    return Predicted(part.subject.take(mask), part.seconds[mask])


def _statistic(errors: Errors | None, name: str) -> float | None:
    if errors is None:
        return None
    by_name = {"mean": errors.mean_abs_err, "p90": errors.p90_abs_err, "geomean": errors.geomean_err}
    return by_name[name]


def where(machines: Sequence[str] = (), size: str = "", **labels: Sequence[Any]) -> Which:
    """Rows of some machines, within a class of size, whose labels are among those given; nothing means any."""

    def which(subject: Subject) -> BoolArray:
        mask: BoolArray = np.full(len(subject), not machines or subject.machine in machines)
        if size:
            mask &= subject.ranges.get(size, np.zeros(len(subject), dtype=np.bool_))
        for name, values in labels.items():
            column = subject.labels.get(name)
            mask &= np.isin(column, list(values)) if column is not None else False
        return mask

    return which


def lines(demands: Sequence[Demand], predictions: Mapping[Protocol, Sequence[Predicted]]) -> list[Line]:
    """Every demand's lines; one whose protocol was not run says that there were no rows."""
    return [line for demand in demands for line in demand.lines(predictions.get(demand.protocol, ()))]
