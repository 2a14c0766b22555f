"""Errors of predictions, per group and per class of size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.validation.tables import FloatArray, IntArray, positions_by


@dataclass(frozen=True)
class Errors:
    """How far predictions are from measurements: abs(predicted / measured - 1) over some rows; `bias` keeps the sign.

    `geomean_err` is exp(mean abs ln(predicted / measured)) - 1, which weighs half and double alike.
    """

    rows: int
    mean_abs_err: float
    median_abs_err: float
    p90_abs_err: float
    bias: float
    geomean_err: float
    max_abs_err: float


def errors_of(predicted: FloatArray, measured: FloatArray) -> Errors:
    """The errors of predicted times against measured ones (same unit, same shape, at least one row)."""
    relative = predicted / measured - 1
    size = np.abs(relative)
    return Errors(
        rows=len(size),
        mean_abs_err=float(size.mean()),
        median_abs_err=float(np.median(size)),
        p90_abs_err=float(np.quantile(size, 0.9)),
        bias=float(relative.mean()),
        geomean_err=float(np.expm1(np.abs(np.log(predicted / measured)).mean())),
        max_abs_err=float(size.max()),
    )


@dataclass(frozen=True)
class Group:
    """Rows that belong together, named by `keys` such as kind, gpu, dtype, and their errors."""

    keys: Mapping[str, Any]
    errors: Errors

    def to_dict(self) -> dict[str, Any]:
        """Keys and errors in one plain dictionary."""
        return {**self.keys, **asdict(self.errors)}


def grouped(
    predicted: FloatArray, measured: FloatArray, labels: Mapping[str, Sequence[Any] | npt.NDArray[Any]]
) -> list[Group]:
    """The errors of each combination of `labels` that occurs, in the order of the labels."""
    members = positions_by(zip(*(np.asarray(column).tolist() for column in labels.values()), strict=True))
    return [
        Group(dict(zip(labels, key, strict=True)), errors_of(predicted[members[key]], measured[members[key]]))
        for key in sorted(members, key=lambda key: [(str(type(part)), part) for part in key])
    ]


def worst(predicted: FloatArray, measured: FloatArray, count: int) -> IntArray:
    """Positions of the `count` rows with the largest ratio either way, worst first."""
    order: IntArray = np.argsort(-np.abs(np.log(predicted / measured)), kind="stable")
    return order[:count]
