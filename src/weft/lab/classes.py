"""80 % intervals by the classes that answers carry: machine or way to join, size, and what the fits left out.

`docs/errors.py` writes them into `estimate/model_errors.toml`, where every answer finds the interval of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.kernels.library import served
from weft.lab.fused import fused_gains
from weft.lab.load_ratios import load_ratios
from weft.lab.overlaps import gains
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
"""The labels by which the intervals of each kind of kernels of inference, and of served loads, are carried."""
KERNELS_ALONE = ("kernels", "layers", "quantity")
"""The same for served loads relative to their kernels alone."""

Class = list[float]
"""Both ends of the 80 % interval of measured / predicted, rows and machines of a class; empty without rows."""
TAIL = 0.1
"""Share of rows below an interval, and above it."""
_THIN = 10
"""Rows below which a class takes the wider of its own interval and that of all rows of its kind."""
_FEW_MACHINES = 5
"""Machines below which the interval of a machine without rows is the widest of them [assumed, 3 to 8: of eight, the
widest is that of one odd machine, up to ten times the prediction]."""
_FAR = 2.0
"""Factor by which a machine's median row is off from which it has a cause of its own [assumed, 1.6 to 4: all others are
within 1.6]."""
_CLOSEST = 1e-3
"""Least distance of an end from the prediction."""


def class_errors(by: Mapping[Any, Sequence[Predicted]]) -> dict[str, Any]:
    """Return the 80 % interval of each class from predictions by protocol (`weft.lab.bar.predicted_by`).

    Rows count as some fit left them out: GEMMs and collectives held out of the fit of their machine, or with their
    machine left out; pairs joined by software with their system left out, exchanges their number of ranks, loads their
    model, kernels of inference their GPU. Where rows of the case's own machine are known, residuals of kernels of
    inference, of the fit to n rows by p values, count n / (n - p) times. GEMMs are those in bf16 and fp16; collectives
    run in one node by the library's own test; pairs are those with a measured time; GEMMs concurrent with a collective
    have their largest error.
    """
    shipped = by.get("as shipped", ())
    held, unseen = by.get("held out", ()), by.get("leave one out", ())
    gemms, left_gemms = (_gemms(_frame(parts, "gemm")) for parts in (_known(shipped, held), unseen))
    moved, left_moved = (_own_tests(_frame(parts, "collective")) for parts in (_known(shipped, held), unseen))
    over = _own_tests(_frame(_known(shipped, held), "collective"), over_nodes=True)
    left = {"gemm": _by_size(left_gemms, GEMM_BOUNDS, left_gemms, of=unmeasured_interval)}
    left |= {
        name: _by_bytes(left_moved[left_moved["collective"] == name], left_moved, of=unmeasured_interval)
        for name in sorted(set(moved["collective"]))
    }
    tabled = [kind for kind in SERVED_CLASSES if kind != "serving"]
    own = {kind: _frame(_widened(shipped), kind) for kind in tabled}
    apart = {kind: _frame(by.get("GPU left out", ()), kind) for kind in tabled}
    exchanges = _frame(by.get("ranks left out", ()) or shipped, "exchange")
    loads = _frame(by.get("model left out", ()) or shipped, "serving")
    return {
        "bounds": {"gemm": GEMM_BOUNDS, "collective": COLLECTIVE_BOUNDS, "joined": JOINED_BOUNDS},
        "gemm": {name: _by_size(rows, GEMM_BOUNDS, gemms) for name, rows in gemms.groupby("machine", sort=False)},
        "collective": _collectives(moved),
        "over_nodes": _collectives(over),
        "left_out": left,
        "joined": _join_classes(
            *(_timed_rows(_frame(parts, "overlap")) for parts in (shipped, by.get("system left out", ())))
        ),
        "gain": _gains(shipped, by.get("system left out", ())),
        "corun": _makespans(shipped),
        "beside": _beside(_frame(shipped, "contention")),
        "exchange": _by(exchanges, "library"),
        **{kind: _by(own[kind], *SERVED_CLASSES[kind]) for kind in tabled},
        "serving": _by(loads, *SERVED_CLASSES["serving"]),
        "kernels_alone": _by(_latencies(by.get("kernels alone", ())), *KERNELS_ALONE),
        "load_ratio": load_ratios(by.get("model left out", ()) or shipped),
        "gpu_left_out": {kind: _by(apart[kind], *SERVED_CLASSES[kind], of=unmeasured_interval) for kind in tabled},
        "gpus": {
            kind: {
                name: sorted(set(rows["machine"]))
                for name, rows in own[kind].groupby(_named(own[kind], SERVED_CLASSES[kind]))
            }
            for kind in tabled
            if len(own[kind])
        },
    }


def class_coverage(by: Mapping[Any, Sequence[Predicted]]) -> dict[str, dict[str, list[float]]]:
    """Return how many rows lie inside 80 % intervals that leave them out, by kind and by what is left out.

    Rows are those of `class_errors`. Of classes with 30 rows or more: the share of rows inside, rows, classes, and the
    least and the largest share of a class. A row's interval is from its class without its fifth of the rows, or without
    its GPU (of classes with several).
    """
    shipped = by.get("as shipped", ())
    gemms, left = (_gemms(_frame(by.get(name, ()), "gemm")) for name in ("held out", "leave one out"))
    moved, left_moved = (_own_tests(_frame(by.get(name, ()), "collective")) for name in ("held out", "leave one out"))
    loads = _frame(by.get("model left out", ()), "serving")
    tabled = [kind for kind in SERVED_CLASSES if kind != "serving"]
    rows: dict[str, tuple[pd.DataFrame, Sequence[str]]]
    rows = {kind: (_frame(_widened(shipped), kind), SERVED_CLASSES[kind]) for kind in tabled}
    rows["gemm"] = _sized(gemms, GEMM_BOUNDS, "measured"), ("machine", "size")
    rows["collective"] = _sized(moved, COLLECTIVE_BOUNDS, "bytes"), ("machine", "collective", "size")
    rows["exchange"] = _frame(by.get("ranks left out", ()), "exchange"), ("library",)
    rows["serving"] = loads, SERVED_CLASSES["serving"]
    rows["kernels_alone"] = _latencies(by.get("kernels alone", ())), KERNELS_ALONE
    apart: dict[str, tuple[pd.DataFrame, Sequence[str]]]
    apart = {kind: (_frame(by.get("GPU left out", ()), kind), SERVED_CLASSES[kind]) for kind in tabled}
    apart["gemm"] = _sized(left, GEMM_BOUNDS, "measured"), ("size",)
    apart["collective"] = _sized(left_moved, COLLECTIVE_BOUNDS, "bytes"), ("collective", "size")
    found = {
        kind: {
            "a fifth of its rows": _inside(*rows[kind], folds=True),
            "its GPU": _inside(*apart[kind], folds=False) if kind in apart else [],
        }
        for kind in ("gemm", "collective", "exchange", *SERVED_CLASSES, "kernels_alone")
    }
    return {kind: {what: of for what, of in each.items() if of} for kind, each in found.items()}


_MANY = 30
"""Rows from which the coverage of a class is stated."""
_FOLDS = 5


def _sized(rows: pd.DataFrame, bounds: Sequence[float], size: str) -> pd.DataFrame:
    return rows.assign(size=np.searchsorted(bounds, rows[size].astype(float), side="right"))


def _inside(rows: pd.DataFrame, labels: Sequence[str], *, folds: bool) -> list[float]:
    """Return the share of rows inside intervals without them, rows, classes, and the least and largest share."""
    if rows.empty:
        return []
    counts, shares = [], []
    for _, some in rows.groupby(_named(rows, labels)):
        apart = np.random.default_rng(0).permutation(len(some)) % _FOLDS if folds else some["machine"].to_numpy()
        if len(some) < _MANY or len(set(apart.tolist())) < 2:
            continue
        inside = 0
        for one in sorted(set(apart.tolist())):
            known = some[apart != one]
            low, high, *_ = interval(known, known) if folds else unmeasured_interval(known, known)
            inside += int(some["ratio"][apart == one].between(low, high).sum())
        counts.append(len(some))
        shares.append(inside / len(some))
    if not counts:
        return []
    mean = float(np.average(shares, weights=counts))
    return [round(mean, 3), sum(counts), len(counts), round(min(shares), 3), round(max(shares), 3)]


def _known(shipped: Sequence[Predicted], held: Sequence[Predicted]) -> list[Predicted]:
    """Return rows held out of the fit of their machine; as shipped, those of machines without a fit of their own."""
    fitted = {part.subject.name for part in held}
    return [*held, *(part for part in shipped if part.subject.name not in fitted)]


def _widened(shipped: Sequence[Predicted]) -> list[Predicted]:
    """Return rows as shipped, with residuals as large as those of rows that their table's fit does not see.

    On average a fit of p values to n rows makes the residual of a row 1 - p / n times that without it.
    """
    counts: dict[str, int] = {}
    for part in shipped:
        for name in () if part.subject.tables is None else part.subject.tables.tolist():
            counts[name] = counts.get(name, 0) + 1
    return [part if part.subject.tables is None else _without_itself(part, counts) for part in shipped]


def _without_itself(part: Predicted, counts: Mapping[str, int]) -> Predicted:
    tables = part.subject.tables
    assert tables is not None
    own = {name: len(found.own) for name, found in served.fitted_sets().items()}
    share = np.array([1 - min(own.get(name, 0) / counts[name], 0.5) for name in tables.tolist()])
    residual = np.log(part.subject.measured / part.seconds) / share
    return Predicted(part.subject, part.subject.measured / np.exp(residual))


def _collectives(rows: pd.DataFrame) -> dict[str, dict[str, list[Class]]]:
    return {
        machine: {name: _by_bytes(some, rows) for name, some in of.groupby("collective")}
        for machine, of in rows.groupby("machine", sort=False)
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
    off = np.abs((rows["predicted"] / rows["measured"] - 1).astype(float))
    return rows.assign(off=off, ratio=(rows["measured"] / rows["predicted"]).astype(float))


def _latencies(parts: Sequence[Predicted]) -> pd.DataFrame:
    """The rows of served loads that state a latency, TTFT or TPOT."""
    rows = _frame(parts, "serving")
    return rows[rows["quantity"].isin(["TTFT", "TPOT"])]


def _gemms(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["dtype"].isin(_MULTIPLIED)]


def _own_tests(rows: pd.DataFrame, *, over_nodes: bool = False) -> pd.DataFrame:
    """Rows of one node, or of several, timed by the test of the library itself."""
    return rows[rows["library"].isin(_LIBRARIES) & ((rows["nodes"] > 1) == over_nodes) & (rows["host"] == "")]


def _timed_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["quantity"] == "time"]


def _join_classes(shipped: pd.DataFrame, left: pd.DataFrame) -> dict[str, dict[str, list[Class]]]:
    """By way to join: pairs as shipped, and with each system left out of the fit of software costs, no surer."""
    found = {}
    for way in shipped["join"].unique():
        seen, unseen = (_by_size(rows[rows["join"] == way], JOINED_BOUNDS, rows) for rows in (shipped, left))
        wider = [
            [min(one[0], other[0]), max(one[1], other[1]), *other[2:]] if one and other else other
            for one, other in zip(seen, unseen, strict=True)
        ]
        found[way] = {"seen": seen, "left_out": wider}
    return found


def _gains(shipped: Sequence[Predicted], left: Sequence[Predicted]) -> dict[str, dict[str, Class]]:
    """By way to join: speedups over the serial pair as shipped, and with each system left out, no surer."""
    pairs = fused_gains(shipped).assign(join=lambda rows: rows["method"])
    found: dict[str, dict[str, Class]] = {}
    each = [_ratios(pd.concat([gains(parts), pairs])) for parts in (shipped, left)]
    for way in sorted(set(each[0]["join"])):
        seen, unseen = (interval(some, rows) for rows in each if len(some := rows[rows["join"] == way]))
        found[way] = {"seen": seen, "left_out": [min(seen[0], unseen[0]), max(seen[1], unseen[1]), *unseen[2:]]}
    return found


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(ratio=(rows["measured"] / rows["predicted"]).astype(float), machine=rows["system"])


def _makespans(shipped: Sequence[Predicted]) -> dict[str, Class]:
    """The time that a GEMM and a collective take in all in a co-run.

    Rows are of two systems alone, whose bias says nothing of others: the interval is as wide below as above.
    """
    parts = [part for part in shipped if part.subject.kind in ("corun", "contention")]
    if not parts:
        return {}
    rows = pd.concat([part.frame().assign(system=part.subject.kind) for part in parts])  # each is of one system
    rows = _ratios(rows[rows["quantity"] == "makespan"])
    low, high, *counts = interval(rows, rows)
    most = max(1 / low, high)
    return {"makespan": [round(1 / most, 3), most, *counts]}


def interval(rows: pd.DataFrame, kind: pd.DataFrame) -> Class:
    """Return the 80 % interval of measured / predicted of a class, where each machine weighs alike.

    A class with few rows takes the wider of its interval and that of all rows of its `kind`, but for machines far off.
    """
    if rows.empty:
        return []
    low, high = ends(rows["ratio"], rows["machine"])
    if len(rows) < _THIN:
        usual = _usual(kind)
        least, most = ends(usual["ratio"], usual["machine"])
        low, high = min(low, least), max(high, most)
    low, high = min(low, 1 - _CLOSEST), max(high, 1 + _CLOSEST)
    return [round(low, 3), round(high, 3), len(rows), rows["machine"].nunique()]


def _usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of machines that are not far off as a whole, which say little of others."""
    off = np.log(rows["ratio"]).groupby(rows["machine"]).transform("median").abs()
    return rows[off < np.log(_FAR)] if (off < np.log(_FAR)).any() else rows


