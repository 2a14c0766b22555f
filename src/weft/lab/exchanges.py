"""Measured exchanges of a mixture's tokens: dispatch and combine by library, operation, ranks and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.options import SHORT
from weft.estimate import Parameter
from weft.estimate.exchange import Exchange, ExchangedBytes, count_bytes, exchange
from weft.kernels.library.dispatchers import ABOUT, dispatcher, leaves, places, shipped_values, table_of
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.problems import Problem
from weft.lab.seen import YES
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


def _query(gpu: str, kernel: str, operation: str, ranks: float, nodes: float, dtype: str, notes: str) -> Query:
    """The library, operation, ranks, nodes, data type and limit of nodes of a row."""
    kind = {"bfloat16": "bf16", "": None}.get(dtype, dtype)
    return LIBRARIES[kernel], operation, int(ranks), int(nodes), kind, 4 if _GROUPS in notes else None


def _moved_bytes(
    rows: Columns, library: str, operation: str, ranks: int, nodes: int, *more: Any
) -> tuple[Exchange, ExchangedBytes]:
    """The exchange with an array for each dimension, and what it moves."""
    tokens, hidden, top_k, experts = (rows[name] for name in ("tokens_per_rank", "hidden", "topk", "experts"))
    what = Exchange(operation, tokens, hidden, top_k, experts, ranks, *more)
    return what, count_bytes(what, dispatcher(library), nodes)


def _kernel_seconds(
    rows: Columns, machine: RowMachine, library: str, operation: str, ranks: int, nodes: int, *more: Any
) -> Any:
    """The kernels' time [s]: the host's wait, which `weft predict exchange` adds, is not in the rows."""
    what, _ = _moved_bytes(rows, library, operation, ranks, nodes, *more)
    own = dispatcher(library).units(rows["experts"], machine.gpu.compute.compute_units)
    units = np.where(np.isfinite(rows["sms"]), rows["sms"], own)
    where = hardware.system(machine.gpu, gpus=ranks, nodes=nodes)
    found = exchange(what, where, library, compute_units=units, options=SHORT, harness=machine.harness())
    return found.seconds - found.parts.get("host", 0.0)


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
    for row in rows.to_dict("records"):
        query = _query(*(row[name] for name in _BY))
        _, amount = _moved_bytes({name: np.array([row[name]]) for name in row}, *query)
        if row["nodes"] == 1:
            size = row["tokens_per_rank"] * amount.copies * amount.wire
        else:
            size = amount.network_bytes / (1 - 1 / row["nodes"])
        found.append(float(size[0]) / row["reported_GBps"] / 1e3)
    return np.array(found)


_BY = ("gpu", "kernel", "op", "ranks", "nodes", "dtype", "notes")
EXCHANGES = RowKind(
    kind="exchange",
    by=_BY,
    query=_query,
    call=_kernel_seconds,
    floor=lambda rows, gpu, *query: _moved_bytes(rows, *query)[1].link_bytes / gpu.link.bandwidth,
    labels=lambda rows, machine, _: {
        "library": rows["kernel"].map(LIBRARIES),
        "op": rows["op"],
        "ranks": rows["ranks"],
        "nodes": rows["nodes"],
        "seen": YES,
    },
    checks=_complete,
    start=lambda machine, path: shipped_values()[path],
    table=lambda gpu, library, operation, ranks, nodes, *_: table_of(
        dispatcher(library), operation, nodes, gpu.architecture
    ),
    blamed="kernel",
)
"""Dispatch and combine by libraries between the ranks of a mixture's experts, by `weft predict exchange`."""


def of_exchange(table: str) -> list[Parameter]:
    """The parameters of a table of `dispatchers.toml` that rows decide, with their ranges; not those assumed."""
    return [
        Parameter(f"{table}.{key}", *leaf.range, _UNITS.get(key, ""), _NEEDS_ROWS, ABOUT[key])
        for key in places()[table]
        if (leaf := leaves()[f"{table}.{key}"]).provenance.kind == "calibrated"
    ]
