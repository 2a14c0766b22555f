"""Subjects of validation: rows of one machine, the model that predicts them, and the errors of its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from weft.estimate import Parameter
from weft.lab.tables import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]
Progress = Callable[[int, int, str], None]
"""Called with the number of finished steps, their total, and the name of the next one."""
Predict = Callable[[pd.DataFrame, Mapping[str, float]], FloatArray]
"""Seconds of each row with some parameters changed, by path [base units]."""

KEYS = ("kind", "gpu", "system", "dtype", "ranks", "collective")
"""The first keys of every group of errors; None if one does not apply."""
_SUMMARY = {
    "gemm": ("dtype",),
    "collective": ("library", "collective"),
    "channels": ("ranks", "protocol", "compute_units"),
    "tuning": ("quantity", "collective", "algorithm"),
    "layer": ("phase", "op"),
    "kernel": ("op",),
    "operator": ("operator",),
    "rnn": ("dtype", "pass"),
    "conv": ("dtype", "algorithm", "pass"),
    "exchange": ("library", "op"),
    "attention": ("library", "phase", "dtype"),
    "mla": ("library", "op", "phase"),
    "all_reduce": ("library", "called"),
    "gemm_lowbit": ("library", "dtype"),
    "experts": ("library", "dtype"),
    "expert_layers": ("what", "library"),
    "expert_trace": ("what",),
    "small_operators": ("operator",),
    "serving": ("framework", "model", "quantity"),
    "disaggregated": ("framework", "model", "quantity"),
    "energy": ("model",),
    "overlap": ("system", "collective", "method", "quantity", "seen"),
    "contention": ("quantity",),
    "corun": ("gemm", "quantity"),
    "corun_nodes": ("quantity", "transport"),
    "compute_units": ("backend",),
    "fused": ("system", "op", "method", "quantity"),
    "ring": ("collective", "ranks"),
    "step": ("framework", "layers"),
    "step, nothing fitted": ("framework", "layers"),
    "memory": ("framework", "layers", "quantity"),
    "dram": ("peer", "requests", "quantity"),
}
_PICTURED = ("quantity", "gpu", "system", "dtype", "collective", "method")


@dataclass(frozen=True)
class Subject:
    """Rows of one machine and kind from a `file`, by line number, with labels by which errors are grouped.

    `labels` has a row for each of `rows`, whose numbers are floats.
    `ranges` maps a size class, such as ">= 20 us", to the rows in it. `start` holds the parameters' values in the
    catalogue. `vendor` says whose other machines are relatives.
    `teaches` marks the rows that a fit may use (None: all); the others are only predicted. `relative` holds, by path,
    what a parameter is divided by before it is compared with that of other machines (1 where it is missing). `added`
    are further lines of the file, which its rows add up. `shipped` are the predictions by the shipped values; `tables`
    the paths of the libraries' values that each row depends on.
    """

    kind: str
    machine: str
    rows: pd.DataFrame
    measured: FloatArray
    labels: pd.DataFrame
    predict: Predict
    file: str = ""
    ranges: Mapping[str, BoolArray] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    start: Mapping[str, float] = field(default_factory=dict)
    vendor: str = "none"
    teaches: BoolArray | None = None
    relative: Mapping[str, float] = field(default_factory=dict)
    added: tuple[int, ...] = ()
    shipped: FloatArray | None = None
    tables: npt.NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """Kind and machine, which identify the subject."""
        return f"{self.kind} {self.machine}"

    def take(self, which: BoolArray | IntArray | pd.Series[bool]) -> Subject:
        """The subject with the rows selected by a mask or by positions."""
        which = np.asarray(which)
        return replace(
            self,
            rows=self.rows.iloc[which],
            measured=self.measured[which],
            labels=self.labels.iloc[which],
            ranges={name: mask[which] for name, mask in self.ranges.items()},
            teaches=None if self.teaches is None else self.teaches[which],
            shipped=None if self.shipped is None else self.shipped[which],
            tables=None if self.tables is None else self.tables[which],
        )

    def teaching(self) -> Subject:
        """The subject with the rows that a fit may use."""
        return self if self.teaches is None else self.take(self.teaches)

    def texts(self, *labels: str) -> list[str]:
        """Some labels of each row, or all, as one text."""
        return [" ".join(map(str, row)) for row in self.labels[list(labels or self.labels)].itertuples(index=False)]


@dataclass(frozen=True)
class Errors:
    """Statistics of abs(predicted / measured - 1) over some rows; `bias` keeps the sign.

    `geomean_err` is exp(mean abs ln(predicted / measured)) - 1, which weighs half and double equally.
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


def group_errors(predicted: FloatArray, measured: FloatArray, labels: pd.DataFrame) -> list[Group]:
    """The errors of each combination of `labels` that occurs, in the order of the labels."""
    both = pd.DataFrame({"predicted": predicted, "measured": measured})
    groups = both.groupby([labels[name].to_numpy() for name in labels])
    return [
        Group(dict(zip(labels, map(_plain, key), strict=True)), errors_of(*part.to_numpy().T)) for key, part in groups
    ]


def worst(predicted: FloatArray, measured: FloatArray, count: int) -> IntArray:
    """Indices of the `count` rows with the largest ratio either way, worst first."""
    order: IntArray = np.argsort(-np.abs(np.log(predicted / measured)), kind="stable")
    return order[:count]


MEASURED = "measured"
"""The label of sizes that are measured times [s]."""


