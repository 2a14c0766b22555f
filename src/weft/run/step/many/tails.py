"""What ends the steps of plans with the same pipeline: `weft.run.step.tail` for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.graph import Collective
from weft.models import Transformer
from weft.parallel.framework import Framework
from weft.parallel.memory import sharded
from weft.parallel.plan import Parallelism
from weft.run.step.many.layers import Parts
from weft.run.step.many.structure import Structure
from weft.run.step.offload import exposed_states
from weft.run.step.prices import Prices
from weft.run.step.tail import Groups, optimizer

FloatArray = NDArray[np.float64]
Updates = dict[tuple[object, ...], float]
"""Seconds of optimizer steps, by all that decides them in a framework."""


class Fixed(NamedTuple):
    """What surrounds the passes on a device, whatever its passes are [s].

    `update` is the optimizer's step with its wait for states on the host, `tied` the sum of the embedding's gradient,
    `reduce` and `gather` the whole collectives. Of the stages in the order in which their gradients become complete,
    `buckets` counts the buckets of gradients, each of which takes `alone`; of `gathers` buckets of weights each takes
    `wait`. `reduced` and `gathered` are buckets that run beside backward and forward passes, if any do.
    """

    update: float
    tied: float
    reduce: float
    gather: float
    gathers: int
    wait: float
    buckets: tuple[int, ...]
    alone: tuple[float, ...]
    reduced: Collective | None
    gathered: Collective | None


class Slowed(NamedTuple):
    """Factors by which passes and the collectives of replicas slow each other down, backwards with reductions and
    forwards with gatherings, and the time of the forward passes on the device [s].
    """

    backward: float = 1.0
    reduce: float = 1.0
    forward: float = 1.0
    gather: float = 1.0
    whole: float = 0.0


class Ends(NamedTuple):
    """Step times of plans by their parts [s]: the pipeline, the rest of the reduction, the update."""

    pipeline: FloatArray
    reduce: FloatArray
    update: FloatArray


def fixed(
    model: Transformer, plan: Parallelism, framework: Framework, prices: Prices, structure: Structure, of: Parts,
    updates: Updates,
) -> list[Fixed]:  # fmt: skip
    """What surrounds the passes on each kind of device under a plan."""
    return [
        _fixed(model, plan, framework, prices, each, is_end, of, updates)
        for each, is_end in zip(structure.of_stages, structure.is_end, strict=True)
    ]


def _fixed(
    model: Transformer, plan: Parallelism, framework: Framework, prices: Prices, parts: NDArray[np.int64],
    is_end: bool, of: Parts, updates: Updates,
) -> Fixed:  # fmt: skip
    """What surrounds the passes on a device whose stages have `parts`, of the shape (stages, parts)."""
    counts: list[int] = (parts @ of.parameters).tolist()
    count, most, experts = sum(counts), max(counts), int((parts @ of.experts).sum())
    groups = Groups(plan, framework, prices, experts / count if count else 0.0)
    buckets = [groups.buckets(each) for each in counts]
    sizes = [-(-each // number) for each, number in zip(counts, buckets, strict=True)]
    alone = {size: groups.reduce(size) for size in dict.fromkeys(sizes)}
    gathers = groups.buckets(count)
    return Fixed(
        _update(count, experts, plan, framework, prices, updates),
        groups.tied(model) if plan.pp > 1 and model.tied and is_end else 0.0,
        groups.reduce(count),
        groups.gather(count),
        gathers,
        groups.gather(-(-count // gathers)) if framework.gather_overlap else 0.0,
        tuple(buckets),
        tuple(alone[size] for size in sizes),
        groups.beside(groups.reduction, -(-most // groups.buckets(most)), framework.reduced)
        if framework.dp_overlap
        else None,
        groups.beside("all_gather", -(-count // gathers), plan.dtype) if framework.gather_overlap else None,
    )


def _update(
    count: int, experts: int, plan: Parallelism, framework: Framework, prices: Prices, updates: Updates
) -> float:
    shard = sharded(count, experts, plan) if plan.zero else count
    key = shard, count if plan.zero < 2 or plan.quantize else shard, plan.dtype, plan.quantize, plan.offload
    if key not in updates:
        update = optimizer(shard, count, plan, framework, prices)
        host = exposed_states(shard, update, framework, prices.gpu) if plan.offload == "optimizer" else 0.0
        updates[key] = update + host
    return updates[key]


def ends(
    structure: Structure,
    framework: Framework,
    last: FloatArray,
    backward: FloatArray,
    known: Sequence[Sequence[Fixed]],
    slowed: Sequence[Sequence[Slowed]],
) -> Ends:
    """The ends of steps whose stages end their last backwards at `last` and take `backward` for one [s].

    Both have the shape (plans, stages); `known` and `slowed` have an entry per plan and kind of device.
    """

    def of_devices(
        rows: Sequence[Sequence[tuple[object, ...]]], names: Sequence[str], at: slice
    ) -> dict[str, FloatArray]:
        values = np.array([[one[at] for one in row] for row in rows], np.float64)[:, structure.kind]
        return {name: values[..., number] for number, name in enumerate(names)}

    fixed = of_devices(known, Fixed._fields[:6], slice(0, 6))
    factors = of_devices(slowed, Slowed._fields, slice(None))
    end = last[:, structure.stages].max(axis=2)
    waits, longer, gather = fixed["reduce"], np.zeros_like(end), fixed["gather"]
    if framework.dp_overlap:
        buckets, alone = (
            np.array([[getattr(one, name) for one in row] for row in known], np.float64)[:, structure.kind]
            for name in ("buckets", "alone")
        )
        each = alone * factors["reduce"][..., None]
        lasts, passes = last[:, structure.stages], backward[:, structure.stages]
        waits, longer = _reduced(lasts, passes, end, buckets, each, factors["backward"], factors["reduce"])
    if framework.gather_overlap:
        gather, more = _gathered(fixed, factors)
        longer = longer + more
    makespan = end.max(axis=1)
    reduced_at = (end + longer + waits + fixed["tied"]).max(axis=1)
    return Ends(makespan, reduced_at - makespan, (fixed["update"] + gather).max(axis=1))


def _reduced(
    last: FloatArray, backward: FloatArray, end: FloatArray, buckets: FloatArray, each: FloatArray, own: FloatArray,
    other: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """`Groups.reduced` in closed form: the wait after the last task, and how much longer the passes take [s].

    `last`, `backward`, `buckets` and `each`, the time of a bucket, have the shape (plans, devices, stages), in the
    order in which gradients become complete. Buckets of a stage become ready evenly, all before `end`. On a clock that
    runs `other` times faster after `end`, each of them takes equally long, so that the last one ends after the first
    and all others, or after the last alone.
    """
    first = last - backward * (1 - 1 / buckets)
    done, busy = np.zeros_like(end), (buckets * each).sum(axis=2)
    for at in range(last.shape[2]):
        whole = buckets[..., at] * each[..., at]
        done = np.maximum(np.maximum(done, first[..., at]) + whole, last[..., at] + each[..., at])
    late = np.maximum(done - end, 0.0)
    longer = (busy - late) * (1 - 1 / own)
    return np.maximum(np.minimum(done - end, 0.0) + late / other - longer, 0.0), longer


def _gathered(fixed: dict[str, FloatArray], factors: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """`Groups.gathered`: the wait for weights, and how much longer the first forward pass takes [s]."""
    count, each, own, other = fixed["gathers"], fixed["wait"], factors["forward"], factors["gather"]
    beside = np.minimum(each * (count - 1) * other, factors["whole"] * (count - 1) / count * own)
    return each * count - beside / other, beside * (1 - 1 / own)
