"""The accuracy demands on the shipped models: errors on rows and machines that no fit has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any, Literal, get_args

import numpy as np

from weft.core.catalog import read_toml
from weft.lab.calibration import hold_out, leave_one_out
from weft.lab.classes import SERVED_CLASSES
from weft.lab.left_out import (  # fmt: skip
    by_method,
    by_system,
    formats_left_out,
    gpus_left_out,
    left_out,
    ranks_left_out,
    steps_left_out,
)
from weft.lab.overlaps import FLUX, right_signs
from weft.lab.ranking import dispatchers_ranked, ranking, replicas_ranked
from weft.lab.run import Validation
from weft.lab.serving import kernels_alone, loads_left_out
from weft.lab.subjects import BoolArray, Predicted, Progress, Subject, errors_of, join_seconds

Protocol = Literal[
    "held out",
    "leave one out",
    "as shipped",
    "system left out",
    "method left out",
    "framework left out",
    "ranks left out",
    "GPU left out",
    "model left out",
    "format left out",
    "kernels alone",
]
"""The rows on which an error counts: a random 30 %, a machine whose rows no fit saw, all, or those of each system or
method of overlaps with all of its rows left out of the fit of software costs, of each framework of steps, of each
number of ranks of exchanges, of each GPU of kernels of inference and of served loads, of each model of these, or of
each format of experts; or served loads by their kernels alone, to which no value of a host is fitted."""

SPLITS = 3
"""Number of random splits over which held-out errors are averaged: small groups depend on the split."""


@dataclass(frozen=True)
class Line:
    """One demand: subject, rows, statistic and limit; and the value reached (None without rows)."""

    what: str
    protocol: Protocol
    statistic: str
    limit: float
    reached: float | None
    rows: int
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Whether the demand is met: "pass", "MISS", or "no rows"."""
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

    `rows` selects rows by "machines", size class "size" and labels, each with its allowed values; a missing entry
    admits every row, "several" means more than one.
    """

    what: str
    kind: str
    protocol: Protocol
    limits: Mapping[str, float]
    rows: Mapping[str, Any] = field(default_factory=dict)

    def which(self, subject: Subject) -> BoolArray:
        """Mask of a subject's rows that count for the demand."""
        labels = dict(self.rows)
        machines, size = labels.pop("machines", [subject.machine]), labels.pop("size", None)
        mask = np.full(len(subject), subject.machine in machines)
        if size is not None:
            mask &= subject.ranges.get(size, False)
        for name, wanted in labels.items():
            if name not in subject.labels:
                return np.zeros(len(subject), dtype=np.bool_)
            column = subject.labels[name]
            mask &= (column > 1 if wanted == "several" else column.isin(wanted)).to_numpy(dtype=np.bool_)
        return mask

    def lines(self, predictions: Sequence[Predicted]) -> list[Line]:
        """Check the demand on predictions made by its protocol."""
        chosen = [part.take(self.which(part.subject)) for part in predictions if part.subject.kind == self.kind]
        chosen = [part for part in chosen if len(part.subject)]
        if not chosen:
            return [Line(self.what, self.protocol, name, limit, None, 0) for name, limit in self.limits.items()]
        errors = errors_of(*join_seconds(chosen))
        reached = {"mean": errors.mean_abs_err, "p90": errors.p90_abs_err, "geomean": errors.geomean_err}
        limits = self.limits.items()
        return [Line(self.what, self.protocol, name, limit, reached[name], errors.rows) for name, limit in limits]


def demands() -> list[Demand]:
    """Every demand on the models, from bar.toml."""
    return [
        Demand(what, table["kind"], protocol, table[protocol], table.get("rows", {}))
        for what, table in read_toml(resources.files("weft.lab") / "bar.toml").items()
        for protocol in get_args(Protocol)
        if protocol in table
    ]


def lines(demands: Sequence[Demand], predictions: Mapping[Protocol, Sequence[Predicted]]) -> list[Line]:
    """The lines of every demand; without rows if its protocol was not run."""
    return [line for demand in demands for line in demand.lines(predictions.get(demand.protocol, ()))]


