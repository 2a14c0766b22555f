"""One GPU, every value with its provenance, changed only through validated copies."""

from __future__ import annotations

from typing import Literal

from weft.catalog.sourced import Sourced
from weft.errors import InputError
from weft.hardware.parts import (
    DTYPES,
    Achieved,
    Arbiter,
    Cache,
    Clocks,
    ClockState,
    Compute,
    Dma,
    Host,
    Launch,
    Link,
    Memory,
    MemoryCache,
    Rates,
    Tracker,
)

Vendor = Literal["nvidia", "amd", "none"]
"""Who makes a GPU, and so whose libraries run on it."""
Architecture = Literal["ampere", "ada", "hopper", "blackwell", "cdna1", "cdna2", "cdna3", "cdna4", "t3"]
"""The generation of a GPU: it decides which kernels its libraries have."""


class Gpu(Sourced):
    """A GPU: compute units, caches, memory, arbiter, tracker, DMA engines and links, and what it reaches."""

    title: str
    description: str
    vendor: Vendor
    architecture: Architecture
    aliases: tuple[str, ...] = ()
    compute: Compute
    rates: Rates
    clocks: Clocks
    cache: Cache
    memory_cache: MemoryCache
    memory: Memory
    arbiter: Arbiter
    tracker: Tracker
    dma: Dma
    link: Link
    host: Host
    launch: Launch
    achieved: Achieved

    def __hash__(self) -> int:
        return hash((self.name, *(getattr(self, part) for part in _PARTS)))

    @property
    def dies(self) -> int:
        """Groups of compute units with a cache of their own, the XCDs of an AMD GPU; others share one cache: 1.

        Compute unit u lies in group u * dies // compute_units.
        """
        return self.cache.partitions if self.vendor == "amd" else 1

    @property
    def vector_lanes(self) -> float:
        """Lanes of a compute unit that each do an fp32 multiply-add, or an addition, per clock.

        NVIDIA's fp32 rate is theirs; AMD's vector rate counts a multiply-add as two on packed halves.
        """
        return self.rates.fp32 / 2 if self.vendor == "nvidia" else self.compute.vector_flops_per_clock / 4

    def supports(self, dtype: str) -> bool:
        """Whether the GPU multiplies matrices of that data type."""
        return dtype in DTYPES and bool(getattr(self.rates, dtype))

    def matrix_rate(self, dtype: str, clock: ClockState = "peak") -> float:
        """Dense rate of a matrix product at a clock [FLOP/s]; InputError names the data types that there are.

        The data sheet's "peak" uses `clocks.matrix_peak` for the types of the matrix units, and the boost clock
        for fp32 and fp64.
        """
        if not self.supports(dtype):
            known = ", ".join(name for name in DTYPES if self.supports(name))
            raise InputError(f"{self.name} has no matrix rate for '{dtype}'; it has {known}")
        return self.compute.compute_units * int(getattr(self.rates, dtype)) * self._clock(dtype, clock)

    def _clock(self, dtype: str, clock: ClockState) -> float:
        if clock == "sustained":
            return self.clocks.sustained
        if clock == "peak" and dtype not in ("fp32", "fp64"):
            return self.clocks.matrix_peak
        return self.compute.clock


_PARTS = tuple(name for name in Gpu.model_fields if name not in Sourced.model_fields)


def parse_assignment(text: str) -> tuple[str, str]:
    """The path and the value of 'memory.bandwidth="2 TB/s"', quotes or not; InputError if malformed."""
    path, equals, value = (part.strip() for part in text.partition("="))
    bare = value.strip("\"'").strip()
    if not (path and equals and bare):
        raise InputError(f"'{text}' does not assign a value to a path; write it like 'memory.bandwidth=\"2 TB/s\"'")
    return path, bare
