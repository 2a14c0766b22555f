"""Measured GEMMs as subjects: one per GPU, with its rows checked against the GPU's limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.validation.checks import Checked, believable, gemm_floor, predicted_by, unsupported
from weft.validation.machines import Machines
from weft.validation.rigs import gemm_harness
from weft.validation.seen import seen_gemms
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

LONG = ">= 20 us"
SHORT = "< 20 us"
_LONG_SECONDS = 20e-6


@dataclass(frozen=True, eq=False)
class _Case:
    """Rows of one data type and one way of measuring."""

    positions: IntArray
    harness: Harness
    dtype: str

    def seconds(self, rows: Rows, on: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        sizes: dict[str, Any] = {name: rows[name] for name in ("m", "n", "k")}
        return estimate(Gemm(**sizes, dtype=self.dtype), on, harness=self.harness).seconds

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times on a GPU [s]."""
        return gemm_floor(rows["m"], rows["n"], rows["k"], self.dtype, gpu)


@lru_cache(maxsize=256)
def _cases(rows: Rows) -> tuple[_Case, ...]:
    """The rows grouped by data type and by how they were measured (from notes and source)."""
    columns = (rows[name].tolist() for name in ("notes", "source", "dtype"))
    keys = ((gemm_harness(notes, source), dtype) for notes, source, dtype in zip(*columns, strict=True))
    return tuple(_Case(positions, harness, dtype) for (harness, dtype), positions in positions_by(keys).items())


def gemm_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a GEMM file by GPU, without impossible ones."""
    subjects = []
    gpus = {name: machines.find(name) for name in np.unique(checked.rows["gpu"]).tolist()}
    by_gpu = positions_by(gpus[name].name for name in checked.rows["gpu"].tolist())
    for gpu in {gpu.name: gpu for gpu in gpus.values()}.values():
        own = Checked(checked.rows.take(by_gpu[gpu.name]))
        own.drop(unsupported(own.rows, gpu))
        true = believable("gpu", _cases(own.rows), own.rows, gpu, gpu)
        checked.problems += own.problems + true.problems
        if len(true.rows):
            subjects.append(_subject(true.rows, gpu, machines))
    return subjects


def changed(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """The GPU with values at some paths replaced, given as plain numbers [base units]."""
    if not values:
        return gpu
    rules = {path: Gpu.rules()[path] for path in values}
    return gpu.replace({path: rule.format(values[path]) for path, rule in rules.items() if rule is not None})


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    measured = rows.seconds
    return Subject(
        kind="gemm",
        machine=gpu.name,
        rows=rows,
        measured=measured,
        labels={
            "gpu": machines.labels(gpu, rows["gpu"]),
            "dtype": rows["dtype"],
            "seen": seen_gemms(gpu, rows["dtype"]),
        },
        ranges={LONG: measured >= _LONG_SECONDS, SHORT: measured < _LONG_SECONDS},
        predict=lambda some, values: predicted_by(_cases(some), some, changed(gpu, values)),
        parameters=GEMM_PARAMETERS,
        start={parameter.path: gpu.value(parameter.path) for parameter in GEMM_PARAMETERS},
        vendor=gpu.vendor,
    )
