"""Measured collectives by everything but their bytes: what a library chooses, rings of n channels on m compute units,
and some in the engine. The first two are `weft.estimate` (`weft predict collective`), the last `weft.simulate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT, RunOptions
from weft.estimate import BenchmarkProtocol, collective_parameters, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.kernels.library.collectives import SHAPES, Protocol, canonical, library_vendor, protocol_of
from weft.kernels.library.interconnect import interconnect
from weft.kernels.library.profiles import relative_latency
from weft.lab.checks import Unfit, collective_floor, unfit_rows
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.problems import Problem
from weft.lab.rigs import Rig, rig_of
from weft.lab.seen import seen_collectives
from weft.lab.subjects import BoolArray
from weft.lab.tables import FloatArray, Measurements

LARGE, MEDIUM, ALL = ">= 16 MiB", ">= 1 MiB", "all sizes"
FROM_ROWS, FROM_MACHINE = "read from the rows", "the machine's"
"""The source of the network rate used to predict a row."""
_MiB = 2.0**20

SIMULATED = {
    "a100-sxm-80gb": {"reduce_scatter": 192e6},
    "h100-sxm": {"reduce_scatter": 192e6, "all_reduce": 272e6},
    "mi300x": {"all_reduce": 272e6},
}
"""Collectives that the engine is compared on, by GPU, with the largest size [bytes]."""
SMALLEST_SIMULATED = 6e6
"""Smallest of these sizes [bytes]: the kernels carry such data slice by slice."""
SIMULATED_REQUEST = 1024
"""Request size for an isolated collective [bytes]: as exact as finer ones, since its few workgroups leave channels
idle."""


def _query(system: str, ranks: float, collective: str, notes: str, source: str) -> Query:
    return canonical(collective), int(ranks), _system(system, ranks), rig_of(system, notes, source)


@lru_cache(maxsize=1024)
def _system(text: str, ranks: float) -> System:
    """The system of that name with as many GPUs as there are ranks."""
    return hardware.system(text, gpus=int(ranks))


def _collective(rows: Columns, machine: RowMachine, name: str, ranks: int, system: System, rig: Rig) -> FloatArray:
    size: Any = rows["bytes"]
    harness = rig.harness(ranks, system.nodes, machine.profile)
    return estimate(Collective(name, size, ranks, rig.dtype), system, SHORT, harness).seconds


def _floor(rows: Columns, gpu: Gpu, name: str, ranks: int, system: System, rig: Rig) -> FloatArray:
    link, node = max(gpu.link.bandwidth, gpu.host.bandwidth), system.node
    return collective_floor(name, ranks, rows["bytes"], link, node is not None and node.switch_reduces)


def _labels(rows: pd.DataFrame, machine: RowMachine, queries: Sequence[Any]) -> dict[str, Any]:
    each = [
        {
            "dtype": rig.dtype,
            "ranks": ranks,
            "collective": name,
            "library": rig.library,
            "host": rig.host,
            "nodes": system.nodes,
            "network": FROM_ROWS if rig.network_from_rows and system.nodes > 1 else FROM_MACHINE,
        }
        for name, ranks, system, rig in queries
    ]
    return {**pd.DataFrame(each, rows.index), "seen": _seen_words(machine)}


def _seen_words(machine: RowMachine) -> str:
    assert machine.profile is not None
    return seen_collectives(machine.gpu, machine.profile)


def _ranges(rows: pd.DataFrame) -> dict[str, BoolArray]:
    size = rows["bytes"].to_numpy()
    return {LARGE: size >= 16 * _MiB, MEDIUM: size >= _MiB, ALL: np.ones(len(rows), dtype=np.bool_)}


def _more(machine: RowMachine, rows: pd.DataFrame, labels: pd.DataFrame) -> dict[str, Any]:
    """Rows that set the rate of their network must not calibrate the library as well."""
    profile = machine.profile
    assert profile is not None
    relative = {one.path: relative_latency(one.path, profile.architecture) for one in collective_parameters(profile)}
    return {"teaches": (labels["network"] != FROM_ROWS).to_numpy(), "relative": relative}


def _checks(checked: Measurements) -> Sequence[Iterable[Problem]]:
    """Rows of impossible ranks, of a forced protocol or number of channels, and of libraries without a model."""
    rows = checked.rows
    forced = (rows["protocol"] != "") | (rows["channels"] != "")
    rule = "protocol and channels are forced in these rows; Weft predicts what the library chooses"
    rigs = list(map(rig_of, rows["system"], rows["notes"], rows["source"]))
    library = pd.Series([rig.library for rig in rigs], rows.index, dtype=object)
    modelled = np.array([rig.modelled for rig in rigs], dtype=np.bool_)
    without = (
        checked.problem(~modelled & (library == name), "Weft has no model of this library", "library", name)
        for name in sorted(set(library[~modelled]))
    )
    return [unfit_rows(checked, _check_ranks), checked.problem(forced, rule), *without]


def _check_ranks(line: int, row: Mapping[str, Any]) -> None:
    try:
        _system(row["system"], row["ranks"])
        rule = "a collective needs at least two ranks" if row["ranks"] < 2 else ""
    except InputError as error:
        rule = str(error)
    if rule:
        raise Unfit("ranks", str(int(row["ranks"])), rule)


def _simulated_rows(checked: Measurements) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows within one node that are also simulated, request by request.

    All-reduces are those that the library reduces in the switch or pushes to all peers: of floating-point data on a
    whole node.
    """
    rows, wanted = checked.rows, []
    for text, ranks, collective, notes, source, size in zip(*(rows[name] for name in _BY), rows["bytes"], strict=True):
        name, _, system, rig = _query(text, ranks, collective, notes, source)
        largest = SIMULATED.get(system.gpu.name, {}).get(str(name), 0.0)
        whole = name != "all_reduce" or (ranks == 8 and rig.dtype != "int8")
        own = rig.library in ("nccl", "rccl") and system.nodes == 1 and not rig.host
        wanted.append(SMALLEST_SIMULATED <= size <= largest and whole and own)
    yield "ring", rows[np.array(wanted, dtype=np.bool_)]


