"""Errors by the classes that answers carry: machine or way to join, size, and whether a fit saw the rows.

`docs/errors.py` writes them into `estimate/model_errors.toml`, where every answer finds the error of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.lab.subjects import Predicted

GEMM_BOUNDS = (20e-6,)
"""Times between classes of GEMMs [s]."""
COLLECTIVE_BOUNDS = (1 << 20, 1 << 24)
"""Sizes between classes of collectives [bytes]."""
JOINED_BOUNDS = (200e-6,)
"""Times between classes of pairs joined by software [s]."""
_MULTIPLIED = ("bf16", "fp16")
_LIBRARIES = ("nccl", "rccl")
SERVED_CLASSES = {
    "attention": ("library", "phase"),
    "mla": ("library", "phase"),
    "all_reduce": ("library", "called"),
    "gemm_lowbit": ("library", "dtype"),
    "experts": ("library", "dtype"),
    "small_operators": ("operator",),
    "serving": ("framework", "layers", "quantity"),
}
"""The labels by which the errors of each kind of kernels of inference, and of served loads, are carried."""

Class = list[float]
"""Mean error, rows, machines, and 90th percentile of the errors of a class; empty without rows."""


def class_errors(
    shipped: Sequence[Predicted], machine_left_out: Sequence[Predicted], system_left_out: Sequence[Predicted]
) -> dict[str, Any]:
    """The errors of each class: as shipped by machine, and with each machine or system left out of the fits.

    GEMMs are those in bf16 and fp16; collectives run in one node by the library's own test; pairs joined by software
    are those with a measured time; GEMMs beside a collective have their largest error.
    """
    gemms, unseen_gemms = (_gemms(_frame(parts, "gemm")) for parts in (shipped, machine_left_out))
    moved, unseen = (_own_tests(_frame(parts, "collective")) for parts in (shipped, machine_left_out))
    left = {"gemm": _by_size(unseen_gemms, GEMM_BOUNDS)}
    left |= {name: _by_bytes(unseen[unseen["collective"] == name]) for name in sorted(set(moved["collective"]))}
    return {
        "bounds": {"gemm": GEMM_BOUNDS, "collective": COLLECTIVE_BOUNDS, "joined": JOINED_BOUNDS},
        "gemm": {name: _by_size(rows, GEMM_BOUNDS) for name, rows in gemms.groupby("machine", sort=False)},
        "collective": {
            machine: {name: _by_bytes(some) for name, some in rows.groupby("collective")}
            for machine, rows in moved.groupby("machine", sort=False)
        },
        "over_nodes": {
            machine: {name: _by_bytes(some) for name, some in rows.groupby("collective")}
            for machine, rows in _own_tests(_frame(shipped, "collective"), over_nodes=True).groupby(
                "machine", sort=False
            )
        },
        "left_out": left,
        "joined": _join_classes(*(_timed_rows(_frame(parts, "overlap")) for parts in (shipped, system_left_out))),
        "beside": _beside(_frame(shipped, "contention")),
        "exchange": _by(_frame(shipped, "exchange"), "library"),
        **{kind: _by(_frame(shipped, kind), *labels) for kind, labels in SERVED_CLASSES.items()},
    }


_COLUMNS = ("machine", "system", "dtype", "collective", "library", "nodes", "host", "join", "quantity", "bytes", "off")


def _frame(parts: Sequence[Predicted], kind: str) -> pd.DataFrame:
    """The rows of a kind with the size of their error; the machine of pairs, by ways to join, is their system."""
    frames = [part.frame() for part in parts if part.subject.kind == kind]
    rows = pd.concat(frames) if frames else pd.DataFrame(columns=["predicted", "measured", *_COLUMNS], dtype=object)
    unnamed = rows["machine"] == ""
    rows.loc[unnamed, "machine"] = (
        [hardware.system(name).name for name in rows["system"][unnamed]] if any(unnamed) else []
    )
    return rows.assign(off=np.abs((rows["predicted"] / rows["measured"] - 1).astype(float)))


def _gemms(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["dtype"].isin(_MULTIPLIED)]


def _own_tests(rows: pd.DataFrame, *, over_nodes: bool = False) -> pd.DataFrame:
    """Rows of one node, or of several, timed by the test of the library itself."""
    return rows[rows["library"].isin(_LIBRARIES) & ((rows["nodes"] > 1) == over_nodes) & (rows["host"] == "")]


def _timed_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["quantity"] == "time"]


def _join_classes(shipped: pd.DataFrame, left: pd.DataFrame) -> dict[str, dict[str, list[Class]]]:
    """By way to join: pairs as shipped, and with each system left out of the fit of software costs."""
    return {
        way: {
            protocol: _by_size(rows[rows["join"] == way], JOINED_BOUNDS)
            for protocol, rows in (("seen", shipped), ("left_out", left))
        }
        for way in shipped["join"].unique()
    }


def _by(rows: pd.DataFrame, *labels: str) -> dict[str, Class]:
    """The error of rows by some labels, joined by hyphens, as shipped."""
    if rows.empty:
        return {}
    names = rows[[*labels]].astype(str).agg("-".join, axis=1)
    return {name: _error(some) for name, some in rows.groupby(names)}


def _beside(rows: pd.DataFrame) -> dict[str, Any]:
    """The largest error of GEMMs beside a collective, with the cells and systems that were measured."""
    if rows.empty:
        return {}
    cells = len(rows[rows["quantity"] == rows["quantity"].iloc[0]])
    return {"largest": round(rows["off"].max(), 3), "cells": cells, "systems": sorted(set(rows["system"]))}


def _by_bytes(rows: pd.DataFrame) -> list[Class]:
    return _by_size(rows, COLLECTIVE_BOUNDS, "bytes")


def _by_size(rows: pd.DataFrame, bounds: Sequence[float], size: str = "measured") -> list[Class]:
    """The error of each class of size: below the first bound, from there to the next, and so on."""
    places = np.searchsorted(bounds, rows[size].astype(float), side="right")
    return [_error(rows[places == place]) for place in range(len(bounds) + 1)]


def _error(rows: pd.DataFrame) -> Class:
    """The mean over machines of the mean error of their rows, as a machine that comes next is any of them."""
    if rows.empty:
        return []
    each = rows.groupby("machine")["off"].mean()
    return [round(float(each.mean()), 3), len(rows), len(each), round(float(rows["off"].quantile(0.9)), 3)]
