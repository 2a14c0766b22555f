"""Measured GEMMs with a collective before, after or beside them as subjects, simulated request by request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from weft import hardware
from weft.errors import InputError
from weft.estimate import estimate
from weft.graph import DTYPE_BYTES, Collective, Gemm, concurrent
from weft.hardware import System
from weft.library.collectives import canonical
from weft.lower.machine import default_request_bytes
from weft.options import RunOptions
from weft.parallel import dependent, share_of
from weft.schedule import SHARING
from weft.validation.checks import Checked, Unfit, check_multiplies, unfit_rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.rigs import rig_of
from weft.validation.subjects import BoolArray, Predicted, Subject
from weft.validation.tables import Contentions, FloatArray, Rows

QUANTITIES = ("GEMM slowdown", "collective slowdown", "makespan")
"""What a row is compared in: two ratios, concurrent over alone, and a time [s]."""
FLUX = "Flux, NVLink"
"""The rows of Flux's paper and README on A100, A800 and H800 with NVLink."""
SEQUENTIAL = "sequential"
METHODS = {
    "flux": "flux",
    "Triton-distributed": "flux",
    "TileLink": "flux",
    "TransformerEngine": "chunked",
    "Async-TP": "chunked",
    "async TP": "chunked",
    "async-TP": "chunked",
}
"""How the measured systems overlap, as passes: one kernel that waits for, or sends, each tile; or chunks on several
streams."""
FLUX_METHODS = ("flux", "TransformerEngine-1.4-userbuffers")
"""What Flux's authors measured against the sequence of GEMM and collective."""
_COLLECTIVES = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter", "gemm_ar": "all_reduce"}
_BY = re.compile(r"system=([^;]+)")
_LOCAL = re.compile(r"local_gemm=(\d+)x(\d+)x(\d+)")


@dataclass(frozen=True)
class Overlapped:
    """One row as a problem: the GEMM of each rank and of all [m, n, k], and a collective of `size` bytes in all."""

    system: System
    pattern: str
    dtype: str
    ranks: int
    local: tuple[int, int, int]
    whole: tuple[int, int, int]
    size: int
    measured_by: str

    @property
    def collective(self) -> str:
        """The collective before or after the GEMM."""
        return _COLLECTIVES[self.pattern]

    @property
    def method(self) -> str | None:
        """How the measured system overlaps, in the engine's words; None if there is no model of it."""
        return next((method for name, method in METHODS.items() if name in self.measured_by), None)

    def overlapped(self) -> tuple[float, float]:
        """Seconds of both, overlapped as the measured system does it and simulated; and how much faster that is."""
        from weft.run import simulate

        system, gpu = self.system, self.system.gpu
        # GPUs of one die keep the size that the measured overlaps were compared at.
        grain = default_request_bytes(gpu) if gpu.dies > 1 else gpu.memory.interleave
        form: Any = self.pattern
        graph = dependent(form, share_of(form, Gemm(*self.whole, self.dtype), self.ranks), self.ranks)
        run = simulate(graph, system, self.method, RunOptions(clock="short", request_bytes=grain))
        alone = RunOptions(clock="short")
        parts = [float(estimate(node.op, system, alone).seconds) for node in graph]
        return run.makespan, sum(parts) / run.makespan

    def sequential(self) -> float:
        """Seconds of the GEMM and the library's collective, one after the other, in closed form."""
        harness = rig_of(self.system.name, "", "").harness(self.ranks, self.system.nodes)
        moved = Collective(self.collective, self.size, self.ranks)
        return sum(
            float(estimate(op, self.system, harness=harness).seconds) for op in (Gemm(*self.local, self.dtype), moved)
        )


