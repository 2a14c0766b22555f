"""Measured ring collectives of n channels on m compute units, by everything but their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import SHORT
from weft.estimate import Harness, estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.kernels.library.collectives import SHAPES, Protocol, canonical, library_vendor, protocol_of
from weft.kernels.library.interconnect import interconnect
from weft.kernels.library.profiles import Profile
from weft.lab.checks import Unfit, collective_floor, unfit_rows
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.problems import Problem
from weft.lab.rigs import Rig, rig_of
from weft.lab.tables import FloatArray, Measurements

MASKED, FREE = "fewer than channels", "one per channel"
"""The compute units of a row, against its channels."""
_WARPS = re.compile(r"\bwarps=(\d+)")


@dataclass(frozen=True)
class _Case:
    """Rows that differ only in bytes: their machine, channels and compute units (None: all)."""

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

    def seconds(self, rows: Columns, target: Profile) -> FloatArray:
        """Times with a library's profile [s]."""
        size: Any = rows["bytes"]
        harness = Harness(
            version=self.rig.version,
            profile=target,
            algorithm=f"ring-{self.protocol.name.lower()}",
            channels=self.channels,
            compute_units=self.compute_units,
        )
        op = Collective(self.collective, size, self.ranks, self.rig.dtype)
        return estimate(op, self.system, SHORT, harness).seconds

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times by the links of a GPU [s]."""
        return collective_floor(self.collective, self.ranks, rows["bytes"], gpu.link.bandwidth, in_switch=False)


def _case(row: Mapping[str, Any]) -> _Case:
    rig = rig_of(row["system"], f"{row['library']} {row['notes']}", row["source"])
    system = hardware.system(rig.machine or row["system"], gpus=int(row["ranks"]))
    units = None if np.isnan(row["sms"]) else int(row["sms"])
    protocol = protocol_of(row["protocol"].lower())
    return _Case(canonical(row["collective"]), int(row["ranks"]), protocol, int(row["channels"]), units, system, rig)


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    return map(_case, rows.to_dict("records"))


def _checks(checked: Measurements) -> Sequence[Iterable[Problem]]:
    """Rows of unknown protocols or impossible ranks, and those with another number of threads than the library's."""
    checked.drop(unfit_rows(checked, _check))
    rule = "the number of threads per channel is forced in these rows; Weft predicts the library's own"
    return [checked.problem([_forces_threads(row) for row in checked.rows.to_dict("records")], rule)]


def _check(line: int, row: Mapping[str, Any]) -> None:
    try:
        protocol_of(row["protocol"].lower())
    except InputError as error:
        raise Unfit("protocol", row["protocol"], str(error)) from None
    try:
        _case(row)
    except InputError as error:
        raise Unfit("ranks", str(int(row["ranks"])), str(error)) from None


def _forces_threads(row: Mapping[str, Any]) -> bool:
    stated = _WARPS.search(row["notes"])
    fabric = interconnect(hardware.system(row["system"]))
    threads = SHAPES[library_vendor(fabric)][protocol_of(row["protocol"].lower())].threads
    return stated is not None and int(stated[1]) * fabric.gpu.compute.wavefront_size != threads


CHANNELS = ClosedForm(
    kind="channels",
    cases=_cases,
    labels=lambda rows, gpu, profile: pd.DataFrame([case.labels for case in _cases(rows)], rows.index),
    checks=_checks,
    target=lambda gpu, machines: machines.profile(gpu),
    changed=lambda profile, values: profile.replace(values),
    column="system",
    blamed="system",
)
"""Rings on one GPU's systems with forced protocol, channels and compute units; nothing is fitted to these rows."""
