"""The models as they ship against every measured row: errors per group, and the rows that are furthest off."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.files import write_json
from weft.validation.clouds import Cloud, clouds_of
from weft.validation.data import Kind, Rows, data_folder, read_folder
from weft.validation.kinds import READERS
from weft.validation.machines import Machines
from weft.validation.metrics import Group, errors_of, grouped, worst
from weft.validation.problems import Problem, consistent, gathered
from weft.validation.subjects import Predicted, Progress, Subject, joined, predicted

KEYS = ("kind", "gpu", "system", "dtype", "ranks", "collective")
"""What every group of errors says of itself first; None where it does not apply."""
_WORST = 10
_SUMMARY = {
    "gemm": ("dtype",),
    "collective": ("library", "collective"),
    "layer": ("phase", "op"),
    "overlap": ("system", "collective", "method", "quantity"),
    "contention": ("quantity",),
    "ring": ("ranks",),
}


@dataclass(frozen=True)
class Validation:
    """Predictions beside measurements, and what was wrong with the rows that are left out."""

    predictions: tuple[Predicted, ...]
    problems: tuple[Problem, ...]
    rows_read: int

    @property
    def rows_used(self) -> int:
        """How many rows have a prediction; one may have several, such as prefill and decode."""
        rows = [part.subject.rows for part in self.predictions]
        return len({(each.file, line) for each in rows for line in each.line.tolist()})

    def groups(self) -> list[Group]:
        """The errors of each group: every row is in exactly one."""
        return [group for part in self.predictions for group in groups_of(part)]

    def ranges(self) -> list[Group]:
        """The errors of each group within each class of size: a row may be in several."""
        return [group for part in self.predictions for group in ranges_of(part)]

    def summary(self) -> list[Group]:
        """The errors of each machine by what matters most of its kind, such as data type or collective."""
        return [group for part in self.predictions for group in summary_of(part)]

    def overall(self) -> list[Group]:
        """The errors over all rows of each kind."""
        kinds = dict.fromkeys(part.subject.kind for part in self.predictions)
        return [Group({"kind": kind}, errors_of(*joined(self._parts(kind)))) for kind in kinds]

    def worst(self, count: int = _WORST) -> list[dict[str, Any]]:
        """The rows of each kind that are furthest off, worst first, with their line in the file."""
        found = []
        for kind in dict.fromkeys(part.subject.kind for part in self.predictions):
            rows = [row for part in self._parts(kind) for row in worst_rows(part, count)]
            found += sorted(rows, key=lambda row: -abs(np.log(row["predicted_s"] / row["measured_s"])))[:count]
        return found

    def clouds(self) -> dict[str, list[Cloud]]:
        """The rows of each kind as points for pictures."""
        kinds = dict.fromkeys(part.subject.kind for part in self.predictions)
        return {kind: [cloud for part in self._parts(kind) for cloud in clouds_of(part)] for kind in kinds}

    def complaints(self) -> list[str]:
        """Every problem as a sentence, alike ones together."""
        return [str(problem) for problem in gathered(self.problems)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        return {
            "groups": [group.to_dict() for group in self.groups()],
            "ranges": [group.to_dict() for group in self.ranges()],
            "summary": [group.to_dict() for group in self.summary()],
            "overall": [group.to_dict() for group in self.overall()],
            "worst": self.worst(),
            "problems": [problem.to_dict() for problem in self.problems],
            "rows_read": self.rows_read,
            "rows_used": self.rows_used,
        }

    def save(self, file: str | os.PathLike[str], **more: Any) -> Path:
        """Write the errors as JSON, whole or not at all, with `more` beside them; OutputError if that fails."""
        return write_json(file, {**self.to_dict(), **more})

    def _parts(self, kind: str) -> list[Predicted]:
        return [part for part in self.predictions if part.subject.kind == kind]


def validate(
    place: str | os.PathLike[str] | None = None,
    *,
    gpus: Sequence[str] = (),
    libraries: Sequence[str] = (),
    kinds: Sequence[Kind] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """The catalogue's models against the measurements of a folder or file (see `data_folder`).

    `gpus` are names or TOML files: only their rows count. `libraries` are library profiles that take the place of the
    catalogue's. `kinds` chooses among the kinds of measurements. Raises InputError if nothing can be compared.
    """
    subjects, problems, count = subjects_of(data_folder(place), Machines.of(gpus, libraries), kinds)
    predictions = []
    for position, subject in enumerate(subjects):
        if progress is not None and subject.slow:
            progress(position, len(subjects), f"{subject.kind} {subject.machine}")
        predictions.append(predicted(subject))
    return Validation(tuple(predictions), tuple(problems), count)


def subjects_of(
    place: Path, machines: Machines, kinds: Sequence[Kind] | None = None
) -> tuple[list[Subject], list[Problem], int]:
    """What the rows of a folder put to the test, what is wrong with rows, and how many were read.

    Raises InputError, with the first problem, if no row is left.
    """
    files, problems = read_folder(place, kinds)
    subjects: list[Subject] = []
    for rows in files:
        if rows.kind not in READERS:
            continue
        found, wrong = READERS[rows.kind](rows, machines)
        subjects += found
        problems += wrong
    if not subjects:
        raise InputError(_nothing(place, machines, files, problems))
    return subjects, consistent(problems), sum(map(len, files)) + _unread(problems, files)


def _unread(problems: Sequence[Problem], files: Sequence[Rows]) -> int:
    """Rows that could not even be parsed."""
    parsed = {(rows.file, line) for rows in files for line in rows.line.tolist()}
    named = {(problem.file, line) for problem in problems for line in problem.lines}
    return len(named - parsed)


def _nothing(place: Path, machines: Machines, files: Sequence[Rows], problems: Sequence[Problem]) -> str:
    if machines.chosen:
        wanted = ", ".join(gpu.name for gpu in machines.chosen)
        columns = [rows.texts.get("gpu", rows.texts.get("system")) for rows in files]
        named = sorted({name for column in columns if column is not None for name in np.unique(column).tolist()})
        return (
            f"no row of '{place}' is about {wanted}; the rows are about {', '.join(named)} "
            "(a TOML file may name such rows in its aliases)"
        )
    first = f": {gathered(problems)[0]}" if problems else ""
    return f"no row of '{place}' can be compared with a model{first}"


def groups_of(part: Predicted) -> list[Group]:
    """The errors of a subject's rows by its labels."""
    found = grouped(part.seconds, part.subject.measured, part.subject.labels)
    return [Group(_keys(part, group.keys), group.errors) for group in found]


