"""What ends training steps: gradients summed over replicas, the optimizer, and weights gathered again.

Plans with the same pipeline are timed at once: arrays have the shape (plans, devices).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.graph import DTYPE_BYTES, Collective
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import shard_size, words
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import casts
from weft.models.update import optimizer_ops
from weft.step.durations import OperatorTimes
from weft.step.offload import exposed_states
from weft.step.rank_parts import RankParts
from weft.step.result.step import RESIDUAL, exposed_part
from weft.step.spans import CONTENTION
from weft.step.stages import StageLayout

FloatArray = NDArray[np.float64]
Updates = dict[tuple[object, ...], tuple[float, float]]
"""Seconds of optimizer steps and their waits for states on the host, by all that decides them in a framework."""


class EpilogueTimes(NamedTuple):
    """What surrounds the passes on a device, whatever its passes are [s].

    `update` is the optimizer's step, `host` its wait for states in the memory of the host, `tied` the sum of the
    embedding's gradient, `reduce` and `gather` the whole collectives. Of the stages of the device, `buckets` counts the
    buckets of gradients (each takes `alone`); of `gathers` buckets of weights each takes `wait`. `reduced` and
    `gathered` are buckets that run concurrently with backward and forward passes, if any do.
    """

    update: float
    host: float
    tied: float
    reduce: float
    gather: float
    gathers: int
    wait: float
    buckets: tuple[int, ...]
    alone: tuple[float, ...]
    reduced: Collective | None
    gathered: Collective | None


Slowdowns = tuple[float, float, float, float, float]
"""Factors by which passes and the collectives of replicas slow each other down, backwards with reductions (passes,
reductions) and forwards with gatherings (passes, gatherings), and the time of the forward passes on the device [s]."""


class StepEpilogue(NamedTuple):
    """What pipeline devices do after their last task [s]: wait for the sum of gradients, then update the weights.

    `gather` is the wait for the weights of other ranks, at the end of this step or in the first forward of the next,
    `host` what the update waits for optimizer states in the memory of the host. `contention` is what the passes take
    longer because these collectives run concurrently with them, `hidden` the communication that nothing waits for,
    `residual` what measured steps take longer for it, `tied` the wait of the first and the last stage for the sum of
    the gradients of an embedding that both hold.
    """

    reduce: FloatArray
    optimizer: FloatArray
    gather: FloatArray
    contention: FloatArray
    hidden: FloatArray
    host: FloatArray
    tied: FloatArray
    residual: FloatArray

    def parts(self, at: int, device: int) -> dict[str, float]:
        """Return the seconds of a device under a plan by what they are spent on, those that are hidden left out."""
        reduce, optimizer, gather, contention, _, host, tied, residual = (float(each[at, device]) for each in self)
        moved = {exposed_part("dp"): reduce + gather, exposed_part("pp"): tied, exposed_part("host"): host}
        waits = {**moved, CONTENTION: contention, RESIDUAL: residual}
        return {name: seconds for name, seconds in {**waits, "optimizer": optimizer}.items() if seconds}

    def ends(self, last: FloatArray, busy: FloatArray | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the pipeline, the rest of the reduction and the update of steps [s], whose devices end at `last` [s].

        All devices wait for the norm of all gradients, then for the slowest update. A schedule without a flush has no
        such end: the step takes as long as its busiest device computes, `busy` [s] (None: it has a flush).
        """
        reduced = self.contention + self.residual + (self.reduce + self.tied)
        update = self.optimizer + self.host + self.gather
        if busy is None:
            pipeline, waits = last.max(axis=1), (last + reduced).max(axis=1)
            return pipeline, waits - pipeline, update.max(axis=1)
        slowest = (reduced + update).argmax(axis=1)[:, None]
        rest, updated = (np.take_along_axis(each, slowest, axis=1)[:, 0] for each in (reduced, update))
        return busy, rest, updated


def epilogue_times(
    model: Transformer,
    plan: TrainingPlan,
    framework: Framework,
    prices: OperatorTimes,
    structure: StageLayout,
    of: RankParts,
    updates: Updates,
) -> list[EpilogueTimes]:
    """Return what surrounds the passes on each kind of device under a plan."""
    found = []
    for parts, is_end in zip(structure.of_stages, structure.is_end, strict=True):
        counts: list[int] = (parts @ of.parameters).tolist()
        count, experts = sum(counts), int((parts @ of.experts).sum())
        narrow = int((parts @ of.narrow).sum())
        light = words(count, narrow, plan, framework) / count if count else 1.0
        groups = ReplicaCollectives(plan, framework, prices, experts / count if count else 0.0, light)
        tied = groups.tied_seconds(model) if plan.pp > 1 and model.tied and is_end else 0.0
        update = _update(count, experts, narrow, plan, framework, prices, updates)
        found.append(_of_device(groups, counts, *update, tied, structure.stages.shape[1]))
    return found


