"""Schedules whose order is searched for the times at hand: ZB-1p and ZB-2p by spans, any other memory by makespan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weft.errors import check_whole
from weft.schedule.pipeline.clock import Durations, Send
from weft.schedule.pipeline.orders import Schedule
from weft.schedule.pipeline.problem import OrderProblem
from weft.schedule.pipeline.search import Objective, find_order

EVEN = Durations(1.0, 1.0, 1.0)
"""Times of F, B and W while none are known."""


def zb_1p(devices: int, micro_batches: int, durations: Durations = EVEN, send: Send | float = 0.0) -> Schedule:
    """The order found for the memory of 1F1B: p micro-batches, all held until W (arXiv:2401.10241)."""
    return _found("zb-1p", devices, micro_batches, devices, durations, send)


def zb_2p(devices: int, micro_batches: int, durations: Durations = EVEN, send: Send | float = 0.0) -> Schedule:
    """The order found for twice the memory of 1F1B: 2 p micro-batches, all held until W (arXiv:2401.10241)."""
    return _found("zb-2p", devices, micro_batches, 2 * devices, durations, send)


def search(
    devices: int, micro_batches: int, memory: int | None = None, durations: Durations = EVEN, send: Send | float = 0.0
) -> Schedule:
    """The order of shortest makespan found for a memory of some micro-batches (None: as many as devices).

    Raises InputError for fewer than one.
    """
    if memory is None:
        return _found("search", devices, micro_batches, devices, durations, send, "makespan")
    check_whole("the memory of 'search'", memory, 1, 2 * devices)
    return _found(f"search:{memory}", devices, micro_batches, memory, durations, send, "makespan")


SEARCHED: Mapping[str, Callable[..., Schedule]] = {"zb-1p": zb_1p, "zb-2p": zb_2p, "search": search}
"""Schedules whose order depends on times; without any, F, B and W take equally long and sends no time."""


def _found(
    name: str, devices: int, micro_batches: int, limit: int, durations: Durations, send: Send | float,
    objective: Objective = "span",
) -> Schedule:  # fmt: skip
    problem = OrderProblem(devices, micro_batches, durations, send, limit)
    return find_order(problem, objective, name).times.schedule
