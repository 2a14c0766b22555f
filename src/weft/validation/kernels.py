"""Measured kernels of PyTorch as subjects: normalisation, softmax, element-wise operators and products, by GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Gemm, Op, Streaming
from weft.hardware import Gpu
from weft.validation.checks import Checked, believable, predicted_by
from weft.validation.gemms import changed
from weft.validation.machines import Machines
from weft.validation.passes import subjects_by_gpu
from weft.validation.problems import Problem
from weft.validation.seen import NO
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

_BY_ROWS = ("layernorm", "softmax")
_PRODUCTS = ("linear", "bmm")
_INPUTS = {
    "gelu": 1, "relu": 1, "tanh": 1, "add": 2, "mul": 2, "div": 2, "pow": 2, "addu": 1, "mulu": 1, "divu": 1, "powu": 1,
}  # fmt: skip
"""Tensors that element-wise operators read; the ending u marks those with a scalar."""
_CALLED = {"bmm": 0.72}
"""Share of the host's time per kernel that a call of a function takes, where other rows call a module with a bias
[calibrated: the shortest bmm of sitar-lab/NeuSight takes 39 us on V100, the shortest linear 63 us; 0.5 to 1]."""
_HIDDEN = {"bmm": 12e-6}
"""How long such a kernel may run before the host has recorded the event that ends its time [s; calibrated: the shortest
bmm of sitar-lab/NeuSight take 39.2 to 39.8 us on V100 whether K is 2 or 994; 8 to 18 us]."""
PARAMETERS = tuple(one for one in GEMM_PARAMETERS if one.path == "achieved.gemm_host")
"""What may be fitted: from one kernel to the next, issued and awaited by the host, as all rows are timed."""


@dataclass(frozen=True, eq=False)
class KernelCase:
    """Rows of one operator and data type."""

    positions: IntArray
    op: str
    dtype: str

    def made(self, rows: Rows) -> Op:
        """The operator, with an array for each dimension."""
        tokens: Any = rows["m"]
        columns: Any = rows["n"]
        if self.op in _PRODUCTS:
            depth: Any = rows["k"]
            batch: Any = np.nan_to_num(rows["batch"], nan=1.0)
            return Gemm(tokens, columns, depth, self.dtype, batch)
        if self.op in _BY_ROWS:
            return Streaming(self.op, tokens, columns, self.dtype)
        name = "gelu" if self.op == "gelu" else "elementwise"
        given: dict[str, Any] = {} if name == "gelu" else {"inputs": _INPUTS[self.op]}
        return Streaming(name, tokens * columns, 1, self.dtype, **given)

    def seconds(self, rows: Rows, on: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        found = estimate(self.made(rows), on, harness=Harness(timed="host"))
        return self.called(np.asarray(found.seconds - found.parts["launch"]), found.parts["launch"])

    def called(self, kernel: FloatArray | float, launch: FloatArray | float) -> FloatArray:
        """What the host measures of kernels [s]: its own time for a launch, and what of the kernel it waits for."""
        hidden = _HIDDEN.get(self.op, 0.0)
        called = _CALLED.get(self.op, 1.0) * launch
        return np.asarray(np.maximum(called - hidden, 0.0) + np.maximum(kernel, hidden))

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the bytes that no cache holds, at the memory's peak."""
        moved = np.asarray(self.made(rows).least_bytes, dtype=np.float64)
        return np.maximum(moved - gpu.cache.capacity, 0.0) / gpu.memory.bandwidth


def cases_of(rows: Rows) -> tuple[KernelCase, ...]:
    """The rows by operator and data type."""
    keys = zip(rows["op"].tolist(), rows["dtype"].tolist(), strict=True)
    return tuple(KernelCase(positions, op, dtype) for (op, dtype), positions in positions_by(keys).items())


def kernel_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a file of kernels by GPU, without impossible ones and operators that Weft has no kernel for."""
    checked.drop(_without_model(checked.rows))
    return subjects_by_gpu(
        checked, machines, lambda rows, gpu: believable("gpu", cases_of(rows), rows, gpu, gpu), _subject
    )


def _without_model(rows: Rows) -> Iterator[Problem]:
    known = np.isin(rows["op"], [*_BY_ROWS, *_INPUTS, *_PRODUCTS])
    blank = np.isin(rows["op"], _PRODUCTS) & np.isnan(rows["m"] * rows["n"] * rows["k"])
    for which, rule in (
        (~known, "kernels of this operator are not compared here"),
        (blank, "a product needs its m, n and k"),
    ):
        for op in np.unique(rows["op"][which]).tolist():
            yield Problem(rows.file, rows.lines(which & (rows["op"] == op)), "op", op, rule)


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    def predict(some: Rows, values: Mapping[str, float]) -> FloatArray:
        return predicted_by(cases_of(some), some, changed(gpu, values))

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