def summary_of(part: Predicted) -> list[Group]:
    """The errors of a subject's rows by the labels that matter most."""
    wanted = _SUMMARY.get(part.subject.kind, ())
    labels = {name: part.subject.labels[name] for name in wanted}
    found = grouped(part.seconds, part.subject.measured, labels) if labels else []
    head = {"kind": part.subject.kind, "on": part.subject.machine}
    return [Group({**head, **group.keys}, group.errors) for group in found]


def ranges_of(part: Predicted) -> list[Group]:
    """The errors of a subject's rows by its labels and classes of size; empty classes are not told."""
    result = []
    for name, mask in part.subject.ranges.items():
        if mask.any():
            some = Predicted(part.subject.take(mask), part.seconds[mask])
            result += [Group({**group.keys, "range": name}, group.errors) for group in groups_of(some)]
    return result


def worst_rows(part: Predicted, count: int) -> list[dict[str, Any]]:
    """The rows of a subject that are furthest off, as plain data."""
    rows, measured = part.subject.rows, part.subject.measured
    result = []
    for position in worst(part.seconds, measured, count).tolist():
        texts = {name: str(column[position]) for name, column in rows.texts.items()}
        numbers = {name: _plain(column[position]) for name, column in rows.numbers.items()}
        row: dict[str, Any] = {"kind": part.subject.kind, "file": rows.file, "line": int(rows.line[position])}
        row |= {**texts, **numbers}
        row["predicted_s"], row["measured_s"] = float(part.seconds[position]), float(measured[position])
        row["error"] = row["predicted_s"] / row["measured_s"] - 1
        result.append(row)
    return result


def _plain(value: float) -> float | int | None:
    if np.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def _keys(part: Predicted, labels: Mapping[str, Any]) -> dict[str, Any]:
    known = dict.fromkeys(KEYS) | {"kind": part.subject.kind}
    return {**known, **labels, "machine": part.subject.machine}