def _of_device(
    groups: ReplicaCollectives, counts: Sequence[int], update: float, host: float, tied: float, width: int
) -> EpilogueTimes:
    """Return what surrounds the passes on a device with stages of `counts` parameters, up to `width` of them."""
    count, most, framework = sum(counts), max(counts), groups.framework
    buckets = [groups.buckets(each) for each in counts]
    sizes = [-(-each // number) for each, number in zip(counts, buckets, strict=True)]
    alone = {size: groups.reduce(size) for size in dict.fromkeys(sizes)}
    gathers, missing = groups.buckets(count), width - len(counts)
    reduced = gathered = None
    if framework.dp_overlap:
        reduced = groups.beside(groups.reduction, -(-most // groups.buckets(most)), framework.reduce_dtype)
    if framework.gather_overlap:
        gathered = groups.beside("all_gather", math.ceil(count / gathers * groups.light), groups.plan.dtype)
    return EpilogueTimes(
        update,
        host,
        tied,
        groups.reduce(count),
        groups.gather(count),
        gathers,
        groups.gather(-(-count // gathers)) if framework.gather_overlap else 0.0,
        (*buckets, *(1,) * missing),
        (*(alone[size] for size in sizes), *(0.0,) * missing),
        reduced,
        gathered,
    )


def _update(
    count: int,
    experts: int,
    narrow: int,
    plan: TrainingPlan,
    framework: Framework,
    prices: OperatorTimes,
    updates: Updates,
) -> tuple[float, float]:
    shard = shard_size(count, experts, plan) if plan.zero else count
    cast = 0 if framework.casts_each_pass else narrow
    if plan.zero and framework.keeps_low and plan.recipe.shared:  # cast before they are gathered
        cast = shard_size(cast, min(cast, experts), plan)
    key = shard, count if plan.zero < 2 else shard, cast, plan.dtype, plan.precision, plan.offload
    if key not in updates:
        update = optimizer(shard, count, plan, framework, prices, cast)
        host = exposed_states(shard, update, framework, prices.gpu) if plan.offload == "optimizer" else 0.0
        updates[key] = update, host
    return updates[key]


def optimizer(
    shard: int, count: int, plan: TrainingPlan, framework: Framework, prices: OperatorTimes, cast: int = 0
) -> float:
    """Return the time of the optimizer's step on a shard of `shard` of `count` parameters, and its surroundings [s].

    After it, `cast` weights are cast to the operands of the plan's recipe. Operands are gathered without a transpose.
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
    return sum(prices.of(op) for op in (*ops, *(casts(cast, plan.recipe, plan.dtype) if cast else ())))


class ReplicaCollectives:
    """Collectives over the replicas of the same weights; of these the part `experts` has fewer replicas.

    Where a recipe gathers weights in fewer bits than the plan's `dtype`, they have the part `light` of its bytes.
    """

    def __init__(
        self, plan: TrainingPlan, framework: Framework, prices: OperatorTimes, experts: float, light: float = 1.0
    ) -> None:
        self.plan, self.framework, self.prices, self.experts, self.light = plan, framework, prices, experts, light
        self.replicas = plan.dp * plan.cp
        self.reduction = "reduce_scatter" if plan.zero and framework.scatters else "all_reduce"

    def _collective_seconds(self, kind: str, count: int, dtype: str) -> float:
        routed = round(count * self.experts)
        shared = self._among("dp", self.replicas, kind, count - routed, dtype)
        return shared + self._among("experts", self.plan.expert_replicas, kind, routed, dtype)

    def _among(self, axis: str, replicas: int, kind: str, count: int, dtype: str) -> float:
        if replicas == 1 or self.plan.gathers_each_pass or not count:
            return 0.0
        return self.prices.collective_seconds(kind, max(count, replicas) * DTYPE_BYTES[dtype], replicas, dtype, axis)

    def reduce(self, count: int) -> float:
        """Return the time to sum the gradients of `count` parameters, to shards if the optimizer is sharded [s]."""
        return self._collective_seconds(self.reduction, count, self.framework.reduce_dtype)

    def gather(self, count: int) -> float:
        """Return the time to gather `count` weights that a sharded optimizer has updated [s]."""
        return (
            self._collective_seconds("all_gather", math.ceil(count * self.light), self.plan.dtype)
            if self.plan.zero
            else 0.0
        )

    def tied_seconds(self, model: Transformer) -> float:
        """Return the time to sum the gradient of the embedding, which the first and the last stage share [s]."""
        count = -(-model.vocabulary * model.hidden // self.plan.tp)
        dtype = self.framework.reduce_dtype
        return self.prices.collective_seconds("all_reduce", count * DTYPE_BYTES[dtype], 2, dtype, "pp")

    def buckets(self, count: int) -> int:
        """Return the number of buckets of `count` parameters."""
        return max(-(-count // (self.framework.bucket_of(self.replicas) or count or 1)), 1)

    def beside(self, kind: str, count: int, dtype: str) -> Collective | None:
        """Return the collective of `count` parameters that runs concurrently with passes, if any does."""
        if self.replicas == 1 or self.plan.gathers_each_pass:
            return None
        return Collective(kind, max(count, self.replicas) * DTYPE_BYTES[dtype], self.replicas, dtype)


def epilogue(
    structure: StageLayout,
    framework: Framework,
    begun: FloatArray,
    ended: FloatArray,
    last: FloatArray,
    known: Sequence[Sequence[EpilogueTimes]],
    slowed: Sequence[Sequence[Slowdowns]],
    residual: float = 0.0,
) -> StepEpilogue:
    """Return what the devices of pipelines do after their last tasks, which end at `last` [s].

    Between `begun` and `ended` [s] gradients of each stage on a device become complete: both have the shape (plans,
    devices, stages), as `structure.stages`. `known` and `slowed` have an entry per plan and kind of device. Steps take
    a share `residual` of what is hidden longer.
    """

    def of_devices(rows: Sequence[Sequence[tuple[object, ...]]], count: int) -> list[FloatArray]:
        values = np.array([[one[:count] for one in row] for row in rows], np.float64)[:, structure.kind]
        return [values[..., number] for number in range(count)]

    update, host, tied, whole, gather, gathers, wait = of_devices(known, 7)
    backward, reduce, forward, other, passes = of_devices(slowed, 5)
    waits, contention, gathered = whole, np.zeros_like(last), gather
    if framework.dp_overlap:
        buckets, alone = (
            np.array([[getattr(one, name) for one in row] for row in known], np.float64)[:, structure.kind]
            for name in ("buckets", "alone")
        )
        waits, contention = _reduction_tail(begun, ended, last, buckets, alone * reduce[..., None], backward, reduce)
    if framework.gather_overlap:
        gathered, more = _gather_wait(gathers, wait, forward, other, passes)
        contention = contention + more
    hidden = np.maximum(whole - waits, 0.0) + np.maximum(gather - gathered, 0.0)
    return StepEpilogue(waits, update, gathered, contention, hidden, host, tied, residual * hidden)


def _reduction_tail(
    begun: FloatArray,
    ended: FloatArray,
    last: FloatArray,
    buckets: FloatArray,
    each: FloatArray,
    own: FloatArray,
    other: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return how long the reduction of the last gradient bucket ends after `last`, a device's last task, and by how
    much the concurrent reductions delay its backward passes [s].

    The gradients of a stage become complete evenly while its last backward task runs; a bucket takes `each` during
    passes, and waits for its gradients and for the bucket before. On a clock that runs `other` times faster after
    `last`, all buckets of a stage take equally long, so that the last one ends after the first and all others, or after
    the last alone.
    """
    turn = np.argsort(begun, axis=2, kind="stable")
    begun, ended, buckets, each = (np.take_along_axis(one, turn, axis=2) for one in (begun, ended, buckets, each))
    first = begun + (ended - begun) / buckets
    done, busy = np.zeros_like(last), (buckets * each).sum(axis=2)
    for at in range(ended.shape[2]):
        whole = buckets[..., at] * each[..., at]
        done = np.maximum(np.maximum(done, first[..., at]) + whole, ended[..., at] + each[..., at])
    late = np.maximum(done - last, 0.0)
    longer = (busy - late) * (1 - 1 / own)
    return np.maximum(np.minimum(done - last, 0.0) + late / other - longer, 0.0), longer


def _gather_wait(
    count: FloatArray, each: FloatArray, own: FloatArray, other: FloatArray, forward: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return how long the first forward pass waits for weights, gathered in `count` concurrent buckets, and how much
    longer than `forward` the pass takes [s].
    """
    beside = np.minimum(each * (count - 1) * other, forward * (count - 1) / count * own)
    return each * count - beside / other, beside * (1 - 1 / own)
