"""What ends a training step: gradients summed over replicas, the optimizer, and weights gathered again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weft.graph import DTYPE_BYTES, Collective
from weft.models import Transformer
from weft.models.update import optimizer_ops
from weft.parallel.framework import Framework
from weft.parallel.memory import sharded
from weft.parallel.plan import Parallelism
from weft.parallel.quantize import RECIPES, quantized
from weft.result.step import Chunk, Pass
from weft.run.step.offload import exposed_states
from weft.run.step.parts import stages_on
from weft.run.step.prices import Prices
from weft.run.step.spans import CONTENTION
from weft.schedule.pipeline import PipelineTimes

BACKWARD, WEIGHT = 1, 2
"""Kinds of a pipeline's tasks, by their place in the arrays of `PipelineTimes`."""


@dataclass(frozen=True)
class Tail:
    """What a pipeline device does after its last task [s]: wait for the sum of gradients, then update the weights.

    `gather` is the wait for the weights of other ranks, at the end of this step or in the first forward of the next,
    `host` what the update waits for optimizer states in the memory of the host. `contention` is what its passes take
    longer because these collectives run beside them, `hidden` the communication that nothing waits for.
    """

    reduce: float
    optimizer: float
    gather: float
    contention: float = 0.0
    hidden: float = 0.0
    host: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        exposed = {"exposed dp": self.reduce + self.gather, "exposed host": self.host, CONTENTION: self.contention}
        parts = {**exposed, "optimizer": self.optimizer}
        return {name: seconds for name, seconds in parts.items() if seconds}


def tails(
    model: Transformer,
    chunks: Sequence[Chunk],
    ran: PipelineTimes,
    plan: Parallelism,
    framework: Framework,
    prices: Prices,
) -> tuple[Tail, ...]:
    """The tail of every pipeline device."""
    return tuple(_tail(device, model, chunks, ran, plan, framework, prices) for device in range(ran.schedule.devices))


def end_of_step(ran: PipelineTimes, tails: Sequence[Tail]) -> float:
    """The end of the step [s]: all devices wait for the norm of all gradients, then for the slowest update.

    A schedule without a flush has no such end: the step takes as long as its busiest device computes.
    """
    if not ran.schedule.flushes:
        return float(np.max(ran.busy)) + max(sum(tail.parts.values()) for tail in tails)
    reduced = max(end + tail.contention + tail.reduce for end, tail in zip(_ends(ran), tails, strict=True))
    return reduced + max(tail.optimizer + tail.host + tail.gather for tail in tails)


def _ends(ran: PipelineTimes) -> list[float]:
    return [float(ran.end.flat[order].max()) for order in ran.schedule.orders]


def _tail(
    device: int,
    model: Transformer,
    chunks: Sequence[Chunk],
    ran: PipelineTimes,
    plan: Parallelism,
    framework: Framework,
    prices: Prices,
) -> Tail:
    stages = stages_on(ran.schedule, device)
    count = sum(chunks[stage].parameters for stage in stages)
    experts = sum(chunks[stage].experts for stage in stages)
    shard = sharded(count, experts, plan) if plan.zero else count
    update = optimizer(shard, count, plan, framework, prices)
    groups = Groups(plan, framework, prices, experts / count if count else 0.0)
    tied = groups.tied(model) if plan.pp > 1 and model.tied and {0, len(chunks) - 1} & set(stages) else 0.0
    ready = [_gradients(device, stage, ran) for stage in stages]
    counts = [chunks[stage].parameters for stage in stages]
    end = float(ran.end.flat[ran.schedule.orders[device]].max())
    reduce, gather = (groups.reduce(count), 0.0), (groups.gather(count), 0.0)
    parts = [part for stage in stages for part in chunks[stage].parts]
    if framework.dp_overlap:
        reduce = groups.reduced(ready, counts, end, [one for part in parts for one in (part.backward, part.weight)])
    if framework.gather_overlap:
        gather = groups.gathered(count, [part.forward for part in parts])
    hidden = max(groups.reduce(count) - reduce[0], 0.0) + max(groups.gather(count) - gather[0], 0.0)
    host = exposed_states(shard, update, framework, prices.gpu) if plan.offload == "optimizer" else 0.0
    return Tail(reduce[0] + tied, update, gather[0], reduce[1] + gather[1], hidden, host)


def _gradients(device: int, stage: int, ran: PipelineTimes) -> tuple[float, float]:
    """Between when the gradients of a stage's weights become complete: begin and end of its last backward task [s]."""
    mine = ran.schedule.device[stage] == device
    kind = BACKWARD if ran.schedule.whole[stage][mine].all() else WEIGHT
    last = int(np.nanargmax(np.where(mine, ran.end[kind, stage], np.nan)))
    return float(ran.start[kind, stage, last]), float(ran.end[kind, stage, last])


