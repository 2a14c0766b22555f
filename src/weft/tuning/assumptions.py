"""A GPU with one uncertain value moved to an end of its range: what gains of concurrency rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.errors import InputError
from weft.hardware import Gpu

DECIDING = (
    "compute.launch_latency",
    "clocks.sustained",
    "cache.latency",
    "memory.latency",
    "achieved.gemm_cache",
    "achieved.gemm_fill",
    "achieved.gemm_issue",
)
"""Values that decide how long simulated GEMMs take, beside the share of the matrix rate of their data type."""


@dataclass(frozen=True)
class Variant:
    """A GPU whose value at `path` is `setting`, one end of its range."""

    path: str
    setting: str
    gpu: Gpu


def variants(gpu: Gpu, dtype: str) -> Iterator[Variant]:
    """The GPU with each deciding value that has a range at its low and at its high end."""
    for path in (*DECIDING, f"achieved.matrix_{dtype}"):
        found = gpu.provenance.get(path)
        ends = () if found is None else (found.low, found.high)
        for text in filter(None, ends):
            moved = _moved(gpu, path, text)
            if moved is not None:
                yield Variant(path, text, moved)


def _moved(gpu: Gpu, path: str, text: str) -> Gpu | None:
    """The GPU with a value moved; None where that changes nothing or breaks a rule of the machine."""
    try:
        moved = gpu.with_values({path: text})
    except InputError:
        return None
    return None if moved.value(path) == gpu.value(path) else moved
