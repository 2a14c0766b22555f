"""Which parts of a model the stages and the devices of a pipeline have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import InputError
from weft.models import Transformer
from weft.models.parallel.layers import stage_layers
from weft.models.parallel.plan import TrainingPlan
from weft.step.pipeline import Schedule


class ForwardStages(NamedTuple):
    """The `stages` of a forward pass in a pipeline [s]: equal parts of the layers, `last` more in the last one.

    Each but the last ends with a send of `send` seconds, which keeps it busy. The pipeline's clock says the same of the
    schedule "inference".
    """

    stages: int
    layers: float
    last: float
    send: float

    @property
    def each(self) -> list[float]:
        """Seconds in each stage, the send to the next one included."""
        equal = self.layers / self.stages
        return [equal + self.send] * (self.stages - 1) + [equal + self.last]

    @property
    def sends(self) -> float:
        """Seconds that a batch is on its way between stages."""
        return (self.stages - 1) * self.send

    @property
    def latency(self) -> float:
        """Seconds of a batch alone in the pipeline; equal batches follow each other after the slowest stage's."""
        return self.layers + self.last + self.sends


Shares = tuple[int, ...]
"""How often a stage or a device has each part of a model."""


def chunks_of(model: Transformer, stages: int, plan: TrainingPlan) -> list[list[str]]:
    """Return the names of the parts of each stage: as many layers as the plan says, else as `stage_layers` has them.

    Raises InputError for a plan whose layers do not add up.
    """
    kinds = model.layer_kinds
    even = (len(kinds) // stages,) * stages
    counts = plan.layers or stage_layers(model, plan.pp, stages // plan.pp) or even
    if len(counts) != stages or sum(counts) != len(kinds):
        raise InputError(
            f"the plan gives {len(counts)} stages {sum(counts)} layers, but {model.name} has {len(kinds)} and the "
            f"schedule {stages} stages; list the layers of each stage, or leave them out"
        )
    ends = [sum(counts[: place + 1]) for place in range(stages)]
    chunks = [list(kinds[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("head")
    return chunks


def stages_on(order: Schedule, device: int) -> list[int]:
    """Return the stages whose weights a pipeline device holds."""
    return [stage for stage in range(order.stages) if (order.placement[:, stage] == device).any()]


def stage_counts(model: Transformer, stages: int, plan: TrainingPlan, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return how often each stage of a plan has the parts of these names; of the shape (stages, parts)."""
    each = [Counter(stage) for stage in chunks_of(model, stages, plan)]
    return np.array([[stage[name] for name in names] for stage in each])


def in_rounds(devices: int, stages: int) -> list[list[int]]:
    """The stages of each device, the last one first, if neighbouring stages are on neighbouring devices, in rounds."""
    return [list(range(device, stages, devices))[::-1] for device in range(devices)]


class StageLayout:
    """The stages on each device of a pipeline, and its kinds of devices: those that have the same parts.

    `stages` has the shape (devices, most stages of a device); missing ones are -1. `kind` numbers the kind of each
    device, of which `examples` are the first ones; `shares` and `of_stages` count parts on them. `counts` are those of
    every stage (`stage_counts`).
    """

    def __init__(self, stages: Sequence[Sequence[int]], counts: NDArray[np.int64]) -> None:
        def shares(some: Sequence[int]) -> Shares:
            return tuple(counts[list(some)].sum(axis=0).tolist())

        self.counts, count = counts, len(counts)
        width = max(map(len, stages))
        self.stages = np.array([[*mine, *[-1] * (width - len(mine))] for mine in stages])
        kinds: dict[tuple[object, ...], int] = {}
        ends = {0, count - 1}
        keys = [(bool(ends & set(mine)), *(shares([stage]) for stage in mine)) for mine in stages]
        self.kind = np.array([kinds.setdefault(key, len(kinds)) for key in keys])
        self.examples = [self.kind.tolist().index(number) for number in range(len(kinds))]
        self.shares = [shares(stages[device]) for device in self.examples]
        self.is_end = [bool(ends & set(stages[device])) for device in self.examples]
        self.of_stages = [counts[list(stages[device])] for device in self.examples]
