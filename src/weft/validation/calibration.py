"""Named physical parameters fitted to measured rows: a few, within plausible bounds, with confidence intervals.

The fit minimises log(predicted / measured) under the soft-l1 loss of `scipy.optimize.least_squares`, so that outliers
pull little; positive parameters vary by their logarithm. What the rows leave open stays near its start: the
plausible range counts as one more observation, whose two standard deviations reach from the middle of the range to its
ends. Confidence intervals are linear, at Student's t.

Errors are measured on rows that the fit did not see (`calibrated`, `hold_out`), and on machines that it did not see
(`leave_one_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.estimate import Parameter
from weft.validation.subjects import Errors, Predicted, Progress, Subject, errors_of, predicted
from weft.validation.tables import FloatArray, IntArray, positions_by

Model = Callable[[Mapping[str, float]], FloatArray]
"""Predicted seconds of every row for the values of some parameters, by path [base units]."""

HOLDOUT = 0.3
"""The share of rows that a fit does not see."""
MOST_ROWS = 1000
"""The most rows per group that a fit uses; errors are found on all rows held out."""
SEED = 0
FITTED, AT_LOW, AT_HIGH = "fitted", "at low bound", "at high bound"
WEAK, NO_ROWS, TOO_FEW = "weak", "no rows", "too few rows"
SOFTNESS = 0.1
"""Residuals above this [ln units] pull less than by their square: rows 10 % off are still trusted in full."""
CONFIDENCE = 0.95
_STEP = 0.02  # of a parameter's logarithm: wide enough to see past the steps that whole tiles and waves make
_FELT = 0.02  # a row depends on a parameter if its logarithm moves by this share of the parameter's
_AT_BOUND = 0.01  # of the range between the bounds
_EVALUATIONS = 25  # of the Jacobian, at most
_TYPICAL = 0.02  # deviation of a good row [ln units], against which the plausible range is weighed
_INFORMED = 0.6  # least share of the information on a parameter that must come from rows
_NAMED = 4  # parameters in a message


@dataclass(frozen=True)
class Fitted:
    """A parameter after the fit: value and 95 % confidence interval [base unit], and how firmly it is known.

    `state` is "fitted", "at low bound", "at high bound", "weak" (its plausible range determines it more than the
    rows do), "too few rows" or "no rows"; in the last two it keeps its start. `rows` is how many rows depend on it.
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
    """The outcome of a fit: every parameter of the closed list."""

    parameters: tuple[Fitted, ...]

    def determined(self) -> list[Fitted]:
        """The parameters that took part in the fit."""
        return [found for found in self.parameters if found.state not in (NO_ROWS, TOO_FEW)]

    def values(self) -> dict[str, float]:
        """The value of every parameter, by path [base units]."""
        return {found.parameter.path: found.value for found in self.parameters}

    def firm(self) -> dict[str, float]:
        """The values that the rows determined, by path [base units]."""
        states = (FITTED, AT_LOW, AT_HIGH)
        return {found.parameter.path: found.value for found in self.parameters if found.state in states}


def split(strata: Sequence[str], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which rows are held out: a random `share` of each stratum, the same for the same seed.

    Raises InputError unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise InputError(f"a share of {share:g} of the rows cannot be held out; write one between 0 and 1, like 0.3")
    return np.isin(np.arange(len(strata)), _drawn(strata, lambda rows: round(share * rows), seed))


def sample(strata: Sequence[str], most: int, seed: int) -> IntArray:
    """Positions of at most `most` random rows of each stratum, rising."""
    return np.sort(_drawn(strata, lambda rows: most, seed))


def _drawn(strata: Sequence[str], count: Callable[[int], int], seed: int) -> IntArray:
    random = np.random.default_rng(seed)
    drawn = [random.permutation(rows)[: count(len(rows))] for _, rows in sorted(positions_by(strata).items())]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])


def fit(model: Model, measured: FloatArray, parameters: Sequence[Parameter], start: Mapping[str, float]) -> Fit:
    """Fit `parameters` so that the model's seconds meet the `measured` ones, beginning at `start` by path.

    A parameter that fewer rows depend on than it needs keeps its start. Raises InputError if none can be fitted.
    """
    search = _Search(model, measured, parameters, start)
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


