"""Measured loops of a GEMM beside loops of a collective as subjects, simulated request by request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from weft import hardware
from weft.errors import InputError
from weft.graph import Collective, Gemm, concurrent
from weft.library.collectives import canonical
from weft.options import RunOptions
from weft.schedule import SHARING
from weft.validation.checks import Checked, duplicates, unknown_names
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.subjects import Subject
from weft.validation.tables import Contentions, FloatArray, Rows

QUANTITIES = ("GEMM slowdown", "collective slowdown", "makespan")
"""What a row is compared in: two ratios, concurrent over alone, and a time [s]."""


def contention_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The rows of a contention file, one subject for each quantity, and what is wrong with rows."""
    checked = Checked(rows)
    systems = unknown_names(rows, "system", hardware.system)
    checked.drop(duplicates(rows), systems, unknown_names(rows, "collective", canonical))
    checked.drop(_wrong(checked.rows))
    rows = checked.rows
    return [_subject(rows, quantity) for quantity in QUANTITIES if len(rows)], checked.problems


def _wrong(rows: Rows) -> Iterator[Problem]:
    """What keeps rows from being simulated."""
    for line, row in zip(rows.line.tolist(), rows, strict=True):
        gpu, dtype = hardware.system(row["system"]).gpu, row["dtype"]
        if not gpu.supports(dtype):
            rule = f"{gpu.name} does not multiply matrices of this type"
            yield Problem(rows.file, (line,), "dtype", dtype, rule)
            continue
        for what in ("gemm", "collective"):
            if row[f"{what}_concurrent_us"] < row[f"{what}_alone_us"] / 2:
                rule = "this is less than half of the time alone; nothing runs faster beside something else"
                beside = f"{row[f'{what}_concurrent_us']:g}"
                yield Problem(rows.file, (line,), f"{what}_concurrent_us", beside, rule)
        try:
            _simulated(_case(row))
        except InputError as error:
            yield Problem(rows.file, (line,), "system", row["system"], str(error))


def _subject(rows: Rows, quantity: str) -> Subject:
    return Subject(
        kind="contention",
        machine="",
        rows=rows,
        measured=_measured(rows, quantity),
        labels={"system": rows["system"], "collective": rows["collective"], "quantity": np.full(len(rows), quantity)},
        predict=lambda some, values: np.array([_simulated(_case(row))[quantity] for row in some]),
        slow=True,
    )


def _measured(rows: Rows, quantity: str) -> FloatArray:
    if quantity == "makespan":
        return np.asarray(rows["makespan_us"] * 1e-6, dtype=np.float64)
    what = "gemm" if quantity.startswith("GEMM") else "collective"
    return np.asarray(rows[f"{what}_concurrent_us"] / rows[f"{what}_alone_us"], dtype=np.float64)


def _case(row: Mapping[str, Any]) -> Contentions:
    """What of a row decides its prediction."""
    return Contentions.model_validate({**row, "source": "", "notes": ""})


@lru_cache(maxsize=256)
def _simulated(row: Contentions) -> Mapping[str, float]:
    """Every quantity of a row in the engine; the clock is that of runs too short to reach the power limit.

    The sources do not say which loop was launched first; here it is the collectives'.
    """
    from weft.run import compare

    on = hardware.system(row.system)
    collective = Collective(canonical(row.collective), int(row.bytes), on.gpus, row.dtype)
    gemm = Gemm(int(row.m), int(row.n), int(row.k), row.dtype)
    graph = concurrent(gemm, collective, int(row.gemms), int(row.collectives))
    overlap = replace(SHARING["streams"], first="collective")
    found = compare(graph, on, [overlap], RunOptions(clock="short")).corun()
    times = (found.gemm.slowdown, found.collective.slowdown, found.makespan)
    return dict(zip(QUANTITIES, times, strict=True))
