"""Measured collectives as subjects: one per GPU, with its library profile; some also in the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.errors import InputError
from weft.estimate import collective_parameters, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.library.collectives import canonical
from weft.library.profiles import Profile, relative_latency
from weft.options import RunOptions
from weft.validation.checks import Checked, Unfit, believable, collective_floor, predicted_by, unfit_rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.rigs import Rig, rig_of
from weft.validation.seen import seen_collectives
from weft.validation.subjects import BoolArray, Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

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


@dataclass(frozen=True, eq=False)
class Case:
    """Rows that differ only in bytes: their indices, machine and conditions."""

    positions: IntArray
    collective: str
    ranks: int
    system: System
    rig: Rig

    def seconds(self, rows: Rows, on: Profile) -> FloatArray:
        """Times with a library's profile [s]."""
        size: Any = rows["bytes"]
        op = Collective(self.collective, size, self.ranks, self.rig.dtype)
        harness = self.rig.harness(self.ranks, self.system.nodes, on)
        return estimate(op, self.system, harness=harness).seconds

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
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


def collective_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a collectives file by GPU, without impossible ones.

    Rows of libraries without a model are reported and left out. Some collectives within one node are also simulated.
    """
    rows, closed, simulated = checked.rows, [], []
    checked.drop(unfit_rows(rows, _check_ranks), _forced(rows), _without_model(rows))
    cases = cases_of(checked.rows)
    names = _by_case(checked.rows, [case.system.gpu.name for case in cases])
    for gpu in {case.system.gpu.name: case.system.gpu for case in cases}.values():
        profile = machines.profile(gpu)
        own = checked.rows.take(names == gpu.name)
        true = believable("collective", cases_of(own), own, gpu, profile)
        checked.problems += true.problems
        if len(true.rows):
            subject = _subject(true.rows, gpu, profile)
            closed.append(subject)
            simulated += _in_engine(subject)
    return [*closed, *simulated]


@lru_cache(maxsize=256)
def cases_of(rows: Rows) -> tuple[Case, ...]:
    """The rows grouped by everything but their bytes."""
    keys = (
        (canonical(row["collective"]), int(row["ranks"]), _system(row["system"], row["ranks"]), _rig(row))
        for row in rows
    )
    return tuple(Case(positions, *key) for key, positions in positions_by(keys).items())


def _by_case(rows: Rows, values: list[Any]) -> npt.NDArray[np.object_]:
    """Expand one value per case to one value per row."""
    column = np.empty(len(rows), dtype=np.object_)
    for case, value in zip(cases_of(rows), values, strict=True):
        column[case.positions] = value
    return column


@lru_cache(maxsize=1024)
def _system(text: str, ranks: float) -> System:
    """The system of that name with as many GPUs as there are ranks."""
    return hardware.system(text, gpus=int(ranks))


def _rig(row: Mapping[str, Any]) -> Rig:
    return rig_of(row["system"], row["notes"], row["source"])


def _subject(rows: Rows, gpu: Gpu, profile: Profile) -> Subject:
    size, parameters = rows["bytes"], collective_parameters(profile)
    each = [case.labels for case in cases_of(rows)]
    labels = {name: _by_case(rows, [one[name] for one in each]) for name in each[0]}
    return Subject(
        kind="collective",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels={"system": rows["system"], **labels, "seen": seen_collectives(gpu, profile, len(rows))},
        ranges={LARGE: size >= 16 * _MiB, MEDIUM: size >= _MiB, ALL: np.ones(len(rows), dtype=np.bool_)},
        predict=lambda some, values: predicted_by(cases_of(some), some, profile.replace(values)),
        parameters=parameters,
        start={parameter.path: profile.value(parameter.path) for parameter in parameters},
        vendor=gpu.vendor,
        # Rows that set the rate of their network must not calibrate the library as well.
        teaches=labels["network"] != FROM_ROWS,
        relative={one.path: relative_latency(one.path, profile.architecture) for one in parameters},
    )


def _check_ranks(line: int, row: Mapping[str, Any]) -> None:
    try:
        _system(row["system"], row["ranks"])
        rule = "a collective needs at least two ranks" if row["ranks"] < 2 else ""
    except InputError as error:
        rule = str(error)
    if rule:
        raise Unfit("ranks", str(int(row["ranks"])), rule)


def _forced(rows: Rows) -> Iterator[Problem]:
    """Which rows were measured with a forced protocol or number of channels."""
    forced = (rows["protocol"] != "") | (rows["channels"] != "")
    if forced.any():
        rule = "protocol and channels are forced in these rows; Weft predicts what the library chooses"
        yield Problem(rows.file, rows.lines(forced), "", "", rule)


def _without_model(rows: Rows) -> Iterator[Problem]:
    """Rows of libraries without a model; one problem per library."""
    rigs = map(_rig, rows)
    found = positions_by("" if rig.modelled else rig.library for rig in rigs)
    for library in sorted(found.keys() - {""}):
        yield Problem(rows.file, rows.lines(found[library]), "library", library, "Weft has no model of this library")


def _in_engine(collectives: Subject) -> list[Subject]:
    """The collectives of a GPU within one node that are also simulated, request by request.

    All-reduces are those that the library reduces in the switch or pushes to all peers: of floating-point data on a
    whole node.
    """
    labels, size = collectives.labels, collectives.rows["bytes"]
    wanted: BoolArray = np.zeros(len(size), dtype=np.bool_)
    for name, largest in SIMULATED.get(collectives.machine, {}).items():
        wanted |= (labels["collective"] == name) & (size >= SMALLEST_SIMULATED) & (size <= largest)
    wanted &= (labels["collective"] != "all_reduce") | ((labels["ranks"] == 8) & (labels["dtype"] != "int8"))
    wanted &= (labels["library"] == "nccl") | (labels["library"] == "rccl")
    wanted &= (labels["nodes"] == 1) & (labels["host"] == "")
    if not wanted.any():
        return []
    rows = collectives.rows.take(wanted)
    return [
        Subject(
            kind="ring",
            machine=collectives.machine,
            rows=rows,
            measured=rows.seconds,
            labels={
                "system": rows["system"],
                "ranks": rows["ranks"].astype(np.int64),
                "collective": rows["collective"],
                "seen": labels["seen"][wanted],
            },
            predict=lambda given, values: _simulated(given),
            slow=True,
        )
    ]


def _simulated(rows: Rows) -> FloatArray:
    """Simulated seconds of each row."""
    seconds = np.empty(len(rows))
    for case in cases_of(rows):
        seconds[case.positions] = [_run(case, int(size)) for size in rows["bytes"][case.positions].tolist()]
    return seconds


def _run(case: Case, size: int) -> float:
    from weft.run import alone, simulate

    dtype = "int8" if case.rig.dtype == "int8" else "bf16"
    grain = min(SIMULATED_REQUEST, case.system.gpu.memory.interleave)
    graph = alone(Collective(case.collective, size, case.ranks, dtype))
    return simulate(graph, case.system, "streams", RunOptions(clock="short", request_bytes=grain)).makespan
