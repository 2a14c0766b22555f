"""Kinds of rows that a closed form predicts: how rows are cut into cases, checked against a GPU, and made subjects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.estimate import Parameter
from weft.hardware import Gpu
from weft.lab.checks import beyond_physics, unsupported
from weft.lab.machines import Machines
from weft.lab.problems import Problem
from weft.lab.subjects import BoolArray, Subject
from weft.lab.tables import FloatArray, IntArray, Kind, Measurements, seconds_of

Columns = Mapping[str, npt.NDArray[Any]]
"""The cells of some rows by column."""
PASSES: Mapping[str, str] = {
    "forward": "forward_us",
    "data": "backward_data_us",
    "weights": "backward_weights_us",
}
"""The column of each pass: forward, and the gradients of data and of weights."""


class Case(Hashable, Protocol):
    """What rows have in common that one call of a closed form predicts, on a machine that `target` describes."""

    def seconds(self, rows: Columns, target: Any) -> FloatArray:
        """Predicted times of its rows [s]; InputError if the model has none."""

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times of the rows [s]."""


Cases = Callable[[pd.DataFrame], Iterable[Any]]
"""The Case of each row."""


def parts(rows: pd.DataFrame, cases: Cases) -> Iterator[tuple[Any, IntArray, Columns]]:
    """Each case in order of first occurrence, with the positions and the columns of its rows."""
    columns = {name: rows[name].to_numpy() for name in rows}
    codes, known = pd.factorize(np.fromiter(cases(rows), dtype=object, count=len(rows)))
    for code, case in enumerate(known):
        at = np.flatnonzero(codes == code)
        yield case, at, {name: column[at] for name, column in columns.items()}


