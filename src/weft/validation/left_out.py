"""Rows predicted with one system, one method of overlap or one framework of steps left out of every fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.errors import InputError
from weft.estimate import Parameter
from weft.library.software import RULES, bounds, leaves
from weft.parallel.framework import framework
from weft.units import Dimension
from weft.validation.calibration import fit
from weft.validation.overlaps import family
from weft.validation.steps import SHARE
from weft.validation.subjects import Predicted, Subject, predicted
from weft.validation.tables import FloatArray

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


def frameworks_left_out(steps: Sequence[Subject], unfitted: Sequence[Subject]) -> list[Predicted]:
    """Predict the steps of each framework with clocks fitted to those of dense models of all others.

    `steps` are predicted as shipped, `unfitted` repeats them at the clocks of long runs; between both the logarithm
    of a time is linear in that of the clock. A GPU takes the share of the clock of long runs that fits the rows of
    other frameworks on it, or with fewer than four, on GPUs of its architecture, or on all. What the framework's host
    spends on launches is the middle of its plausible range.
    """
    if not steps:
        return []
    table = pd.concat([_slopes(one, unfitted) for one in steps])
    done = []
    for subject in steps:
        for name in subject.labels["framework"].unique():
            own = subject.take((subject.labels["framework"] == name) & subject.labels["layers"].isin(LAYERS))
            if len(own):
                others = table[table["framework"] != name]
                gpu = hardware.gpu(subject.machine)
                near = (others["gpu"] == gpu.name, others["architecture"] == gpu.architecture, others["slope"] < 0)
                rows = next(others[which] for which in near if (which & (others["slope"] < 0)).sum() >= _NEEDS_ROWS)
                done.append(predicted(own, {SHARE: _share(rows)}))
    return done


def _slopes(subject: Subject, unfitted: Sequence[Subject]) -> pd.DataFrame:
    """The dense rows of steps: the logarithm of predicted over measured at the clock of long runs, and its slope by
    the logarithm of the clock.
    """
    gpu = hardware.gpu(subject.machine)
    plain = {line: seconds for one in unfitted for line, seconds in _by_line(one)}
    rise = math.log(gpu.clocks.sustained / (gpu.clocks.training or gpu.clocks.sustained))
    shipped = list(_by_line(subject))
    slopes = [math.log(plain[line] / seconds) / rise if rise and line in plain else 0.0 for line, seconds in shipped]
    error = np.log([plain.get(line, seconds) for line, seconds in shipped] / subject.measured)
    hosts = [bool(framework(name).launch) for name in subject.labels["framework"]]
    table = subject.labels.assign(error=error, slope=np.where(hosts, 0.0, slopes), architecture=gpu.architecture)
    return table[table["layers"] == "dense"]


def _by_line(subject: Subject) -> Iterator[tuple[Any, float]]:
    lines = ((subject.file, line) for line in subject.rows.index)
    return zip(lines, predicted(subject, {}).seconds.tolist(), strict=True)


def _share(rows: pd.DataFrame) -> float:
    """The share of the clocks of long runs at which the mean error of steps is least."""
    shares = np.linspace(0.6, 1.1, 101)
    errors = np.exp(rows["error"].to_numpy()[:, None] + rows["slope"].to_numpy()[:, None] * np.log(shares)) - 1
    return float(shares[np.abs(errors).mean(axis=0).argmin()])


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
