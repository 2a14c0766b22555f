"""The memory of a training step: what every rank holds, followed through the order of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.graph import DTYPE_BYTES
from weft.hardware import System
from weft.models import Transformer
from weft.parallel.framework import Framework
from weft.parallel.memory import Kept, gathered, states
from weft.parallel.plan import Parallelism
from weft.parallel.rank import RankPart
from weft.result.memory import DeviceMemory, Memory
from weft.run.step.offload import BUFFERS, without_offloaded
from weft.run.step.parts import rank_parts
from weft.run.step.stages import chunks_of, stages_on
from weft.schedule.pipeline import Schedule, schedule
from weft.schedule.pipeline.orders import BACKWARD, FORWARD, WEIGHT

CONTEXT = 1_570_000_000
"""Memory of a process before its first tensor [bytes]: CUDA context and libraries, measured on A100 (BigScience's notes
on the training of BLOOM; 1.27 GB on V100)."""
COMMUNICATOR = 900_000_000
"""Buffers of the collective library per group of ranks [bytes; assumed, 0.2 to 1.5 GB]: 4 MiB a channel and direction
for the Simple protocol, more for LL and LL128, and for every peer that ranks send to. With the context, five groups
take 6 GB; 5.8 to 7.3 GB were seen outside the allocator (Megatron-LM, issue 150)."""


def memory(
    model: Transformer, system: System, plan: Parallelism, framework: Framework | None = None,
    order: Schedule | None = None,
) -> Memory:  # fmt: skip
    """What every rank of a plan holds, and what would make it fit if it does not.

    `order` is the pipeline's, where it was searched for the plan's own times (None: that of the schedule's name).
    Raises InputError for a plan that does not fit the model.
    """
    framework = framework or Framework()
    devices = _devices(model, plan, framework, order)
    found = Memory(model, system, plan, devices, {})
    return found if found.fits else replace(found, remedies=_remedies(found, framework))


def _devices(
    model: Transformer, plan: Parallelism, framework: Framework, order: Schedule | None = None
) -> tuple[DeviceMemory, ...]:
    parts = rank_parts(model, plan, framework)
    order = order or schedule(plan.schedule, plan.pp, plan.micro_batches)
    chunks = [[parts[name] for name in names] for names in chunks_of(model, order.stages, plan)]
    return tuple(_device(device, order, chunks, plan, framework) for device in range(order.devices))


def _device(
    device: int, order: Schedule, chunks: Sequence[Sequence[RankPart]], plan: Parallelism, framework: Framework
) -> DeviceMemory:
    stages = stages_on(order, device)
    mine = [chunks[stage] for stage in stages]
    together = [_together(chunk, plan) for chunk in mine]
    saved, forward, backward = (
        np.array([getattr(one, name) for one in together], np.float64) for name in ("bytes", "forward", "backward")
    )
    counts, left, is_forward, place = held_by(order, device, stages)
    working = np.where(is_forward, forward[place], backward[place])
    count = sum(part.parameters for chunk in mine for part in chunk)
    largest = max((part.parameters for chunk in mine for part in chunk), default=0)
    experts = sum(part.experts for chunk in mine for part in chunk)
    fixed = {
        **throughout(count, experts, largest, plan, framework),
        "weight versions": _versions(device, order, chunks, plan),
        "outside": outside(plan),
    }
    by_operator: Counter[str] = Counter()
    for chunk in mine:
        for part in chunk:
            by_operator.update({f"{part.name}: {name}": size for name, size in part.kept.saved.items()})
    fixed = {name: size for name, size in fixed.items() if size}
    return DeviceMemory(fixed, counts @ saved, float(left @ saved), working, dict(by_operator))


def throughout(count: int, experts: int, largest: int, plan: Parallelism, framework: Framework) -> dict[str, int]:
    """What a rank holds on the GPU throughout a step [bytes]: states of so many parameters, and gathered weights.

    `experts` of them are of routed experts, `largest` of the part of the model that has most.
    """
    static = states(count, plan, framework, experts)
    if plan.offload == "optimizer":
        buffers = BUFFERS * states(largest, plan, framework)["optimizer"]
        static["optimizer"] = min(buffers, static["optimizer"])
    return {**static, "gathered weights": gathered(largest, count, plan, framework)}


def outside(plan: Parallelism) -> int:
    """Memory of a rank's process outside the framework's allocator [bytes]: its context, and buffers of its groups."""
    groups = sum(degree > 1 for degree in (plan.tp, plan.cp, plan.dp * plan.cp, plan.pp, plan.pp)) + 1
    return CONTEXT + COMMUNICATOR * groups


def _versions(device: int, order: Schedule, chunks: Sequence[Sequence[RankPart]], plan: Parallelism) -> int:
    """Copies of the weights beside the current ones, which a schedule without a flush keeps for passes in flight."""
    more = ((order.versions[stage] - 1, chunks[stage]) for stage in stages_on(order, device))
    return sum(copies * part.parameters for copies, chunk in more for part in chunk) * DTYPE_BYTES[plan.dtype]


def _together(chunk: Sequence[RankPart], plan: Parallelism) -> Kept:
    """The activations of all parts of a chunk; passes run through one part at a time."""
    leaves = plan.offload == "activations"
    each = [without_offloaded(part.name, part.kept) if leaves else part.kept for part in chunk]
    return Kept(
        {str(number): kept.bytes for number, kept in enumerate(each)},
        max((kept.forward for kept in each), default=0),
        max((kept.backward for kept in each), default=0),
    )


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


def _remedies(found: Memory, framework: Framework) -> Mapping[str, float]:
    """Changes of the plan that would fit, the gentlest first, with their peaks [bytes]."""
    fitting: dict[str, float] = {}
    for words, plan in _changes(found.plan):
        try:
            peak = replace(found, plan=plan, devices=_devices(found.model, plan, framework)).peak
        except InputError:
            continue
        if peak <= found.capacity:
            fitting[words] = peak
    return fitting


def _changes(plan: Parallelism) -> Iterator[tuple[str, Parallelism]]:
    if plan.tp > 1 and not plan.sp:
        yield "sequence parallelism", replace(plan, sp=True)
    if plan.dp > 1:
        for zero in range(plan.zero + 1, 4):
            yield f"ZeRO stage {zero}", replace(plan, zero=zero)
    if plan.recompute == "none":
        yield "selective recomputation", replace(plan, recompute="selective")
    if plan.recompute != "full":
        yield "full recomputation", replace(plan, recompute="full")
    if plan.micro_batch > 1:
        yield "micro-batches of 1 sequence", replace(plan, micro_batch=1)
    if plan.recompute != "full" and plan.dp > 1 and plan.zero < 3:
        yield "full recomputation and ZeRO stage 3", replace(plan, recompute="full", zero=3)
    if plan.offload == "none":
        yield "activations in the host's memory", replace(plan, offload="activations")
        yield "optimizer states in the host's memory", replace(plan, offload="optimizer")
    for axis in ("pp", "tp"):
        if plan.dp % 2 == 0:
            degree = 2 * getattr(plan, axis)
            yield f"{axis} {degree} and dp {plan.dp // 2}", replace(plan, **{axis: degree, "dp": plan.dp // 2})
