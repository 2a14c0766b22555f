"""Fit named physical parameters to measured rows: few, within plausible bounds, with confidence intervals.

The fit minimises log(predicted / measured) under the soft-l1 loss of `scipy.optimize.least_squares`, so that outliers
have little weight; positive parameters vary by their logarithm. Parameters that the rows do not determine stay near
their start: the plausible range counts as one more observation, whose two standard deviations reach from the middle of
the range to its ends. Confidence intervals are linear, with Student's t.

Errors are measured on rows that the fit did not see (`calibrate_subject`, `hold_out`), and on machines that it did
not see (`leave_one_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.estimate import Parameter
from weft.lab.subjects import Errors, Predicted, Progress, Subject, errors_of, predict_subject
from weft.lab.tables import FloatArray, IntArray

Model = Callable[[Mapping[str, float]], FloatArray]
"""Predicted seconds of every row for the values of some parameters, by path [base units]."""

HOLDOUT = 0.3
"""The share of rows that is held out from a fit."""
MOST_ROWS = 1000
"""Most rows per group in a fit; errors are measured on all held-out rows."""
SEED = 0
FITTED, AT_LOW, AT_HIGH = "fitted", "at low bound", "at high bound"
WEAK, NO_ROWS, TOO_FEW = "weak", "no rows", "too few rows"
SOFTNESS = 0.1
"""Residuals above this [ln units] weigh less than their square: rows 10 % off still count in full."""
CONFIDENCE = 0.95
_STEP = 0.02  # step of a parameter's logarithm: wider than the jumps caused by whole tiles and waves
_FELT = 0.02  # a row depends on a parameter if d ln(time) / d ln(parameter) is at least this
_AT_BOUND = 0.01  # fraction of the range between the bounds
_EVALUATIONS = 25  # most evaluations of the Jacobian
_TYPICAL = 0.02  # standard deviation of a good row [ln units], the weight of rows against the plausible range
_INFORMED = 0.6  # share of the information on a parameter that must come from rows
_NAMED = 4  # most parameters listed in a message


@dataclass(frozen=True)
class Fitted:
    """A parameter after the fit: value and 95 % confidence interval [base unit], and how well it is determined.

    `state` is "fitted", "at low bound", "at high bound", "weak" (its plausible range determines it more than the rows
    do), "too few rows" or "no rows"; in the last two it keeps its start value. `rows` is how many rows depend on it.
    """

    parameter: Parameter
    start: float
    value: float
    low: float
    high: float
    rows: int
    state: str

    def to_dict(self) -> dict[str, Any]:
        """The parameter as plain data."""
        about = {name: getattr(self.parameter, name) for name in ("path", "unit", "about")}
        found = {name: getattr(self, name) for name in ("start", "value", "low", "high")}
        rows = {"rows": self.rows, "needs_rows": self.parameter.needs_rows, "state": self.state}
        return {**about, **found, "bounds": [self.parameter.low, self.parameter.high], **rows}


@dataclass(frozen=True)
class Fit:
    """The result of a fit: every parameter of the closed list."""

    parameters: tuple[Fitted, ...]

    def determined(self) -> list[Fitted]:
        """The parameters that took part in the fit."""
        return [found for found in self.parameters if found.state not in (NO_ROWS, TOO_FEW)]

    def values(self) -> dict[str, float]:
        """The value of every parameter, by path [base units]."""
        return {found.parameter.path: found.value for found in self.parameters}

    def firm(self) -> dict[str, float]:
        """The values that the rows determine, by path [base units]."""
        states = (FITTED, AT_LOW, AT_HIGH)
        return {found.parameter.path: found.value for found in self.parameters if found.state in states}


def split(strata: Sequence[str], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Choose the held-out rows: a random `share` of each stratum, reproducible by seed.

    Raises InputError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise InputError(f"a share of {share:g} of the rows cannot be held out; write one between 0 and 1, like 0.3")
    return np.isin(np.arange(len(strata)), _draw_sample(strata, lambda rows: round(share * rows), seed))


def sample(strata: Sequence[str], most: int, seed: int) -> IntArray:
    """Indices of at most `most` random rows of each stratum, ascending."""
    return np.sort(_draw_sample(strata, lambda rows: most, seed))


def _draw_sample(strata: Sequence[str], count: Callable[[int], int], seed: int) -> IntArray:
    random = np.random.default_rng(seed)
    groups = pd.Series(range(len(strata))).groupby(list(strata)).indices.values()
    drawn = [random.permutation(rows)[: count(len(rows))] for rows in groups]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])


def fit(model: Model, measured: FloatArray, parameters: Sequence[Parameter], start: Mapping[str, float]) -> Fit:
    """Fit `parameters` so that the model's seconds match the `measured` ones, starting at `start` by path.

    A parameter on which fewer rows depend than it needs keeps its start. Raises InputError if none can be fitted.
    """
    search = _FitSearch(model, measured, parameters, start)
    slopes = search.jacobian(search.begin, range(len(parameters)))
    depend = (np.abs(slopes) * search.unit > _FELT).sum(axis=0)
    free = [i for i, parameter in enumerate(parameters) if depend[i] >= parameter.needs_rows]
    if not free:
        raise InputError(_too_few(len(measured), parameters, depend))
    found = _solve(search, free)
    at, spread, informed = search.begin.copy(), np.full(len(parameters), np.inf), np.zeros(len(parameters))
    at[free] = found.x
    spread[free], informed[free] = _spread(found, search.firmness[free], len(measured))
    low, value, high = (search.plain(point) for point in (at - spread, at, at + spread))
    near, fixed = _AT_BOUND * (search.high - search.low), np.isinf(spread)
    states = np.select(
        [fixed & (depend == 0), fixed, at - search.low < near, search.high - at < near, informed >= _INFORMED],
        [NO_ROWS, TOO_FEW, AT_LOW, AT_HIGH, FITTED],
        WEAK,
    )
    columns = (search.start, np.where(fixed, search.start, value), low, high, depend, states)
    rows = zip(parameters, *(column.tolist() for column in columns), strict=True)
    return Fit(tuple(Fitted(*row) for row in rows))


class _FitSearch:
    """log(predicted / measured) of every row as a function of the parameters, and its Jacobian.

    Positive parameters vary by their logarithm; others linearly, in units of their range. `firmness` weighs the
    distance of a parameter from its start against the residuals of the rows.
    """

    def __init__(
        self, model: Model, measured: FloatArray, parameters: Sequence[Parameter], start: Mapping[str, float]
    ) -> None:
        self.model, self.goal = model, np.log(measured)
        self.paths = [parameter.path for parameter in parameters]
        self.bounds = np.array([(parameter.low, parameter.high) for parameter in parameters], dtype=np.float64).T
        self.positive = self.bounds[0] > 0
        self.low, self.high = map(self._inside, self.bounds)
        self.start = np.array([start[path] for path in self.paths], dtype=np.float64)
        self.begin = self._inside(np.clip(self.start, *self.bounds))
        self.firmness: FloatArray = _TYPICAL * 4 / (self.high - self.low)
        self.unit = np.where(self.positive, 1.0, self.high - self.low)

    def __call__(self, at: FloatArray) -> FloatArray:
        values = dict(zip(self.paths, self.plain(at).tolist(), strict=True))
        return np.asarray(np.log(self.model(values)) - self.goal, dtype=np.float64)

    def plain(self, at: FloatArray) -> FloatArray:
        """Parameter values at a point, clipped to their bounds exactly [base unit]."""
        return np.clip(np.exp(at, out=at.copy(), where=self.positive), *self.bounds)

    def _inside(self, values: FloatArray) -> FloatArray:
        return np.log(values, out=values.copy(), where=self.positive)

    def jacobian(self, at: FloatArray, free: Sequence[int]) -> FloatArray:
        """Derivatives by the free parameters: central if both sides are within bounds, else one-sided."""
        slopes = []
        for index in free:
            above, below = at.copy(), at.copy()
            above[index] = min(at[index] + _STEP * self.unit[index], self.high[index])
            below[index] = max(at[index] - _STEP * self.unit[index], self.low[index])
            slopes.append((self(above) - self(below)) / (above[index] - below[index]))
        return np.stack(slopes, axis=1)


def _solve(search: _FitSearch, free: Sequence[int]) -> Any:
    """The best point: minimises the rows' residuals and the distances of parameters from their start."""
    from scipy.optimize import least_squares

    firm, begin = search.firmness[free], search.begin[free]

    def whole(part: FloatArray) -> FloatArray:
        at = search.begin.copy()
        at[free] = part
        return at

    def residuals(part: FloatArray) -> FloatArray:
        return np.concatenate([search(whole(part)), firm * (part - begin)])

    def slopes(part: FloatArray) -> FloatArray:
        return np.concatenate([search.jacobian(whole(part), free), np.diag(firm)])

    # scipy would move a start on a bound inwards by a share of the range; move it minimally instead.
    low, high = search.low[free], search.high[free]
    return least_squares(
        residuals,
        np.clip(begin, low + 1e-6 * (high - low), high - 1e-6 * (high - low)),
        jac=slopes,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SOFTNESS,
        x_scale="jac",
        max_nfev=_EVALUATIONS,
        ftol=1e-5,
        xtol=1e-5,
        gtol=1e-8,
    )


