"""Pipeline schedules by times and memory: find an order, check a written one, and compare both with named schedules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.answer import Answer
from weft.core.errors import InputError, UnitError, check_name, show_value
from weft.core.files import write_json
from weft.core.units import Dimension, parse
from weft.step.pipeline import (
    Durations,
    PipelineTimes,
    Schedule,
    Send,
    least_makespan,
    read_schedule,
    run_schedule,
    schedule,
    schedule_to_dict,
)
from weft.step.pipeline.orders import Floats
from weft.step.pipeline.problem import OrderProblem, check_tasks, least_end, least_spans
from weft.step.pipeline.search import OBJECTIVES, Objective, find_order

_WHOLE_STAGES = ("gpipe", "1f1b", "zb-h1", "zb-h2")
_TWO_CHUNKS = ("interleaved:2", "zb-v", "v-half", "v-min")
"""Schedules with two chunks of half a stage on each device: compared where all stages are equal."""
Quantities = str | Sequence[str]
"""A quantity for all stages, or one per stage: "18 ms", "18 ms, 20 ms" or a list of texts."""
Limit = float | str | Sequence[float] | Sequence[str]


@dataclass(frozen=True, repr=False)
class TimedSchedule(Answer):
    """A pipeline schedule with its times, compared with named schedules and with a lower bound of any order.

    `limit` is how many micro-batches' activations each stage may hold, `kept` the share of those that is held from B
    until W, `activations` the size of a micro-batch's on each stage [bytes], if it was given. `least` is a lower bound
    of the objective [s]: no order of one stage a device within the memory is shorter.
    """

    kind = "schedule"

    times: PipelineTimes
    objective: Objective
    least: float
    limit: tuple[float, ...]
    kept: tuple[float, ...]
    activations: tuple[float, ...] = ()
    searched: bool = True
    named: Mapping[str, PipelineTimes] = field(default_factory=dict)

    @property
    def schedule(self) -> Schedule:
        """The order of the tasks."""
        return self.times.schedule

    def cost(self, times: PipelineTimes) -> float:
        """Return the objective of some times [s]: the longest span, or the makespan."""
        return float(times.span.max()) if self.objective == "span" else times.makespan

    def bubble(self, times: PipelineTimes) -> float:
        """Return the share of the objective in which the mean device does not compute."""
        return max(0.0, 1 - times.ideal / self.cost(times)) if self.cost(times) else 0.0

    @property
    def gap(self) -> float | None:
        """By how much the best order can be shorter at most, relative to this one; None if this one does not fit."""
        cost = self.cost(self.times)
        return (max(0.0, 1 - self.least / cost) if cost else 0.0) if self.fits(self.times) else None

    @cached_property
    def peaks(self) -> Floats:
        """The most activations that each device holds [micro-batches]."""
        return self.most_held(self.times)

    def most_held(self, times: PipelineTimes) -> Floats:
        """Return the most activations that each device holds under some schedule [micro-batches]."""
        order = times.schedule
        return np.array([order.in_flight(at, self.kept[at]).max() for at in range(order.devices)])

    def fits(self, times: PipelineTimes) -> bool:
        """Return whether a schedule's activations fit the limit of each device."""
        return bool((self.most_held(times) <= np.array(self.limit) + 1e-6).all())

    def write_schedule(self, path: str | os.PathLike[str]) -> Path:
        """Write the order as a file that `weft step --schedule FILE.json` and `read_schedule` take."""
        return write_json(Path(path), schedule_to_dict(self.schedule))

    def to_dict(self) -> dict[str, Any]:
        """Return the order, its cost beside the bound and named schedules, and the memory over time of every device."""
        curves = [self.times.in_flight(at, self.kept[at]) for at in range(self.schedule.devices)]
        return {
            "schedule": schedule_to_dict(self.schedule),
            "objective": self.objective,
            **self._record(self.times),
            "least_s": self.least,
            "gap": self.gap,
            "limit_micro_batches": list(self.limit),
            "kept_for_weight": list(self.kept),
            "activation_bytes": list(self.activations),
            "memory": [{"time_s": when.tolist(), "micro_batches": held.tolist()} for when, held in curves],
            "named": {name: self._record(times) for name, times in self.named.items()},
        }

    def _record(self, times: PipelineTimes) -> dict[str, Any]:
        return {
            "longest_span_s": float(times.span.max()),
            "makespan_s": times.makespan,
            "bubble": self.bubble(times),
            "peak_micro_batches": self.most_held(times).tolist(),
            "fits": self.fits(times),
        }