@dataclass(frozen=True)
class Cloud:
    """Rows of one scatter plot: predicted and measured [s], and each row's size in the unit of its label."""

    title: str
    predicted: FloatArray
    measured: FloatArray
    size: FloatArray
    size_label: str


_TIMES = ("time", "TPOT", "TTFT")
"""Quantities that are times."""


@dataclass(frozen=True)
class Predicted:
    """A subject with a prediction for each of its rows [s]."""

    subject: Subject
    seconds: FloatArray

    def take(self, which: BoolArray | IntArray | pd.Series[bool]) -> Predicted:
        """The rows selected by a mask or by positions."""
        return Predicted(self.subject.take(which), self.seconds[np.asarray(which)])

    def frame(self) -> pd.DataFrame:
        """Labels, file, machine, predicted and measured value of each row, and its bytes if it has any, by line."""
        subject = self.subject
        values = {"predicted": self.seconds, "measured": subject.measured, "file": subject.file}
        sizes = {name: subject.rows[name] for name in ("bytes", "system") if name in subject.rows}
        return pd.DataFrame({**sizes, **subject.labels, **values, "machine": subject.machine}, subject.rows.index)

    def groups(self) -> list[Group]:
        """The errors by all labels."""
        head, tail = dict.fromkeys(KEYS) | {"kind": self.subject.kind}, {"machine": self.subject.machine}
        return self._group_rows(list(self.subject.labels), head, tail)

    def ranges(self) -> list[Group]:
        """The errors by all labels within each class of size that has rows."""
        masks = ((name, mask) for name, mask in self.subject.ranges.items() if mask.any())
        each = ((name, group) for name, mask in masks for group in self.take(mask).groups())
        return [Group({**group.keys, "range": name}, group.errors) for name, group in each]

    def summary(self) -> list[Group]:
        """The errors by the labels that matter most, such as data type or collective."""
        head = {"kind": self.subject.kind, "on": self.subject.machine}
        return self._group_rows(_SUMMARY[self.subject.kind], head, {})

    def _group_rows(self, names: Sequence[str], head: Mapping[str, Any], tail: Mapping[str, Any]) -> list[Group]:
        found = group_errors(self.seconds, self.subject.measured, self.subject.labels[list(names)])
        return [Group({**head, **group.keys, **tail}, group.errors) for group in found]

    def worst(self, count: int) -> list[dict[str, Any]]:
        """The worst rows as plain data, worst first."""
        at = worst(self.seconds, self.subject.measured, count)
        times = zip(self.seconds[at].tolist(), self.subject.measured[at].tolist(), strict=True)
        rows = self.subject.rows.iloc[at]
        return [
            {"kind": self.subject.kind, "file": self.subject.file, "line": line}
            | {name: _plain(cell) for name, cell in row.items() if name != "measured" and not name.startswith("_")}
            | {"predicted_s": ours, "measured_s": theirs, "error": ours / theirs - 1}
            for line, row, (ours, theirs) in zip(rows.index.tolist(), rows.to_dict("records"), times, strict=True)
        ]

    def clouds(self) -> Iterator[Cloud]:
        """Yield one cloud of points for each data type, collective, method or latency."""
        if "quantity" in self.subject.labels:
            timed = self.subject.labels["quantity"].isin(_TIMES)
            if not timed.all():  # speedups and rates, which a plot of times cannot show
                yield from self.take(timed).clouds() if timed.any() else ()
                return
        subject, measured = self.subject, self.subject.measured
        collective = subject.kind == "collective"
        told = [name for name in _PICTURED if name in subject.labels]
        if "quantity" in told and set(subject.labels["quantity"]) == {"time"}:
            told.remove("quantity")
        shown = ("collective",) if collective else (*told,)
        for title, of in pd.Series(subject.texts(*shown)).groupby(subject.texts(*shown)).indices.items():
            if collective:
                sizes = subject.rows["bytes"].to_numpy()
                name, size, label = f"{subject.machine}, {title}", sizes[of], "buffer [bytes]"
            else:
                name, size, label = title, measured[of], MEASURED
            yield Cloud(name, self.seconds[of], measured[of], size, label)


def join_clouds(clouds: Iterable[Cloud]) -> list[Cloud]:
    """Return the clouds with those of the same title and unit of size as one."""
    known: dict[tuple[str, str], list[Cloud]] = {}
    for cloud in clouds:
        known.setdefault((cloud.title, cloud.size_label), []).append(cloud)
    found = []
    for (title, label), some in known.items():
        predicted, measured, size = (
            np.concatenate([getattr(one, of) for one in some]) for of in ("predicted", "measured", "size")
        )
        found.append(Cloud(title, predicted, measured, size, label))
    return found


def _plain(cell: Any) -> str | float | None:
    """A cell for JSON: whole numbers as int, None if blank."""
    cell = cell.item() if isinstance(cell, np.generic) else cell
    if isinstance(cell, str | bool | int):
        return cell
    return None if np.isnan(cell) else int(cell) if cell.is_integer() else cell


def predict_subject(subject: Subject, values: Mapping[str, float] | None = None) -> Predicted:
    """The subject predicted with the catalogue's parameters, or with some of them changed."""
    if not values and subject.shipped is not None:
        return Predicted(subject, subject.shipped)
    return Predicted(subject, subject.predict(subject.rows, values or {}))


def join_seconds(parts: Sequence[Predicted]) -> tuple[FloatArray, FloatArray]:
    """Predicted and measured seconds of several subjects (at least one), concatenated."""
    return np.concatenate([p.seconds for p in parts]), np.concatenate([p.subject.measured for p in parts])
