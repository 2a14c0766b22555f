"""What a captured graph answers on a rank: its time by phase and class of operator, and its peak of memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.core.answer import Answer, to_plain
from weft.graph import Graph, live_bytes
from weft.step.result.step import exposed_axis

if TYPE_CHECKING:
    from weft.hardware import Gpu

BY_BYTES = "by bytes"
"""The class of operators that are timed by the bytes of their tensors, for want of a model of their own."""

OTHER_STREAMS = "other streams"
"""The phase of what streams beside the compute stream add to a step."""


class Share(NamedTuple):
    """The operators of one phase and class: how many, their time [s], FLOPs of matrix units, and least bytes.

    Of operators on other streams, `seconds` is what the compute stream waits for them, and `hidden` what runs
    concurrently with it [s].
    """

    phase: str
    kind: str
    operators: int
    seconds: float
    flops: int
    bytes: int
    hidden: float = 0.0


@dataclass(frozen=True, repr=False)
class GraphStep(Answer):
    """A graph of operators, such as a captured training step, on one rank: `seconds`, and the `shares` of it.

    The seconds of the shares add up to those of the step. `notes` say what a reader must know, `spans` are start and
    end of every node by its id, from the start of the step [s].
    """

    kind = "graph step"

    graph: Graph
    gpu: Gpu
    seconds: float
    shares: tuple[Share, ...]
    notes: tuple[str, ...] = ()
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the step, its shares and its memory as plain data."""
        return to_plain(
            graph=str(self.graph), labels=self.graph.labels, gpu=self.gpu.name, seconds=self.seconds, flops=self.flops,
            ranks=self.graph.ranks, exposed_seconds=self.exposed, hidden_seconds=self.hidden, launches=self.launches,
            by_bytes=self.by_bytes, peak_bytes=self.peak_bytes, capacity_bytes=int(self.gpu.memory.capacity),
            fits=self.fits, shares=self.shares, notes=self.notes,
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """FLOPs of matrix units."""
        return sum(one.flops for one in self.shares)

    @property
    def launches(self) -> int:
        """Operators, each of at least one kernel."""
        return len(self.graph)

    @cached_property
    def peak_bytes(self) -> int:
        """The most memory that tensors take at a time [bytes]; 0 for a graph that does not name its tensors."""
        return max(live_bytes(self.graph))

    @property
    def fits(self) -> bool:
        """Whether the GPU's memory holds the tensors at their peak."""
        return self.peak_bytes <= self.gpu.memory.capacity

    @property
    def exposed(self) -> float:
        """Seconds in which the compute stream waits for other streams, such as collectives."""
        return sum(one.seconds for one in self.shares if exposed_axis(one.kind))

    @property
    def hidden(self) -> float:
        """Seconds of other streams beside the compute stream."""
        return sum(one.hidden for one in self.shares)

    @property
    def by_bytes(self) -> float:
        """Share of the time in operators that are timed by their bytes alone."""
        return sum(one.seconds for one in self.shares if one.kind == BY_BYTES) / (self.seconds or 1.0)
