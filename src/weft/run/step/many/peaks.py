"""Peaks of the memory of many plans: what ranks hold throughout, and the micro-batches that are in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.result.memory import FRAGMENTATION
from weft.run.step.many.layers import Key, Parts
from weft.run.step.many.structure import Structure
from weft.run.step.memory import outside, throughout
from weft.schedule.pipeline import schedule
from weft.schedule.pipeline.orders import BACKWARD, FORWARD

FloatArray = NDArray[np.float64]
State = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Micro-batches held by chunk, and the kind and chunk of the task that runs, each with an entry per state."""
_GROUPS = 3
"""Groups of micro-batches after which an interleaved schedule holds nothing that it has not held before."""


def peaks(
    plans: Sequence[Parallelism], parts: Sequence[Parts], structures: Sequence[Structure], framework: Framework
) -> FloatArray:
    """The peak of the fullest device under each plan [bytes], as of `weft.result.memory.Memory`."""
    found = np.empty(len(plans))
    alike: dict[Key, list[int]] = {}
    for at, (plan, structure) in enumerate(zip(plans, structures, strict=True)):
        alike.setdefault((plan.schedule, plan.micro_batches, plan.offload, id(structure)), []).append(at)
    memo: dict[Key, FloatArray] = {}
    for mine in alike.values():
        needs = _activations(plans[mine[0]], [parts[at] for at in mine], structures[mine[0]])
        held = np.array([_held(plans[at], parts[at], structures[at], framework, memo) for at in mine])
        found[mine] = ((needs + held[:, :-1]) * (1 + FRAGMENTATION)).max(axis=1) + held[:, -1]
    return found


def _activations(plan: Parallelism, parts: Sequence[Parts], structure: Structure) -> FloatArray:
    """What the micro-batches in flight need on each device [bytes], of the shape (plans, devices)."""
    distinct = {id(one): one for one in parts}
    kept = [one.kept(structure.of, plan.offload == "activations") for one in distinct.values()]
    held, working = (np.array(each) for each in zip(*kept, strict=True))
    needs = dynamic(plan.schedule, plan.pp, plan.micro_batches, held, working)
    place = {key: number for number, key in enumerate(distinct)}
    found: FloatArray = needs[[place[id(one)] for one in parts]]
    return found


def _held(
    plan: Parallelism, parts: Parts, structure: Structure, framework: Framework, memo: dict[Key, FloatArray]
) -> FloatArray:
    """What each device holds throughout, then what every rank holds outside the framework's allocator [bytes]."""
    key = (
        plan.tp, plan.sp, plan.cp, plan.ep, plan.pp, plan.dp, plan.zero, plan.shard, plan.dtype, plan.quantize,
        plan.offload, id(structure),
    )  # fmt: skip
    if key not in memo:
        each = [_states(plan, parts, mine, framework) for mine in structure.of_stages]
        memo[key] = np.append(np.array(each, np.float64)[structure.kind], outside(plan))
    return memo[key]


def _states(plan: Parallelism, of: Parts, parts: NDArray[np.int64], framework: Framework) -> int:
    """What a device whose stages have `parts`, of the shape (stages, parts), holds throughout [bytes]."""
    count, experts = int((parts @ of.parameters).sum()), int((parts @ of.experts).sum())
    largest = int(np.where(parts.any(axis=0), of.parameters, 0).max())
    return sum(throughout(count, experts, largest, plan, framework).values())


def dynamic(name: str, devices: int, micro_batches: int, held: FloatArray, working: FloatArray) -> FloatArray:
    """The most that activations and the passes over them need on each device [bytes], of the shape (plans, devices).

    `held` are the bytes that a micro-batch keeps in each stage, `working` those that its forward and its backward need
    beside them: the shapes are (plans, stages) and (plans, 2, stages).
    """
    if name in ("1f1b", "gpipe") or devices == 1:
        most = micro_batches if name == "gpipe" else np.minimum(micro_batches, devices - np.arange(devices))
        found: FloatArray = most * held + working.max(axis=1)
        return found
    few = min(micro_batches, _GROUPS * devices)
    found = np.empty((len(held), devices))
    for device, (counts, kind, chunk) in enumerate(_in_flight(name, devices, few)):
        mine = slice(device, None, devices)
        found[:, device] = (held[:, mine] @ counts.T + working[:, :, mine][:, kind, chunk]).max(axis=1)
    return found


@lru_cache(maxsize=512)
def _in_flight(name: str, devices: int, micro_batches: int) -> list[State]:
    """Of each device the distinct states of its order: micro-batches by chunk, then kind and chunk of the task."""
    order = schedule(name, devices, micro_batches)
    chunks = order.stages // devices
    states: list[State] = []
    for tasks in order.orders:
        kind, stage, _ = np.unravel_index(tasks, order.shape)
        chunk = stage // devices
        one = chunk[:, None] == np.arange(chunks)
        ended = one & (kind == BACKWARD)[:, None]
        counts = np.cumsum(one & (kind == FORWARD)[:, None], axis=0) - np.cumsum(ended, axis=0) + ended
        rows = np.unique(np.column_stack([counts, kind, chunk]), axis=0)
        states.append((rows[:, :-2], rows[:, -2], rows[:, -1]))
    return states
