"""Measured GEMMs with a collective before or after them: one after the other, and overlapped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError
from weft.estimate import estimate
from weft.graph import Collective, Gemm
from weft.hardware import System
from weft.lower.machine import default_request_bytes
from weft.options import RunOptions
from weft.parallel import dependent, share_of
from weft.validation.checks import DTYPE_BYTES, duplicates, unknown_names
from weft.validation.data import Rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem, left_out
from weft.validation.rigs import rig_of
from weft.validation.subjects import Predicted, Subject

FloatArray = npt.NDArray[np.float64]

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
_USUAL = "bf16"  # where a row names no data type
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
        found = [
            method for name, method in METHODS.items() if self.measured_by.startswith(name) or name in self.measured_by
        ]
        return found[0] if found else None

    def overlapped(self) -> tuple[float, float]:
        """Seconds of both, overlapped as the measured system does it and simulated; and how much faster that is."""
        from weft.run import simulate

        system = hardware.system(self.system, gpus=self.ranks)
        gpu = system.gpu
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


def overlap_subjects(rows: Rows, machines: Machines) -> tuple[list[Subject], list[Problem]]:
    """The rows of an overlap file with a shape, a known system and a pattern that has a model; what others lack."""
    problems = [*duplicates(rows), *_without_model(rows), *unknown_names(rows, "system", hardware.system)]
    kept = rows.take(left_out(problems, rows.line))
    cases: dict[int, Overlapped] = {}
    for position in range(len(kept)):
        case, wrong = _case(kept, position)
        problems += wrong
        if case is not None and (not machines.chosen or case.system.gpu.name in {g.name for g in machines.chosen}):
            cases[int(kept.line[position])] = case
    kept = kept.take(np.isin(kept.line, list(cases)))
    simulated, wrong = _simulated(kept, cases)
    subjects = [subject for subject in (_sequential(kept, cases), *simulated) if len(subject)]
    told = {line for problem in wrong for line in problem.lines}
    told |= {line for subject in subjects for line in subject.rows.line.tolist()}
    return subjects, [*problems, *wrong, *_neither(kept, cases, told)]


def _neither(rows: Rows, cases: Mapping[int, Overlapped], told: Collection[int]) -> Iterator[Problem]:
    """Rows whose way of overlapping has no model, and that say no time of the sequence either."""
    for line in rows.line.tolist():
        if line not in told:
            rule = "Weft has no model of this way to overlap, and the row has no time without overlap"
            yield Problem(rows.file, (line,), "system in notes", cases[line].measured_by, rule)


def _sequential(rows: Rows, cases: Mapping[int, Overlapped]) -> Subject:
    rows = rows.take(np.isfinite(rows.numbers["sequential_us"]))
    return Subject(
        kind="overlap",
        machine="",
        rows=rows,
        measured=rows.numbers["sequential_us"] * 1e-6,
        labels=_labels(rows, SEQUENTIAL),
        ranges={FLUX: is_flux(rows)},
        predict=lambda some, values: np.array([cases[line].sequential() for line in some.line.tolist()]),
    )


def _simulated(rows: Rows, cases: Mapping[int, Overlapped]) -> tuple[list[Subject], list[Problem]]:
    """The rows whose way of overlapping the engine has, one subject for each system that was measured.

    Where a row tells only how much faster overlapping was, that is what is compared.
    """
    timed, told = np.isfinite(rows.numbers["overlap_us"]), np.isfinite(rows.numbers["speedup"])
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
        subjects.append(_overlapped(rows.take(of & timed), name, "time", results))
        subjects.append(_overlapped(rows.take(of & told & ~timed), name, "speedup", results))
    return subjects, problems


def _overlapped(rows: Rows, name: str, quantity: str, results: Mapping[int, tuple[float, float]]) -> Subject:
    """Times [s], or speedups over the sequence, of one measured system."""
    which = 0 if quantity == "time" else 1
    measured = rows.numbers["overlap_us"] * 1e-6 if quantity == "time" else rows.numbers["speedup"]
    return Subject(
        kind="overlap",
        machine="",
        rows=rows,
        measured=measured,
        labels=_labels(rows, name, quantity),
        ranges={FLUX: is_flux(rows)},
        predict=lambda some, values: np.array([results[line][which] for line in some.line.tolist()]),
    )


def _labels(rows: Rows, method: str, quantity: str = "time") -> dict[str, npt.NDArray[np.str_]]:
    texts = {name: rows.texts[name] for name in ("system", "collective", "pattern")}
    return {**texts, "method": np.full(len(rows), method), "quantity": np.full(len(rows), quantity)}


def right_signs(predictions: Sequence[Predicted]) -> tuple[int, int]:
    """Of Flux's NVLink rows, how many are predicted to win or lose over the sequence as measured; and of how many."""
    times: dict[str, dict[int, tuple[float, float]]] = {}
    for part in predictions:
        if part.subject.kind == "overlap" and part.subject.labels["quantity"][0] == "time":
            rows = zip(
                part.subject.rows.line.tolist(),
                part.seconds.tolist(),
                part.subject.measured.tolist(),
                strict=True,
            )
            flux = part.subject.ranges[FLUX].tolist()
            method = str(part.subject.labels["method"][0])
            times[method] = {
                line: (ours, theirs) for (line, ours, theirs), mine in zip(rows, flux, strict=True) if mine
            }
    sequential = times.get(SEQUENTIAL, {})
    pairs = [(sequential[line], time) for name in FLUX_METHODS for line, time in times.get(name, {}).items()]
    right = [(before[0] > after[0]) == (before[1] > after[1]) for before, after in pairs]
    return sum(right), len(right)


