"""Measured collectives by everything but their bytes, with a library's profile; some also in the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT, RunOptions
from weft.estimate import collective_parameters, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.kernels.library.collectives import canonical
from weft.kernels.library.profiles import Profile, relative_latency
from weft.lab.checks import Unfit, collective_floor, unfit_rows
from weft.lab.closed_forms import ClosedForm, Columns, parts
from weft.lab.problems import Problem
from weft.lab.rigs import Rig, rig_of
from weft.lab.seen import seen_collectives
from weft.lab.subjects import BoolArray, Subject
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


@dataclass(frozen=True)
class _Case:
    """Rows that differ only in bytes: their machine and conditions."""

    collective: str
    ranks: int
    system: System
    rig: Rig

    def seconds(self, rows: Columns, target: Profile) -> FloatArray:
        """Times with a library's profile [s]."""
        size: Any = rows["bytes"]
        op = Collective(self.collective, size, self.ranks, self.rig.dtype)
        harness = self.rig.harness(self.ranks, self.system.nodes, target)
        return estimate(op, self.system, SHORT, harness).seconds

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times by the links of a GPU [s]."""
        link, node = max(gpu.link.bandwidth, gpu.host.bandwidth), self.system.node
        return collective_floor(
            self.collective, self.ranks, rows["bytes"], link, node is not None and node.switch_reduces
        )

    @property
    def labels(self) -> dict[str, object]:
        """Labels by which errors of its rows are grouped, besides the system's name."""
        rig, nodes = self.rig, self.system.nodes
        network = FROM_ROWS if rig.network_from_rows and nodes > 1 else FROM_MACHINE
        return {
            "dtype": rig.dtype,
            "ranks": self.ranks,
            "collective": self.collective,
            "library": rig.library,
            "host": rig.host,
            "nodes": nodes,
            "network": network,
        }


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    for row in rows.itertuples():
        yield _Case(canonical(row.collective), int(row.ranks), _system(row.system, row.ranks), _rig(row))


@lru_cache(maxsize=1024)
def _system(text: str, ranks: float) -> System:
    """The system of that name with as many GPUs as there are ranks."""
    return hardware.system(text, gpus=int(ranks))


def _rig(row: Any) -> Rig:
    return rig_of(row.system, row.notes, row.source)


def _labels(rows: pd.DataFrame, gpu: Gpu, profile: Profile) -> dict[str, Any]:
    each = pd.DataFrame([case.labels for case in _cases(rows)], rows.index)
    return {**each, "seen": seen_collectives(gpu, profile)}


def _ranges(rows: pd.DataFrame) -> dict[str, BoolArray]:
    size = rows["bytes"].to_numpy()
    return {LARGE: size >= 16 * _MiB, MEDIUM: size >= _MiB, ALL: np.ones(len(rows), dtype=np.bool_)}


def _more(profile: Profile, labels: pd.DataFrame) -> dict[str, Any]:
    """Rows that set the rate of their network must not calibrate the library as well."""
    relative = {one.path: relative_latency(one.path, profile.architecture) for one in collective_parameters(profile)}
    return {"teaches": (labels["network"] != FROM_ROWS).to_numpy(), "relative": relative}


def _checks(checked: Measurements) -> Sequence[Iterable[Problem]]:
    """Rows of impossible ranks, of a forced protocol or number of channels, and of libraries without a model."""
    rows = checked.rows
    forced = (rows["protocol"] != "") | (rows["channels"] != "")
    rule = "protocol and channels are forced in these rows; Weft predicts what the library chooses"
    rigs = [_rig(row) for row in rows.itertuples()]
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


def _in_engine(collectives: Subject) -> list[Subject]:
    """The collectives of a GPU within one node that are also simulated, request by request.

    All-reduces are those that the library reduces in the switch or pushes to all peers: of floating-point data on a
    whole node.
    """
    labels, size = collectives.labels, collectives.rows["bytes"]
    wanted = pd.Series(False, labels.index)
    for name, largest in SIMULATED.get(collectives.machine, {}).items():
        wanted |= (labels["collective"] == name) & (size >= SMALLEST_SIMULATED) & (size <= largest)
    wanted &= (labels["collective"] != "all_reduce") | ((labels["ranks"] == 8) & (labels["dtype"] != "int8"))
    wanted &= labels["library"].isin(("nccl", "rccl")) & (labels["nodes"] == 1) & (labels["host"] == "")
    if not wanted.any():
        return []
    some = collectives.take(wanted)
    labels = some.rows[["system", "ranks", "collective"]].astype({"ranks": np.int64}).assign(seen=some.labels["seen"])
    return [
        Subject(
            kind="ring",
            machine=some.machine,
            file=some.file,
            rows=some.rows,
            measured=some.measured,
            labels=labels,
            predict=lambda given, values: _simulated(given),
            slow=True,
        )
    ]


def _simulated(rows: pd.DataFrame) -> FloatArray:
    """Simulated seconds of each row."""
    seconds = np.empty(len(rows))
    for case, at, columns in parts(rows, _cases):
        seconds[at] = [_run(case, int(size)) for size in columns["bytes"].tolist()]
    return seconds


def _run(case: _Case, size: int) -> float:
    from weft.simulate import alone
    from weft.simulate.single import simulate

    dtype = "int8" if case.rig.dtype == "int8" else "bf16"
    grain = min(SIMULATED_REQUEST, case.system.gpu.memory.interleave)
    graph = alone(Collective(case.collective, size, case.ranks, dtype))
    return simulate(graph, case.system, "streams", RunOptions(clock="short", request_bytes=grain)).makespan


COLLECTIVES = ClosedForm(
    kind="collective",
    cases=_cases,
    labels=_labels,
    ranges=_ranges,
    checks=_checks,
    target=lambda gpu, machines: machines.profile(gpu),
    changed=lambda profile, values: profile.replace(values),
    parameters=collective_parameters,
    column="system",
    blamed="collective",
    more=_more,
    also=_in_engine,
)
"""Collectives on one GPU's systems, fitted by the parameters of the library's profile."""
