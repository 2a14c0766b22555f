"""The operators of a model's layers on the roofline of a GPU: intensity, attained rate, and what bounds each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.core.answer import Answer, to_plain

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.models.parallel.plan import TrainingPlan


@dataclass(frozen=True)
class RooflineOp:
    """An operator of one rank: its FLOPs, least bytes and time [s], and the bound that its closed form hit.

    `kind` is its class ("gemm", "attention", "norm", ...), `dtype` the format in which matrix units compute it (None:
    vector units do).
    """

    part: str
    direction: str
    name: str
    kind: str
    dtype: str | None
    flops: float
    bytes: float
    seconds: float
    bound: str

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that must move."""
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        """Attained FLOP/s."""
        return self.flops / self.seconds

    @property
    def bandwidth(self) -> float:
        """Least bytes over the time [bytes/s]; above the DRAM's where caches hold an operand."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Roof:
    """A ceiling: a rate of computing [FLOP/s], or a bandwidth [bytes/s] times the intensity."""

    name: str
    value: float
    slanted: bool

    def at(self, intensity: float) -> float:
        """Return the ceiling at an intensity [FLOP/s]."""
        return self.value * intensity if self.slanted else self.value


@dataclass(frozen=True, repr=False)
class Roofline(Answer):
    """The operators of a model's layers on one GPU of a plan, and the GPU's ceilings at data-sheet rates.

    `peaks` are FLOP/s of each number format used, and of the vector units under "vector".
    """

    kind = "roofline"

    model: Transformer
    system: System
    plan: TrainingPlan
    operators: tuple[RooflineOp, ...]
    peaks: Mapping[str, float]
    notes: tuple[str, ...] = ()

    @property
    def memory_rate(self) -> float:
        """The DRAM's bandwidth [bytes/s]."""
        return float(self.system.gpu.memory.bandwidth)

    @property
    def seconds(self) -> float:
        """Time of all operators, serially [s]."""
        return sum(op.seconds for op in self.operators)

    @property
    def roofs(self) -> tuple[Roof, ...]:
        """DRAM and the last-level cache as slanted ceilings, then the peaks."""
        gpu = self.system.gpu
        slanted = (Roof("DRAM", self.memory_rate, True), Roof("cache", float(gpu.cache.bandwidth), True))
        return (*slanted, *(Roof(name, value, False) for name, value in self.peaks.items()))

    def peak(self, op: RooflineOp) -> float:
        """Return the rate of the units that compute an operator [FLOP/s]."""
        return self.peaks[op.dtype or "vector"]

    def ridge(self, name: str) -> float:
        """FLOPs for each byte of DRAM at which a peak begins to bound."""
        return self.peaks[name] / self.memory_rate

    def ceiling(self, op: RooflineOp) -> float:
        """Return the DRAM roofline at an operator's intensity [FLOP/s]."""
        return min(self.peak(op), op.intensity * self.memory_rate)

    def left_of_ridge(self, op: RooflineOp) -> bool:
        """Return whether memory, not computing, would bound a perfect kernel."""
        return op.intensity * self.memory_rate < self.peak(op)

    def attained_share(self, op: RooflineOp) -> float:
        """Attained share of the ceiling; above 1 where caches hold operands. 0 for operators without FLOPs."""
        return op.rate / self.ceiling(op) if op.flops else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return every operator, the peaks with their ridges, and the machine, as plain data."""
        return to_plain(
            model=self.model.name, system=self.system.name, gpu=self.system.gpu.name, plan=self.plan,
            memory_bandwidth=self.memory_rate, cache_bandwidth=float(self.system.gpu.cache.bandwidth),
            peaks={name: {"flops": value, "ridge": self.ridge(name)} for name, value in self.peaks.items()},
            operators=[self._record(op) for op in self.operators], notes=self.notes,
        )  # fmt: skip

    def _record(self, op: RooflineOp) -> dict[str, Any]:
        more = {"intensity": op.intensity, "flops_per_s": op.rate, "attained": self.attained_share(op)}
        return {**vars(op), **more, "left_of_ridge": self.left_of_ridge(op)}
