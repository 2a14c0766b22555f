"""Errors by the classes that answers carry: machine or way to join, size, and whether a fit saw the rows.

`docs/errors.py` writes them into `result/model_errors.toml`, where every answer finds the error of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.validation.subjects import Predicted, Subject, errors_of, joined
from weft.validation.tables import FloatArray

GEMM_BOUNDS = (20e-6,)
"""Times between classes of GEMMs [s]."""
COLLECTIVE_BOUNDS = (1 << 20, 1 << 24)
"""Sizes between classes of collectives [bytes]."""
JOINED_BOUNDS = (200e-6,)
"""Times between classes of pairs joined by software [s]."""
_MULTIPLIED = ("bf16", "fp16")
_LIBRARIES = ("nccl", "rccl")

Class = list[float]
"""Mean error, rows, and machines of a class; empty without rows."""


def class_errors(
    shipped: Sequence[Predicted], machine_left_out: Sequence[Predicted], system_left_out: Sequence[Predicted]
) -> dict[str, Any]:
    """The errors of each class: as shipped by machine, and with each machine or system left out of the fits.

    GEMMs are those in bf16 and fp16; collectives run in one node by the library's own test; pairs joined by software
    are those with a measured time; GEMMs beside a collective have their largest error.
    """
    gemms, moved = _of(shipped, "gemm", _half), _of(shipped, "collective", _own_test)
    names = sorted({name for part in moved for name in part.subject.labels["collective"].tolist()})
    left = {"gemm": _by_time(_of(machine_left_out, "gemm", _half), GEMM_BOUNDS)}
    unseen = _of(machine_left_out, "collective", _own_test)
    left |= {name: _by_bytes(_labelled(unseen, "collective", name)) for name in names}
    return {
        "bounds": {"gemm": GEMM_BOUNDS, "collective": COLLECTIVE_BOUNDS, "joined": JOINED_BOUNDS},
        "gemm": {part.subject.machine: _by_time([part], GEMM_BOUNDS) for part in gemms},
        "collective": {part.subject.machine: _collectives(part) for part in moved},
        "left_out": left,
        "joined": _joined(_of(shipped, "overlap", _timed), _of(system_left_out, "overlap", _timed)),
        "beside": _beside(_of(shipped, "contention")),
    }


def _of(
    parts: Sequence[Predicted], kind: str, rows: Callable[[Subject], pd.Series[bool]] | None = None
) -> list[Predicted]:
    """The predictions of a kind, with those rows; without subjects that have none of them."""
    chosen = [part for part in parts if part.subject.kind == kind]
    if rows is not None:
        chosen = [part.take(rows(part.subject)) for part in chosen]
    return [part for part in chosen if len(part.subject)]


def _half(subject: Subject) -> pd.Series[bool]:
    return subject.labels["dtype"].isin(_MULTIPLIED)


def _own_test(subject: Subject) -> pd.Series[bool]:
    """Rows of one node, timed by the test of the library itself."""
    labels = subject.labels
    return labels["library"].isin(_LIBRARIES) & (labels["nodes"] == 1) & (labels["host"] == "")


def _timed(subject: Subject) -> pd.Series[bool]:
    return subject.labels["quantity"] == "time"


def _labelled(parts: Sequence[Predicted], label: str, value: str) -> list[Predicted]:
    """The rows of some predictions with a label."""
    found = (part.take(part.subject.labels[label] == value) for part in parts)
    return [part for part in found if len(part.subject)]


def _collectives(part: Predicted) -> dict[str, list[Class]]:
    names = sorted(set(part.subject.labels["collective"].tolist()))
    return {name: _by_bytes(_labelled([part], "collective", name)) for name in names}


def _joined(shipped: Sequence[Predicted], left: Sequence[Predicted]) -> dict[str, dict[str, list[Class]]]:
    """By way to join: pairs as shipped, and with each system left out of the fit of software costs."""
    ways = list(dict.fromkeys(str(name) for part in shipped for name in part.subject.labels["join"].tolist()))
    return {
        way: {
            protocol: _by_time(_labelled(parts, "join", way), JOINED_BOUNDS)
            for protocol, parts in (("seen", shipped), ("left_out", left))
        }
        for way in ways
    }


def _beside(parts: Sequence[Predicted]) -> dict[str, Any]:
    """The largest error of GEMMs beside a collective, with the cells and systems that were measured."""
    if not parts:
        return {}
    ours, theirs = joined(parts)
    rows = parts[0].subject.rows
    systems = sorted(set(rows["system"].tolist()))
    return {"largest": round(errors_of(ours, theirs).max_abs_err, 3), "cells": len(rows), "systems": systems}


def _by_time(parts: Sequence[Predicted], bounds: Sequence[float]) -> list[Class]:
    return _by_size(parts, bounds, lambda subject: subject.measured)


def _by_bytes(parts: Sequence[Predicted]) -> list[Class]:
    return _by_size(parts, COLLECTIVE_BOUNDS, lambda subject: subject.rows["bytes"].to_numpy())


def _by_size(parts: Sequence[Predicted], bounds: Sequence[float], size: Callable[[Subject], FloatArray]) -> list[Class]:
    """The error of each class of size: below the first bound, from there to the next, and so on."""
    places = [np.searchsorted(bounds, size(part.subject), side="right") for part in parts]
    return [
        _error([part.take(at == place) for part, at in zip(parts, places, strict=True) if np.any(at == place)])
        for place in range(len(bounds) + 1)
    ]


def _error(parts: Sequence[Predicted]) -> Class:
    """The mean over machines of the mean error of their rows, as a machine that comes next is any of them."""
    machines: dict[str, list[Predicted]] = {}
    for part in parts:
        names = _machines(part.subject)
        for name in sorted(set(names)):
            machines.setdefault(name, []).append(part.take(np.array([each == name for each in names])))
    if not machines:
        return []
    each = [errors_of(*joined(rows)) for rows in machines.values()]
    return [round(fmean(one.mean_abs_err for one in each), 3), sum(one.rows for one in each), len(each)]


def _machines(subject: Subject) -> list[str]:
    """The machine of each row: of pairs, whose subjects are ways to join, the system."""
    if subject.machine:
        return [subject.machine] * len(subject)
    return [hardware.system(name).name for name in subject.labels["system"]]