def find_schedule(
    stages: int,
    micro_batches: int,
    forward: Quantities,
    backward: Quantities,
    weight: Quantities,
    *,
    send: Quantities = "0 s",
    memory: Limit | None = None,
    activations: Quantities | None = None,
    kept_for_weight: float | Quantities = 1.0,
    objective: Objective = "span",
) -> TimedSchedule:
    """The order of F, B and W tasks that is shortest within a memory, as far as the search finds it, and its bound.

    Times are of one micro-batch: `forward`, `backward` (gradient of the inputs), `weight` (gradient of the weights) and
    the latency of a `send`, for all stages or one each. `memory` is how many micro-batches' activations a stage may
    hold (None: as many as stages, like 1F1B) or, with their size `activations`, a size in bytes. What B cannot release
    is `kept_for_weight`: a share, or a size. `objective` is the longest span of a stage, or the makespan.

    Raises InputError for times and limits that do not fit the stages, UnitError for quantities without a unit.

    >>> found = find_schedule(4, 8, "1 ms", "1 ms", "1 ms", memory=7)
    >>> f"{found.bubble(found.times):.1%}, {found.peaks.max():g} micro-batches"
    '0.0%, 7 micro-batches'
    """
    check_name("objective", objective, OBJECTIVES)
    check_tasks(stages, micro_batches)
    durations, latency = _times(stages, forward, backward, weight, send)
    limit, kept, sizes = _memory(stages, memory, activations, kept_for_weight)
    problem = OrderProblem(stages, micro_batches, durations, Send(latency), limit, kept)
    found = find_order(problem, objective)
    return _time_order(found.times, problem, objective, sizes, found.least, searched=True)


def check_schedule(
    path: str | os.PathLike[str],
    forward: Quantities = "1 ms",
    backward: Quantities = "1 ms",
    weight: Quantities = "1 ms",
    *,
    send: Quantities = "0 s",
    memory: Limit | None = None,
    activations: Quantities | None = None,
    kept_for_weight: float | Quantities = 1.0,
    objective: Objective = "span",
) -> TimedSchedule:
    """Return a schedule that a user wrote, timed, with its memory and its distance from the bound.

    Arguments are those of `find_schedule`.
    Times are of one stage: of a chunk, where a device has several. Without `memory`, the limit is what the schedule
    itself holds. Raises ConfigError for tasks that are missing,
    repeated or out of order, and for devices that wait for each other, with the tasks that do.
    """
    check_name("objective", objective, OBJECTIVES)
    written = read_schedule(path)
    durations, latency = _times(written.stages, forward, backward, weight, send)
    limit, kept, sizes = _memory(written.devices, memory, activations, kept_for_weight)
    if memory is None:
        limit = np.array([written.in_flight(at, kept[at]).max() for at in range(written.devices)])
    times = run_schedule(written, durations, Send(latency))
    if written.stages != written.devices or written.replicas > 1 or not written.trains:
        least = least_makespan(written, durations, Send(latency)) if objective == "makespan" else times.busy.max()
        return TimedSchedule(
            times, objective, float(least), tuple(map(float, limit)), tuple(map(float, kept)), sizes, searched=False
        )
    problem = OrderProblem(written.stages, written.micro_batches, durations, Send(latency), limit, kept)
    least = float(least_spans(problem).max()) if objective == "span" else least_end(problem)
    return _time_order(times, problem, objective, sizes, least, searched=False)


