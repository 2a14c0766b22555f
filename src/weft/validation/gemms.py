"""Measured GEMMs as subjects: one per GPU, with its rows checked against what the GPU can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.validation.checks import DTYPE_BYTES, beyond_physics, duplicates, gemm_floor, unknown_names
from weft.validation.data import Rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem, left_out
from weft.validation.rigs import gemm_harness
from weft.validation.subjects import Subject

FloatArray = npt.NDArray[np.float64]

LONG = ">= 20 us"
SHORT = "< 20 us"
_LONG_SECONDS = 20e-6


def gemm_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The rows of a GEMM file by GPU, without those that cannot be true, and what is wrong with them."""
    rows = machines.of_chosen(rows, "gpu")
    problems = [*duplicates(rows), *unknown_names(rows, "gpu", machines.find)]
    kept = rows.take(left_out(problems, rows.line))
    subjects = []
    for gpu, members in _by_gpu(kept, machines):
        believable, wrong = _believable(members, gpu)
        problems += wrong
        if len(believable):
            subjects.append(_subject(believable, gpu, machines))
    return subjects, problems


def _believable(rows: Rows, gpu: Gpu) -> tuple[Rows, list[Problem]]:
    """The rows that the GPU can run at all, and in the measured time."""
    unsupported = _unsupported(rows, gpu)
    runnable = rows.take(left_out(unsupported, rows.line))
    if not len(runnable):
        return runnable, unsupported
    try:
        expected = gemm_seconds(runnable, gpu)
    except InputError as error:
        lines = tuple(runnable.line.tolist())
        refused = Problem(rows.file, lines, "gpu", gpu.name, str(error))
        return runnable.take(left_out([refused], runnable.line)), [*unsupported, refused]
    wrong = beyond_physics(runnable, gemm_floors(runnable, gpu), expected, gpu.name)
    return runnable.take(left_out(wrong, runnable.line)), unsupported + wrong


def gemm_seconds(rows: Rows, gpu: Gpu) -> FloatArray:
    """The closed form's time of each row on one GPU, as the row says it was measured [s]."""
    seconds = np.empty(len(rows))
    for harness, positions in _by_harness(rows):
        seconds[positions] = _seconds(rows.take(positions), gpu, harness)
    return seconds


@lru_cache(maxsize=256)
def _by_harness(rows: Rows) -> tuple[tuple[Harness, npt.NDArray[np.int64]], ...]:
    """The rows by how their notes and source say they were measured."""
    members: dict[Harness, list[int]] = {}
    pairs = zip(rows.texts["notes"].tolist(), rows.texts["source"].tolist(), strict=True)
    for position, (notes, source) in enumerate(pairs):
        members.setdefault(gemm_harness(notes, source), []).append(position)
    return tuple((harness, np.array(positions, dtype=np.int64)) for harness, positions in members.items())


def _seconds(rows: Rows, gpu: Gpu, harness: Harness) -> FloatArray:
    def of_dtype(m: Any, n: Any, k: Any, dtype: str) -> FloatArray:
        return estimate(Gemm(m, n, k, dtype), gpu, harness=harness).seconds

    return _per_dtype(rows, of_dtype)


def gemm_floors(rows: Rows, gpu: Gpu) -> FloatArray:
    """The least time that each row can take on one GPU [s]."""
    return _per_dtype(rows, lambda m, n, k, dtype: gemm_floor(m, n, k, dtype, gpu))


def changed(gpu: Gpu, values: Mapping[str, float]) -> Gpu:
    """The GPU with values at some paths replaced, given as plain numbers [base units]."""
    if not values:
        return gpu
    rules = {path: Gpu.rules()[path] for path in values}
    return gpu.replace({path: rule.format(values[path]) for path, rule in rules.items() if rule is not None})


def _per_dtype(rows: Rows, seconds: Callable[[FloatArray, FloatArray, FloatArray, str], FloatArray]) -> FloatArray:
    result = np.empty(len(rows))
    shapes = [rows.numbers[name] for name in ("m", "n", "k")]
    dtypes = rows.texts["dtype"]
    for dtype in np.unique(dtypes).tolist():
        of = dtypes == dtype
        m, n, k = (column[of] for column in shapes)
        result[of] = seconds(m, n, k, dtype)
    return result


def _by_gpu(rows: Rows, machines: Machines) -> Iterator[tuple[Gpu, Rows]]:
    names = rows.texts["gpu"]
    found = {name: machines.find(name) for name in np.unique(names).tolist()}
    for gpu in {gpu.name: gpu for gpu in found.values()}.values():
        mine = [name for name, machine in found.items() if machine.name == gpu.name]
        yield gpu, rows.take(np.isin(names, mine))


def _unsupported(rows: Rows, gpu: Gpu) -> list[Problem]:
    dtypes = rows.texts["dtype"]
    bad = [dtype for dtype in np.unique(dtypes).tolist() if dtype not in DTYPE_BYTES or not gpu.supports(dtype)]
    known = ", ".join(dtype for dtype in DTYPE_BYTES if gpu.supports(dtype))
    return [
        Problem(
            rows.file,
            tuple(rows.line[dtypes == dtype].tolist()),
            "dtype",
            dtype,
            f"{gpu.name} does not multiply matrices of this type; it has {known}",
        )
        for dtype in bad
    ]


def _subject(rows: Rows, gpu: Gpu, machines: Machines) -> Subject:
    measured = rows.seconds
    return Subject(
        kind="gemm",
        machine=gpu.name,
        rows=rows,
        measured=measured,
        labels={"gpu": machines.labels(gpu, rows.texts["gpu"]), "dtype": rows.texts["dtype"]},
        ranges={LONG: measured >= _LONG_SECONDS, SHORT: measured < _LONG_SECONDS},
        predict=lambda some, values: gemm_seconds(some, changed(gpu, values)),
        parameters=GEMM_PARAMETERS,
        start={parameter.path: gpu.value(parameter.path) for parameter in GEMM_PARAMETERS},
        vendor=gpu.vendor,
    )