class _Search:
    """log(predicted / measured) of every row over the parameters, and its slopes.

    Parameters that must be positive vary by their logarithm, in units of 1; others as they are, in units of their
    range. `firmness` weighs the distance of a parameter from its start against the residuals of the rows.
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
        """The parameters at a point, kept within their bounds to the last bit [base unit]."""
        return np.clip(np.exp(at, out=at.copy(), where=self.positive), *self.bounds)

    def _inside(self, values: FloatArray) -> FloatArray:
        return np.log(values, out=values.copy(), where=self.positive)

    def jacobian(self, at: FloatArray, free: Sequence[int]) -> FloatArray:
        """The slopes by the free parameters: central where both sides are within bounds, else one-sided."""
        slopes = []
        for index in free:
            above, below = at.copy(), at.copy()
            above[index] = min(at[index] + _STEP * self.unit[index], self.high[index])
            below[index] = max(at[index] - _STEP * self.unit[index], self.low[index])
            slopes.append((self(above) - self(below)) / (above[index] - below[index]))
        return np.stack(slopes, axis=1)


def _solve(search: _Search, free: Sequence[int]) -> Any:
    """The best point: residuals of the rows, then how far each parameter is from its start."""
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

    # scipy moves a start on a bound inside by a share of the range; move it as little as possible instead.
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
    """Half the confidence interval of each free parameter, and the share of its information that comes from rows.

    The sandwich of an M-estimator, which asks of the residuals neither one variance nor a normal distribution; the
    plausible range counts with the variance of the rows.
    """
    from scipy.stats import t as student

    bent = 1 + (found.fun[:rows] / SOFTNESS) ** 2
    curvature, pull = bent**-1.5, found.fun[:rows] * bent**-0.5
    slopes = found.jac[:rows] / np.sqrt(curvature)[:, None]  # scipy weighs them by the loss's curvature
    freedom = max(rows - len(firmness), 1)
    firm = np.diag(firmness**2)
    inverse = np.linalg.inv((slopes * curvature[:, None]).T @ slopes + firm)
    scores = slopes * pull[:, None]
    variance = float((pull**2).sum() / freedom)
    covariance = inverse @ (scores.T @ scores * rows / freedom + firm * variance) @ inverse
    quantile = student.ppf((1 + CONFIDENCE) / 2, freedom)
    return quantile * np.sqrt(np.diag(covariance)), 1 - np.diag(inverse) * np.diag(firm)


def _too_few(rows: int, parameters: Sequence[Parameter], depend: IntArray) -> str:
    """The error for too few rows; it lists the parameters that are nearest to having enough."""
    nearest = sorted(zip(parameters, depend.tolist(), strict=True), key=lambda pair: -pair[1])[:_NAMED]
    needs = "; ".join(
        f"'{parameter.path}' needs {parameter.needs_rows} rows that depend on it and has {count}"
        for parameter, count in nearest
    )
    more = f"; {len(parameters) - _NAMED} more need as many" if len(parameters) > _NAMED else ""
    return f"{rows} rows are too few to fit any parameter: {needs}{more}; measure more cases"


@dataclass(frozen=True)
class Calibrated:
    """A subject fitted to part of its rows: the fit, and the errors on rows it did not see, before and after."""

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


def calibrated(subject: Subject, holdout: float = HOLDOUT, seed: int = SEED, most_rows: int = MOST_ROWS) -> Calibrated:
    """Fit a subject's parameters to a random part of its rows and find the errors on the rest.

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
    after = predicted(kept, found.values())
    before = errors_of(predicted(kept, subject.start).seconds, kept.measured)
    return Calibrated(subject, found, len(seen), after, before, errors_of(after.seconds, kept.measured))


def unseen(subject: Subject, subjects: Sequence[Subject]) -> Subject:
    """The subject as if the catalogue had never seen its rows: it starts from the values of the other machines.

    Where no other machine has a parameter, it starts from the middle of its plausible range.
    """
    middle = {one.path: _mean([one.low, one.high]) for one in subject.parameters}
    return replace(subject, start={**middle, **borrowed(subject, subjects, {})})


def hold_out(subjects: Sequence[Subject], progress: Progress | None = None, seed: int = SEED) -> list[Calibrated]:
    """Every subject with enough rows, fitted to 70 % of its rows at random and tried on the other 30 %.

    The catalogue's own values, fitted to all rows, are not used.
    """
    done = []
    for position, subject in enumerate(subjects):
        if progress:
            progress(position, len(subjects), f"{subject.kind} {subject.machine}")
        # With too few rows to fit, the machine keeps its catalogue values and is not among those fitted.
        with suppress(InputError):
            done.append(calibrated(unseen(subject, subjects), seed=seed))
    return done


def leave_one_out(subjects: Sequence[Subject], fits: Mapping[str, Mapping[str, float]]) -> list[Predicted]:
    """Every subject predicted from its data sheet and the `fits` of the others, by their names."""
    pairs = ((subject, borrowed(subject, subjects, fits)) for subject in subjects)
    return [predicted(subject, values) for subject, values in pairs if values]


def borrowed(
    subject: Subject, subjects: Sequence[Subject], fits: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Parameters of a subject estimated from the other machines, by path; empty if there are no others.

    A parameter is the geometric mean of what was fitted on the vendor's other machines; else on all others; else of
    the catalogue's values for these. The catalogue's value for the subject itself, fitted to its rows, never counts.
    """
    others = [other for other in subjects if other.name != subject.name and other.kind == subject.kind]
    relatives = [other for other in others if other.vendor == subject.vendor]
    ranked = (
        [fits.get(other.name, {}) for other in relatives],
        [fits.get(other.name, {}) for other in others],
        [other.start for other in relatives],
        [other.start for other in others],
    )
    values = {}
    for parameter in subject.parameters:
        known = ([one[parameter.path] for one in rank if parameter.path in one] for rank in ranked)
        if found := next(filter(None, known), None):
            values[parameter.path] = _mean(found)
    return values


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.log(values).mean())) if min(values) > 0 else float(np.mean(values))