def predicted_by(validation: Validation, progress: Progress | None = None) -> dict[Protocol, list[Predicted]]:
    """The rows by every protocol: held out, as shipped, and with a machine, system, method or framework left out."""
    subjects = [part.subject for part in validation.predictions if part.subject.parameters]
    splits = [hold_out(subjects, _part(progress, seed), seed) for seed in range(SPLITS)]
    overlaps = _of_kind(validation, "overlap")
    return {
        "held out": [each.held_out for split in splits for each in split],
        "leave one out": leave_one_out(subjects, {each.subject.name: each.fit.firm() for each in splits[0]}),
        "as shipped": list(validation.predictions),
        "system left out": left_out(overlaps, by_system),
        "method left out": left_out(overlaps, by_method),
        "framework left out": steps_left_out(_of_kind(validation, "step"), "framework"),
        "ranks left out": ranks_left_out(_of_kind(validation, "exchange")),
        "GPU left out": [
            *(each for kind in _TABLED for each in gpus_left_out(_of_kind(validation, kind))),
            *loads_left_out(_of_kind(validation, "serving"), "gpu"),
            *steps_left_out(_of_kind(validation, "step"), "gpu"),
        ],
        "model left out": loads_left_out(_of_kind(validation, "serving"), "model"),
        "format left out": formats_left_out(_of_kind(validation, "experts")),
        "kernels alone": kernels_alone(_of_kind(validation, "serving")),
    }


_TABLED = tuple(kind for kind in SERVED_CLASSES if kind != "serving")
"""Kinds whose rows depend on tables of libraries' values."""


def _of_kind(validation: Validation, kind: str) -> list[Subject]:
    return [part.subject for part in validation.predictions if part.subject.kind == kind]


def judge_demands(predictions: Mapping[Protocol, Sequence[Predicted]]) -> list[Line]:
    """Every demand with the value reached by predictions of every protocol (`predicted_by`)."""
    signs = [
        _signs(f"{FLUX}: right sign of win or loss", 0.85, "as shipped", predictions, FLUX),
        *(_signs(f"{OVERLAPS}: right sign of win or loss", 0.8, protocol, predictions, None) for protocol in _LEFT_OUT),
    ]
    return [*lines(demands(), predictions), *signs, *_ranks(predictions["as shipped"])]


RANKED = "megatron-deepspeed"
"""The framework whose measured plans the choice of a plan is held against: BLOOM's."""


_REPLICAS = "serving: pairs of replicas in the measured order"
_DISPATCHERS = "training steps by dispatcher: pairs in the measured order"


def _ranks(predictions: Sequence[Predicted]) -> list[Line]:
    """Return whether BLOOM's plans come out in the measured order, and how much longer the chosen ones take than the
    best.
    """
    found = ranking(predictions, RANKED)
    right, regret = (found.share, found.regret) if found else (None, None)
    pairs, questions = (found.pairs, len(found.regrets)) if found else (0, 0)
    changed = dispatchers_ranked(predictions)
    turned, changes = (changed.share, changed.pairs) if changed else (None, 0)
    served = replicas_ranked(predictions)
    ordered, loads = (served.share, served.pairs) if served else (None, 0)
    return [
        Line(_REPLICAS, "as shipped", "share", 0.85, ordered, loads, at_least=True),
        Line(_DISPATCHERS, "as shipped", "share", 0.85, turned, changes, at_least=True),
        Line("plans of BLOOM: pairs in the measured order", "as shipped", "share", 0.85, right, pairs, at_least=True),
        Line("plans of BLOOM: regret of the chosen", "as shipped", "mean", 0.03, regret, questions),
    ]


def _part(progress: Progress | None, split: int) -> Progress | None:
    """Map progress through one of the splits to progress through all of them."""
    if progress is None:
        return None
    return lambda done, total, what: progress(split * total + done, SPLITS * total, what)


OVERLAPS = "overlap"
"""How lines on pairs joined by software begin."""
_LEFT_OUT: tuple[Protocol, ...] = ("as shipped", "system left out", "method left out")


def _signs(
    what: str,
    limit: float,
    protocol: Protocol,
    predictions: Mapping[Protocol, Sequence[Predicted]],
    within: str | None,
) -> Line:
    """The share of overlapped rows for which the model predicts correctly whether overlapping wins or loses."""
    right, count = right_signs(predictions[protocol], within)
    return Line(what, protocol, "share", limit, right / count if count else None, count, at_least=True)
