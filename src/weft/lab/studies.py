"""What studies of papers set against measured rows: projections from a baseline, steps of BERT, kernels of V100.

Studies ask for these functions by name (`weft.core.extensions.find_measured`) and do without them where the lab is not
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft import hardware
from weft.core.errors import InputError
from weft.graph import Op
from weft.hardware import Gpu
from weft.lab.checks import Unfit
from weft.lab.collectives import COLLECTIVES
from weft.lab.kinds import RowMachine
from weft.lab.machines import Machines, knows
from weft.lab.operators import GEMMS, KERNELS, KERNELS_COMPARED, kernel_operator
from weft.lab.projection import HIDDEN, Projection, flops_of, of_bert, projection, sparse_sizes
from weft.lab.steps import predict_step, read_run
from weft.lab.subjects import Errors, Subject, errors_of
from weft.lab.tables import Measurements, read_file, read_folder, seconds_of

PARTIAL = "partial_gemm"
"""GEMMs projected from fewer rows than a profile has."""


def projections(place: Path) -> dict[str, tuple[Projection, ...]]:
    """Project GEMMs, LayerNorm and all-reduces of other models from the measured rows of one baseline each."""
    found: dict[str, list[Projection]] = {"gemm": [], PARTIAL: [], "norm": [], "all_reduce": []}
    for file in read_folder(place, ["gemm", "kernel", "collective"]):
        if file.kind:
            for kind, projected in _READ[file.kind](file):
                found[kind].append(projected)
    return {kind: tuple(each) for kind, each in found.items() if each}


def _known_rows(file: Measurements) -> Measurements:
    """The rows on machines that Weft knows."""
    rows = file.rows
    column, find = ("gpu", hardware.gpu) if "gpu" in rows else ("system", hardware.system)
    return file.some(rows[rows[column].isin([name for name in rows[column].unique() if knows(find, name)])])


def _gemms(file: Measurements) -> Iterator[tuple[str, Projection]]:
    subjects = GEMMS.subjects(_known_rows(file.some(file.rows[file.rows["dtype"] == "fp32"])), Machines())
    for one in subjects:
        mine = of_bert(one.rows)
        if mine.any() and not mine.all():
            kind = "gemm" if mine.sum() >= _ENOUGH else PARTIAL
            yield kind, projection(one, mine, flops_of(one.rows), subjects)


def _norms(file: Measurements) -> Iterator[tuple[str, Projection]]:
    for one in KERNELS.subjects(_known_rows(file), Machines()):
        norms = one.take(one.rows["op"] == "layernorm")
        tokens, widths = (norms.rows[name].to_numpy() for name in ("m", "n"))
        mine = widths == HIDDEN
        if mine.any() and not mine.all():
            yield "norm", projection(norms, mine, tokens * widths)


def _all_reduces(file: Measurements) -> Iterator[tuple[str, Projection]]:
    """All-reduces of the most ranks of one node, by the vendor's library."""
    subjects = [one for one in COLLECTIVES.subjects(_known_rows(file), Machines()) if one.kind == "collective"]
    for one in subjects:
        some = _of_node(one)
        mine = sparse_sizes(some) if len(some) >= _ENOUGH else np.zeros(0, dtype=np.bool_)
        if mine.any() and not mine.all():
            yield "all_reduce", projection(some, mine, some.rows["bytes"].to_numpy(), subjects)


_ENOUGH = 20
"""Rows of a baseline that are a profile of GEMMs, and rows from which a machine's all-reduces are projected."""


def _of_node(one: Subject) -> Subject:
    labels = one.labels
    mask = (labels["collective"] == "all_reduce") & (labels["nodes"] == 1) & (labels["host"] == "")
    mask &= labels["library"].isin(("nccl", "rccl"))
    return one.take(mask & (labels["ranks"] == labels["ranks"][mask].max()))


_READ: Mapping[str, Callable[[Measurements], Iterator[tuple[str, Projection]]]] = {
    "gemm": _gemms,
    "kernel": _norms,
    "collective": _all_reduces,
}


def projection_errors(found: Sequence[Projection]) -> tuple[Errors, Errors]:
    """The errors of several projections together, and those of scaling by the amount of work."""
    measured = np.concatenate([one.unseen.measured for one in found])
    seconds, scaled = (np.concatenate([getattr(one, name) for one in found]) for name in ("seconds", "scaled"))
    return errors_of(seconds, measured), errors_of(scaled, measured)


class MeasuredStep(NamedTuple):
    """A measured step against Weft's: its name in the data, the GPUs, and both times [s]."""

    id: str
    gpu: str
    gpus: int
    precision: str
    measured: float
    weft: float


def measured_steps(place: Path, framework: str, sequence: int) -> tuple[MeasuredStep, ...]:
    """Steps of a framework on sequences of a length, measured and as `weft.step` predicts them.

    Raises InputError for a row that cannot be predicted.
    """
    rows = [row for file in read_folder(place, ["step"]) for row in file.rows.to_dict("records")]
    return tuple(_step(row) for row in rows if row["framework"].startswith(framework) and row["seq_len"] == sequence)


def _step(row: Mapping[str, Any]) -> MeasuredStep:
    try:
        ran = read_run(row, hardware.gpu(row["gpu"]))
    except InputError as error:
        raise InputError(f"the measured step '{row['id']}' cannot be predicted: {error}") from None
    except Unfit as unfit:
        column, value, rule = unfit.args
        raise InputError(f"the measured step '{row['id']}' cannot be predicted: {column} '{value}': {rule}") from None
    where = ran.system.gpu.name, ran.system.gpus, str(row["precision"])
    return MeasuredStep(str(row["id"]), *where, float(row["step_time_s"]), predict_step(ran).seconds)


def measured_kernels(file: Path, machine: Gpu) -> Iterator[tuple[str, Any, Callable[[int], tuple[Op, float, float]]]]:
    """PyTorch's kernels on V100 by operator: the places of its rows, and what tells of one its operator and times [s].

    The times are the measured one and that of the closed form on a machine.
    """
    read, where = read_file(file), RowMachine(machine)
    if read.kind is None:
        raise InputError(f"'{file}' holds no rows of {file.name} that can be read; see 'weft validate --help'")
    own = read.rows["gpu"].str.startswith("v100").to_numpy()

    def row(place: int) -> tuple[Op, float, float]:
        one = read.rows.iloc[[place]]
        ((query, _, columns),) = KERNELS.parts(one, where)
        closed = float(KERNELS.call(columns, where, *query)[0])
        return kernel_operator(columns, *query), float(seconds_of(one)[0]), closed

    for (op, _), at, _ in KERNELS.parts(read.rows, where):
        if op in KERNELS_COMPARED:
            yield op, at[own[at]], row
