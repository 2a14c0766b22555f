"""How errors are found honestly: on rows that the fit did not see, and on machines that it did not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.validation.calibration import Fit, fit, sample, split
from weft.validation.metrics import Errors, errors_of
from weft.validation.subjects import Predicted, Progress, Subject, predicted

HOLDOUT = 0.3
"""The share of rows that a fit does not see."""
MOST_ROWS = 1000
"""The most rows per group that a fit uses; errors are found on all rows held out."""
SEED = 0


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
    """The subject as if the catalogue had never seen its rows: it starts from what the other machines' values say.

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
    """Every subject predicted from its data sheet and what is known of the others; `fits` are by their names."""
    pairs = ((subject, borrowed(subject, subjects, fits)) for subject in subjects)
    return [predicted(subject, values) for subject, values in pairs if values]


def borrowed(
    subject: Subject, subjects: Sequence[Subject], fits: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """The parameters that the other machines suggest for a subject, by path; empty if there are no others.

    A parameter is the geometric mean of what was fitted on the vendor's other machines; else on all others; else of
    what the catalogue says of these. Its own value for the subject, fitted to all its rows, never counts.
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
