"""Rows as points for pictures: predicted and measured times, and a size to draw the error against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.validation.subjects import Predicted, Subject

FloatArray = npt.NDArray[np.float64]

_TOLD = {"collective": ("collective",)}
_TOLD_OTHERWISE = ("gpu", "system", "dtype", "collective", "method")


@dataclass(frozen=True)
class Cloud:
    """Rows that share a picture: predicted and measured [s], and each row's size in the unit of its label."""

    title: str
    predicted: FloatArray
    measured: FloatArray
    size: FloatArray
    size_label: str


def clouds_of(part: Predicted) -> Iterator[Cloud]:
    """One cloud for each data type, collective or method of a subject."""
    subject = part.subject
    if set(subject.labels.get("quantity", np.array(["time"])).tolist()) != {"time"}:
        return  # ratios: a picture of times would say nothing
    told = _TOLD.get(subject.kind, _TOLD_OTHERWISE)
    columns = [subject.labels[name].astype(np.str_).tolist() for name in told if name in subject.labels]
    titles = np.array([" ".join(parts) for parts in zip(*columns, strict=True)], dtype=np.str_)
    for title in np.unique(titles).tolist():
        of = titles == title
        size, label = _size(subject, of)
        shown = f"{subject.machine}, {title}" if subject.kind == "collective" else title
        yield Cloud(shown, part.seconds[of], subject.measured[of], size, label)


def _size(subject: Subject, of: npt.NDArray[np.bool_]) -> tuple[FloatArray, str]:
    if subject.kind == "collective":
        return subject.rows.numbers["bytes"][of], "buffer [bytes]"
    return subject.measured[of] * 1e6, "measured [µs]"
