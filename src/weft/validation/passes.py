"""Rows by GPU, and rows that hold the times of several passes as one row for each pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.hardware import Gpu
from weft.validation.checks import Case, Checked, believable, unsupported
from weft.validation.machines import Machines
from weft.validation.subjects import Subject
from weft.validation.tables import Rows, positions_by

PASSES: Mapping[str, str] = {
    "forward": "forward_us",
    "data": "backward_data_us",
    "weights": "backward_weights_us",
}
"""The column of each pass: forward, and the gradients of data and of weights."""


def believable_passes(rows: Rows, cases: Callable[[Rows], Sequence[Case]], gpu: Gpu, on: Any) -> Checked:
    """The passes of a GPU's rows that the model can predict and that are physically possible.

    They have columns "pass" and "time_us", one row for each time that is stated; lines are those of the file. The
    passes of a line have one unit: where one of them is believed, another far from it is a slow kernel.
    """
    supported = Checked(rows)
    supported.drop(unsupported(rows, gpu))
    stated = [one for one in _each(supported.rows) if len(one)]
    every = [believable("gpu", cases(one), one, gpu, on) for one in stated]
    believed = {line for one in every for line in one.rows.line.tolist()}
    for index, one in enumerate(stated):
        if believed & {line for problem in every[index].problems for line in problem.lines}:
            every[index] = believable("gpu", cases(one), one, gpu, on, believed)
    found = Checked(_joined([one.rows for one in every]) if every else supported.rows.take(np.zeros(0, np.int64)))
    found.problems = [*supported.problems, *(problem for one in every for problem in one.problems)]
    return found


def subjects_by_gpu(
    checked: Checked,
    machines: Machines,
    believed: Callable[[Rows, Gpu], Checked],
    subject: Callable[[Rows, Gpu, Machines], Subject],
) -> list[Subject]:
    """A subject for each GPU of the rows, of those that are `believed`; the problems of the others are kept."""
    subjects = []
    for name, positions in positions_by(machines.find(name).name for name in checked.rows["gpu"].tolist()).items():
        gpu = machines.find(name)
        true = believed(checked.rows.take(positions), gpu)
        checked.problems += true.problems
        if len(true.rows):
            subjects.append(subject(true.rows, gpu, machines))
    return subjects


def _each(rows: Rows) -> list[Rows]:
    return [_of_pass(rows.take(np.isfinite(rows[column])), name, column) for name, column in PASSES.items()]


def _of_pass(rows: Rows, name: str, column: str) -> Rows:
    kept = {key: values for key, values in rows.columns.items() if key not in PASSES.values()}
    columns = {**kept, "pass": np.full(len(rows), name), "time_us": rows[column]}
    return Rows(rows.kind, rows.file, rows.line, columns)


def _joined(parts: Sequence[Rows]) -> Rows:
    columns = {name: np.concatenate([one[name] for one in parts]) for name in parts[0].columns}
    return Rows(parts[0].kind, parts[0].file, np.concatenate([one.line for one in parts]), columns)
