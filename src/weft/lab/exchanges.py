"""Measured exchanges of a mixture's tokens: dispatch and combine by library, operation, ranks and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.options import SHORT
from weft.estimate import Parameter
from weft.estimate.exchange import Exchange, moved, timed
from weft.estimate.target import Target
from weft.estimate.target import target as target_of
from weft.hardware import Gpu
from weft.kernels.library.dispatchers import ABOUT, Dispatcher, bounds, dispatcher, places, shipped, table_of
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.library_values import Changed, fitted
from weft.lab.problems import Problem
from weft.lab.seen import YES
from weft.lab.subjects import Predicted, Subject, predicted
from weft.lab.tables import FloatArray, Measurements

LIBRARIES: Mapping[str, str] = {
    "deepep_normal": "deepep",
    "deepep_v1_normal": "deepep",
    "deepep_ll": "deepep-ll",
    "deepep_v1_ll": "deepep-ll",
    "hybridep_torch_api": "hybridep",
    "uccl_ep_normal": "uccl",
    "uccl_ep_ll": "uccl-ll",
    "trtllm_NVLinkOneSided": "nvlink-one-sided",
    "trtllm_NVLinkTwoSided": "nvlink-two-sided",
}
"""The library that each kernel of the rows belongs to."""
OPERATIONS = ("dispatch", "combine", "combine_low_precision", "prepare")
_NEEDS_ROWS = 2
_UNITS = {"start": "s", "hop": "s", "token": "s", "copy": "s", "expert": "s", "row": "bytes/s", "rate": "bytes/s"}
_RANKS = 8
"""Ranks of rows that state none: one node of eight, as their source assumes."""
_EXPERTS = 256.0
"""Experts of rows that state none [assumed: those of DeepSeek-V3, which such rows exchange tokens of]."""
_GROUPS = "top-4 groups"


@dataclass(frozen=True)
class _Case:
    """Rows of one library, operation, number of ranks and nodes, data type, and limit of nodes."""

    library: str
    operation: str
    ranks: int
    nodes: int
    dtype: str | None
    groups: int | None

    def what(self, rows: Columns) -> tuple[Exchange, Dispatcher]:
        """The exchange with an array for each dimension, and the library, timed without its host."""
        sizes: Any = [rows[name] for name in ("tokens_per_rank", "hidden", "topk", "experts")]
        tokens, hidden, top_k, experts = sizes
        return (
            Exchange(self.operation, tokens, hidden, top_k, experts, self.ranks, self.dtype, self.groups),
            replace(dispatcher(self.library), host_sync=False),
        )

    def seconds(self, rows: Columns, target: Changed) -> FloatArray:
        """Times on a GPU [s]."""
        what, of = self.what(rows)
        units = np.where(np.isfinite(rows["sms"]), rows["sms"], of.units(rows["experts"], _units(target.machine)))
        return timed(what, target.machine, of, self.nodes, units, {**shipped(), **target.values}).seconds

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: bytes over the links inside a node, at their rate."""
        what, of = self.what(rows)
        return moved(what, of, self.nodes).link_bytes / gpu.link.bandwidth


def _units(machine: Target) -> int:
    return machine.gpu.compute.compute_units


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    names = ("kernel", "op", "ranks", "nodes", "dtype", "notes")
    for kernel, operation, ranks, nodes, dtype, notes in zip(*(rows[name] for name in names), strict=True):
        kind = {"bfloat16": "bf16", "": None}.get(dtype, dtype)
        yield _Case(LIBRARIES[kernel], operation, int(ranks), int(nodes), kind, 4 if _GROUPS in notes else None)


