"""The memory of training steps: what every rank holds through the order of its tasks, and the peaks of many plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import InputError
from weft.graph import DTYPE_BYTES
from weft.hardware import System
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import gathered_bytes, states
from weft.models.parallel.plan import TrainingPlan
from weft.step.offload import BUFFERS
from weft.step.pipeline import Schedule, schedule
from weft.step.pipeline.orders import BACKWARD, FORWARD, WEIGHT
from weft.step.rank_parts import PlanJob, RankParts, kept_by, rank_parts
from weft.step.result.memory import FRAGMENTATION, DeviceMemory, Memory
from weft.step.stages import StageLayout, in_rounds, stage_counts, stages_on

FloatArray = NDArray[np.float64]
Key = tuple[object, ...]
State = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""The stages of a device, then with an entry per state micro-batches held of each, whether the task that runs is a
backward, and the place of its stage among those of the device."""
HELD = "tp", "sp", "cp", "ep", "pp", "dp", "zero", "shard", "dtype", "precision", "offload"
"""The fields of a plan that decide what its ranks hold throughout a step."""
_GROUPS = 3
"""Groups of micro-batches after which an interleaved schedule holds nothing that it has not held before."""
CONTEXT = 1_570_000_000
"""Memory of a process before its first tensor [bytes]: CUDA context and libraries, measured on A100 (BigScience's notes
on the training of BLOOM; 1.27 GB on V100)."""
COMMUNICATOR = 900_000_000
"""Buffers of the collective library per group of ranks [bytes; assumed, 0.2 to 1.5 GB]: 4 MiB a channel and direction
for the Simple protocol, more for LL and LL128, and for every peer that ranks send to. With the context, five groups
take 6 GB; 5.8 to 7.3 GB were seen outside the allocator (Megatron-LM, issue 150)."""


def memory(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework | None = None,
    order: Schedule | None = None,
) -> Memory:  # fmt: skip
    """Return what every rank of a plan holds, and what would make it fit if it does not.

    `order` is the pipeline's, where it was searched for the plan's own times (None: that of the schedule's name).
    Raises InputError for a plan that does not fit the model.
    """
    framework = framework or Framework()
    devices = _devices(model, plan, framework, order)
    found = Memory(model, system, plan, devices, {})
    return found if found.fits else replace(found, remedies=_remedies(found, framework))


def _devices(
    model: Transformer, plan: TrainingPlan, framework: Framework, order: Schedule | None = None
) -> tuple[DeviceMemory, ...]:
    parts = RankParts(rank_parts(model, plan, framework))
    order = order or schedule(plan.schedule, plan.pp, plan.micro_batches)
    stages = [stages_on(order, device) for device in range(order.devices)]
    structure = StageLayout(stages, stage_counts(model, order.stages, plan, parts.names))
    saved, working = parts.saved_bytes(structure.counts, plan.offload == "activations")
    versions = _versions(PlanJob(plan, parts, structure, order)).tolist()
    found = []
    for device, mine in enumerate(stages):
        counts, left, is_forward, place = held_by(order, device, mine)
        forward, backward = working[:, mine][:, place]
        needed = np.where(is_forward, forward, backward)
        shares = structure.counts[mine]
        fixed = _throughout(plan, parts, shares, framework)
        fixed |= {"weight versions": int(versions[device]), "outside": outside(*_groups(plan))}
        fixed = {name: size for name, size in fixed.items() if size}
        activations = parts.by_operator(shares.sum(axis=0).tolist())
        found.append(DeviceMemory(fixed, counts @ saved[mine], float(left @ saved[mine]), needed, activations))
    return tuple(found)


def throughout(
    count: int, experts: int, largest: int, plan: TrainingPlan, framework: Framework, narrow: int = 0
) -> dict[str, int]:
    """Return the bytes that a rank holds throughout a step: states of `count` parameters, and gathered weights.

    `experts` of them are of routed experts, `narrow` of GEMMs on operands of 8 or 4 bits, `largest` of the part of the
    model that has most.
    """
    static = states(count, plan, framework, experts, narrow)
    if plan.offload == "optimizer":
        buffers = BUFFERS * states(largest, plan, framework)["optimizer"]
        static["optimizer"] = min(buffers, static["optimizer"])
    return {**static, "gathered weights": gathered_bytes(largest, count, plan, framework)}


def outside(*degrees: int) -> int:
    """Memory of a rank's process outside the framework's allocator [bytes]: its context, and buffers of its groups.

    Of the groups, `degrees` are the sizes, that of a pipeline twice: for either direction.
    """
    groups = sum(degree > 1 for degree in degrees) + 1
    return CONTEXT + COMMUNICATOR * groups


def _groups(plan: TrainingPlan) -> tuple[int, ...]:
    return plan.tp, plan.cp, plan.dp * plan.cp, plan.pp, plan.pp


def _throughout(
    plan: TrainingPlan, parts: RankParts, shares: NDArray[np.int64], framework: Framework
) -> dict[str, int]:
    """Return what a device holds throughout a step [bytes], whose stages have the parts `shares`, of shape (stages,
    parts).
    """
    count, experts = int((shares @ parts.parameters).sum()), int((shares @ parts.experts).sum())
    largest = int(np.where(shares.any(axis=0), parts.parameters, 0).max())
    return throughout(count, experts, largest, plan, framework, int((shares @ parts.narrow).sum()))


