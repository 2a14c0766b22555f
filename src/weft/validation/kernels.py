"""Measured kernels of PyTorch as subjects: normalisation, softmax and element-wise operators, one subject per GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Streaming
from weft.hardware import Gpu
from weft.validation.checks import Checked, believable, predicted_by
from weft.validation.gemms import changed
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.seen import NO
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

_BY_ROWS = ("layernorm", "softmax")
_INPUTS = {"gelu": 1, "relu": 1, "tanh": 1, "add": 2, "mul": 2, "addu": 1, "mulu": 1, "divu": 1}
"""Tensors that element-wise operators read; the ending u marks those with a scalar."""
PARAMETERS = tuple(one for one in GEMM_PARAMETERS if one.path == "achieved.gemm_host")
"""What may be fitted: from one kernel to the next, issued and awaited by the host, as all rows are timed."""


@dataclass(frozen=True, eq=False)
class _Case:
    """Rows of one operator and data type."""

    positions: IntArray
    op: str
    dtype: str

    def _made(self, rows: Rows) -> Streaming:
        tokens: Any = rows["m"]
        columns: Any = rows["n"]
        if self.op in _BY_ROWS:
            return Streaming(self.op, tokens, columns, self.dtype)
        name = "gelu" if self.op == "gelu" else "elementwise"
        given: dict[str, Any] = {} if name == "gelu" else {"inputs": _INPUTS[self.op]}
        return Streaming(name, tokens * columns, 1, self.dtype, **given)

    def seconds(self, rows: Rows, on: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        return np.asarray(estimate(self._made(rows), on, harness=Harness(timed="host")).seconds)

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the bytes that no cache holds, at the memory's peak."""
        moved = np.asarray(self._made(rows).least_bytes, dtype=np.float64)
        return np.maximum(moved - gpu.cache.capacity, 0.0) / gpu.memory.bandwidth


def _cases(rows: Rows) -> tuple[_Case, ...]:
    keys = zip(rows["op"].tolist(), rows["dtype"].tolist(), strict=True)
    return tuple(_Case(positions, op, dtype) for (op, dtype), positions in positions_by(keys).items())


def kernel_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a file of kernels by GPU, without impossible ones and operators that Weft has no kernel for."""
    checked.drop(_without_model(checked.rows))
    subjects = []
    by_gpu = positions_by(machines.find(name).name for name in checked.rows["gpu"].tolist())
    for name, positions in by_gpu.items():
        gpu = machines.find(name)
        rows = checked.rows.take(positions)
        true = believable("gpu", _cases(rows), rows, gpu, gpu)
        checked.problems += true.problems
        if len(true.rows):
            subjects.append(_subject(true.rows, gpu, machines))
    return subjects


def _without_model(rows: Rows) -> Iterator[Problem]:
    known = np.isin(rows["op"], [*_BY_ROWS, *_INPUTS])
    for op in np.unique(rows["op"][~known]).tolist():
        rule = "kernels of this operator are not compared here; GEMMs are in files of their own"
        yield Problem(rows.file, rows.lines(rows["op"] == op), "op", op, rule)


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    def predict(some: Rows, values: Mapping[str, float]) -> FloatArray:
        return predicted_by(_cases(some), some, changed(gpu, values))

    return Subject(
        kind="kernel",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels={
            "gpu": machines.labels(gpu, rows["gpu"]),
            "dtype": rows["dtype"],
            "op": rows["op"],
            "seen": np.full(len(rows), NO),
        },
        predict=predict,
        parameters=PARAMETERS,
        start={one.path: gpu.value(one.path) for one in PARAMETERS},
        vendor=gpu.vendor,
    )
