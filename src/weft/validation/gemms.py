"""Measured GEMMs as subjects: one per GPU, with its rows checked against what the GPU can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.validation.checks import Checked, beyond_physics, gemm_floor, unsupported
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.rigs import gemm_harness
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

LONG = ">= 20 us"
SHORT = "< 20 us"
_LONG_SECONDS = 20e-6


def gemm_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a GEMM file by GPU, without those that cannot be true."""
    subjects = []
    gpus = {name: machines.find(name) for name in np.unique(checked.rows["gpu"]).tolist()}
    by_gpu = positions_by(gpus[name].name for name in checked.rows["gpu"].tolist())
    for gpu in {gpu.name: gpu for gpu in gpus.values()}.values():
        believable = _believable(checked.rows.take(by_gpu[gpu.name]), gpu)
        checked.problems += believable.problems
        if len(believable.rows):
            subjects.append(_subject(believable.rows, gpu, machines))
    return subjects


def _believable(rows: Rows, gpu: Gpu) -> Checked:
    """The rows that the GPU can run at all, and in the measured time."""
    checked = Checked(rows)
    checked.drop(unsupported(rows, gpu))
    if len(checked.rows):
        try:
            expected = gemm_seconds(checked.rows, gpu)
        except InputError as error:
            checked.drop([Problem(rows.file, tuple(checked.rows.line.tolist()), "gpu", gpu.name, str(error))])
        else:
            floors = _by_group(checked.rows, lambda m, n, k, dtype, how: gemm_floor(m, n, k, dtype, gpu))
            checked.drop(beyond_physics(checked.rows, floors, expected, gpu.name))
    return checked


def gemm_seconds(rows: Rows, gpu: Gpu) -> FloatArray:
    """The closed form's time of each row on one GPU, as the row says it was measured [s]."""
    return _by_group(rows, lambda m, n, k, dtype, how: estimate(Gemm(m, n, k, dtype), gpu, harness=how).seconds)


def _by_group(rows: Rows, seconds: Callable[[Any, Any, Any, str, Harness], FloatArray]) -> FloatArray:
    """Times of each row, computed for all rows of one data type and one way of measuring at once."""
    found = np.empty(len(rows))
    for (harness, dtype), of in _alike(rows).items():
        found[of] = seconds(rows["m"][of], rows["n"][of], rows["k"][of], dtype, harness)
    return found


@lru_cache(maxsize=256)
def _alike(rows: Rows) -> dict[tuple[Harness, str], IntArray]:
    """The rows by how their notes and source say they were measured, and by data type."""
    columns = (rows[name].tolist() for name in ("notes", "source", "dtype"))
    return positions_by((gemm_harness(notes, source), dtype) for notes, source, dtype in zip(*columns, strict=True))


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
        labels={"gpu": machines.labels(gpu, rows["gpu"]), "dtype": rows["dtype"]},
        ranges={LONG: measured >= _LONG_SECONDS, SHORT: measured < _LONG_SECONDS},
        predict=lambda some, values: gemm_seconds(some, changed(gpu, values)),
        parameters=GEMM_PARAMETERS,
        start={parameter.path: gpu.value(parameter.path) for parameter in GEMM_PARAMETERS},
        vendor=gpu.vendor,
    )
