"""The bar that the shipped models are held to: errors on rows and machines that no fit saw, demand by demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np

from weft.catalog import read_toml
from weft.validation.calibration import hold_out, leave_one_out
from weft.validation.overlaps import FLUX, right_signs
from weft.validation.run import Validation
from weft.validation.subjects import BoolArray, Predicted, Progress, Subject, errors_of, joined

Protocol = Literal["held out", "leave one out", "as shipped"]
"""On which rows an error counts: a random 30 %, a machine whose rows no fit saw, or all."""

SPLITS = 3
"""How many random splits the held-out errors are averaged over: small groups depend on which rows a split takes."""


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
    def verdict(self) -> str:
        """Whether the demand is met: "pass", "MISS", or "no rows" without rows to judge by."""
        if self.reached is None:
            return "no rows"
        holds = self.reached >= self.limit if self.at_least else self.reached <= self.limit
        return "pass" if holds else "MISS"

    def to_dict(self) -> dict[str, Any]:
        """The line as plain data."""
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Demand:
    """Limits on the errors of some rows of one kind, by statistic: mean, p90 or geomean of the absolute error.

    `rows` selects rows by "machines", class of "size" and label, each by its allowed values; without an entry every row
    counts, "several" means more than one.
    """

    what: str
    kind: str
    protocol: Protocol
    limits: Mapping[str, float]
    rows: Mapping[str, Any] = field(default_factory=dict)

    def which(self, subject: Subject) -> BoolArray:
        """The rows of a subject that count."""
        labels = dict(self.rows)
        machines, size = labels.pop("machines", [subject.machine]), labels.pop("size", None)
        mask = np.full(len(subject), subject.machine in machines)
        if size is not None:
            mask &= subject.ranges.get(size, False)
        for name, wanted in labels.items():
            column = subject.labels.get(name, np.full(len(subject), None))
            mask &= np.asarray(column > 1, dtype=np.bool_) if wanted == "several" else np.isin(column, wanted)
        return mask

    def lines(self, predictions: Sequence[Predicted]) -> list[Line]:
        """The demand measured on predictions made by its protocol."""
        chosen = [part.take(self.which(part.subject)) for part in predictions if part.subject.kind == self.kind]
        chosen = [part for part in chosen if len(part.subject)]
        if not chosen:
            return [Line(self.what, self.protocol, name, limit, None, 0) for name, limit in self.limits.items()]
        errors = errors_of(*joined(chosen))
        reached = {"mean": errors.mean_abs_err, "p90": errors.p90_abs_err, "geomean": errors.geomean_err}
        limits = self.limits.items()
        return [Line(self.what, self.protocol, name, limit, reached[name], errors.rows) for name, limit in limits]


def demands() -> list[Demand]:
    """Every demand that the models must meet, as bar.toml states them."""
    return [
        Demand(what, table["kind"], protocol, table[protocol], table.get("rows", {}))
        for what, table in read_toml(resources.files("weft.validation") / "bar.toml").items()
        for protocol in get_args(Protocol)
        if protocol in table
    ]


def lines(demands: Sequence[Demand], predictions: Mapping[Protocol, Sequence[Predicted]]) -> list[Line]:
    """The lines of every demand; without rows if its protocol was not run."""
    return [line for demand in demands for line in demand.lines(predictions.get(demand.protocol, ()))]


def judged(validation: Validation, progress: Progress | None = None) -> list[Line]:
    """Every demand with what was reached: held out, leaving one machine out, and as shipped."""
    subjects = [part.subject for part in validation.predictions if part.subject.parameters]
    splits = [hold_out(subjects, _part(progress, seed), seed) for seed in range(SPLITS)]
    predictions: dict[Protocol, list[Predicted]] = {
        "held out": [each.held_out for split in splits for each in split],
        "leave one out": leave_one_out(subjects, {each.subject.name: each.fit.firm() for each in splits[0]}),
        "as shipped": list(validation.predictions),
    }
    return [*lines(demands(), predictions), _signs(validation)]


def _part(progress: Progress | None, split: int) -> Progress | None:
    """Progress through one of the splits, as progress through all of them."""
    if progress is None:
        return None
    return lambda done, total, what: progress(split * total + done, SPLITS * total, what)


def _signs(validation: Validation) -> Line:
    """The share of Flux's rows for which the model predicts rightly whether overlapping wins or loses."""
    right, count = right_signs(validation.predictions)
    reached = right / count if count else None
    return Line(f"{FLUX}: right sign of win or loss", "as shipped", "share", 0.85, reached, count, at_least=True)
