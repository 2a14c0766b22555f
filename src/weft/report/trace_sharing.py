"""Counters of a trace where streams share a GPU: who held how many compute units of each part, whose bytes passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.result import Residency, Result
from weft.result.concurrent import owned_bytes
from weft.result.loops import GEMM, is_gemm

Event = dict[str, Any]
Floats = npt.NDArray[np.float64]

GROUP = 16
"""Compute units of one counter where a GPU has no parts of its own."""
_US_PER_FS = 1e-9
OWNERS = (GEMM, "collective")


def sharing_counters(result: Result, gpu: int) -> Iterator[Event]:
    """Compute units that GEMMs and collectives hold, part by part, and what DRAM moves for each [GB/s]."""
    if result.residency is None:
        return
    yield from _held(result.residency, result.config.partitions, gpu)
    if result.series is not None:
        width = result.series.bin_fs
        for owner in OWNERS:
            moved = owned_bytes(result, owner, False, gpu) + owned_bytes(result, owner, True, gpu)
            yield from changes(f"DRAM for {owner} [GB/s]", gpu, moved / (width * 1e-6), width)


def changes(name: str, gpu: int, values: Floats, width_fs: int) -> Iterator[Event]:
    """A counter's value wherever it changes, from one value per `width_fs`; zero behind the last."""
    shown = np.append(np.round(values, 3), 0.0)
    for at in np.flatnonzero(np.diff(shown, prepend=-1.0)):
        yield _count(name, gpu, int(at) * width_fs, {"value": float(shown[at])})


def _count(name: str, gpu: int, fs: int, values: Mapping[str, float]) -> Event:
    ts = round(fs * _US_PER_FS, 6)
    return {"ph": "C", "name": name, "pid": gpu, "tid": 0, "ts": ts, "args": dict(values)}


def _held(held: Residency, parts: int, gpu: int) -> Iterator[Event]:
    """How many compute units of each part of the GPU an owner's workgroups run on, wherever that changes."""
    of = {owner: [name for name in held.kernels if is_gemm(name) is (owner == GEMM)] for owner in OWNERS}
    for name, (low, high) in unit_groups(held.units, parts).items():
        found = [_steps(*held.of(gpu, of[owner]), low, high) for owner in OWNERS]
        times = np.unique(np.concatenate([[0], *(moments for moments, _ in found)]))
        series = [_at(times, moments, counts) for moments, counts in found]
        for at, *counts in zip(times.tolist(), *(values.tolist() for values in series), strict=True):
            yield _count(f"{name}: held units", gpu, at, dict(zip(OWNERS, counts, strict=True)))


def unit_groups(units: int, parts: int) -> dict[str, tuple[int, int]]:
    """The compute units from and to (exclusive) of each XCD, or of each `GROUP` in a GPU that has no parts."""
    if parts > 1:
        edges = [-(-part * units // parts) for part in range(parts + 1)]
        return {f"XCD {part}": (edges[part], edges[part + 1]) for part in range(parts)}
    groups = ((low, min(low + GROUP, units)) for low in range(0, units, GROUP))
    return {f"CUs {low} to {high - 1}": (low, high) for low, high in groups}


def _steps(
    units: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    low: int,
    high: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """When the number of held units of a group changes [fs], and what it is from then on."""
    moments: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    steps: list[npt.NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    for unit in range(low, high):
        mine = units == unit
        begin, over = np.sort(starts[mine]), np.sort(ends[mine])
        # Workgroups of one unit that overlap or touch count once.
        fresh = np.append(True, begin[1:] > over[:-1]) if len(begin) else np.zeros(0, dtype=bool)
        last = np.append(fresh[1:], True) if len(begin) else fresh
        moments += [begin[fresh], over[last]]
        steps += [np.ones(fresh.sum(), dtype=np.int64), -np.ones(last.sum(), dtype=np.int64)]
    times, where = np.unique(np.concatenate(moments), return_inverse=True)
    change = np.bincount(where, weights=np.concatenate(steps), minlength=len(times))
    return times, np.cumsum(change).astype(np.int64)


def _at(
    times: npt.NDArray[np.int64], moments: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The counts at other times."""
    place = np.searchsorted(moments, times, side="right")
    return np.append(0, counts)[place]
