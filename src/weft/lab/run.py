"""Compare the shipped models with every measured row: errors per group, and the worst rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft import hardware
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.files import data_folder
from weft.kernels.library.collectives import canonical
from weft.lab.checks import duplicates, unknown_names
from weft.lab.collectives import CHANNELS, COLLECTIVES
from weft.lab.coruns import CORUNS, GATHERS, LIMITED
from weft.lab.exchanges import EXCHANGES
from weft.lab.experts import EXPERT_LAYERS, EXPERTS
from weft.lab.fused import FUSED
from weft.lab.kinds import RowKind
from weft.lab.layers import LAYER
from weft.lab.machines import Machines
from weft.lab.operators import CONVOLUTIONS, GEMMS, KERNELS, OPERATORS_ALONE, RECURRENT
from weft.lab.overlaps import CONTENTION, OVERLAP
from weft.lab.problems import Problem, consistent, merge_problems
from weft.lab.served import SERVED_ALL_REDUCES, SERVED_ATTENTION, SERVED_GEMMS, SERVED_LATENT, SERVED_SMALL
from weft.lab.serving import SERVING
from weft.lab.steps import STEPS
from weft.lab.streams import DRAM, read_streams
from weft.lab.subjects import (
    Cloud,
    Group,
    Predicted,
    Progress,
    Subject,
    errors_of,
    join_clouds,
    join_seconds,
    predict_subject,
)
from weft.lab.tables import TABLES, Kind, Measurements, read_folder
from weft.lab.traces import EXPERT_TRACE
from weft.lab.tuning import TUNING

ROW_KINDS: Mapping[str, RowKind] = {
    one.kind: one
    for one in (
        GEMMS, COLLECTIVES, CHANNELS, TUNING, OVERLAP, CONTENTION, CORUNS, GATHERS, LIMITED, FUSED, LAYER, KERNELS,
        OPERATORS_ALONE, RECURRENT, CONVOLUTIONS, EXCHANGES, SERVED_ATTENTION, SERVED_LATENT, SERVED_ALL_REDUCES,
        SERVED_GEMMS, EXPERTS, EXPERT_LAYERS, EXPERT_TRACE, SERVED_SMALL, SERVING, STEPS, DRAM,
    )
}  # fmt: skip
"""Every kind of rows, by the kind of its files."""


@dataclass(frozen=True, repr=False)
class Validation(Answer):
    """Predictions against measurements, and the problems of rows that are left out."""

    kind = "validation"

    predictions: tuple[Predicted, ...]
    problems: tuple[Problem, ...]
    rows_read: int

    @property
    def rows_used(self) -> int:
        """Number of rows with a prediction; a row may have several, such as prefill and decode."""
        parts = [part.subject for part in self.predictions]
        return len({(each.file, line) for each in parts for line in (*each.rows.index, *each.added)})

    @property
    def by_kind(self) -> dict[str, list[Predicted]]:
        """The predictions of each kind."""
        kinds = dict.fromkeys(part.subject.kind for part in self.predictions)
        return {kind: [part for part in self.predictions if part.subject.kind == kind] for kind in kinds}

    def groups(self) -> list[Group]:
        """The errors of each group; every row is in exactly one group."""
        return [group for part in self.predictions for group in part.groups()]

    def worst(self, count: int = 10) -> list[dict[str, Any]]:
        """The worst rows of each kind, worst first, with their line in the file."""
        found = []
        for parts in self.by_kind.values():
            rows = [row for part in parts for row in part.worst(count) if part.subject.kind != "dram"]
            found += sorted(rows, key=lambda row: -abs(np.log(row["predicted_s"] / row["measured_s"])))[:count]
        return found

    def clouds(self) -> dict[str, list[Cloud]]:
        """The rows of each kind as points for scatter plots; those of one title together."""
        return {
            kind: join_clouds(cloud for part in parts for cloud in part.clouds())
            for kind, parts in self.by_kind.items()
        }

    def streams(self) -> list[dict[str, Any]]:
        """Of every stream of memory requests, by the size of requests: what the engine reaches and what each
        simulator does, in bandwidth [bytes/s] and mean read latency [s].
        """
        found: dict[tuple[str, str, str], dict[str, float]] = {}
        for part in self.by_kind.get("dram", []):
            for row, ours in zip(part.subject.rows.to_dict("records"), part.seconds.tolist(), strict=True):
                values = found.setdefault((part.subject.machine, row["requests"], row["quantity"]), {"weft": ours})
                values[row["peer"]] = row["theirs"]
        return [{"stream": s, "requests": r, "quantity": q, **values} for (s, r, q), values in found.items()]

    def complaints(self) -> list[str]:
        """Every problem as a sentence, similar ones merged."""
        return [str(problem) for problem in merge_problems(self.problems)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON: errors of each group, within each class of size, of each machine by
        what matters most, and of each kind; the worst rows, and every problem.
        """
        overall = [Group({"kind": kind}, errors_of(*join_seconds(parts))) for kind, parts in self.by_kind.items()]
        return {
            "groups": [group.to_dict() for group in self.groups()],
            "ranges": [group.to_dict() for part in self.predictions for group in part.ranges()],
            "summary": [group.to_dict() for part in self.predictions for group in part.summary()],
            "overall": [group.to_dict() for group in overall],
            "worst": self.worst(),
            **({"streams": self.streams()} if "dram" in self.by_kind else {}),
            "problems": [problem.to_dict() for problem in self.problems],
            "rows_read": self.rows_read,
            "rows_used": self.rows_used,
        }


