"""Peaks of the memory of many plans: what ranks hold throughout, and the micro-batches that are in flight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from weft.graph import DTYPE_BYTES
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.result.memory import FRAGMENTATION
from weft.run.step.layers import Key, Parts
from weft.run.step.memory import held_by, outside, throughout
from weft.run.step.stages import Structure, in_rounds
from weft.schedule.pipeline import Schedule, schedule

FloatArray = NDArray[np.float64]
State = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The stages of a device, then with an entry per state micro-batches held of each, whether the task that runs is a
backward, and the place of its stage among those of the device."""
_GROUPS = 3
"""Groups of micro-batches after which an interleaved schedule holds nothing that it has not held before."""


def peaks(
    plans: Sequence[Parallelism],
    parts: Sequence[Parts],
    structures: Sequence[Structure],
    orders: Sequence[Schedule | None],
    framework: Framework,
) -> FloatArray:
    """The peak of the fullest device under each plan [bytes], as of `weft.result.memory.Memory`.

    Plans without an order have a schedule whose tasks lie in slots.
    """
    found = np.empty(len(plans))
    alike: dict[Key, list[int]] = {}
    for at, (plan, structure) in enumerate(zip(plans, structures, strict=True)):
        alike.setdefault((plan.schedule, plan.micro_batches, plan.offload, id(structure)), []).append(at)
    memo: dict[Key, FloatArray] = {}
    for mine in alike.values():
        first, order = mine[0], orders[mine[0]]
        needs = _activations(plans[first], [parts[at] for at in mine], structures[first], order)
        held = np.array([_held(plans[at], parts[at], structures[at], order, framework, memo) for at in mine])
        found[mine] = ((needs + held[:, :-1]) * (1 + FRAGMENTATION)).max(axis=1) + held[:, -1]
    return found


def _activations(plan: Parallelism, parts: Sequence[Parts], structure: Structure, order: Schedule | None) -> FloatArray:
    """What the micro-batches in flight need on each device [bytes], of the shape (plans, devices)."""
    distinct = {id(one): one for one in parts}
    kept = [one.kept(structure.of, plan.offload == "activations") for one in distinct.values()]
    held, working = (np.array(each) for each in zip(*kept, strict=True))
    if order is None:
        needs = dynamic(plan.schedule, plan.pp, plan.micro_batches, held, working)
    else:
        needs = _most([_states(order, at, row[row >= 0]) for at, row in enumerate(structure.stages)], held, working)
    place = {key: number for number, key in enumerate(distinct)}
    found: FloatArray = needs[[place[id(one)] for one in parts]]
    return found


def _held(
    plan: Parallelism,
    parts: Parts,
    structure: Structure,
    order: Schedule | None,
    framework: Framework,
    memo: dict[Key, FloatArray],
) -> FloatArray:
    """What each device holds throughout, then what every rank holds outside the framework's allocator [bytes]."""
    names = "tp", "sp", "cp", "ep", "pp", "dp", "zero", "shard", "dtype", "quantize", "offload"
    key = (*(getattr(plan, name) for name in names), id(structure))
    if key not in memo:
        each = [_throughout(plan, parts, mine, framework) for mine in structure.of_stages]
        memo[key] = np.append(np.array(each, np.float64)[structure.kind], outside(plan))
        if order is not None:
            sizes = structure.of.counts @ parts.parameters * DTYPE_BYTES[plan.dtype]
            more = (np.array(order.versions) - 1) * sizes
            memo[key][:-1] += np.where(structure.stages >= 0, more[structure.stages], 0).sum(axis=1)
    return memo[key]


def _throughout(plan: Parallelism, of: Parts, parts: NDArray[np.int64], framework: Framework) -> int:
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
    return _most(_in_rounds(name, devices, min(micro_batches, _GROUPS * devices)), held, working)


def _most(states: Sequence[State], held: FloatArray, working: FloatArray) -> FloatArray:
    """The most that is held and needed in any of the `states` of each device [bytes]."""
    each = [
        (held[:, stages] @ counts.T + working[:, :, stages][:, kind, place]).max(axis=1)
        for stages, counts, kind, place in states
    ]
    return np.array(each).T


@lru_cache(maxsize=512)
def _in_rounds(name: str, devices: int, micro_batches: int) -> list[State]:
    """Of each device the distinct states of its order, if stages go round and round the devices."""
    order = schedule(name, devices, micro_batches)
    return [_states(order, at, np.array(mine)) for at, mine in enumerate(in_rounds(devices, order.stages))]


def _states(order: Schedule, device: int, stages: NDArray[np.int64]) -> State:
    counts, _, forward, place = held_by(order, device, stages)
    rows = np.unique(np.column_stack([counts, ~forward, place]), axis=0)
    return stages, rows[:, :-2], rows[:, -2], rows[:, -1]