def _versions(job: PlanJob) -> FloatArray:
    """Copies of the weights beside the current ones, which each device of a schedule without a flush keeps for passes
    in flight [bytes].
    """
    plan, parts, structure, order = job.plan, job.parts, job.structure, job.order
    if order is None:
        return np.zeros(plan.pp)
    sizes = structure.counts @ parts.parameters * DTYPE_BYTES[plan.dtype]
    more = (np.array(order.versions) - 1) * sizes
    copies: FloatArray = np.where(structure.stages >= 0, more[structure.stages], 0).sum(axis=1)
    return copies


def held_by(
    order: Schedule, device: int, stages: Sequence[int] | NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Micro-batches that a device holds of each of its `stages` during every task of its order, then after all; whether
    the task is a forward; and the place of its stage among `stages`.

    A forward keeps its stage's activations until the backward has ended, or the gradients of weights if they are
    computed apart.
    """
    kind, stage, micro_batch = np.unravel_index(order.orders[device], order.shape)
    mine = stage[:, None] == np.asarray(stages)
    last = (kind == WEIGHT) | ((kind == BACKWARD) & order.whole[stage, micro_batch])
    released = (mine & last[:, None]).astype(np.int64)
    held = np.cumsum(mine & (kind == FORWARD)[:, None], axis=0) - np.cumsum(released, axis=0) + released
    return held, held[-1] - released[-1], kind == FORWARD, mine.argmax(axis=1)


def peaks(jobs: Sequence[PlanJob], framework: Framework) -> FloatArray:
    """Return the peak of the fullest device under each plan [bytes], as of `weft.step.result.memory.Memory`."""
    found = np.empty(len(jobs))
    alike: dict[Key, list[int]] = {}
    for at, job in enumerate(jobs):
        plan = job.plan
        alike.setdefault((plan.schedule, plan.micro_batches, plan.offload, id(job.structure)), []).append(at)
    memo: dict[Key, FloatArray] = {}
    for places in alike.values():
        same = [jobs[at] for at in places]
        held = np.array([_held_bytes(job, framework, memo) for job in same])
        found[places] = ((_activations(same) + held[:, :-1]) * (1 + FRAGMENTATION)).max(axis=1) + held[:, -1]
    return found


def _activations(jobs: Sequence[PlanJob]) -> FloatArray:
    """Return what the micro-batches in flight of plans with the same stages need on each device [bytes], of the shape
    (plans, devices).
    """
    plan, structure, order = jobs[0].plan, jobs[0].structure, jobs[0].order
    distinct = {id(job.parts): job.parts for job in jobs}
    held, working = kept_by([*distinct.values()], structure.counts, plan.offload == "activations")
    if order is None:
        needs = dynamic(plan.schedule, plan.pp, plan.micro_batches, held, working)
    else:
        needs = _most([_states(order, at, row[row >= 0]) for at, row in enumerate(structure.stages)], held, working)
    place = {key: number for number, key in enumerate(distinct)}
    found: FloatArray = needs[[place[id(job.parts)] for job in jobs]]
    return found


def _held_bytes(job: PlanJob, framework: Framework, memo: dict[Key, FloatArray]) -> FloatArray:
    """Return the bytes that each device holds throughout, then those of every rank outside the allocator."""
    plan, parts, structure = job.plan, job.parts, job.structure
    key = *attrgetter(*HELD)(plan), plan.chunks, plan.micro_batches <= plan.pp, id(structure)
    if key not in memo:
        each = [sum(_throughout(plan, parts, shares, framework).values()) for shares in structure.of_stages]
        memo[key] = np.append(np.array(each, np.float64)[structure.kind] + _versions(job), outside(*_groups(plan)))
    return memo[key]


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
    """Return the most that is held and needed in any of the `states` of each device [bytes]."""
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


def _remedies(found: Memory, framework: Framework) -> Mapping[str, float]:
    """Changes of the plan that would fit, the gentlest first, with their peaks [bytes]."""
    fitting: dict[str, float] = {}
    for words, changed in _changes(found.plan):
        try:
            plan = replace(found.plan, **changed)
            peak = replace(found, plan=plan, devices=_devices(found.model, plan, framework)).peak
        except InputError:
            continue
        if peak <= found.capacity:
            fitting[words] = peak
    return fitting


def _changes(plan: TrainingPlan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield changes of a plan, in words and as fields; not every one need give a plan that is valid."""
    if plan.tp > 1 and not plan.sp:
        yield "sequence parallelism", {"sp": True}
    if plan.dp > 1:
        for zero in range(plan.zero + 1, 4):
            yield f"ZeRO stage {zero}", {"zero": zero}
    if plan.recompute == "none":
        yield "selective recomputation", {"recompute": "selective"}
    if plan.recompute != "full":
        yield "full recomputation", {"recompute": "full"}
    if plan.micro_batch > 1:
        yield "micro-batches of 1 sequence", {"micro_batch": 1}
    if plan.recompute != "full" and plan.dp > 1 and plan.zero < 3:
        yield "full recomputation and ZeRO stage 3", {"recompute": "full", "zero": 3}
    if plan.offload == "none":
        yield "activations in the host's memory", {"offload": "activations"}
        yield "optimizer states in the host's memory", {"offload": "optimizer"}
    for axis in ("pp", "tp"):
        if plan.dp % 2 == 0:
            degree = 2 * getattr(plan, axis)
            yield f"{axis} {degree} and dp {plan.dp // 2}", {axis: degree, "dp": plan.dp // 2}
