"""One GEMM, one collective, or both side by side, as plain data that can be stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class StreamRun:
    """A GEMM, a collective, or both from a common start on one of several equal GPUs, caches cold.

    `gemm_s` and `collective_s` are when each ended, None where it did not run, `makespan_s` when both had [s].
    `waits` says for each of "gemm" and "collective" how long one of its workgroups waited for what, on average [s],
    with keys as in `result.concurrent.REASONS` (empty for copies by DMA engines). `bytes` is DRAM traffic by cause
    [bytes], `levels` what caches served, by level and cause [bytes] (as in `Result`); `counters` is what caches, memory
    and link counted. `units` is on how many compute units each one ran.
    `wall_s` is how long the simulation took [s].
    """

    gemm_s: float | None
    collective_s: float | None
    makespan_s: float
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    events: int = 0
    wall_s: float = 0.0

    @property
    def total_bytes(self) -> int:
        """DRAM traffic of all causes [bytes]."""
        return sum(self.bytes.values())

    def record(self) -> dict[str, Any]:
        """The run as plain data for JSON; `from_record` makes an equal run of it."""
        plain = asdict(self)
        return {name: _plain(value) for name, value in plain.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The run that `record` was made of."""
        return cls(**record)


def _plain(value: Any) -> Any:
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value