def optimizer(shard: int, count: int, plan: Parallelism, framework: Framework, prices: Prices) -> float:
    """Time of the optimizer's step on a shard of so many parameters, and of what surrounds it [s].

    Weights that are quantised once per step are so after it.
    """
    ops = optimizer_ops(
        framework.optimizer,
        shard,
        gradients=framework.gradients,
        weights=framework.weights or plan.dtype,
        fused=framework.fused_optimizer,
        loss_scaling=framework.scales_loss and plan.dtype == "fp16",
        zeroed=count if plan.zero < 2 else shard,
    )
    once = plan.quantize and not RECIPES[plan.quantize].each_pass
    return sum(prices.of(op) for op in (*ops, *(quantized(count, plan.quantize, plan.dtype) if once else ())))


class Groups:
    """Collectives over the replicas of the same weights; of these the part `experts` has fewer replicas."""

    def __init__(self, plan: Parallelism, framework: Framework, prices: Prices, experts: float) -> None:
        self.plan, self.framework, self.prices, self.experts = plan, framework, prices, experts
        self.replicas = plan.dp * plan.cp
        self.reduction = "reduce_scatter" if plan.zero and framework.scatters else "all_reduce"

    def _moved(self, kind: str, count: int, dtype: str) -> float:
        routed = round(count * self.experts)
        shared = self._among("dp", self.replicas, kind, count - routed, dtype)
        return shared + self._among("experts", self.plan.expert_replicas, kind, routed, dtype)

    def _among(self, axis: str, replicas: int, kind: str, count: int, dtype: str) -> float:
        if replicas == 1 or self.plan.gathers_each_pass or not count:
            return 0.0
        return self.prices.moved(kind, max(count, replicas) * DTYPE_BYTES[dtype], replicas, dtype, axis)

    def reduce(self, count: int) -> float:
        """Time to sum the gradients of so many parameters, to shards if the optimizer is sharded [s]."""
        return self._moved(self.reduction, count, self.framework.reduced)

    def gather(self, count: int) -> float:
        """Time to gather so many weights that a sharded optimizer has updated [s]."""
        return self._moved("all_gather", count, self.plan.dtype) if self.plan.zero else 0.0

    def tied(self, model: Transformer) -> float:
        """Time to sum the gradient of the embedding, which the first and the last stage share [s]."""
        count = -(-model.vocabulary * model.hidden // self.plan.tp)
        dtype = self.framework.reduced
        return self.prices.moved("all_reduce", count * DTYPE_BYTES[dtype], 2, dtype, "pp")

    def buckets(self, count: int) -> int:
        """Buckets in which so many parameters travel."""
        return max(-(-count // (self.framework.bucket_of(self.replicas) or count)), 1)

    def reduced(
        self, ready: Sequence[tuple[float, float]], counts: Sequence[int], end: float, passes: Sequence[Pass]
    ) -> tuple[float, float]:
        """How long the sum of the last bucket of gradients ends after `end`, the device's last task, and how much
        longer its backward `passes` take beside the others [s].

        The gradients of a stage become complete evenly while its last backward task runs; each bucket waits for its
        own and for the bucket before it.
        """
        buckets = self.buckets(max(counts))
        own, other = self._slowdown(passes, self.reduction, -(-max(counts) // buckets), self.framework.reduced)
        free = beside = 0.0
        for (start, stop), count in sorted(zip(ready, counts, strict=True)):
            for when, size in self._arrivals(start, stop, count):
                begin, alone = max(free, when), self.reduce(size)
                hidden = min(alone * other, max(end - begin, 0.0))
                beside += hidden
                free = begin + hidden + alone - hidden / other
        contention = beside * (1 - 1 / own)
        return max(free - end - contention, 0.0), contention

    def _arrivals(self, start: float, end: float, count: int) -> Iterator[tuple[float, int]]:
        buckets = self.buckets(count)
        for number in range(1, buckets + 1):
            yield start + (end - start) * number / buckets, -(-count // buckets)

    def gathered(self, count: int, passes: Sequence[Pass]) -> tuple[float, float]:
        """How long the first forward pass waits for weights that are gathered in buckets beside it, and how much
        longer it takes [s].
        """
        buckets, forward = self.buckets(count), sum(one.seconds for one in passes)
        each = self.gather(-(-count // buckets))
        own, other = self._slowdown(passes, "all_gather", -(-count // buckets), self.plan.dtype)
        beside = min(each * (buckets - 1) * other, forward * (buckets - 1) / buckets * own)
        return each * buckets - beside / other, beside * (1 - 1 / own)

    def _slowdown(self, passes: Sequence[Pass], kind: str, count: int, dtype: str) -> tuple[float, float]:
        """What passes and a collective of so many parameters cost each other."""
        moved = self.beside(kind, count, dtype)
        return (1.0, 1.0) if moved is None else self.prices.windows.of_passes(passes, moved)

    def beside(self, kind: str, count: int, dtype: str) -> Collective | None:
        """The collective of so many parameters that runs beside passes, if any does."""
        if self.replicas == 1 or self.plan.gathers_each_pass:
            return None
        return Collective(kind, max(count, self.replicas) * DTYPE_BYTES[dtype], self.replicas, dtype)