def gpu_with(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """The GPU with values at some paths replaced, given as plain numbers [base units]."""
    if not values:
        return gpu
    rules = {path: Gpu.rules()[path] for path in values}
    return gpu.replace({path: rule.format(values[path]) for path, rule in rules.items() if rule is not None})


class _Model:
    """Seconds of rows for values of parameters; the rows of the last call are not cut into cases again."""

    def __init__(self, form: ClosedForm, target: Any) -> None:
        self.form, self.target = form, target
        self.rows: pd.DataFrame | None = None
        self.parts: Sequence[tuple[Any, IntArray, Columns]] = ()

    def __call__(self, rows: pd.DataFrame, values: Mapping[str, float]) -> FloatArray:
        if rows is not self.rows:
            self.rows, self.parts = rows, tuple(parts(rows, self.form.cases))
        target, seconds = self.form.changed(self.target, values), np.empty(len(rows))
        for case, at, columns in self.parts:
            seconds[at] = case.seconds(columns, target)
        return seconds


@dataclass(frozen=True)
class ClosedForm:
    """A kind of rows that a closed form predicts, as one subject for each GPU.

    `labels` gives, of the rows of a GPU, what their errors are grouped by, and `ranges` their classes of size. `checks`
    find rows without a model. A form `multiplies` if it needs matrix units for the rows' data type; rows in `passes`
    hold one time for each pass. `target` is what `cases` are predicted on, with some of its `parameters` `changed`;
    `start` gives a parameter's value there. `column` names the machine of a row, `blamed` the column in problems of
    rows that the model refuses. `more` are further fields of the subject of some rows, `also` further subjects.
    """

    kind: Kind
    cases: Cases
    labels: Callable[[pd.DataFrame, Gpu, Any], Mapping[str, Any]]
    ranges: Callable[[pd.DataFrame], Mapping[str, BoolArray]] = lambda rows: {}
    checks: Callable[[Measurements], Sequence[Iterable[Problem]]] = lambda checked: ()
    multiplies: bool = False
    passes: bool = False
    target: Callable[[Gpu, Machines], Any] = lambda gpu, machines: gpu
    changed: Callable[[Any, Mapping[str, float]], Any] = gpu_with
    parameters: Callable[[Any], tuple[Parameter, ...]] = lambda target: ()
    start: Callable[[Any, str], float] = lambda target, path: float(target.value(path))
    column: str = "gpu"
    blamed: str = "gpu"
    more: Callable[[Any, pd.DataFrame], Mapping[str, Any]] = lambda target, labels: {}
    also: Callable[[Subject], list[Subject]] = field(default=lambda subject: [])

    def subjects(self, checked: Measurements, machines: Machines) -> list[Subject]:
        """The rows of a file by GPU, without those that have no model or cannot be true; the problems say which."""
        checked.drop(*self.checks(checked))
        found = []
        gpus = {name: self._gpu(name, machines) for name in checked.rows[self.column].unique()}
        names = checked.rows[self.column].map({name: gpu.name for name, gpu in gpus.items()})
        for gpu in {gpu.name: gpu for gpu in gpus.values()}.values():
            own = checked.some(checked.rows[(names == gpu.name).to_numpy()])
            if self.multiplies:
                own.drop(unsupported(own, gpu))
            true = self._believable(own, gpu, self.target(gpu, machines))
            checked.problems += own.problems + true.problems
            if len(true.rows):
                found.append(self._subject(true, gpu, machines))
        return [*found, *(other for subject in found for other in self.also(subject))]

    def _gpu(self, name: str, machines: Machines) -> Gpu:
        return machines.find(name) if self.column == "gpu" else hardware.system(name).gpu

    def _subject(self, checked: Measurements, gpu: Gpu, machines: Machines) -> Subject:
        rows, target = checked.rows, self.target(gpu, machines)
        names = machines.labels(gpu, rows["gpu"]) if self.column == "gpu" else rows[self.column]
        labels = pd.DataFrame({self.column: names, **self.labels(rows, gpu, target)}, index=rows.index)
        parameters = self.parameters(target)
        return Subject(
            kind=self.kind,
            machine=gpu.name,
            file=checked.file,
            rows=rows,
            measured=seconds_of(rows),
            labels=labels,
            ranges=self.ranges(rows),
            predict=_Model(self, target),
            parameters=parameters,
            start={one.path: self.start(target, one.path) for one in parameters},
            vendor=gpu.vendor,
            **self.more(target, labels),
        )

    def _believable(self, checked: Measurements, gpu: Gpu, target: Any) -> Measurements:
        """The rows that the model can predict and that are physically possible.

        The passes of a line have one unit: where one of them is believed, another far from it is a slow kernel.
        """
        if not self.passes:
            return self._possible(checked, gpu, target)
        stated = [checked.some(_of_pass(checked.rows, name)) for name in PASSES]
        every = [self._possible(one, gpu, target) for one in stated]
        believed = {line for one in every for line in one.rows.index.tolist()}
        for index, one in enumerate(stated):
            if believed & {line for problem in every[index].problems for line in problem.lines}:
                every[index] = self._possible(one, gpu, target, believed)
        found = checked.some(pd.concat([one.rows for one in every]))
        found.problems = [problem for one in every for problem in one.problems]
        return found

    def _possible(self, stated: Measurements, gpu: Gpu, target: Any, in_us: Collection[int] = ()) -> Measurements:
        """The rows that the model can predict and that are physically possible; the lines `in_us` are microseconds."""
        checked, refused = stated.some(stated.rows), []
        floor, expected = np.empty(len(stated.rows)), np.full(len(stated.rows), np.nan)
        for case, at, columns in parts(stated.rows, self.cases):
            try:
                expected[at], floor[at] = case.seconds(columns, target), case.floor(columns, gpu)
            except InputError as error:
                lines = tuple(stated.rows.index[at].tolist())
                refused.append(Problem(stated.file, lines, self.blamed, str(columns[self.blamed][0]), str(error)))
        checked.drop(refused)
        known = np.isfinite(expected)
        checked.drop(beyond_physics(checked, floor[known], expected[known], gpu.name, in_us))
        return checked


def _of_pass(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows that state the time of a pass, with the columns "pass" and "time_us" in place of a time for each."""
    stated = rows[np.isfinite(rows[PASSES[name]])]
    times = {"pass": name, "time_us": stated[PASSES[name]]}
    return stated.drop(columns=[*PASSES.values()]).assign(**times)