def _spread(found: Any, firmness: FloatArray, rows: int) -> tuple[FloatArray, FloatArray]:
    """Half-width of each free parameter's confidence interval, and the share of its information from rows.

    The sandwich estimator of an M-estimator, which assumes neither equal variance nor normal residuals; the plausible
    range counts with the variance of the rows.
    """
    from scipy.stats import t as student

    bent = 1 + (found.fun[:rows] / SOFTNESS) ** 2
    curvature, pull = bent**-1.5, found.fun[:rows] * bent**-0.5
    slopes = found.jac[:rows] / np.sqrt(curvature)[:, None]  # scipy has scaled them by the curvature of the loss
    freedom = max(rows - len(firmness), 1)
    firm = np.diag(firmness**2)
    inverse = np.linalg.inv((slopes * curvature[:, None]).T @ slopes + firm)
    scores = slopes * pull[:, None]
    variance = float((pull**2).sum() / freedom)
    covariance = inverse @ (scores.T @ scores * rows / freedom + firm * variance) @ inverse
    quantile = student.ppf((1 + CONFIDENCE) / 2, freedom)
    return quantile * np.sqrt(np.diag(covariance)), 1 - np.diag(inverse) * np.diag(firm)


def _too_few(rows: int, parameters: Sequence[Parameter], depend: IntArray) -> str:
    """The error for too few rows; it lists the parameters closest to having enough."""
    nearest = sorted(zip(parameters, depend.tolist(), strict=True), key=lambda pair: -pair[1])[:_NAMED]
    needs = "; ".join(
        f"'{parameter.path}' needs {parameter.needs_rows} rows that depend on it and has {count}"
        for parameter, count in nearest
    )
    more = f"; {len(parameters) - _NAMED} more need as many" if len(parameters) > _NAMED else ""
    return f"{rows} rows are too few to fit any parameter: {needs}{more}; measure more cases"


