"""Parts of a model in a row on one rank, each after its weights were gathered where they are sharded (FSDP)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from weft.graph import DTYPE_BYTES, Collective, Edge
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import words
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import OVERLAPS
from weft.step.durations import OperatorTimes
from weft.step.offload import waiting_for_host
from weft.step.result.step import (
    LAUNCH_GAPS,
    RESIDUAL,
    Chunk,
    PartTimes,
    Pass,
    Times,
    add_parts,
    exposed_part,
    sum_layers,
)
from weft.step.spans import COMPUTE, CONTENTION, share_gpu
from weft.step.windows import Windows

DATA = "dp"
"""The stream of the collectives among replicas."""
PassSlowdown = Callable[[Sequence[Pass], Collective], tuple[float, float]]
"""How many times longer passes of operators and a collective take while they run at once."""


@dataclass(frozen=True)
class TimedCollective:
    """A collective among replicas, and its time alone [s]; None and 0 where nothing is moved."""

    op: Collective | None = None
    seconds: float = 0.0


class WeightGathers(NamedTuple):
    """How the weights of each part are gathered, and its gradients reduced and scattered.

    The last part keeps its weights from the forward to the backward pass if `keep_last`; with `keep` all do. `slowdown`
    says what the passes and these collectives cost each other (None: nothing). Collectives run `ahead`, concurrently
    with the pass before, or in sequence with all passes. A pass takes a share `residual` of what is hidden longer.
    """

    gather: Sequence[TimedCollective]
    scatter: Sequence[TimedCollective]
    keep: bool = False
    keep_last: bool = True
    slowdown: PassSlowdown | None = None
    ahead: bool = True
    residual: float = 0.0


@dataclass(frozen=True)
class _Task:
    """Passes over a part, or a collective for it."""

    id: str
    stream: str
    after: tuple[str, ...]
    passes: tuple[Pass, ...] = ()
    moved: TimedCollective = TimedCollective()

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(map(Edge, self.after))

    @property
    def seconds(self) -> float:
        return self.moved.seconds + sum(one.seconds for one in self.passes)


def time_stage(
    parts: Sequence[PartTimes], plan: TrainingPlan, framework: Framework, prices: OperatorTimes, windows: Windows
) -> Chunk:
    """Return the passes over the parts of a stage."""
    found = gather_weights(parts, plan, framework, prices, windows) if plan.gathers_each_pass else None
    alone = chain_passes(parts, found, framework.launch, framework.synchronous)
    return waiting_for_host(alone, prices.gpu) if plan.offload == "activations" else alone


def gather_weights(
    parts: Sequence[PartTimes], plan: TrainingPlan, framework: Framework, prices: OperatorTimes, windows: Windows
) -> WeightGathers:
    """Return how a plan gathers a stage's weights for every pass; `windows` give the slowdown of passes."""
    replicas = plan.dp * plan.cp
    ranks = plan.shard or replicas
    if ranks == 1:
        return WeightGathers([TimedCollective()] * len(parts), [TimedCollective()] * len(parts))

    def time_move(kind: str, count: int, dtype: str, among: int = ranks, axis: str = "dp") -> TimedCollective:
        op = Collective(kind, max(count * DTYPE_BYTES[dtype], among), among, dtype)
        return TimedCollective(op, prices.of(op, axis))

    few = min(ranks, plan.expert_replicas)

    def whole(kind: str, one: PartTimes, dtype: str) -> TimedCollective:
        count, experts = one.parameters - one.experts, one.experts
        if kind == "all_gather":
            count = math.ceil(words(count, one.narrow - experts, plan, framework))
            experts = math.ceil(words(experts, experts, plan, framework))
        shared = time_move(kind, count, dtype)
        if few == 1 or not experts:
            return shared
        routed = time_move(kind, experts, dtype, few, "experts")
        return replace(shared, seconds=shared.seconds + routed.seconds)

    gradients = framework.gradients

    def time_scatter(one: PartTimes) -> TimedCollective:
        inside = whole("reduce_scatter", one, gradients)
        if ranks == replicas:
            return inside
        share = time_move("all_reduce", one.parameters // ranks, gradients, replicas // ranks, "replica")
        return replace(inside, seconds=inside.seconds + share.seconds)

    kinds = {id(one): one for one in parts}
    gather = {key: whole("all_gather", one, plan.dtype) for key, one in kinds.items()}
    scatter = {key: time_scatter(one) for key, one in kinds.items()}
    return WeightGathers(
        [gather[id(one)] for one in parts],
        [scatter[id(one)] for one in parts],
        framework.keeps_weights,
        slowdown=windows.of_passes,
        ahead="dp" not in plan.overlap or not OVERLAPS[plan.overlap["dp"]].in_sequence,
        residual=prices.known.calibration.hidden,
    )


def chain_passes(
    parts: Sequence[PartTimes], gathering: WeightGathers | None = None, launch: float = 0.0, synchronous: bool = False
) -> Chunk:
    """Return the passes over parts in their order, the backward ones in reverse.

    The host spends `launch` on each kernel [s]; the host runs ahead of the GPU as far as the pass allows, or,
    `synchronous`, waits for each kernel before it launches the next.
    """
    alike = Counter(map(id, parts))
    each = [(part, alike[key]) for key, part in {id(part): part for part in parts}.items()]
    forward = sum_layers((part.forward, count) for part, count in each)
    backward = sum_layers((part.recompute + part.backward, count) for part, count in each)
    weight = sum_layers((part.weight, count) for part, count in each)
    if gathering is not None:
        forward = _add_collectives(forward, _run_tasks(_forward(parts, gathering), gathering))
        backward = _add_collectives(backward, _run_tasks(_backward(parts, gathering), gathering), weight.seconds)
    return Chunk(tuple(parts), *(_add_launch(one, launch, synchronous) for one in (forward, backward, weight)))


def forward_seconds(parts: Sequence[PartTimes], gathering: WeightGathers) -> float:
    """Return the forward time of `chain_passes` [s], without its breakdown."""
    return _run_tasks(_forward(parts, gathering), gathering).seconds


def backward_seconds(parts: Sequence[PartTimes], gathering: WeightGathers) -> float:
    """Return the backward time of `chain_passes` [s], without its breakdown."""
    alike = Counter(map(id, parts))
    weight = sum(part.weight.seconds * alike[key] for key, part in {id(part): part for part in parts}.items())
    return _run_tasks(_backward(parts, gathering), gathering).seconds - weight


def _add_launch(alone: Pass, launch: float, synchronous: bool) -> Pass:
    gap = float(launch_gaps(alone.launches, alone.seconds, launch, synchronous))
    return alone + Pass(gap, {LAUNCH_GAPS: gap}) if gap else alone


def launch_gaps(launches: Any, seconds: Any, launch: float, synchronous: bool) -> Any:
    """Return how much longer than `seconds` passes take whose kernels the host launches, each in `launch`: the host is
    ahead of the GPU, or, `synchronous`, both run in turn [s].
    """
    return np.maximum(launches * launch - (0.0 if synchronous else seconds), 0.0)


def _run_tasks(tasks: Sequence[_Task], gathering: WeightGathers) -> Pass:
    """Run the tasks of a pass, which share the GPU with the collectives of replicas; what they compute is one part."""
    times = _times(tasks, gathering.slowdown)
    computed, moved = (
        sum(times[t.id][1] - times[t.id][0] for t in tasks if t.stream == stream) for stream in (COMPUTE, DATA)
    )
    waited = max(stop for _, stop in times.values()) - computed
    hidden = moved - waited
    parts = {COMPUTE: computed, exposed_part(DATA): waited, RESIDUAL: gathering.residual * max(hidden, 0.0)}
    return Pass(sum(parts.values()), parts, {DATA: hidden}, times=times)


def _add_collectives(alone: Pass, ran: Pass, weight: float = 0.0) -> Pass:
    """Return a pass whose tasks wait for weights or gradients of other ranks, and share the GPU with their collectives.

    `weight` is the time of the passes over gradients of weights among the tasks, which `alone` leaves out [s].
    """
    longer = ran.parts[COMPUTE] - alone.seconds - weight
    more = {exposed_part(DATA): ran.parts[exposed_part(DATA)], CONTENTION: longer, RESIDUAL: ran.parts[RESIDUAL]}
    parts = add_parts(alone.parts, {name: value for name, value in more.items() if value > 1e-12})
    hidden = add_parts(alone.hidden, ran.hidden)
    return replace(alone, seconds=ran.seconds - weight, parts=parts, hidden=hidden, times=ran.times)


def _times(tasks: Sequence[_Task], slowdown: PassSlowdown | None) -> Times:
    """Begin and end of tasks that share the GPU [s]."""
    known: dict[tuple[int, ...], tuple[float, float]] = {}

    def slow_down(computing: _Task, moving: _Task) -> tuple[float, float]:
        if slowdown is None or moving.moved.op is None or not computing.passes:
            return 1.0, 1.0
        key = id(moving.moved.op), *map(id, computing.passes)
        if key not in known:
            known[key] = slowdown(computing.passes, moving.moved.op) if computing.seconds else (1.0, 1.0)
        return known[key]

    return share_gpu(tasks, {task.id: task.seconds for task in tasks}, slow_down)


def _forward(parts: Sequence[PartTimes], gathering: WeightGathers) -> list[_Task]:
    """Return the forward passes and what gathers their weights.

    While a part runs, the next one's weights are gathered: two parts are whole at once (FSDP's rate limiter).
    """
    tasks = []
    for at, (part, moved) in enumerate(zip(parts, gathering.gather, strict=True)):
        last = at - 2 if gathering.ahead else at - 1
        before = (f"pass {last}",) if last >= 0 else ()
        tasks.append(_Task(f"gather {at}", DATA, before, moved=moved))
        tasks.append(_Task(f"pass {at}", COMPUTE, (f"gather {at}",), (part.forward,)))
    return tasks


def _backward(parts: Sequence[PartTimes], gathering: WeightGathers) -> list[_Task]:
    """Return the backward passes and their collectives.

    When the backward pass of a part begins, the weights of the next one are gathered; when it ends, its gradients are
    scattered, before the gather that follows: one communicator runs them in this order.
    """
    gather = [TimedCollective() if gathering.keep else moved for moved in gathering.gather]
    if gathering.keep_last:
        gather[-1] = TimedCollective()
    last = len(parts) - 1
    tasks = [_Task(f"gather {last}", DATA, (), moved=gather[last])]
    for at in range(last, -1, -1):
        part = parts[at]
        before: tuple[str, ...] = (f"gather {at}",)
        moves = [_Task(f"scatter {at}", DATA, (f"pass {at}",), moved=gathering.scatter[at])]
        if at:
            after = f"begin {at}" if gathering.ahead else f"pass {at}"
            moves.insert(0, _Task(f"gather {at - 1}", DATA, (after,), moved=gather[at - 1]))
        if at < last and not gathering.ahead:
            before = (*before, f"scatter {at + 1}")
        tasks += [
            _Task(f"begin {at}", COMPUTE, before),
            _Task(f"pass {at}", COMPUTE, (), (part.recompute, part.backward, part.weight)),
            *moves,
        ]
    return tasks
