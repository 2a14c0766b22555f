"""Run a sub-layer on a machine under an overlap (`simulate` one, `compare` several), or streams `beside` each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.errors import UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.kernels import GemmTiling
from weft.overlap import OVERLAPS, ArbiterPolicy, Overlap
from weft.parallel.tensor import ShardedSubLayer
from weft.result import Comparison, Result
from weft.simulation.concurrent import isolated_collective, isolated_gemm, saturating_units, together
from weft.simulation.execution import Watch
from weft.simulation.overlapped import overlapped
from weft.simulation.streams import beside, beside_all, ring_collective
from weft.simulation.sublayer import SubLayerRuns

DEFAULT_REQUEST_BYTES = 512
"""The default request: eight 64-B accesses that share a DRAM row; within 2 % of 64-B requests (docs: model)."""


def simulate(
    layer: ShardedSubLayer,
    machine: Gpu | Machine | System | str,
    overlap: str | Overlap = "t3-mca",
    *,
    arbiter: ArbiterPolicy | None = None,
    tiling: GemmTiling | None = None,
    request_bytes: int = DEFAULT_REQUEST_BYTES,
    clock: str = "sustained",
    mode: str = "auto",
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> Result:
    """What happens when `layer` runs on `machine` (a GPU, a system, or a catalog name) under `overlap`.

    A GPU of the catalogue stands for the machine that it is usually sold in, with as many nodes as the layer needs.
    `arbiter` replaces the overlap's memory arbitration, `tiling` the tile that the GPU's library would choose.
    `request_bytes` is the granularity of memory requests (64 is exact, the default faster). `clock` is what the compute
    units run at: "short" (the highest clock) or "sustained" (what long runs hold at the power limit).

    `mode` is "mirrored" (one GPU stands for all), "explicit" (all are simulated), or "auto": mirrored wherever all
    GPUs are alike. `event_budget` ends a run that takes more events. `watch(events, now_fs)` is called about every
    million events.

    Raises UnknownNameError for an unknown overlap, InputError for what cannot be simulated, SimulationError
    for a run that cannot finish, saying which tile waits for what.
    """
    chosen = find_overlap(overlap)
    runs = SubLayerRuns(layer, machine, arbiter, tiling, request_bytes, clock, mode, event_budget, watch)
    return runs.result(chosen)


def compare(
    layer: ShardedSubLayer,
    machine: Gpu | Machine | System | str,
    overlaps: Iterable[str | Overlap] = tuple(OVERLAPS),
    **options: Any,
) -> Comparison:
    """`layer` on `machine` under several overlaps, beside the sequential baseline; options are those of
    `simulate`.

    Runs that ideals share are made once.
    """
    chosen = [find_overlap(overlap) for overlap in overlaps]
    runs = SubLayerRuns(layer, machine, **{**_DEFAULTS, **options})
    baseline = OVERLAPS["sequential"]
    return Comparison({o.name: runs.result(o) for o in dict.fromkeys((baseline, *chosen))})


_DEFAULTS: dict[str, Any] = {
    "arbiter": None,
    "tiling": None,
    "request_bytes": DEFAULT_REQUEST_BYTES,
    "clock": "sustained",
    "mode": "auto",
    "event_budget": None,
    "watch": None,
}


def find_overlap(overlap: str | Overlap) -> Overlap:
    """An overlap by name; UnknownNameError lists the known ones."""
    if isinstance(overlap, Overlap):
        return overlap
    if overlap not in OVERLAPS:
        raise UnknownNameError("overlap", overlap, OVERLAPS)
    return OVERLAPS[overlap]


__all__ = [
    "beside",
    "beside_all",
    "compare",
    "find_overlap",
    "isolated_collective",
    "isolated_gemm",
    "overlapped",
    "ring_collective",
    "saturating_units",
    "simulate",
    "together",
]