@dataclass(frozen=True)
class Calibrated:
    """A subject fitted to part of its rows: the fit, and the errors on the other rows, before and after."""

    subject: Subject
    fit: Fit
    fitted_rows: int
    held_out: Predicted
    before: Errors
    after: Errors

    def to_dict(self) -> dict[str, Any]:
        """The fit and its errors as plain data."""
        return {
            "kind": self.subject.kind,
            "machine": self.subject.machine,
            "fitted_rows": self.fitted_rows,
            "held_out_rows": len(self.held_out.subject),
            "parameters": [found.to_dict() for found in self.fit.parameters],
            "held_out_before": asdict(self.before),
            "held_out_after": asdict(self.after),
        }


def calibrate_subject(
    subject: Subject, holdout: float = HOLDOUT, seed: int = SEED, most_rows: int = MOST_ROWS
) -> Calibrated:
    """Fit a subject's parameters to a random part of its rows and measure the errors on the rest.

    The same share of every group is held out. Raises InputError if the rows are too few.
    """
    held = split(subject.texts(), holdout, seed)
    if held.all() or not held.any():
        raise InputError(
            f"{len(subject)} rows of {subject.machine} are too few to hold {holdout:.0%} of them out; measure more"
        )
    seen, kept = subject.take(~held).teaching(), subject.take(held)
    seen = seen.take(sample(seen.texts(), most_rows, seed))
    found = fit(partial(seen.predict, seen.rows), seen.measured, subject.parameters, subject.start)
    after = predict_subject(kept, found.values())
    before = errors_of(predict_subject(kept, subject.start).seconds, kept.measured)
    return Calibrated(subject, found, len(seen), after, before, errors_of(after.seconds, kept.measured))