def validate(
    place: str | os.PathLike[str] | None = None,
    *,
    gpus: Sequence[str] = (),
    libraries: Sequence[str] = (),
    kinds: Sequence[Kind] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Compare the catalogue's models with the measurements of a folder or file (see `data_folder`).

    `gpus` are names or TOML files: only their rows count. `libraries` are library profiles that replace the
    catalogue's. `kinds` selects kinds of measurements. Raises InputError if nothing can be compared.

    `weft.validate("gemm.csv", gpus=["h100-sxm"]).groups()` holds the mean, median and 90th percentile of the errors of
    each data type; `worst()` the rows that are furthest off, with their lines.
    """
    subjects, problems, count = subjects_of(data_folder(place), Machines.of(gpus, libraries), kinds, progress)
    return Validation(tuple(map(predict_subject, subjects)), tuple(problems), count)


def subjects_of(
    place: Path, machines: Machines, kinds: Sequence[Kind] | None = None, progress: Progress | None = None
) -> tuple[list[Subject], list[Problem], int]:
    """The subjects of a folder's rows, the problems of rows, and the number of rows of the chosen machines.

    Raises InputError, with the first problem, if no row is left.
    """
    streams = read_streams(place) if (kinds is None or "dram" in kinds) and not machines.chosen else []
    wanted: list[Kind] | None = None if kinds is None else [*kinds, *(("step",) if "memory" in kinds else ())]
    files = [*streams, *([] if streams and _no_tables(place, kinds) else read_folder(place, wanted))]
    problems = [problem for file in files for problem in file.problems]
    count = len({(problem.file, line) for problem in problems for line in problem.lines})
    find: dict[str, Callable[[str], object]]
    find = {"gpu": machines.find, "system": hardware.system, "collective": canonical}
    subjects: list[Subject] = []
    for position, file in enumerate(files):
        if file.kind is None:
            continue
        if progress is not None and len(files) > 1:  # of one file there is nothing to tell before its end
            progress(position, len(files), f"{file.kind} {file.file}")
        checked = file.some(machines.of_chosen(file.rows))
        count += len(checked.rows)
        if file.kind in TABLES:
            names = (unknown_names(checked, name, find[name]) for name in TABLES[file.kind].named)
            checked.drop(duplicates(checked), *names)
        found = ROW_KINDS[file.kind].subjects(checked, machines)
        subjects += [one for one in found if kinds is None or file.kind != "step" or one.kind.startswith(tuple(kinds))]
        problems += checked.problems
    if not subjects:
        raise InputError(_nothing(place, machines, files, problems))
    return subjects, consistent(problems), count


def _no_tables(place: Path, kinds: Sequence[Kind] | None) -> bool:
    """Return whether a folder is asked for streams of requests only, or has nothing else."""
    return kinds == ["dram"] or not any(place.glob("*.csv"))


def _nothing(place: Path, machines: Machines, files: Sequence[Measurements], problems: Sequence[Problem]) -> str:
    if machines.chosen:
        wanted = ", ".join(gpu.name for gpu in machines.chosen)
        tables = [file.rows for file in files if file.kind]
        named = sorted({name for rows in tables for name in rows["gpu" if "gpu" in rows else "system"]})
        return (
            f"no row of '{place}' is about {wanted}; the rows are about {', '.join(named)} "
            "(a TOML file may name such rows in its aliases)"
        )
    first = f": {merge_problems(problems)[0]}" if problems else ""
    return f"no row of '{place}' can be compared with a model{first}"
