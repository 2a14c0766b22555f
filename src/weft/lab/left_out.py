"""Rows predicted with their system, method, framework, GPU, number of ranks or format left out of every fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.units import Dimension
from weft.estimate import Parameter
from weft.hardware import Gpu
from weft.kernels.library import served
from weft.kernels.library.software import RULES, bounds, leaves, residual_leaves
from weft.lab.calibration import fit
from weft.lab.exchanges import of_exchange
from weft.lab.overlaps import family
from weft.lab.steps import CALIBRATION
from weft.lab.subjects import Predicted, Subject, predict_subject
from weft.lab.tables import FloatArray
from weft.models.parallel.framework import framework

_OF_ONE_HOST = "vtrain"
LAYERS = ("dense", "mixture")
"""The kinds of layers whose steps are predicted with their framework left out."""
_NEEDS_ROWS, _TABLE_NEEDS_ROWS = 4, 2
"""Rows that must depend on a cost of software or cause of the residual, or on a value of a library, to fit it."""
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
        values = _fit_values([s.take(own != group) for s, own in zip(subjects, keys, strict=True)])
        done += [
            predict_subject(s.take(own == group), values) for s, own in zip(subjects, keys, strict=True) if group in own
        ]
    return done


def steps_left_out(steps: Sequence[Subject], key: Literal["framework", "gpu"]) -> list[Predicted]:
    """Predict the steps of each framework, or on each GPU, with the calibration residual fitted to those of all others.

    The calibration residual is fitted to dense models in frameworks whose host's launches are not fitted. What the
    framework's own host spends on launches is the middle of its plausible range. vTrain's rows are not predicted: they
    are two of three, of one GPU and one host, and the host decides them; they have a bar of their own.
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
                done.append(predict_subject(own, _residual(*(one[others] for one in (*units, measured)))))
    return done


def _has_no_host(subject: Subject) -> FloatArray:
    return np.array([not framework(name).launch for name in subject.labels["framework"]])


def _values(streaming: float, hidden: float) -> dict[str, float]:
    return dict(zip(CALIBRATION, (streaming, hidden), strict=True))


def _residual(plain: FloatArray, streaming: FloatArray, hidden: FloatArray, measured: FloatArray) -> dict[str, float]:
    """Return the residual that fits measured steps [s]; a whole unit of each cause is known [s]."""
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


def _fit_values(subjects: Sequence[Subject], parameters: Sequence[Parameter] | None = None) -> dict[str, float]:
    """The values that fit the rows of subjects, by path; the middle of their ranges without enough rows.

    Without parameters, the costs of software.
    """
    parameters = _COSTS if parameters is None else parameters
    middle = {one.path: float(np.sqrt(one.low * one.high)) for one in parameters}
    some = [subject for subject in subjects if len(subject)]

    def model(values: Mapping[str, float]) -> FloatArray:
        return np.concatenate([subject.predict(subject.rows, values) for subject in some])

    try:
        return fit(model, np.concatenate([one.measured for one in some]), parameters, middle).values()
    except (InputError, ValueError):  # too few rows depend on any value, or none are left
        return middle


def _parameter(path: str) -> Parameter:
    rule, (low, high) = RULES[path], bounds()[path]
    unit = _UNITS.get(rule.dimension, "") if rule else ""
    return Parameter(path, low, high, unit, _NEEDS_ROWS, leaves()[path].provenance.source)


_COSTS = tuple(map(_parameter, RULES))


def tables_of(subject: Subject) -> npt.NDArray[np.str_]:
    """The path of the libraries' values that each row of a subject depends on."""
    assert subject.tables is not None
    return subject.tables


def of_table(place: str) -> list[Parameter]:
    """The parameters of a table of `served.toml` that its own rows are fitted to, with their ranges."""
    known = served.parameters(place.partition(".")[0])
    units = {"us": "s", "GB/s": "bytes/s"}
    return [
        Parameter(f"{place}.{key}", of.low, of.high, units.get(of.unit, ""), _TABLE_NEEDS_ROWS, of.about)
        for key, of in ((key, known[key]) for key in served.fitted_sets()[place].own)
    ]


