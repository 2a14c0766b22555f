"""What a search for a pipeline order is given: times and memory of each stage, one stage a device, backwards split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import InputError, check_whole
from weft.schedule.pipeline.clock import Durations, Send, seconds
from weft.schedule.pipeline.filling import SLACK, Costs
from weft.schedule.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Floats, Schedule, codes, one_way

_MOST_TASKS = 300_000


@dataclass(frozen=True, eq=False)
class OrderProblem:
    """A pipeline of one stage a device, whose order is to be found.

    `durations` are numbers or one per stage [s]. `limit` is how many micro-batches' activations a stage may hold, a
    number or one per stage; of each, the share `kept_for_weight` is held from B until W, the rest from F until B.

    Raises InputError for times that do not fit, and for a limit below one micro-batch.
    """

    devices: int
    micro_batches: int
    durations: Durations
    send: float | Send | tuple[Send, Send] = 0.0
    limit: ArrayLike = np.inf
    kept_for_weight: ArrayLike = 1.0

    def __post_init__(self) -> None:
        check_whole("the number of pipeline devices", self.devices, 1, 8)
        check_whole("the number of micro-batches", self.micro_batches, 1, 32)
        if 3 * self.devices * self.micro_batches > _MOST_TASKS:
            raise InputError(
                f"{self.micro_batches} micro-batches on {self.devices} devices are too many to search an order for; "
                f"devices x micro-batches must be at most {_MOST_TASKS // 3}"
            )
        if not (self.costs.limit >= 1 - SLACK).all():
            raise InputError(
                f"a stage may hold {self.costs.limit.min():g} micro-batches, but needs at least 1; raise the limit"
            )
        if not ((self.costs.kept >= 0) & (self.costs.kept <= 1)).all():
            raise InputError(
                "the share that is kept for the weight gradients must be between 0 and 1; give one, as 0.4"
            )

    @cached_property
    def costs(self) -> Costs:
        """Times and memory by stage."""
        shape, between = (self.devices,), (self.devices - 1,)
        names = ("forward", "backward", "weight")
        took = [seconds(f"the {name} time", getattr(self.durations, name), shape) for name in names]
        delay, before, after = (np.zeros((self.devices, 2)) for _ in range(3))
        pair = self.send if isinstance(self.send, tuple) else (self.send, self.send)
        for kind, given in enumerate(pair):
            send = given if isinstance(given, Send) else Send(given)
            to, source = (slice(1, None), slice(None, -1))[:: 1 - 2 * kind]
            delay[to, kind] = seconds("the latency of a send", send.latency, between)
            before[to, kind] = seconds("the receiver busy of a send", send.receiver_busy, between)
            after[source, kind] = seconds("the sender busy of a send", send.sender_busy, between)
        limit, kept = (self._by_stage(each) for each in (self.limit, self.kept_for_weight))
        return Costs(np.stack(took, axis=1), delay, before, after, np.minimum(limit, self.micro_batches), kept)

    def _by_stage(self, value: ArrayLike) -> Floats:
        try:
            spread: Floats = np.broadcast_to(np.asarray(value, float), (self.devices,)).copy()
        except ValueError:
            raise InputError(f"a limit of memory does not fit; give a number, or {self.devices} numbers") from None
        return spread

    @property
    def work(self) -> Floats:
        """Time that each stage computes [s]."""
        total: Floats = self.micro_batches * self.costs.took.sum(axis=1)
        return total

    def schedule(self, order: NDArray[np.int64], name: str = "found") -> Schedule:
        """The schedule of an order of kinds, of shape (stages, 3 x micro-batches)."""
        orders = []
        for stage, row in enumerate(order):
            number = np.empty(len(row), np.int64)
            for kind in (FORWARD, BACKWARD, WEIGHT):
                number[row == kind] = np.arange(self.micro_batches)
            orders.append(codes(row, stage, number, self.devices, self.micro_batches))
        return one_way(name, np.arange(self.devices), self.micro_batches, orders)
