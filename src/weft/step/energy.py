"""What the GPUs of a training step do, and the energy that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.energy import EnergyTerms
from weft.estimate.power import Activity, Energy, watts, work_of

if TYPE_CHECKING:
    from weft.step.result.step import Step


def energy(step: Step, terms: EnergyTerms, days: float | None = None) -> Energy:
    """Return the power and the energy of a step's GPUs; InputError for a GPU whose power is not known."""
    low, high = (end / step.seconds for end in step.interval_s)
    drawn = watts(step.system.gpu, activity(step))
    return Energy(drawn, step.plan.gpus, step.tokens / step.seconds, terms, (low, high), days)


def activity(step: Step) -> Activity:
    """Return what the mean GPU does in a step: its operators, the optimizer at the rate of copies, communication."""
    gpu, work = step.system.gpu, Activity()
    parts = {id(part): part for chunk in step.chunks for part in chunk.parts}
    each = {
        key: work_of(((node.op, 0.0) for graph in part.graphs for node in graph), gpu) for key, part in parts.items()
    }
    for device in range(step.devices):
        counts = (step.pipeline.schedule.device == device).sum(axis=1).tolist()
        for chunk, count in zip(step.chunks, counts, strict=True):
            work += sum((each[id(part)] for part in chunk.parts), Activity()) * (count / step.devices)
    updates = step.parts.get("optimizer", 0.0) * gpu.memory.copy_efficiency
    sends = sum(step.exposed.values()) + sum(step.hidden.values())
    return work + Activity(step.seconds, max(step.seconds - step.without_kernel, 0.0), 0.0, updates, sends)