def unmeasured_interval(rows: pd.DataFrame, kind: pd.DataFrame) -> Class:
    """Return the same for a machine without rows, from rows whose machine the fits left out.

    Machines differ by more than the rows of one: of fewer than `_FEW_MACHINES` the interval holds that of each machine
    with `_THIN` rows or more.
    """
    if rows.empty:
        return []
    low, high, *counts = interval(rows, kind)
    if rows["machine"].nunique() >= _FEW_MACHINES:
        return [low, high, *counts]
    each = [ends(some["ratio"], some["machine"]) for _, some in rows.groupby("machine") if len(some) >= _THIN]
    return [round(min([low, *(one[0] for one in each)]), 3), round(max([high, *(one[1] for one in each)]), 3), *counts]


def ends(ratio: pd.Series[float], machine: pd.Series[str]) -> tuple[float, float]:
    """Return the conformal ends of the 80 % interval of ratios: n + 1 rows of which the next one is any.

    Every machine has the same weight, as the next row may be of any.
    """
    values, weights = ratio.to_numpy(), 1 / machine.map(machine.value_counts()).to_numpy()
    order = values.argsort()
    values, weights = values[order], weights[order] / weights.sum()
    count = len(values)
    tail = max(TAIL - (1 - TAIL) / count, 0.0) + 1e-9  # the next row is one more on the outer side
    low, high = (
        min(int(np.searchsorted(side.cumsum(), tail, side="right")), count - 1) for side in (weights, weights[::-1])
    )
    return float(values[low]), float(values[::-1][high])


