"""Independent GEMMs on one GPU as plain data: when each ended, what they waited for, what the caches did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class GemmsRun:
    """GEMMs from a common start, caches cold, launches included.

    `makespan_s` is when the last ended, `ends_s` when each did [s]. `waits` says what share of the time of all
    workgroups went where ("compute", "memory", "matrix_unit", "store", and "fill", to begin and end).
    `bytes` is DRAM traffic by cause [bytes], `counters` what caches and memory counted, `workgroups` how many each
    GEMM has, and `held` how many of them a compute unit holds at once by registers and local memory.
    """

    makespan_s: float
    ends_s: tuple[float, ...]
    waits: Mapping[str, float]
    bytes: Mapping[str, int]
    counters: Mapping[str, float]
    workgroups: tuple[int, ...]
    held: tuple[int, ...]
    events: int

    @property
    def total_bytes(self) -> int:
        """DRAM traffic of all causes [bytes]."""
        return sum(self.bytes.values())

    @property
    def hit_rate(self) -> float:
        """Share of the requests to the last-level cache that found their line there, or on its way."""
        hits = self.counters["cache_hits"] + self.counters["cache_merged_misses"]
        return hits / max(hits + self.counters["cache_misses"], 1)

    def record(self) -> dict[str, Any]:
        """The run as plain data for JSON; `from_record` makes an equal run of it."""
        plain = asdict(self)
        for name in ("ends_s", "workgroups", "held"):
            plain[name] = list(plain[name])
        return plain

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The run that `record` was made of."""
        lists = {name: tuple(record[name]) for name in ("ends_s", "workgroups", "held")}
        return cls(**{**record, **lists})
