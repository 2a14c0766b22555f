"""What strategies make of one GEMM and one collective: speedups over serial execution, and shares of the ideal.

The ideal hides the shorter of both behind the longer; serial execution has the collective on compute units
(C3, arXiv:2412.14335).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.result.stream_run import StreamRun

LONGER = 1.15
"""One of both is the long one if it takes more than this many times the other's time alone (arXiv:2412.14335)."""
CLASSES = {"G-long": "GEMM is longer", "GC-equal": "both alike", "C-long": "collective is longer"}
"""Which of both is the long one: the paper's names, and words."""


def ideal_speedup(gemm_s: float, collective_s: float) -> float:
    """Over serial execution, if the shorter of both cost nothing."""
    return (gemm_s + collective_s) / max(gemm_s, collective_s)


def share_of_ideal(speedup: float, ideal: float) -> float:
    """How much of what the ideal saves a speedup saves; below 0 where it loses."""
    return (speedup - 1) / (ideal - 1)


@dataclass(frozen=True)
class Sharing:
    """A GEMM and a collective alone, `gemm` and `collective` (by compute units), and together by strategy, `runs`."""

    gemm: StreamRun
    collective: StreamRun
    runs: Mapping[str, StreamRun]

    @property
    def gemm_s(self) -> float:
        """The GEMM alone [s]."""
        return self.gemm.makespan_s

    @property
    def collective_s(self) -> float:
        """The collective alone, by compute units [s]."""
        return self.collective.makespan_s

    @property
    def serial_s(self) -> float:
        """Both, one after the other [s]."""
        return self.gemm_s + self.collective_s

    @property
    def kind(self) -> str:
        """Which of CLASSES the two times make."""
        if self.gemm_s > LONGER * self.collective_s:
            return "G-long"
        return "C-long" if self.collective_s > LONGER * self.gemm_s else "GC-equal"

    @property
    def ideal(self) -> float:
        """The speedup if the shorter one cost nothing."""
        return ideal_speedup(self.gemm_s, self.collective_s)

    def speedup(self, strategy: str) -> float:
        """How many times faster than serial execution a strategy is."""
        return self.serial_s / self.runs[strategy].makespan_s

    def share(self, strategy: str) -> float:
        """How much of what the ideal saves a strategy saves; below 0 where it loses."""
        return share_of_ideal(self.speedup(strategy), self.ideal)

    def gemm_slowdown(self, strategy: str) -> float:
        """The GEMM's end from the common start over its time alone."""
        return (self.runs[strategy].gemm_s or 0.0) / self.gemm_s

    def collective_slowdown(self, strategy: str) -> float:
        """The collective's end from the common start over its time alone by compute units."""
        return (self.runs[strategy].collective_s or 0.0) / self.collective_s

    def as_json(self) -> dict[str, Any]:
        """Times, slowdowns, shares and waits as plain data."""
        return {
            "gemm_alone_us": self.gemm_s * 1e6,
            "collective_alone_us": self.collective_s * 1e6,
            "class": self.kind,
            "ideal": self.ideal,
            "strategies": {name: self._strategy(name) for name in self.runs},
        }

    def _strategy(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        return {
            "makespan_us": run.makespan_s * 1e6,
            "speedup": self.speedup(name),
            "share_of_ideal": self.share(name),
            "gemm_slowdown": self.gemm_slowdown(name),
            "collective_slowdown": self.collective_slowdown(name),
            "units": dict(run.units),
            "waits_us": {
                loop: {why: seconds * 1e6 for why, seconds in waits.items()}
                for loop, waits in run.waits.items()
            },
            "dram_bytes": dict(run.bytes),
            "counters": dict(run.counters),
        }
