"""What NCCL states of its own cost model (NCCL_DEBUG_SUBSYS=TUNING), and what it chooses by it, beside Weft's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.files import parse_json, to_json
from weft.kernels.library.collectives import Algorithm, CollectiveCall, Way, canonical, protocol_of
from weft.kernels.library.cost_model import Candidate, candidates
from weft.kernels.library.interconnect import interconnect
from weft.kernels.library.profiles import numbers
from weft.lab.checks import Unfit, unfit_rows
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.problems import Problem
from weft.lab.seen import YES
from weft.lab.tables import FloatArray, Measurements

_SYSTEM, _VERSION = "dgx-h100", "2.27.5"
"""The node and release of rows that state none."""
LATENCY, TRANSFER, CHOICE = "latency", "transfer of 1 GB", "choice"
_BYTES = 1e9
_SIZES = 2.0 ** np.arange(10, 35)
"""Sizes at which choices are compared: 1 KiB to 16 GiB [bytes]."""


def _call(name: str, nodes: int, local: int, text: str, version: str) -> CollectiveCall:
    try:
        system = hardware.system(text or _SYSTEM)
        if system.node is None or local > system.node.gpus_per_node:
            raise InputError(f"{text or _SYSTEM} has no node of {local} GPUs")
        fabric = interconnect(system).among(local)
        return CollectiveCall(canonical(name), nodes * local, fabric, nodes, release=numbers(version or _VERSION))
    except InputError as error:
        raise Unfit("gpus_per_node", str(local), str(error)) from None


@cache
def _known(call: CollectiveCall) -> Mapping[Way, Candidate]:
    return {(one.algorithm, one.protocol): one for one in candidates(call)}


def _way(algorithm: str, protocol: str) -> Way:
    try:
        return Algorithm[algorithm.upper()], protocol_of(protocol)
    except (KeyError, InputError):
        raise Unfit(
            "algorithm", f"{algorithm}, {protocol}", "NCCL's model has no such algorithm and protocol"
        ) from None


def _query(
    name: str, algorithm: str, protocol: str, nodes: float, local: float, system: str, version: str, what: str
) -> Query:
    call = _call(name, int(nodes), int(local), system, version)
    if what == CHOICE:
        return call, None, what
    way = _way(algorithm, protocol)
    if way not in _known(call):
        raise Unfit("algorithm", algorithm, f"NCCL's model compares no such way for {call.name} here")
    return call, way, what


def _figures(rows: Columns, machine: RowMachine, call: CollectiveCall, way: Way | None, what: str) -> FloatArray:
    """Return Weft's latency or time of 1 GB [s], or the share of sizes at which it chooses as by the stated model."""
    known = _known(call)
    if way is not None:
        value = known[way].latency * 1e-6 if what == LATENCY else _BYTES / known[way].rate
        return np.full(len(rows["measured"]), value)
    return np.array([_share_chosen(known, parse_json(stated)) for stated in rows["stated"]])


def _share_chosen(known: Mapping[Way, Candidate], stated: Sequence[tuple[str, str, float, float]]) -> float:
    ours = [known[_way(algorithm, protocol)] for algorithm, protocol, *_ in stated]
    theirs = [
        one._replace(latency=latency, rate=rate * 1e9) for one, (_, _, latency, rate) in zip(ours, stated, strict=True)
    ]
    chosen = [np.argmin([one.seconds(_SIZES) for one in each], axis=0) for each in (theirs, ours)]
    return float(np.mean(chosen[0] == chosen[1]))


def _stated(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each row's latency and time of 1 GB at its rate, and a row for the choice between all ways of a collective."""
    rows = checked.rows.assign(collective=checked.rows["collective"].str.split("/").str[0])
    rows = rows.assign(stated="")
    latency = rows.assign(what=LATENCY, measured=rows["latency_us"] * 1e-6)
    transfer = rows.assign(what=TRANSFER, measured=_BYTES / (rows["bandwidth_gb_s"] * 1e9))
    choices = []
    for _, own in rows.groupby(["collective", "nodes", "gpus_per_node"], sort=False):
        stated = own[["algorithm", "protocol", "latency_us", "bandwidth_gb_s"]].to_numpy().tolist()
        choices.append(own.iloc[:1].assign(what=CHOICE, measured=1.0, stated=to_json(stated)))
    yield "tuning", pd.concat([latency, transfer, *choices])


def _checks(checked: Measurements) -> Sequence[Iterable[Problem]]:
    """Rows of ways or systems that NCCL's model does not have."""

    def check(line: int, row: Mapping[str, Any]) -> None:
        name = row["collective"].split("/")[0]
        _query(
            name, row["algorithm"], row["protocol"], row["nodes"], row["gpus_per_node"], row["system"], row["version"],
            TRANSFER,
        )  # fmt: skip

    return [unfit_rows(checked, check)]


TUNING = RowKind(
    kind="tuning",
    by=("collective", "algorithm", "protocol", "nodes", "gpus_per_node", "system", "version", "what"),
    query=_query,
    call=_figures,
    checks=_checks,
    expand=_stated,
    labels=lambda rows, machine, _: {
        "collective": rows["collective"],
        "quantity": rows["what"],
        "algorithm": rows["algorithm"].where(rows["what"] != CHOICE, "all"),
        "nodes": rows["nodes"].astype("int64"),
        "seen": YES,
    },
    column="",
    blamed="collective",
)
"""NCCL's own tuning: latency and rate (as the time of 1 GB) of each way, and the share of sizes chosen alike."""
