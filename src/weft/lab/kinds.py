"""Kinds of measured rows as declarations: which rows, the public call that predicts them, and what groups their errors.

A file's rows are checked, cut into the figures that they state, grouped by machine, and predicted: rows that one call
predicts share a `Query`. `RowKind.subjects` is the one loop of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.estimate import BenchmarkProtocol, Parameter
from weft.hardware import Gpu
from weft.kernels.library.profiles import Profile
from weft.lab.checks import Unfit, beyond_physics, find_unsupported
from weft.lab.machines import Machines, knows
from weft.lab.problems import Problem
from weft.lab.subjects import BoolArray, Subject
from weft.lab.tables import FloatArray, IntArray, Measurements, figure_of

Columns = Mapping[str, npt.NDArray[Any]]
"""The cells of some rows by column."""
Query = tuple[Any, ...]
"""What rows have in common that one call predicts: the call's arguments (hashable) beside the rows' numbers."""
PASSES: Mapping[str, str] = {
    "forward": "forward_us",
    "data": "backward_data_us",
    "weights": "backward_weights_us",
}
"""The column of each pass: forward, and the gradients of data and of weights."""


@dataclass(frozen=True)
class RowMachine:
    """What a call runs on as a fit may change it: a GPU, its library's profile, and values of libraries by path.

    `gpu` is None where rows name their systems themselves.
    """

    gpu: Any = None
    profile: Profile | None = None
    values: Mapping[str, float] = field(default_factory=dict)

    def harness(self, **stated: Any) -> BenchmarkProtocol:
        """Return a harness with what the rows state, and the changed values of libraries."""
        return BenchmarkProtocol(**stated, values=self.values or None)


def gpu_with(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """Return the GPU with values at some paths replaced, given as plain numbers [base units]."""
    if not values:
        return gpu
    rules = {path: Gpu.rules()[path] for path in values}
    return gpu.replace({path: rule.format(values[path]) for path, rule in rules.items() if rule is not None})


class _Model:
    """Figures of rows for values of parameters; the rows of the last call are not cut into queries again."""

    def __init__(self, kind: RowKind, machine: RowMachine) -> None:
        self.kind, self.machine = kind, machine
        self.rows: pd.DataFrame | None = None
        self.parts: Sequence[tuple[Query, IntArray, Columns]] = ()

    def __call__(self, rows: pd.DataFrame, values: Mapping[str, float]) -> FloatArray:
        if rows is not self.rows:
            self.rows, self.parts = rows, self.kind.parts(rows, self.machine)
        machine, figures = self.kind.changed(self.machine, values), np.empty(len(rows))
        for query, at, columns in self.parts:
            figures[at] = self.kind.call(columns, machine, *query)
        return figures


def _whole(checked: Measurements) -> Iterable[tuple[str, pd.DataFrame]]:
    return [(str(checked.kind), checked.rows)]


@dataclass(frozen=True)
class RowKind:
    """A kind of rows: how they are read, the public call that predicts each, and what their errors are grouped by.

    `query` turns the cells of the columns `by` (none: the whole row, as a mapping, and its machine) into a Query, or
    raises Unfit; `call` takes the columns of rows alike, their machine and the Query, and returns the figures compared.
    `checks` find rows without a model and fill in what others leave out. `expand` cuts a file into the kinds of figures
    that its rows state, each with a column "measured" [base units] where that is not "time_us"; rows in `passes` hold
    one time for each pass. `column` names the machine: "gpu" and "system" group by GPU, another one as it is, "" not at
    all.

    `labels` gives, of the rows of a machine and their queries, what errors are grouped by, and `ranges` their classes
    of size. With a `floor`, the least time of rows alike [s], impossible rows are left out. A kind `multiplies` if it
    needs matrix units for the rows' data type. A fit changes the machine's GPU, profile or values of libraries
    (`fits`) by `parameters`; `start` gives one's shipped value. `table` is the path of the library's values that a
    query depends on. `blamed` is the column in problems of rows that the call refuses, `more` gives further fields of
    a subject, `also` kinds that take the same rows, believed.
    """

    kind: str
    query: Callable[..., Query]
    call: Callable[..., Any]
    labels: Callable[[pd.DataFrame, RowMachine, Sequence[Any]], Mapping[str, Any]]
    by: tuple[str, ...] = ()
    checks: Callable[[Measurements], Iterable[Iterable[Problem]]] = lambda checked: ()
    expand: Callable[[Measurements], Iterable[tuple[str, pd.DataFrame]]] = _whole
    passes: bool = False
    column: str = "gpu"
    ranges: Callable[[pd.DataFrame], Mapping[str, BoolArray]] = lambda rows: {}
    floor: Callable[..., Any] | None = None
    multiplies: bool = False
    fits: Literal["gpu", "profile", "values"] = "values"
    parameters: Callable[[RowMachine], tuple[Parameter, ...]] = lambda machine: ()
    start: Callable[[RowMachine, str], float] = lambda machine, path: float(machine.gpu.value(path))
    table: Callable[..., str] | None = None
    blamed: str = "gpu"
    more: Callable[[RowMachine, pd.DataFrame, pd.DataFrame], Mapping[str, Any]] = lambda machine, rows, labels: {}
    also: tuple[RowKind, ...] = ()

    def subjects(self, checked: Measurements, machines: Machines) -> list[Subject]:
        """The rows of a file by machine, without those that have no model or cannot be true; the problems say which."""
        checked.drop(*self.checks(checked))
        found: list[tuple[str, str, RowMachine, Measurements, FloatArray]] = []
        problems: dict[Problem, None] = {}
        for kind, rows in self.expand(checked):
            for name, machine, own in self._by_machine(checked.some(rows), machines):
                if self.multiplies:
                    own.drop(find_unsupported(own, machine.gpu))
                true, figures = self._believable(own, machine)
                problems |= dict.fromkeys([*own.problems, *true.problems])
                found.append((kind, name, machine, true, figures))
        checked.problems += problems
        refused = [] if self.floor else [line for one in problems if not one.used for line in one.lines]
        subjects: list[Subject] = []
        others: list[Subject] = []
        for kind, name, machine, true, figures in found:
            held = ~true.rows.index.isin(refused)
            if held.any():
                rows = true.rows[held]
                subjects.append(self._subject(kind, name, machine, machines, true.file, rows, figures[held]))
                others += [
                    other._subject(
                        one, name, machine, machines, true.file, *other._predict_rows(true.some(some), machine)
                    )
                    for other in self.also
                    for one, some in other.expand(true.some(rows))
                    if len(some)
                ]
        return [*subjects, *others]

    def _predict_rows(self, checked: Measurements, machine: RowMachine) -> tuple[pd.DataFrame, FloatArray]:
        true, figures = self._possible(checked, machine)
        return true.rows, figures

    def parts(
        self, rows: pd.DataFrame, machine: RowMachine, unfit: dict[int, Unfit] | None = None
    ) -> list[tuple[Query, IntArray, Columns]]:
        """Each query in order of first occurrence, with the positions and the columns of its rows.

        Rows that are no query are left out, and `unfit` says of each position why.
        """
        columns = {name: rows[name].to_numpy() for name in rows}
        queries: dict[Query, list[int]] = {}
        known: dict[Any, Query | Unfit] = {}
        cells: Iterable[Any] = zip(*(rows[name].tolist() for name in self.by), strict=True)
        for place, cell in enumerate(cells if self.by else rows.to_dict("records")):
            key = cell if self.by else place
            if key not in known:
                try:
                    known[key] = self.query(*cell) if self.by else self.query(cell, machine)
                except Unfit as error:
                    known[key] = error
            query = known[key]
            if not isinstance(query, Unfit):
                queries.setdefault(query, []).append(place)
            elif unfit is None:
                raise query
            else:
                unfit[place] = query
        every = ((query, np.array(at)) for query, at in queries.items())
        return [(query, at, {name: column[at] for name, column in columns.items()}) for query, at in every]

    def changed(self, machine: RowMachine, values: Mapping[str, float]) -> RowMachine:
        """The machine with the values of parameters replaced, by path."""
        if self.fits == "gpu":
            return replace(machine, gpu=gpu_with(machine.gpu, values))
        if self.fits == "profile":
            assert machine.profile is not None
            return replace(machine, profile=machine.profile.replace(values)) if values else machine
        return replace(machine, values=values)

    def _by_machine(self, checked: Measurements, machines: Machines) -> Iterable[tuple[str, RowMachine, Measurements]]:
        """The rows of each machine, with its name."""
        rows = checked.rows
        if self.column not in ("gpu", "system"):
            names = rows[self.column] if self.column else pd.Series("", rows.index)
            return [(str(name), RowMachine(), checked.some(own)) for name, own in rows.groupby(names, sort=False)]
        texts = rows[self.column]
        find = machines.find if self.column == "gpu" else lambda text: hardware.system(text).gpu
        gpus = {text: find(text) for text in texts.unique() if knows(find, text)}
        names = texts.map({text: gpu.name for text, gpu in gpus.items()})
        return [
            (name, self._machine(gpu, machines), checked.some(rows[(names == name).to_numpy()]))
            for name, gpu in {gpu.name: gpu for gpu in gpus.values()}.items()
        ]

    def _machine(self, gpu: Gpu, machines: Machines) -> RowMachine:
        return RowMachine(gpu, machines.profile(gpu) if self.fits == "profile" else None)

    def _subject(
        self,
        kind: str,
        name: str,
        machine: RowMachine,
        machines: Machines,
        file: str,
        rows: pd.DataFrame,
        figures: FloatArray,
    ) -> Subject:
        queries = self._of_each(rows, machine)
        own = {}
        if self.column == "gpu":
            own = {"gpu": machines.labels(machine.gpu, rows["gpu"])}
        elif self.column == "system":
            own = {"system": rows["system"]}
        labels = pd.DataFrame({**own, **self.labels(rows, machine, queries)}, index=rows.index)
        parameters = self.parameters(machine)
        return Subject(
            kind=kind,
            machine=name,
            file=file,
            rows=rows,
            measured=figure_of(rows),
            labels=labels,
            ranges=self.ranges(rows),
            predict=_Model(self, machine),
            shipped=figures,
            parameters=parameters,
            start={one.path: self.start(machine, one.path) for one in parameters},
            vendor=machine.gpu.vendor if machine.gpu else "none",
            tables=None if self.table is None else np.array([self.table(machine.gpu, *each) for each in queries]),
            **self.more(machine, rows, labels),
        )

    def _of_each(self, rows: pd.DataFrame, machine: RowMachine) -> list[Query]:
        """The query of each row."""
        found: list[Query] = [()] * len(rows)
        for query, at, _ in self.parts(rows, machine):
            for place in at.tolist():
                found[place] = query
        return found

    def _believable(self, checked: Measurements, machine: RowMachine) -> tuple[Measurements, FloatArray]:
        """The rows that can be predicted and that are physically possible, and their predicted figures.

        The passes of a line have one unit: where one of them is believed, another far from it is a slow kernel.
        """
        if not self.passes:
            return self._possible(checked, machine)
        stated = [checked.some(_of_pass(checked.rows, name)) for name in PASSES]
        every = [self._possible(one, machine) for one in stated]
        believed = {line for one, _ in every for line in one.rows.index.tolist()}
        for index, one in enumerate(stated):
            if believed & {line for problem in every[index][0].problems for line in problem.lines}:
                every[index] = self._possible(one, machine, believed)
        found = checked.some(pd.concat([one.rows for one, _ in every]))
        found.problems = [problem for one, _ in every for problem in one.problems]
        return found, np.concatenate([figures for _, figures in every])

    def _possible(
        self, stated: Measurements, machine: RowMachine, in_us: Collection[int] = ()
    ) -> tuple[Measurements, FloatArray]:
        """The rows that can be predicted and are physically possible; the lines `in_us` are microseconds."""
        checked, refused, unfit = stated.some(stated.rows), [], dict[int, Unfit]()
        expected, floor = np.full(len(stated.rows), np.nan), np.zeros(len(stated.rows))
        lines = stated.rows.index
        for query, at, columns in self.parts(stated.rows, machine, unfit):
            try:
                expected[at] = self.call(columns, machine, *query)
                if self.floor:
                    floor[at] = self.floor(columns, machine.gpu, *query)
            except InputError as error:
                value = str(columns[self.blamed][0])
                refused.append(Problem(stated.file, tuple(lines[at].tolist()), self.blamed, value, str(error)))
        checked.drop(refused, [Problem(stated.file, (int(lines[at]),), *error.args) for at, error in unfit.items()])
        known = np.isfinite(expected)
        if self.floor:
            checked.drop(beyond_physics(checked, floor[known], expected[known], machine.gpu.name, in_us))
        return checked, expected[lines.isin(checked.rows.index)]


def _of_pass(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows that state the time of a pass, with the columns "pass" and "time_us" in place of a time for each."""
    stated = rows[np.isfinite(rows[PASSES[name]])]
    times = {"pass": name, "time_us": stated[PASSES[name]]}
    return stated.drop(columns=[*PASSES.values()]).assign(**times)