def _complete(checked: Measurements) -> Sequence[Iterator[Problem]]:
    """Fill in what rows leave out, times of rows that state a bandwidth included; problems of rows that lack more."""
    rows = checked.rows
    known = rows["kernel"].isin(LIBRARIES) & rows["op"].isin(OPERATIONS)
    unstated = known & rows[["tokens_per_rank", "hidden", "topk"]].isna().any(axis=1)
    untimed = known & ~unstated & rows["time_s"].isna() & rows["reported_GBps"].isna()
    found = [
        [*checked.by_value(~known, "kernel", "exchanges of this library or operation are not compared here")],
        [*checked.problem(unstated, "an exchange needs its tokens, hidden size and top-k", "kernel", "")],
        [*checked.problem(untimed, "an exchange needs a time or a bandwidth", "time_s", "")],
    ]
    level = rows["notes"].str.contains("NVLink|single", regex=True) | (rows["gpu"].str.startswith(("gb200", "gb300")))
    ranks = rows["ranks"].fillna(_RANKS)
    nodes = rows["nodes"].where(rows["nodes"].notna(), np.where(level, 1.0, np.ceil(ranks / _RANKS)))
    nodes = nodes.where(~rows["kernel"].str.startswith("trtllm") & ~level, 1.0)
    experts = rows["experts"].fillna(_EXPERTS)
    rows = rows.assign(ranks=ranks, nodes=nodes, experts=experts, time_us=rows["time_s"] * 1e6)
    rows = rows[known & ~unstated & ~untimed]
    by_rate = rows.index[rows["time_us"].isna()]
    if len(by_rate):
        rows.loc[by_rate, "time_us"] = _by_rate(rows.loc[by_rate])
    checked.rows = rows
    checked.problems += [one for each in found for one in each]
    return ()


def _by_rate(rows: pd.DataFrame) -> FloatArray:
    """The times [us] of rows that state a bandwidth: of copies in a node, or of rows to nodes, the own one included."""
    found = []
    for case, row in zip(_cases(rows), rows.to_dict("records"), strict=True):
        what, of = case.what({name: np.array([row[name]]) for name in ("tokens_per_rank", "hidden", "topk", "experts")})
        amount = moved(what, of, case.nodes)
        if case.nodes == 1:
            size = row["tokens_per_rank"] * amount.copies * amount.wire
        else:
            size = amount.network_bytes / (1 - 1 / case.nodes)
        found.append(float(size[0]) / row["reported_GBps"] / 1e3)
    return np.array(found)


def _parameter(path: str) -> Parameter:
    key = path.rpartition(".")[2]
    return Parameter(path, *bounds()[path], _UNITS.get(key, ""), _NEEDS_ROWS, ABOUT[key])


def _machine(gpu: Gpu) -> Target:
    return target_of(hardware.system(f"16x{gpu.name}"), SHORT)


def _labels(rows: pd.DataFrame, gpu: Gpu, target: Any) -> dict[str, Any]:
    return {
        "library": rows["kernel"].map(LIBRARIES),
        "op": rows["op"],
        "ranks": rows["ranks"],
        "nodes": rows["nodes"],
        "seen": YES,
    }


EXCHANGES = ClosedForm(
    kind="exchange",
    cases=_cases,
    labels=_labels,
    checks=_complete,
    target=lambda gpu, machines: Changed(_machine(gpu), {}),
    changed=lambda target, values: replace(target, values=values),
    start=lambda target, path: shipped()[path],
    blamed="kernel",
)
"""Dispatch and combine by libraries between the ranks of a mixture's experts."""


def tables_of(subject: Subject) -> list[str]:
    """The table of values that each row of a subject depends on."""
    architecture = hardware.gpu(subject.machine).architecture
    return [
        table_of(dispatcher(case.library), case.operation, case.nodes, architecture) for case in _cases(subject.rows)
    ]


def ranks_left_out(subjects: Sequence[Subject]) -> list[Predicted]:
    """Predict the rows of each number of ranks with values fitted to those of all other numbers, table by table.

    A table whose rows all have one number of ranks is predicted for each GPU from those of the others; rows that
    nothing else is like are left out.
    """
    done = []
    owned = [(subject, np.array(tables_of(subject), dtype=np.str_)) for subject in subjects]
    for table in sorted({name for _, names in owned for name in names.tolist()}):
        rows = [subject.take(names == table) for subject, names in owned if table in names]
        ranks = sorted({float(one) for subject in rows for one in subject.labels["ranks"]})
        if len(ranks) > 1:
            parts = [[(subject.labels["ranks"] == one).to_numpy() for subject in rows] for one in ranks]
        elif len(rows) > 1:
            parts = [[np.full(len(subject), subject is one) for subject in rows] for one in rows]
        else:
            continue
        for masks in parts:
            others = [subject.take(~mask) for subject, mask in zip(rows, masks, strict=True)]
            values = fitted(others, [_parameter(f"{table}.{key}") for key in places()[table]])
            done += [
                predicted(subject.take(mask), values) for subject, mask in zip(rows, masks, strict=True) if any(mask)
            ]
    return done
