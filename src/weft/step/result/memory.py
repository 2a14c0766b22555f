"""What a training step needs of each GPU's memory: who holds how much, over time and at the peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from weft.core.answer import Answer

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.models.parallel.framework import Framework
    from weft.models.parallel.plan import TrainingPlan

FloatArray = npt.NDArray[np.float64]


FRAGMENTATION = 0.05
"""Gaps between tensors that PyTorch's allocator has reserved, as a share of its tensors [assumed; 0.03 to 0.10 without
expandable segments]."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one pipeline device's rank [bytes].

    `fixed` are held throughout, by kind. `held` are activations during each task of the device's order, and
    `working` what is needed beside them; both have the shape (tasks,).
    `left` is what remains of them after the last task. `saved` are activations of one micro-batch
    by operator.
    """

    fixed: Mapping[str, int]
    held: FloatArray
    left: float
    working: FloatArray
    saved: Mapping[str, int]

    @property
    def dynamic(self) -> float:
        """The most that activations and what passes over them need at once."""
        return float(np.max(self.held + self.working, initial=0.0))

    @property
    def peak_allocated(self) -> float:
        """Peak of the framework's tensors: all but what lies outside its allocator."""
        return sum(size for name, size in self.fixed.items() if name != "outside") + self.dynamic

    @property
    def peak_reserved(self) -> float:
        """Peak of what the framework's allocator takes from the device: its tensors, and gaps between them."""
        return self.peak_allocated * (1 + FRAGMENTATION)

    @property
    def peak(self) -> float:
        """Peak of the device's memory."""
        return self.peak_reserved + self.fixed.get("outside", 0)

    @property
    def holders(self) -> dict[str, float]:
        """Who holds the memory at the peak; the values add up to `peak`."""
        at = int(np.argmax(self.held + self.working))
        tensors = {"activations": float(self.held[at]), "workspace": float(self.working[at])}
        return {**self.fixed, **tensors, "fragmentation": self.peak_reserved - self.peak_allocated}


@dataclass(frozen=True, repr=False)
class Memory(Answer):
    """What a plan needs of the memory of every pipeline device, beside the GPU's `capacity` [bytes].

    `remedies` are changes of the plan that would fit, with the peak that each leads to [bytes]. `notes` and `defaulted`
    are as of a `Step`.
    """

    kind = "memory"

    model: Transformer
    system: System
    plan: TrainingPlan
    devices: tuple[DeviceMemory, ...]
    remedies: Mapping[str, float]
    framework: Framework | None = None
    defaulted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def capacity(self) -> int:
        """Memory of the GPU [bytes]."""
        return int(self.system.gpu.memory.capacity)

    @property
    def fullest(self) -> int:
        """The pipeline device with the highest peak."""
        return max(range(len(self.devices)), key=lambda at: self.devices[at].peak)

    @property
    def peak(self) -> float:
        """Highest peak of any device [bytes]."""
        return self.devices[self.fullest].peak

    @property
    def fits(self) -> bool:
        """Whether every device holds what the plan needs."""
        return self.peak <= self.capacity

    def to_dict(self) -> dict[str, Any]:
        """Peaks [bytes] by device and by holder as plain data."""
        return {
            "peak_bytes": self.peak,
            "capacity_bytes": self.capacity,
            "fits": self.fits,
            "fullest_device": self.fullest,
            "holders": self.devices[self.fullest].holders,
            "devices": [
                {"peak_bytes": one.peak, "allocated_bytes": one.peak_allocated, **one.holders} for one in self.devices
            ],
            "remedies": dict(self.remedies),
            "framework": self.framework.name if self.framework else "",
            "defaulted": list(self.defaulted),
            "notes": list(self.notes),
        }
