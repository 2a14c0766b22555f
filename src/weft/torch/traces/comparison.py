"""A recorded run concurrently with what a GPU would take for the same operators: where time goes beyond the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.core.answer import Answer, Record, to_plain

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.torch.traces import Trace


_BEYOND = 1.1
"""Share of a rate that nothing reaches: the shapes of the call do not say what its kernels did."""


@dataclass(frozen=True)
class ComparedOperator(Record):
    """The calls of one operator: measured and predicted time [s], what bounds it, and the rates that were measured.

    `compute` and `memory` are shares of what the GPU reaches at best: FLOPs of matrix units, bytes of memory.
    """

    name: str
    phase: str
    calls: int
    kernels: int
    measured: float
    predicted: float
    bound: str
    compute: float
    memory: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the lost time with its reason as plain data."""
        return to_plain(**super().to_dict(), lost=self.lost, why=self.why)

    @property
    def lost(self) -> float:
        """How much longer it took than predicted [s]; negative where it was faster."""
        return self.measured - self.predicted

    @property
    def why(self) -> str:
        """What keeps it from being faster, and how much of that was reached."""
        if max(self.compute, self.memory) > _BEYOND:
            return "less work than its shapes say, as for expanded or cached tensors"
        if self.bound == "compute":
            return f"{self.compute:.0%} of the matrix units' rate"
        if self.bound in ("memory", "cache"):
            return f"{self.memory:.0%} of the memory's rate"
        return {"launch": "its launch takes longer than its work", "latency": "too small to fill the GPU"}.get(
            self.bound, self.bound
        )


@dataclass(frozen=True, repr=False, eq=False)
class TraceComparison(Answer):
    """A recorded run and the same work on a system, in closed form.

    `rows` are the operators that Weft can time, that with the most time beyond the prediction first; all other work
    keeps its measured time, `unmapped` [s] of it. `seconds` is the makespan with predicted times and launches as
    recorded, `ahead` that of a host that is always ahead of the GPU [s].
    """

    kind = "trace comparison"

    trace: Trace
    system: System
    rows: tuple[ComparedOperator, ...]
    unmapped: float
    seconds: float
    ahead: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return measured and predicted times [s] and the operators as plain data."""
        return to_plain(
            trace=self.trace.path, device=self.trace.device, system=self.system.name, gpu=self.system.gpu.name,
            measured_s=self.trace.makespan, busy_s=self.trace.busy, idle_s=self.waiting, seconds=self.seconds,
            ahead_s=self.ahead, compared_s=self.measured, predicted_s=self.predicted, unmapped_s=self.unmapped,
            found=self.trace.found, rows=self.rows, notes=self.notes,
        )  # fmt: skip

    @property
    def measured(self) -> float:
        """Measured time of the operators that are compared [s]."""
        return sum(one.measured for one in self.rows)

    @property
    def predicted(self) -> float:
        """Predicted time of the same [s]."""
        return sum(one.predicted for one in self.rows)

    @property
    def waiting(self) -> float:
        """Time in which nothing ran on the GPU [s]."""
        return self.trace.makespan - self.trace.busy
