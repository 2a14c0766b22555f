"""Rows predicted with one system, one method of overlap or one framework of steps left out of every fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from weft import hardware
from weft.core.errors import InputError
from weft.core.units import Dimension
from weft.estimate import Parameter
from weft.kernels.library.software import RULES, bounds, leaves, residual_leaves
from weft.lab.calibration import fit
from weft.lab.overlaps import family
from weft.lab.steps import CALIBRATION
from weft.lab.subjects import Predicted, Subject, predicted
from weft.lab.tables import FloatArray
from weft.models.parallel.framework import framework

_OF_ONE_HOST = "vtrain"
LAYERS = ("dense", "mixture")
"""The kinds of layers whose steps are predicted with their framework left out."""
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


def steps_left_out(steps: Sequence[Subject], key: Literal["framework", "gpu"]) -> list[Predicted]:
    """Predict the steps of each framework, or on each GPU, with the calibration residual fitted to those of all others.

    It is fitted to dense models in frameworks whose host's launches are not fitted. What the framework's own host
    spends on launches is the middle of its plausible range. vTrain's rows are not predicted: they are two of three, of
    one GPU and one host, and the host decides them; they have a bar of their own.
    """
    steps = [one.take((one.labels["framework"] != _OF_ONE_HOST).to_numpy()) for one in steps]
    fitted = [one.take(_has_no_host(one) & (one.labels["layers"] == "dense")) for one in steps]
    known = [one for one in fitted if len(one)]
    if not known:
        return []
    units = [np.concatenate([one.predict(one.rows, _values(*at)) for one in known]) for at in ((0, 0), (1, 0), (0, 1))]
    measured = np.concatenate([one.measured for one in known])
    groups = np.concatenate([one.labels[key] for one in known])
    done = []
    for subject in steps:
        for name in subject.labels[key].unique():
            own = subject.take((subject.labels[key] == name) & subject.labels["layers"].isin(LAYERS))
            if len(own):
                others = groups != name
                done.append(predicted(own, _residual(*(one[others] for one in (*units, measured)))))
    return done


def _has_no_host(subject: Subject) -> FloatArray:
    return np.array([not framework(name).launch for name in subject.labels["framework"]])


def _values(streaming: float, hidden: float) -> dict[str, float]:
    return dict(zip(CALIBRATION, (streaming, hidden), strict=True))


def _residual(plain: FloatArray, streaming: FloatArray, hidden: FloatArray, measured: FloatArray) -> dict[str, float]:
    """Return the residual that fits measured steps [s], of which a whole unit of each cause is known [s]."""
    causes = residual_leaves()
    parameters = [
        Parameter(path, *leaf.range, "", _NEEDS_ROWS, leaf.provenance.source) for path, leaf in causes.items()
    ]
    start = {one.path: float(np.sqrt(one.low * one.high)) for one in parameters}

    def model(values: Mapping[str, float]) -> FloatArray:
        first, second = (values[path] for path in CALIBRATION)
        return plain + first * (streaming - plain) + second * (hidden - plain)

    try:
        return {**fit(model, measured, parameters, start).values()}
    except (InputError, ValueError):  # too few rows
        return start


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