def is_flux(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows are Flux's own on one NVLink machine, in its paper or README."""
    pairs = zip(rows.texts["source"].tolist(), rows.texts["system"].tolist(), strict=True)
    return np.array([_is_flux(source, system) for source, system in pairs], dtype=np.bool_)


def _is_flux(source: str, system: str) -> bool:
    paper = source.startswith("Flux paper") and "SXM" in system and "nodes" not in system
    return paper or source.startswith("bytedance/flux README")


def _case(rows: Rows, position: int) -> tuple[Overlapped | None, list[Problem]]:
    line = (int(rows.line[position]),)
    text = {name: str(column[position]) for name, column in rows.texts.items()}
    number = {name: float(column[position]) for name, column in rows.numbers.items()}
    if not all(np.isfinite(number[name]) for name in ("m", "n", "k", "ranks")):
        return None, [Problem(rows.file, line, "m, n, k, ranks", "", "a shape is needed to predict this row")]
    ranks = int(number["ranks"])
    try:
        system = hardware.system(text["system"], gpus=ranks)
    except InputError as error:
        return None, [Problem(rows.file, line, "ranks", str(ranks), str(error))]
    text["dtype"] = text["dtype"] or _USUAL
    if text["dtype"] not in DTYPE_BYTES or not system.gpu.supports(text["dtype"]):
        rule = f"{system.gpu.name} does not multiply matrices of this type"
        return None, [Problem(rows.file, line, "dtype", text["dtype"], rule)]
    return _whole(text, number, system, ranks), []


def _whole(text: Mapping[str, str], number: Mapping[str, float], system: System, ranks: int) -> Overlapped:
    """A row's GEMM as all ranks together and as each of them computes it; a row's note says which it gives."""
    pattern, each = text["pattern"], DTYPE_BYTES[text["dtype"]]
    m, n, k = (int(number[name]) for name in ("m", "n", "k"))
    noted = _LOCAL.search(text["notes"])
    if "shape=global" in text["notes"]:
        whole = (m, n, k)
        local = (m, n // ranks, k) if pattern == "ag_gemm" else (m, n, k // ranks)
    else:
        local = (int(noted[1]), int(noted[2]), int(noted[3])) if noted else (m, n, k)
        m, n, k = local
        whole = (m, n * ranks, k) if pattern == "ag_gemm" else (m, n, k * ranks)
    moved = local[0] * local[2] * each if pattern == "ag_gemm" else local[0] * local[1] * max(each, 2)
    by = _BY.search(text["notes"])
    measured_by = by[1].strip() if by else ""
    return Overlapped(system, pattern, text["dtype"], ranks, local, whole, int(moved), measured_by)


def _without_model(rows: Rows) -> Iterator[Problem]:
    patterns = rows.texts["pattern"]
    for pattern in np.unique(patterns).tolist():
        if pattern not in _COLLECTIVES:
            lines = tuple(rows.line[patterns == pattern].tolist())
            known = ", ".join(_COLLECTIVES)
            yield Problem(rows.file, lines, "pattern", pattern, f"Weft has no model of this pattern; it has {known}")