def overlap_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of an overlap file with a shape and a pattern that has a model, by measured system and quantity."""
    checked.drop(_without_model(checked.rows))
    times: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}

    def compare(line: int, row: dict[str, Any]) -> None:
        for method, quantity, measured, predicted in _compared(row, _overlapped(row)):
            times.setdefault((method, quantity), {})[line] = measured, predicted

    checked.drop(unfit_rows(checked.rows, compare))
    # The sequence first, then system by system; times before speedups.
    keys = sorted(times, key=lambda key: (key[0] != SEQUENTIAL, key[0], key[1] != "time"))
    return [_subject(checked.rows, *key, times[key]) for key in keys]


def _without_model(rows: Rows) -> Iterator[Problem]:
    for pattern in sorted({*rows["pattern"].tolist()} - {*_COLLECTIVES}):
        rule = f"Weft has no model of this pattern; it has {', '.join(_COLLECTIVES)}"
        yield Problem(rows.file, rows.lines(rows["pattern"] == pattern), "pattern", pattern, rule)


def _overlapped(row: Mapping[str, Any]) -> Overlapped:
    """The GEMM of a row, of all ranks and of each: its note says which of them it gives. Without a data type, bf16.

    Raises Unfit for a row without a shape, and for a system, ranks or data type that cannot be.
    """
    if not all(np.isfinite(row[name]) for name in ("m", "n", "k", "ranks")):
        raise Unfit("m, n, k, ranks", "", "a shape is needed to predict this row")
    ranks, dtype, pattern, notes = int(row["ranks"]), row["dtype"] or "bf16", row["pattern"], row["notes"]
    try:
        system = hardware.system(row["system"], gpus=ranks)
    except InputError as error:
        raise Unfit("ranks", str(ranks), str(error)) from None
    check_multiplies(system.gpu, dtype)
    each = DTYPE_BYTES[dtype]
    m, n, k = (int(row[name]) for name in ("m", "n", "k"))
    if "shape=global" in notes:
        whole = (m, n, k)
        local = (m, n // ranks, k) if pattern == "ag_gemm" else (m, n, k // ranks)
    else:
        if noted := _LOCAL.search(notes):
            m, n, k = (int(size) for size in noted.groups())
        local = (m, n, k)
        whole = (m, n * ranks, k) if pattern == "ag_gemm" else (m, n, k * ranks)
    moved = local[0] * local[2] * each if pattern == "ag_gemm" else local[0] * local[1] * max(each, 2)
    by = _BY.search(notes)
    return Overlapped(system, pattern, dtype, ranks, local, whole, moved, by[1].strip() if by else "")


def _compared(row: Mapping[str, Any], case: Overlapped) -> Iterator[tuple[str, str, float, float]]:
    """Method, quantity, measured and predicted value of all that can be compared.

    Raises Unfit if there is nothing, or if the system cannot run the overlap. Where a row has only a speedup, that is
    what is compared.
    """
    sequential, timed = np.isfinite(row["sequential_us"]), np.isfinite(row["overlap_us"])
    if sequential:
        yield SEQUENTIAL, "time", row["sequential_us"] * 1e-6, case.sequential()
    if case.method is not None and case.pattern != "gemm_ar" and (timed or np.isfinite(row["speedup"])):
        try:
            seconds, speedup = case.overlapped()
        except InputError as error:
            raise Unfit("system", case.system.name, str(error)) from None
        if timed:
            yield case.measured_by, "time", row["overlap_us"] * 1e-6, seconds
        else:
            yield case.measured_by, "speedup", row["speedup"], speedup
    elif not sequential:
        rule = "Weft has no model of this way to overlap, and the row has no time without overlap"
        raise Unfit("system in notes", case.measured_by, rule)


def _subject(rows: Rows, method: str, quantity: str, times: Mapping[int, tuple[float, float]]) -> Subject:
    """Measured and predicted times [s], or speedups over the sequence, of one measured system, by line."""
    rows = rows.take(np.isin(rows.line, list(times)))
    return Subject(
        kind="overlap",
        machine="",
        rows=rows,
        measured=np.array([times[line][0] for line in rows.line.tolist()]),
        labels={
            **{name: rows[name] for name in ("system", "collective", "pattern")},
            "method": np.full(len(rows), method),
            "quantity": np.full(len(rows), quantity),
        },
        ranges={FLUX: _is_flux(rows)},
        predict=lambda some, values: np.array([times[line][1] for line in some.line.tolist()]),
    )


def _is_flux(rows: Rows) -> BoolArray:
    """Which rows are Flux's own on one NVLink machine, in its paper or README."""
    source, system = rows["source"], rows["system"]
    starts, find = np.char.startswith, np.char.find
    paper = starts(source, "Flux paper") & (find(system, "SXM") >= 0) & (find(system, "nodes") < 0)
    return np.asarray(paper | starts(source, "bytedance/flux README"), dtype=np.bool_)


def right_signs(predictions: Sequence[Predicted]) -> tuple[int, int]:
    """Of Flux's NVLink rows, how many are predicted to win or lose over the sequence as measured; and of how many."""
    times: dict[str, dict[int, tuple[float, float]]] = {}
    for part in predictions:
        subject = part.subject
        if subject.kind == "overlap" and subject.labels["quantity"][0] == "time":
            flux = subject.ranges[FLUX]
            both = zip(part.seconds[flux].tolist(), subject.measured[flux].tolist(), strict=True)
            method = str(subject.labels["method"][0])
            times[method] = dict(zip(subject.rows.lines(flux), both, strict=True))
    sequential = times.get(SEQUENTIAL, {})
    pairs = [(sequential[line], time) for name in FLUX_METHODS for line, time in times.get(name, {}).items()]
    right = [(before[0] > after[0]) == (before[1] > after[1]) for before, after in pairs]
    return sum(right), len(right)


def contention_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a contention file that can be simulated, one subject for each quantity."""
    checked.drop(unfit_rows(checked.rows, _check_cell))
    return [_quantity(checked.rows, quantity) for quantity in QUANTITIES if len(checked.rows)]


def _check_cell(line: int, row: Mapping[str, Any]) -> None:
    """Simulate a row; Unfit says what keeps it from that."""
    check_multiplies(hardware.system(row["system"]).gpu, row["dtype"])
    for what in ("gemm", "collective"):
        beside = row[f"{what}_concurrent_us"]
        if beside < row[f"{what}_alone_us"] / 2:
            rule = "this is less than half of the time alone; nothing runs faster beside something else"
            raise Unfit(f"{what}_concurrent_us", f"{beside:g}", rule)
    try:
        _corun(_cell(row))
    except InputError as error:
        raise Unfit("system", row["system"], str(error)) from None


def _quantity(rows: Rows, quantity: str) -> Subject:
    return Subject(
        kind="contention",
        machine="",
        rows=rows,
        measured=_measured(rows, quantity),
        labels={"system": rows["system"], "collective": rows["collective"], "quantity": np.full(len(rows), quantity)},
        predict=lambda some, values: np.array([_corun(_cell(row))[quantity] for row in some]),
        slow=True,
    )


def _measured(rows: Rows, quantity: str) -> FloatArray:
    if quantity == "makespan":
        return np.asarray(rows["makespan_us"] * 1e-6, dtype=np.float64)
    what = "gemm" if quantity.startswith("GEMM") else "collective"
    return np.asarray(rows[f"{what}_concurrent_us"] / rows[f"{what}_alone_us"], dtype=np.float64)


def _cell(row: Mapping[str, Any]) -> Contentions:
    """What of a row decides its prediction."""
    return Contentions.model_validate({**row, "source": "", "notes": ""})


@lru_cache(maxsize=256)
def _corun(row: Contentions) -> Mapping[str, float]:
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