def _run(rows: Columns, machine: RowMachine, name: str, ranks: int, system: System, rig: Rig) -> list[float]:
    from weft.simulate import alone
    from weft.simulate.single import simulate

    dtype = "int8" if rig.dtype == "int8" else "bf16"
    options = RunOptions(clock="short", request_bytes=min(SIMULATED_REQUEST, system.gpu.memory.interleave))
    graphs = (alone(Collective(name, int(size), ranks, dtype)) for size in rows["bytes"].tolist())
    return [simulate(graph, system, "streams", options).makespan for graph in graphs]


_BY = ("system", "ranks", "collective", "notes", "source")
RINGS = RowKind(
    kind="ring",
    by=_BY,
    query=_query,
    call=_run,
    expand=_simulated_rows,
    labels=lambda rows, machine, _: {
        **rows[["ranks", "collective"]].astype({"ranks": np.int64}),
        "seen": _seen_words(machine),
    },
    column="system",
)
"""Collectives of a GPU within one node, simulated request by request."""
COLLECTIVES = RowKind(
    kind="collective",
    by=_BY,
    query=_query,
    call=_collective,
    floor=_floor,
    labels=_labels,
    ranges=_ranges,
    checks=_checks,
    fits="profile",
    parameters=lambda machine: collective_parameters(machine.profile) if machine.profile else (),
    start=lambda machine, path: float(machine.profile.value(path)) if machine.profile else 0.0,
    column="system",
    blamed="collective",
    more=_more,
    also=(RINGS,),
)
"""Collectives on one GPU's systems, fitted by the parameters of the library's profile."""

MASKED, FREE = "fewer than channels", "one per channel"
"""The compute units of a row, against its channels."""
_WARPS = re.compile(r"\bwarps=(\d+)")


def _ring_query(
    text: str, ranks: float, name: str, named: str, channels: float, sms: float, library: str, notes: str, source: str
) -> Query:
    try:
        protocol = protocol_of(named.lower())
    except InputError as error:
        raise Unfit("protocol", named, str(error)) from None
    try:
        rig = rig_of(text, f"{library} {notes}", source)
        system = hardware.system(rig.machine or text, gpus=int(ranks))
        units = None if np.isnan(sms) else int(sms)
        return canonical(name), int(ranks), protocol, int(channels), units, system, rig
    except InputError as error:
        raise Unfit("ranks", str(int(ranks)), str(error)) from None


def _ring(
    rows: Columns, machine: RowMachine, name: str, ranks: int, protocol: Protocol, channels: int, units: int | None,
    system: System, rig: Rig,
) -> FloatArray:  # fmt: skip
    size: Any = rows["bytes"]
    harness = BenchmarkProtocol(
        version=rig.version, profile=machine.profile, algorithm=f"ring-{protocol.name.lower()}", channels=channels,
        compute_units=units,
    )  # fmt: skip
    return estimate(Collective(name, size, ranks, rig.dtype), system, SHORT, harness).seconds


def _ring_checks(checked: Measurements) -> Sequence[Iterable[Problem]]:
    """Rows of unknown protocols or impossible ranks, and those with another number of threads than the library's."""
    checked.drop(unfit_rows(checked, lambda line, row: _ring_query(*(row[name] for name in _RING_BY))))
    rule = "the number of threads per channel is forced in these rows; Weft predicts the library's own"
    return [checked.problem([_forces_threads(row) for row in checked.rows.to_dict("records")], rule)]


def _forces_threads(row: Mapping[str, Any]) -> bool:
    stated = _WARPS.search(row["notes"])
    fabric = interconnect(hardware.system(row["system"]))
    threads = SHAPES[library_vendor(fabric)][protocol_of(row["protocol"].lower())].threads
    return stated is not None and int(stated[1]) * fabric.gpu.compute.wavefront_size != threads


_RING_BY = ("system", "ranks", "collective", "protocol", "channels", "sms", "library", "notes", "source")
CHANNELS = RowKind(
    kind="channels",
    by=_RING_BY,
    query=_ring_query,
    call=_ring,
    floor=lambda rows, gpu, name, ranks, *_: collective_floor(
        name, ranks, rows["bytes"], gpu.link.bandwidth, in_switch=False
    ),
    labels=lambda rows, machine, queries: pd.DataFrame(
        [
            {
                "ranks": ranks,
                "collective": name,
                "protocol": protocol.name.lower(),
                "compute_units": MASKED if units is not None and units < channels else FREE,
            }
            for name, ranks, protocol, channels, units, *_ in queries
        ],
        rows.index,
    ),
    checks=_ring_checks,
    fits="profile",
    column="system",
    blamed="system",
)
"""Rings on one GPU's systems with forced protocol, channels and compute units; nothing is fitted to these rows."""
