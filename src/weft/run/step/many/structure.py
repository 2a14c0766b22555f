"""Which parts of a model the stages and the devices of a pipeline have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.models import Transformer
from weft.parallel.plan import Parallelism
from weft.run.step.parts import chunks_of

Shares = tuple[int, ...]
"""How often a stage or a device has each part of a model."""


@dataclass(frozen=True)
class Composition:
    """The parts of each stage of a pipeline: `counts` has the shape (stages, parts)."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]

    def shares(self, stages: Sequence[int]) -> Shares:
        """How often stages together have each part."""
        return tuple(self.counts[list(stages)].sum(axis=0).tolist())


def composition(model: Transformer, stages: int, plan: Parallelism, names: tuple[str, ...]) -> Composition:
    """Which parts of a model the stages of a plan have."""
    each = [Counter(stage) for stage in chunks_of(model, stages, plan)]
    return Composition(names, np.array([[stage[name] for name in names] for stage in each]))


class Structure:
    """The stages on each device of a pipeline, and its kinds of devices: those that have the same parts.

    `stages` are in the order in which their gradients become complete, `kind` numbers the kind of each device, of which
    `examples` are the first ones; `shares` and `of_stages` count parts on them.
    """

    def __init__(self, devices: int, of: Composition) -> None:
        self.of, count = of, len(of.counts)
        self.stages = np.array([range(device, count, devices)[::-1] for device in range(devices)])
        kinds: dict[tuple[object, ...], int] = {}
        ends = {0, count - 1}
        keys = [(bool(ends & set(mine)), *(of.shares([stage]) for stage in mine)) for mine in self.stages.tolist()]
        self.kind = np.array([kinds.setdefault(key, len(kinds)) for key in keys])
        self.examples = [self.kind.tolist().index(number) for number in range(len(kinds))]
        self.shares = [of.shares(self.stages[device]) for device in self.examples]
        self.is_end = [bool(ends & set(self.stages[device].tolist())) for device in self.examples]
        self.of_stages = [of.counts[self.stages[device]] for device in self.examples]
