"""Fit the values of libraries to measured rows, table by table, and predict rows with their GPU left out of the fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT
from weft.estimate import Parameter
from weft.estimate.target import Target
from weft.estimate.target import target as target_of
from weft.hardware import Gpu
from weft.kernels.library import served
from weft.lab.calibration import fit
from weft.lab.subjects import Predicted, Subject, predicted
from weft.lab.tables import FloatArray

_NEEDS_ROWS = 2
TablesOf = Callable[[Subject], list[str]]
"""The table of values that each row of a subject depends on."""


@dataclass(frozen=True)
class Changed:
    """A GPU, or one in its system, and values of libraries that replace the shipped ones."""

    machine: Target
    values: Mapping[str, float]


def on(gpu: Gpu, machines: object = None) -> Changed:
    """A GPU in short runs, with the values as shipped."""
    return Changed(target_of(gpu, SHORT), {})


def changed(target: Changed, values: Mapping[str, float]) -> Changed:
    """The same with other values, by path."""
    return replace(target, values=values)


def start(target: Changed, path: str) -> float:
    """A shipped value."""
    return served.shipped()[path]


def fitted(subjects: Sequence[Subject], parameters: Sequence[Parameter]) -> dict[str, float]:
    """The values that fit the rows of subjects, by path; the middle of their ranges without enough rows."""
    middle = {one.path: float(np.sqrt(one.low * one.high)) for one in parameters}
    some = [subject for subject in subjects if len(subject)]

    def model(values: Mapping[str, float]) -> FloatArray:
        return np.concatenate([subject.predict(subject.rows, values) for subject in some])

    if not some:
        return middle
    try:
        return dict(fit(model, np.concatenate([one.measured for one in some]), parameters, middle).values())
    except (InputError, ValueError):  # too few rows depend on any value
        return middle


def of_table(place: str) -> list[Parameter]:
    """The parameters of a table of `served.toml`, with their ranges."""
    known = served.parameters(place.partition(".")[0])
    units = {"us": "s", "GB/s": "bytes/s"}
    return [
        Parameter(f"{place}.{key}", of.low, of.high, units.get(of.unit, ""), _NEEDS_ROWS, of.about)
        for key, of in ((key, known[key]) for key in served.tables()[place])
    ]


def gpus_left_out(subjects: Sequence[Subject], tables_of: TablesOf) -> list[Predicted]:
    """Predict the rows of each GPU with values fitted to those of all others, table by table.

    A table whose rows are all of one GPU takes the values of the library on the nearest other architecture; rows that
    nothing else is like are left out.
    """
    done = []
    owned = [(subject, np.array(tables_of(subject), dtype=np.str_)) for subject in subjects]
    for subject, names in owned:
        for table in sorted(set(names.tolist())):
            others = [each.take(of == table) for each, of in owned if each is not subject and table in of]
            if others:
                values: Mapping[str, float] | None = fitted(others, of_table(table))
            else:
                values = _of_another(table, hardware.gpu(subject.machine))
            if values:
                done.append(predicted(subject.take(names == table), values))
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
