"""Measured recurrent layers as subjects: every pass of a layer whose input GEMM is skipped, one subject per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.estimate import Parameter
from weft.estimate.recurrent import recurrent
from weft.estimate.target import target
from weft.graph.recurrent import GATES, Recurrent
from weft.hardware import Gpu
from weft.library.recurrent import FITTED, recurrent_bounds, recurrent_values
from weft.validation.checks import Checked, predicted_by
from weft.validation.machines import Machines
from weft.validation.passes import believable_passes, subjects_by_gpu
from weft.validation.problems import Problem
from weft.validation.seen import YES
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

_ABOUT = {"gap": "from one kernel of a step to the next beyond its work", "pace": "a step's time for each hidden cell"}


@dataclass(frozen=True)
class _On:
    """A GPU, and values of its library that replace the shipped ones."""

    gpu: Gpu
    values: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class _Case:
    """Rows of one cell, data type and pass."""

    positions: IntArray
    cell: Any
    dtype: str
    computes: Any

    def _made(self, rows: Rows) -> Recurrent:
        sizes: dict[str, Any] = {"hidden": rows["hidden"], "batch": rows["batch"], "steps": rows["timesteps"]}
        return Recurrent(self.cell, **sizes, dtype=self.dtype, computes=self.computes)

    def seconds(self, rows: Rows, on: _On) -> FloatArray:
        """Times on a GPU [s]."""
        return np.asarray(recurrent(self._made(rows), target(on.gpu), on.values).seconds)

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the products at the highest clock."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        return np.asarray(self._made(rows).flops / rate, dtype=np.float64)


def _cases(rows: Rows) -> tuple[_Case, ...]:
    keys = zip(*(rows[name].tolist() for name in ("cell", "dtype", "pass")), strict=True)
    return tuple(_Case(positions, *key) for key, positions in positions_by(keys).items())


def recurrent_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The passes of a file of recurrent layers by GPU, without impossible ones and cells that Weft does not know."""
    checked.drop(_unknown_cells(checked.rows))
    return subjects_by_gpu(
        checked, machines, lambda rows, gpu: believable_passes(rows, _cases, gpu, _On(gpu, {})), _subject
    )


def _unknown_cells(rows: Rows) -> Iterator[Problem]:
    for cell in np.unique(rows["cell"][~np.isin(rows["cell"], [*GATES])]).tolist():
        rule = f"Weft knows no such cell; it knows {', '.join(GATES)}"
        yield Problem(rows.file, rows.lines(rows["cell"] == cell), "cell", cell, rule)


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    start, bounds = recurrent_values(gpu.architecture), recurrent_bounds(gpu.architecture)
    return Subject(
        kind="rnn",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels={
            "gpu": machines.labels(gpu, rows["gpu"]),
            "dtype": rows["dtype"],
            "cell": rows["cell"],
            "pass": rows["pass"],
            "seen": np.full(len(rows), YES),
        },
        predict=lambda some, values: predicted_by(_cases(some), some, _On(gpu, values)),
        parameters=tuple(Parameter(path, *bounds[path], "s", 10, _ABOUT[path.split(".")[1]]) for path in FITTED),
        start={path: start[path] for path in FITTED},
        vendor=gpu.vendor,
    )
