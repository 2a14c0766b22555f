"""Measured GEMMs with a collective before, after or beside them as subjects, simulated request by request."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from weft.validation.checks import Checked
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
    """The rows of an overlap file with a shape and a pattern that has a model."""
    checked.drop(_without_model(checked.rows))
    cases: dict[int, Overlapped] = {}
    checked.drop(_put(checked.rows, cases))
    rows = checked.rows
    simulated, wrong = _simulated(rows, cases)
    subjects = [subject for subject in (_sequential(rows, cases), *simulated) if len(subject)]
    told = {line for problem in wrong for line in problem.lines}
    told |= {line for subject in subjects for line in subject.rows.line.tolist()}
    checked.drop(wrong, _neither(rows, cases, told))
    return subjects


def _without_model(rows: Rows) -> Iterator[Problem]:
    for pattern in sorted({*rows["pattern"].tolist()} - {*_COLLECTIVES}):
        rule = f"Weft has no model of this pattern; it has {', '.join(_COLLECTIVES)}"
        yield Problem(rows.file, rows.lines(rows["pattern"] == pattern), "pattern", pattern, rule)


def _put(rows: Rows, cases: dict[int, Overlapped]) -> Iterator[Problem]:
    """Put every row that can be predicted into `cases`, by its line; what is wrong with the others."""
    for line, row in zip(rows.line.tolist(), rows, strict=True):
        row["dtype"] = dtype = row["dtype"] or "bf16"  # what is usual, where a row names none
        if not all(np.isfinite(row[name]) for name in ("m", "n", "k", "ranks")):
            yield Problem(rows.file, (line,), "m, n, k, ranks", "", "a shape is needed to predict this row")
            continue
        ranks = int(row["ranks"])
        try:
            system = hardware.system(row["system"], gpus=ranks)
        except InputError as error:
            yield Problem(rows.file, (line,), "ranks", str(ranks), str(error))
            continue
        if dtype in DTYPE_BYTES and system.gpu.supports(dtype):
            cases[line] = _overlapped(row, system, ranks)
        else:
            rule = f"{system.gpu.name} does not multiply matrices of this type"
            yield Problem(rows.file, (line,), "dtype", dtype, rule)


def _overlapped(row: Mapping[str, Any], system: System, ranks: int) -> Overlapped:
    """A row's GEMM as all ranks together and as each of them computes it; a row's note says which it gives."""
    pattern, each, notes = row["pattern"], DTYPE_BYTES[row["dtype"]], row["notes"]
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
    return Overlapped(system, pattern, row["dtype"], ranks, local, whole, moved, by[1].strip() if by else "")


def _neither(rows: Rows, cases: Mapping[int, Overlapped], told: Collection[int]) -> Iterator[Problem]:
    """Rows whose way of overlapping has no model, and that say no time of the sequence either."""
    for line in rows.line.tolist():
        if line not in told:
            rule = "Weft has no model of this way to overlap, and the row has no time without overlap"
            yield Problem(rows.file, (line,), "system in notes", cases[line].measured_by, rule)


def _sequential(rows: Rows, cases: Mapping[int, Overlapped]) -> Subject:
    rows = rows.take(np.isfinite(rows["sequential_us"]))
    return _subject(rows, SEQUENTIAL, "time", rows["sequential_us"] * 1e-6, lambda line: cases[line].sequential())


def _simulated(rows: Rows, cases: Mapping[int, Overlapped]) -> tuple[list[Subject], list[Problem]]:
    """The rows whose way of overlapping the engine has, one subject for each system that was measured.

    Where a row tells only how much faster overlapping was, that is what is compared.
    """
    timed, told = np.isfinite(rows["overlap_us"]), np.isfinite(rows["speedup"])
    results: dict[int, tuple[float, float]] = {}
    problems = []
    for line in rows.line[timed | told].tolist():
        case = cases[line]
        if case.method is None or case.pattern == "gemm_ar":
            continue
        try:
            results[line] = case.overlapped()
        except InputError as error:
            problems.append(Problem(rows.file, (line,), "system", case.system.name, str(error)))
    names = np.array([cases[line].measured_by for line in rows.line.tolist()], dtype=np.str_)
    done = np.isin(rows.line, list(results))
    subjects = []
    for name in np.unique(names[done]).tolist():
        of = done & (names == name)
        some = rows.take(of & timed)
        times = _subject(some, name, "time", some["overlap_us"] * 1e-6, lambda line: results[line][0])
        some = rows.take(of & told & ~timed)
        speedups = _subject(some, name, "speedup", some["speedup"], lambda line: results[line][1])
        subjects += [times, speedups]
    return subjects, problems


def _subject(rows: Rows, method: str, quantity: str, measured: FloatArray, of_line: Callable[[int], float]) -> Subject:
    """Times [s], or speedups over the sequence, of one measured system."""
    texts = {name: rows[name] for name in ("system", "collective", "pattern")}
    return Subject(
        kind="overlap",
        machine="",
        rows=rows,
        measured=measured,
        labels={**texts, "method": np.full(len(rows), method), "quantity": np.full(len(rows), quantity)},
        ranges={FLUX: _is_flux(rows)},
        predict=lambda some, values: np.array([of_line(line) for line in some.line.tolist()]),
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
    checked.drop(_not_a_cell(checked.rows))
    return [_quantity(checked.rows, quantity) for quantity in QUANTITIES if len(checked.rows)]


def _not_a_cell(rows: Rows) -> Iterator[Problem]:
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
            _corun(_cell(row))
        except InputError as error:
            yield Problem(rows.file, (line,), "system", row["system"], str(error))


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
