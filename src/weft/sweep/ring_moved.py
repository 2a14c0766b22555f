"""A run as it would be if the collective library's workgroups kept more, or less, on their way."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from weft.hardware.ring_kernels import in_flight_moved
from weft.sweep.streams import CollectiveAlone, Together


@dataclass(frozen=True)
class RingMoved:
    """A run whose workgroups keep other numbers of bytes on their way, by kernel, such as ("cdna.simple", 4096)."""

    task: CollectiveAlone | Together
    in_flight: tuple[tuple[str, int], ...]

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.task.title}, other bytes in flight"

    @property
    def weight(self) -> float:
        """How long the run takes beside others, roughly."""
        return self.task.weight

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {**self.task.inputs(), "in_flight": dict(self.in_flight)}

    def run(self) -> dict[str, Any]:
        """The record of the `StreamRun`."""
        with ExitStack() as moved:
            for name, bytes_ in self.in_flight:
                moved.enter_context(in_flight_moved(name, bytes_))
            return self.task.run()
