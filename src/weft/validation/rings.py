"""Ring reduce-scatters that the engine simulates, beside the library's measured ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.graph import Collective
from weft.library.collectives import canonical
from weft.options import RunOptions
from weft.validation.collectives import Case, cases_of
from weft.validation.data import Rows
from weft.validation.subjects import Subject

FloatArray = npt.NDArray[np.float64]

SMALLEST, LARGEST = 6e6, 192e6
"""The sizes that the engine is tried on [bytes]: where rings carry the data slice by slice."""
GPUS = ("a100-sxm-80gb", "h100-sxm")
RING_REQUEST_BYTES = 1024
"""Requests of a ring collective on its own: as exact as finer ones, as its few workgroups leave channels idle."""
_RINGS = ("reduce_scatter",)


def ring_subjects(collectives: Subject) -> list[Subject]:
    """The ring reduce-scatters of one node among a GPU's collectives, to be simulated request by request."""
    rows = collectives.rows
    wanted = _wanted(collectives)
    if collectives.machine not in GPUS or not wanted.any():
        return []
    some = rows.take(wanted)
    return [
        Subject(
            kind="ring",
            machine=collectives.machine,
            rows=some,
            measured=some.seconds,
            labels={
                "system": some.texts["system"],
                "ranks": some.numbers["ranks"].astype(np.int64),
                "collective": some.texts["collective"],
            },
            ranges={},
            predict=lambda given, values: simulated(given),
            slow=True,
        )
    ]


def _wanted(collectives: Subject) -> npt.NDArray[np.bool_]:
    labels, size = collectives.labels, collectives.rows.numbers["bytes"]
    names = np.array([canonical(name) for name in collectives.rows.texts["collective"].tolist()])
    wanted: npt.NDArray[np.bool_] = np.isin(names, _RINGS) & (size >= SMALLEST) & (size <= LARGEST)
    wanted &= (labels["library"] == "nccl") & (labels["nodes"] == 1) & (labels["host"] == "")
    return wanted


def simulated(rows: Rows) -> FloatArray:
    """Seconds of each row in the engine."""
    seconds = np.empty(len(rows))
    for case in cases_of(rows):
        for position in case.positions.tolist():
            seconds[position] = _ring(case, int(rows.numbers["bytes"][position]))
    return seconds


def _ring(case: Case, size: int) -> float:
    from weft.run import alone, simulate

    dtype = "int8" if case.rig.dtype == "int8" else "bf16"
    system = hardware.system(case.system, gpus=case.ranks)
    grain = min(RING_REQUEST_BYTES, system.gpu.memory.interleave)
    graph = alone(Collective(case.collective, size, case.ranks, dtype))
    return simulate(graph, system, "streams", RunOptions(clock="short", request_bytes=grain)).makespan
