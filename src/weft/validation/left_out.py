"""Rows of pairs joined by software, predicted with one system or one method left out of every fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft import hardware
from weft.errors import InputError
from weft.estimate import Parameter
from weft.library.software import RULES, bounds, leaves
from weft.units import Dimension
from weft.validation.calibration import fit
from weft.validation.overlaps import family
from weft.validation.subjects import Predicted, Subject, predicted
from weft.validation.tables import FloatArray

_NEEDS_ROWS = 4
_UNITS = {Dimension.SECONDS: "s", Dimension.BYTES_PER_SECOND: "bytes/s"}


def by_system(subject: Subject) -> list[str]:
    """The system of each row, without its number of GPUs."""
    return [hardware.system(name).name for name in subject.labels["system"].tolist()]


def by_method(subject: Subject) -> list[str]:
    """The method of each row; versions of one are the same."""
    return [family(name) for name in subject.labels["method"].tolist()]


def left_out(subjects: Sequence[Subject], key: Callable[[Subject], list[str]]) -> list[Predicted]:
    """Predict the rows of each system or method with software costs fitted to the rows of all others.

    A cost that too few other rows determine is the middle of its plausible range, not the shipped value.
    """
    keys = [np.array(key(subject), dtype=np.str_) for subject in subjects]
    done = []
    for group in np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.str_)])).tolist():
        values = _fitted([s.take(own != group) for s, own in zip(subjects, keys, strict=True)])
        done += [predicted(s.take(own == group), values) for s, own in zip(subjects, keys, strict=True) if group in own]
    return done


def _fitted(subjects: Sequence[Subject]) -> Mapping[str, float]:
    """The software costs that fit the rows of these subjects, by path."""
    some = [subject for subject in subjects if len(subject)]
    start = {one.path: float(np.sqrt(one.low * one.high)) for one in _PARAMETERS}

    def model(values: Mapping[str, float]) -> FloatArray:
        return np.concatenate([subject.predict(subject.rows, values) for subject in some])

    try:
        return fit(model, np.concatenate([one.measured for one in some]), _PARAMETERS, start).values()
    except (InputError, ValueError):  # too few rows depend on any cost, or none are left
        return start


def _parameter(path: str) -> Parameter:
    rule, (low, high) = RULES[path], bounds()[path]
    unit = _UNITS.get(rule.dimension, "") if rule else ""
    return Parameter(path, low, high, unit, _NEEDS_ROWS, leaves()[path].provenance.source)


_PARAMETERS = tuple(map(_parameter, RULES))