def gpus_left_out(subjects: Sequence[Subject]) -> list[Predicted]:
    """Predict the rows of each GPU with values fitted to those of all others, table by table.

    A table whose rows are all of one GPU takes the values of the library on the nearest other architecture; rows that
    nothing else is like are left out.
    """
    done = []
    owned = [(subject, tables_of(subject)) for subject in subjects]
    for subject, names in owned:
        for table in sorted(set(names.tolist())):
            others = [each.take(of == table) for each, of in owned if each is not subject and table in of]
            if others:
                values: Mapping[str, float] | None = _fit_values(others, of_table(table))
            else:
                values = _of_another(table, hardware.gpu(subject.machine))
            if values:
                done.append(predict_subject(subject.take(names == table), values))
    return done


def _of_another(table: str, gpu: Gpu) -> dict[str, float] | None:
    """The values of the same library on the nearest other architecture, by the paths of a table; None without one."""
    operator, name, rest = table.split(".", 2)
    what = rest.rpartition(".")[0]
    known = [place for place in served.places(operator, name, what) if place != table]
    if not known:
        return None
    other = known[served.nearest(gpu.architecture, [place.rpartition(".")[2] for place in known])]
    own = {f"{table}.{key}": value for key, value in served.tables()[other].items()}
    return own if len(own) == len(served.tables()[table]) else {**_middle(table), **own}


def _middle(table: str) -> dict[str, float]:
    return {one.path: float(np.sqrt(one.low * one.high)) for one in of_table(table)}


def ranks_left_out(subjects: Sequence[Subject]) -> list[Predicted]:
    """Predict the rows of each number of ranks with values fitted to those of all other numbers, table by table.

    A table whose rows all have one number of ranks is predicted for each GPU from those of the others; rows that
    nothing else is like are left out.
    """
    done = []
    owned = [(subject, tables_of(subject)) for subject in subjects]
    for table in sorted({name for _, names in owned for name in names.tolist()}):
        rows = [subject.take(names == table) for subject, names in owned if table in names]
        ranks = sorted({float(one) for subject in rows for one in subject.labels["ranks"]})
        if len(ranks) > 1:
            parts = [[(subject.labels["ranks"] == one).to_numpy() for subject in rows] for one in ranks]
        elif len(rows) > 1:
            parts = [[np.full(len(subject), subject is one) for subject in rows] for one in rows]
        else:
            continue
        for masks in parts:
            others = [subject.take(~mask) for subject, mask in zip(rows, masks, strict=True)]
            values = _fit_values(others, of_exchange(table))
            done += [
                predict_subject(subject.take(mask), values)
                for subject, mask in zip(rows, masks, strict=True)
                if any(mask)
            ]
    return done


def formats_left_out(subjects: Sequence[Subject]) -> list[Predicted]:
    """Predict the rows of each format with values fitted to other formats, as if the format had not been measured.

    Those of the same kernels on the architecture, by any library, count; of the same library where there are none. Rows
    that have no other format to go by are left out.
    """
    owned = [(subject, tables_of(subject)) for subject in subjects]
    every = sorted({name for _, names in owned for name in names.tolist()})
    done = []
    for table in every:
        _, name, kind, architecture = table.split(".")
        apart = [one for one in every if one.split(".")[2] != kind and one.split(".")[3] == architecture]
        alike = [one for one in apart if _kernels(one) == _kernels(table)]
        others = alike or [one for one in apart if one.split(".")[1] == name]
        known = [_sharing(part, others) for subject, of in owned if len(part := subject.take(np.isin(of, others)))]
        if known:
            values = _fit_values(known, of_table(table))
            done += [predict_subject(part, values) for subject, of in owned if len(part := subject.take(of == table))]
    return done


def _kernels(table: str) -> str:
    """Return which kernels the library of a table runs for its format: libraries share them."""
    _, name, kind, _ = table.split(".")
    kernels = served.library("experts", name).how.get("kernels", {})
    return str(kernels.get(kind, kernels.get("default", name)))


def _sharing(subject: Subject, tables: Sequence[str]) -> Subject:
    """The subject predicted with the values of one table in the place of those of all `tables`."""

    def predict(rows: pd.DataFrame, values: Mapping[str, float]) -> FloatArray:
        own = {path.rpartition(".")[2]: value for path, value in values.items()}
        return subject.predict(rows, {f"{table}.{key}": value for table in tables for key, value in own.items()})

    return replace(subject, predict=predict)
