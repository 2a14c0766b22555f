"""Ring collectives of n channels on m compute units as subjects, in closed form: one per GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from weft import hardware
from weft.errors import InputError
from weft.estimate import Harness, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.library.collectives import SHAPES, Protocol, canonical, library_vendor, protocol_of
from weft.library.interconnect import interconnect
from weft.library.profiles import Profile
from weft.validation.checks import Checked, Unfit, believable, collective_floor, predicted_by, unfit_rows
from weft.validation.machines import Machines
from weft.validation.problems import Problem
from weft.validation.rigs import Rig, rig_of
from weft.validation.subjects import Subject
from weft.validation.tables import FloatArray, IntArray, Rows, positions_by

MASKED, FREE = "fewer than channels", "one per channel"
"""The compute units of a row, against its channels."""
_WARPS = re.compile(r"\bwarps=(\d+)")


@dataclass(frozen=True, eq=False)
class Case:
    """Rows that differ only in bytes: their indices, machine, channels and compute units (None: all)."""

    positions: IntArray
    collective: str
    ranks: int
    protocol: Protocol
    channels: int
    compute_units: int | None
    system: System
    rig: Rig

    @property
    def labels(self) -> dict[str, object]:
        """Labels by which errors of its rows are grouped, besides the system's name."""
        units = self.compute_units
        return {
            "ranks": self.ranks,
            "collective": self.collective,
            "protocol": self.protocol.name.lower(),
            "compute_units": MASKED if units is not None and units < self.channels else FREE,
        }

    def seconds(self, rows: Rows, on: Profile) -> FloatArray:
        """Times with a library's profile [s]."""
        size: Any = rows["bytes"]
        harness = Harness(
            version=self.rig.version,
            profile=on,
            algorithm=f"ring-{self.protocol.name.lower()}",
            channels=self.channels,
            compute_units=self.compute_units,
        )
        op = Collective(self.collective, size, self.ranks, self.rig.dtype)
        return estimate(op, self.system, harness=harness).seconds

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times by the links of a GPU [s]."""
        return collective_floor(self.collective, self.ranks, rows["bytes"], gpu.link.bandwidth, in_switch=False)


def channel_subjects(checked: Checked, machines: Machines) -> list[Subject]:
    """The rows of a file of channels by GPU, without impossible ones and those with a forced number of threads."""
    checked.drop(unfit_rows(checked.rows, _check))
    checked.drop(_forced_threads(checked.rows))
    found = []
    for gpu, rows in _by_gpu(checked.rows):
        profile = machines.profile(gpu)
        true = believable("system", _cases(rows), rows, gpu, profile)
        checked.problems += true.problems
        if len(true.rows):
            found.append(_subject(true.rows, gpu, profile))
    return found


def _by_gpu(rows: Rows) -> Iterator[tuple[Gpu, Rows]]:
    gpus = {name: hardware.system(name).gpu for name in np.unique(rows["system"]).tolist()}
    for positions in positions_by(gpus[name].name for name in rows["system"].tolist()).values():
        yield gpus[rows["system"][positions[0]]], rows.take(positions)


def _subject(rows: Rows, gpu: Gpu, profile: Profile) -> Subject:
    names = _cases(rows)[0].labels
    labels = {name: np.empty(len(rows), dtype=np.object_) for name in names}
    for case in _cases(rows):
        for name, value in case.labels.items():
            labels[name][case.positions] = value
    return Subject(
        kind="channels",
        machine=gpu.name,
        rows=rows,
        measured=rows.seconds,
        labels={"system": rows["system"], **labels},
        predict=lambda some, values: predicted_by(_cases(some), some, profile.replace(values)),
        vendor=gpu.vendor,
    )


@lru_cache(maxsize=64)
def _cases(rows: Rows) -> tuple[Case, ...]:
    """The rows grouped by everything but their bytes."""
    return tuple(Case(positions, *key) for key, positions in positions_by(map(_key, rows)).items())


def _key(row: Mapping[str, Any]) -> tuple[str, int, Protocol, int, int | None, System, Rig]:
    rig = rig_of(row["system"], f"{row['library']} {row['notes']}", row["source"])
    system = hardware.system(rig.machine or row["system"], gpus=int(row["ranks"]))
    units = None if np.isnan(row["sms"]) else int(row["sms"])
    protocol = protocol_of(row["protocol"].lower())
    return canonical(row["collective"]), int(row["ranks"]), protocol, int(row["channels"]), units, system, rig


def _check(line: int, row: Mapping[str, Any]) -> None:
    try:
        protocol_of(row["protocol"].lower())
    except InputError as error:
        raise Unfit("protocol", row["protocol"], str(error)) from None
    try:
        _key(row)
    except InputError as error:
        raise Unfit("ranks", str(int(row["ranks"])), str(error)) from None


def _forced_threads(rows: Rows) -> Iterator[Problem]:
    """Which rows were measured with another number of threads per channel than the library's."""

    def forced(row: Mapping[str, Any]) -> bool:
        stated = _WARPS.search(row["notes"])
        fabric = interconnect(hardware.system(row["system"]))
        threads = SHAPES[library_vendor(fabric)][protocol_of(row["protocol"].lower())].threads
        return stated is not None and int(stated[1]) * fabric.gpu.compute.wavefront_size != threads

    which = np.array([forced(row) for row in rows], dtype=np.bool_)
    if which.any():
        rule = "the number of threads per channel is forced in these rows; Weft predicts the library's own"
        yield Problem(rows.file, rows.lines(which), "", "", rule)