Interval = Callable[[pd.DataFrame, pd.DataFrame], Class]
"""`interval` or `unmeasured_interval`."""


def _named(rows: pd.DataFrame, labels: Sequence[str]) -> Any:
    return rows[[*labels]].astype(str).agg("-".join, axis=1)


def _by(rows: pd.DataFrame, *labels: str, of: Interval = interval) -> dict[str, Class]:
    """The interval of rows by some labels, joined by hyphens."""
    if rows.empty:
        return {}
    return {name: of(some, rows) for name, some in rows.groupby(_named(rows, labels))}


def _beside(rows: pd.DataFrame) -> dict[str, Any]:
    """The largest error of GEMMs concurrent with a collective, with the cells and systems that were measured."""
    if rows.empty:
        return {}
    cells = len(rows[rows["quantity"] == rows["quantity"].iloc[0]])
    return {"largest": round(rows["off"].max(), 3), "cells": cells, "systems": sorted(set(rows["system"]))}


def _by_bytes(rows: pd.DataFrame, kind: pd.DataFrame, of: Interval = interval) -> list[Class]:
    return _by_size(rows, COLLECTIVE_BOUNDS, kind, "bytes", of)


def _by_size(
    rows: pd.DataFrame, bounds: Sequence[float], kind: pd.DataFrame, size: str = "measured", of: Interval = interval
) -> list[Class]:
    """The interval of each class of size: below the first bound, from there to the next, and so on."""
    places = np.searchsorted(bounds, rows[size].astype(float), side="right")
    return [of(rows[places == place], kind) for place in range(len(bounds) + 1)]
