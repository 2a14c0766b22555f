"""Measured recurrent layers: every pass of a layer whose input GEMM is skipped, by cell, data type and pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from weft.core.options import SHORT
from weft.estimate import Parameter
from weft.estimate.recurrent import recurrent
from weft.estimate.target import target as target_of
from weft.graph.recurrent import GATES, Recurrent
from weft.hardware import Gpu
from weft.kernels.library.tiles import FITTED, recurrent_bounds, recurrent_values
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.seen import YES
from weft.lab.tables import FloatArray

_ABOUT = {"gap": "from one kernel of a step to the next beyond its work", "pace": "a step's time for each hidden cell"}
_UNKNOWN = f"Weft knows no such cell; it knows {', '.join(GATES)}"


@dataclass(frozen=True)
class _Target:
    """A GPU, and values of its library that replace the shipped ones."""

    gpu: Gpu
    values: Any


@dataclass(frozen=True)
class _Case:
    """Rows of one cell, data type and pass."""

    cell: Any
    dtype: str
    computes: Any

    def _op(self, rows: Columns) -> Recurrent:
        sizes: dict[str, Any] = {"hidden": rows["hidden"], "batch": rows["batch"], "steps": rows["timesteps"]}
        return Recurrent(self.cell, **sizes, dtype=self.dtype, computes=self.computes)

    def seconds(self, rows: Columns, target: _Target) -> FloatArray:
        """Times on a GPU [s]."""
        return np.asarray(recurrent(self._op(rows), target_of(target.gpu, SHORT), target.values).seconds)

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the products at the highest clock."""
        rate = max(gpu.matrix_rate(self.dtype, clock) for clock in ("peak", "boost"))
        return np.asarray(self._op(rows).flops / rate, dtype=np.float64)


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    return map(_Case, rows["cell"], rows["dtype"], rows["pass"])


def _parameters(target: _Target) -> tuple[Parameter, ...]:
    bounds = recurrent_bounds(target.gpu.architecture)
    return tuple(Parameter(path, *bounds[path], "s", 10, _ABOUT[path.split(".")[1]]) for path in FITTED)


RECURRENT = ClosedForm(
    kind="rnn",
    cases=_cases,
    labels=lambda rows, gpu, target: {**{name: rows[name] for name in ("dtype", "cell", "pass")}, "seen": YES},
    checks=lambda checked: [checked.by_value(~checked.rows["cell"].isin([*GATES]), "cell", _UNKNOWN)],
    multiplies=True,
    passes=True,
    target=lambda gpu, machines: _Target(gpu, {}),
    changed=lambda target, values: replace(target, values=values),
    parameters=_parameters,
    start=lambda target, path: recurrent_values(target.gpu.architecture)[path],
)
"""Recurrent layers on one GPU, fitted by the library's time from one kernel of a step to the next."""
