"""GPUs with uncertain values moved to the ends of their ranges: what gains of concurrency rest on.

All of these are values that the engine reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from weft.collectives.fabric import fabric_of
from weft.errors import InputError
from weft.hardware import Gpu
from weft.hardware.ring_kernels import costs_of
from weft.units import Dimension, parse

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


class Assumption(NamedTuple):
    """Values of a GPU that may move what sharing it gains, and are moved together.

    `gemm` and `collective`: whether a GEMM alone, and a collective alone by compute units, depend on them. Values that
    DMA engines alone depend on are `copies`. Measured ones stay, as the errors of the models hold theirs, unless
    public measurements `disagree`.
    """

    what: str
    paths: tuple[str, ...]
    gemm: bool = True
    collective: bool = True
    copies: bool = False
    disagree: bool = False


def assumptions(dtype: str) -> tuple[Assumption, ...]:
    """What may be assumed of a GPU for a GEMM of a data type beside a collective."""
    return (
        Assumption("the clock of long runs", ("clocks.sustained",)),
        Assumption("the launch of a kernel", ("compute.launch_latency",)),
        Assumption(
            "how much of the matrix rate a GEMM gets", (f"achieved.matrix_{dtype}",), collective=False
        ),
        Assumption("how a tile begins", ("achieved.gemm_fill",), collective=False),
        Assumption("what each K step costs", ("achieved.gemm_issue",), collective=False),
        Assumption("how much of its bandwidth the cache reaches", ("achieved.gemm_cache",)),
        Assumption("the latency of the memory-side cache", ("memory_cache.latency",)),
        Assumption("the queues of the memory", ("memory.queue_entries",)),
        Assumption("how often a group of banks can be read", ("memory.ccd_long",)),
        Assumption("the latency of a link", ("link.latency",), gemm=False),
        Assumption("what a copy costs host and engine", _COPIES, gemm=False, collective=False, copies=True),
        Assumption("how much an engine has on its way", ("dma.window",), False, False, copies=True),
        Assumption(
            "the rate of copies",
            ("dma.bandwidth", "link.dma_efficiency"),
            False,
            False,
            copies=True,
            disagree=True,
        ),
    )


_COPIES = tuple(
    f"dma.{name}" for name in ("setup", "enqueue", "doorbell", "fetch", "drain", "sync", "signal")
)


def ends(gpu: Gpu, assumption: Assumption) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
    """The low and the high end of each value that is assumed, by path; None where nothing is."""
    known = {path: gpu.provenance[path] for path in assumption.paths if path in gpu.provenance}
    found = {
        path: p
        for path, p in known.items()
        if p.low is not None and p.high is not None and (p.kind == "assumed" or assumption.disagree)
    }
    if not found:
        return None
    return {path: str(p.low) for path, p in found.items()}, {path: str(p.high) for path, p in found.items()}


Flight = tuple[tuple[str, int], ...]
"""Bytes that a workgroup of a library's kernel has on their way, by kernel."""


def flight_ends(gpu: Gpu) -> tuple[Flight, Flight]:
    """The fewest and the most bytes that a workgroup of the library's kernels may have on their way."""
    fabric = fabric_of(gpu)
    known = {
        name: cost.provenance["in_flight"]
        for name, cost in costs_of(fabric.vendor, fabric.architecture).items()
    }
    low = tuple((name, int(parse(p.low, Dimension.BYTES))) for name, p in known.items() if p.low)
    high = tuple((name, int(parse(p.high, Dimension.BYTES))) for name, p in known.items() if p.high)
    return low, high


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
            moved = moved_to(gpu, {path: text})
            if moved is not None:
                yield Variant(path, text, moved)


def moved_to(gpu: Gpu, values: Mapping[str, str]) -> Gpu | None:
    """The GPU with values moved; None where that changes nothing or breaks a rule of the machine."""
    try:
        moved = gpu.with_values(values)
    except InputError:
        return None
    return None if all(moved.value(path) == gpu.value(path) for path in values) else moved
