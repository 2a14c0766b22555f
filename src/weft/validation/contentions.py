"""Measured loops of a GEMM beside loops of a collective as subjects, simulated request by request."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError
from weft.graph import Collective, Gemm, concurrent
from weft.library.collectives import canonical
from weft.options import RunOptions
from weft.schedule import SHARING
from weft.validation.checks import duplicates, unknown_names
from weft.validation.data import Rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem, left_out
from weft.validation.subjects import Subject

FloatArray = npt.NDArray[np.float64]

QUANTITIES = ("GEMM slowdown", "collective slowdown", "makespan")
"""What a row is compared in: two ratios, concurrent over alone, and a time [s]."""


def contention_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The rows of a contention file, one subject for each quantity, and what is wrong with rows."""
    problems = [
        *duplicates(rows),
        *unknown_names(rows, "system", hardware.system),
        *unknown_names(rows, "collective", canonical),
    ]
    kept = rows.take(left_out(problems, rows.line))
    wrong = [problem for position in range(len(kept)) for problem in _wrong(kept, position)]
    kept = kept.take(left_out(wrong, kept.line))
    if machines.chosen:
        wanted = {gpu.name for gpu in machines.chosen}
        gpus = [hardware.system(name).gpu.name for name in kept.texts["system"].tolist()]
        kept = kept.take(np.array([name in wanted for name in gpus], dtype=np.bool_))
    subjects = [_subject(kept, quantity) for quantity in QUANTITIES] if len(kept) else []
    return subjects, problems + wrong


def _wrong(rows: Rows, position: int) -> list[Problem]:
    """What keeps a row from being simulated."""
    line = (int(rows.line[position]),)
    gpu = hardware.system(str(rows.texts["system"][position])).gpu
    dtype = str(rows.texts["dtype"][position])
    if not gpu.supports(dtype):
        return [Problem(rows.file, line, "dtype", dtype, f"{gpu.name} does not multiply matrices of this type")]
    found = []
    for what in ("gemm", "collective"):
        alone, beside = (float(rows.numbers[f"{what}_{how}_us"][position]) for how in ("alone", "concurrent"))
        if beside < alone / 2:
            rule = "this is less than half of the time alone; nothing runs faster beside something else"
            found.append(Problem(rows.file, line, f"{what}_concurrent_us", f"{beside:g}", rule))
    try:
        _simulated(*_case(rows, position))
    except InputError as error:
        found.append(Problem(rows.file, line, "system", str(rows.texts["system"][position]), str(error)))
    return found


def _subject(rows: Rows, quantity: str) -> Subject:
    return Subject(
        kind="contention",
        machine="",
        rows=rows,
        measured=_measured(rows, quantity),
        labels={
            "system": rows.texts["system"],
            "collective": rows.texts["collective"],
            "quantity": np.full(len(rows), quantity),
        },
        ranges={},
        predict=lambda some, values: np.array(
            [_simulated(*_case(some, position))[QUANTITIES.index(quantity)] for position in range(len(some))]
        ),
        slow=True,
    )


def _measured(rows: Rows, quantity: str) -> FloatArray:
    if quantity == "makespan":
        return rows.numbers["makespan_us"] * 1e-6
    what = "gemm" if quantity.startswith("GEMM") else "collective"
    return rows.numbers[f"{what}_concurrent_us"] / rows.numbers[f"{what}_alone_us"]


_Case = tuple[str, str, int, int, int, str, int, int, int]


def _case(rows: Rows, position: int) -> _Case:
    m, n, k, size, gemms, collectives = (
        int(rows.numbers[name][position]) for name in ("m", "n", "k", "bytes", "gemms", "collectives")
    )
    system, dtype, collective = (str(rows.texts[name][position]) for name in ("system", "dtype", "collective"))
    return system, dtype, m, n, k, collective, size, gemms, collectives


@lru_cache(maxsize=256)
def _simulated(
    system: str, dtype: str, m: int, n: int, k: int, collective: str, size: int, gemms: int, collectives: int
) -> tuple[float, float, float]:
    """Both slowdowns and the makespan [s]; the clock is that of runs too short to reach the power limit.

    The sources do not say which loop was launched first; here it is the collectives'.
    """
    from weft.run import compare

    on = hardware.system(system)
    op = Collective(canonical(collective), size, on.gpus, dtype)
    graph = concurrent(Gemm(m, n, k, dtype), op, gemms, collectives)
    overlap = replace(SHARING["streams"], first="collective")
    found = compare(graph, on, [overlap], RunOptions(clock="short")).corun()
    return found.gemm.slowdown, found.collective.slowdown, found.makespan