def unseen(subject: Subject, subjects: Sequence[Subject]) -> Subject:
    """The subject without the catalogue's fit to its rows: it starts from the values of other machines.

    A parameter that no other machine has starts from the middle of its plausible range.
    """
    middle = {one.path: _mean([one.low, one.high]) for one in subject.parameters}
    return replace(subject, start={**middle, **borrow_values(subject, subjects, {})})


def hold_out(subjects: Sequence[Subject], progress: Progress | None = None, seed: int = SEED) -> list[Calibrated]:
    """Fit every subject with enough rows to a random 70 % of them, and predict the other 30 %.

    The catalogue's own values, fitted to all rows, are not used.
    """
    done = []
    for position, subject in enumerate(subjects):
        if progress:
            progress(position, len(subjects), f"{subject.kind} {subject.machine}")
        # With too few rows the machine keeps its catalogue values and is left out of the fits.
        with suppress(InputError):
            done.append(calibrate_subject(unseen(subject, subjects), seed=seed))
    return done


def leave_one_out(subjects: Sequence[Subject], fits: Mapping[str, Mapping[str, float]]) -> list[Predicted]:
    """Predict every subject from its data sheet and the `fits` of the other machines, by name."""
    pairs = ((subject, borrow_values(subject, subjects, fits)) for subject in subjects)
    return [predict_subject(subject, values) for subject, values in pairs if values]


def _is_recent(subject: Subject) -> bool:
    """Return whether a GPU multiplies bf16, as all since Ampere and CDNA do; True outside the catalogue."""
    return subject.machine not in hardware.gpu_names() or hardware.gpu(subject.machine).supports("bf16")


def borrow_values(
    subject: Subject, subjects: Sequence[Subject], fits: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Parameters of a subject estimated from the other machines, by path; empty if there are no others.

    A parameter is the geometric mean of what was fitted on the vendor's other machines; else on all others; else of
    the catalogue's values for these; each relative to what is known of the machine (`Subject.relative`). The
    catalogue's value for the subject itself, fitted to its rows, never counts, and neither do GPUs without bf16 for
    those with it: they were measured with libraries of their day.
    """
    others = [
        other
        for other in subjects
        if other.name != subject.name and other.kind == subject.kind and (_is_recent(other) or not _is_recent(subject))
    ]
    relatives = [other for other in others if other.vendor == subject.vendor]
    ranked = (
        [(other, fits.get(other.name, {})) for other in relatives],
        [(other, fits.get(other.name, {})) for other in others],
        [(other, other.start) for other in relatives],
        [(other, other.start) for other in others],
    )
    values = {}
    for path in (parameter.path for parameter in subject.parameters):
        known = ([one[path] / other.relative.get(path, 1.0) for other, one in rank if path in one] for rank in ranked)
        if found := next(filter(None, known), None):
            values[path] = _mean(found) * subject.relative.get(path, 1.0)
    return values


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.log(values).mean())) if min(values) > 0 else float(np.mean(values))