def _time_order(
    times: PipelineTimes,
    problem: OrderProblem,
    objective: Objective,
    sizes: tuple[float, ...],
    least: float,
    *,
    searched: bool,
) -> TimedSchedule:
    limit, kept = (
        tuple(map(float, np.broadcast_to(each, problem.devices))) for each in (problem.limit, problem.costs.kept)
    )
    return TimedSchedule(times, objective, least, limit, kept, sizes, searched, _named_schedules(problem))


def _named_schedules(problem: OrderProblem) -> dict[str, PipelineTimes]:
    """Named schedules with the times of a problem: those of two chunks a device only where all stages are equal."""
    parts = dict.fromkeys(_WHOLE_STAGES, 1)
    latencies = np.append(problem.costs.delay[1:, 0], problem.costs.delay[:-1, 1])
    if np.ptp(problem.costs.took, axis=0).max() == 0 and (not latencies.size or np.ptp(latencies) == 0):
        parts |= dict.fromkeys(_TWO_CHUNKS, 2)
    found = {}
    for name, chunks in parts.items():
        took = problem.costs.took / chunks
        forward, backward, weight = (took[:, kind] if chunks == 1 else took[0, kind] for kind in range(3))
        send = problem.send if chunks == 1 else Send(float(latencies.max(initial=0.0)))
        try:
            built = schedule(name, problem.devices, problem.micro_batches)
        except InputError:  # these numbers of devices and micro-batches are none that it takes
            continue
        found[name] = run_schedule(built, Durations(forward, backward, weight), send)
    return found


def _times(
    stages: int, forward: Quantities, backward: Quantities, weight: Quantities, send: Quantities
) -> tuple[Durations, Any]:
    took = [
        _quantities(name, given, stages, Dimension.SECONDS)
        for name, given in (("forward", forward), ("backward", backward), ("weight", weight))
    ]
    return Durations(*took), _quantities("send", send, max(stages - 1, 1), Dimension.SECONDS)[: max(stages - 1, 0)]


def _memory(
    stages: int, memory: Limit | None, activations: Quantities | None, kept: float | Quantities
) -> tuple[Floats, Floats, tuple[float, ...]]:
    """The limit [micro-batches] and the share kept for W by stage, and the size of a micro-batch's activations."""
    sizes = None if activations is None else _quantities("activations", activations, stages, Dimension.BYTES)
    if sizes is not None and not sizes.all():
        raise InputError(f"activations is {show_value(activations)}; give sizes above zero, or none")
    limit = np.full(stages, float(stages)) if memory is None else _in_units("memory", memory, stages, sizes)
    share = _in_units("kept_for_weight", kept, stages, sizes)
    return limit, share, () if sizes is None else tuple(map(float, sizes))


def _in_units(what: str, given: Any, stages: int, sizes: Floats | None) -> Floats:
    """Return the numbers as they are, sizes relative to those of a micro-batch's activations."""
    try:
        numbers = _spread(what, [float(one) for one in _split(given)], stages)
    except (TypeError, ValueError):
        numbers = None
    if numbers is not None and np.isinf(numbers).any():
        raise InputError(f"{what} is {show_value(given)}; give a finite number")
    if numbers is not None:
        return numbers
    if sizes is None:
        raise InputError(
            f"{what} is {show_value(given)}; give a number of micro-batches, or a size together with that of a "
            "micro-batch's activations"
        )
    return _quantities(what, given, stages, Dimension.BYTES) / sizes


def _quantities(what: str, given: Quantities, stages: int, dimension: Dimension) -> Floats:
    values = []
    for one in _split(given):
        try:
            values.append(parse(one, dimension))
        except UnitError as error:
            raise UnitError(f"{what}: {error}") from None
    if any(value < 0 for value in values):
        raise InputError(f"{what} is {show_value(given)}; give values of zero or more")
    return _spread(what, values, stages)


def _split(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [one.strip() for one in given.split(",")]
    return list(given) if isinstance(given, (list, tuple, np.ndarray)) else [given]


def _spread(what: str, values: Sequence[float], stages: int) -> Floats:
    if len(values) not in (1, stages):
        raise InputError(f"{what} has {len(values)} values; give one, or {stages}: one for each")
    spread: Floats = np.broadcast_to(np.asarray(values, float), (stages,)).copy()
    return spread
