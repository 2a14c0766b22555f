"""A pipeline schedule as data: which device runs which forwards and backwards, in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
KINDS = ("F", "B", "W")
"""Forward; backward (of the inputs or, where no W belongs to it, whole); weight gradient."""
FORWARD, BACKWARD, WEIGHT = range(3)
NONE = -1
"""In place of a task or a device: none."""
NO_PAIRS: Ints = np.empty((0, 2), np.int64)
NO_PAIRS.flags.writeable = False


class Task(NamedTuple):
    """One piece of work of a pipeline: a kind of KINDS, on one micro-batch, in one stage; its text is "B3@1"."""

    kind: str
    micro_batch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}@{self.stage}"


@dataclass(frozen=True, eq=False)
class Schedule:
    """The order in which each device of a pipeline runs its tasks.

    A task is an integer, (kind x stages + stage) x micro_batches + micro_batch, in `orders`, one array per device.
    A backward without a W of its own is whole: it takes the time of B and W. `pairs` are tasks of one device that run
    together, adjacent in its order. `placement[replica, stage]` is a device and `replica[micro_batch]` the copy of the
    model that a micro-batch passes. Without `flushes` the next step begins before this one has ended; then stage s
    keeps `versions[s]` copies of its weights, and its gradients are `staleness[s]` updates old.

    Raises InputError for a task that is missing, repeated, on the wrong device, or before what it continues.
    """

    name: str
    placement: Ints = field(repr=False)
    replica: Ints = field(repr=False)
    orders: tuple[Ints, ...] = field(repr=False)
    pairs: Ints = field(default_factory=lambda: NO_PAIRS, repr=False)
    flushes: bool = True
    versions: tuple[int, ...] = ()
    staleness: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self.versions or (1,) * self.stages)
        object.__setattr__(self, "staleness", self.staleness or (0,) * self.stages)
        self._check_once()
        self._check_sequence()
        self._check_pairs()

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.orders)

    @property
    def stages(self) -> int:
        """Number of stages that one micro-batch passes."""
        return int(self.placement.shape[1])

    @property
    def replicas(self) -> int:
        """Copies of the model: 2 where micro-batches enter from both ends."""
        return int(self.placement.shape[0])

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches of a step."""
        return len(self.replica)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Kinds, stages, micro-batches: the shape of every array of tasks."""
        return len(KINDS), self.stages, self.micro_batches

    @cached_property
    def position(self) -> Ints:
        """Place of each task in its device's order, by (kind, stage, micro-batch); -1 for a task that is not run."""
        place = np.full(np.prod(self.shape), -1)
        for order in self.orders:
            place[order] = np.arange(len(order))
        return place.reshape(self.shape)

    @cached_property
    def device(self) -> Ints:
        """The device of each (stage, micro-batch)."""
        return self.placement[self.replica].T

    @cached_property
    def whole(self) -> NDArray[np.bool_]:
        """Whether the backward of each (stage, micro-batch) is whole: no W belongs to it."""
        whole: NDArray[np.bool_] = self.position[WEIGHT] < 0
        return whole

    @property
    def trains(self) -> bool:
        """Whether there are backwards."""
        return bool((self.position[BACKWARD] >= 0).any())

    @property
    def splits_backward(self) -> bool:
        """Whether some weight gradients are computed apart from the gradients of the inputs."""
        return not self.whole.all()

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(map(len, self.orders))

    def task(self, code: int) -> Task:
        """Return a task by its integer."""
        kind, stage, micro_batch = np.unravel_index(code, self.shape)
        return Task(KINDS[kind], int(micro_batch), int(stage))

    def in_flight(self, device: int, kept_for_weight: float = 1.0) -> Floats:
        """Activations that a device holds while each task of its order runs [micro-batches of all its layers].

        They are born with the forward and released when the backward has ended; the share `kept_for_weight` of them is
        released after W, where there is one. A replica's stage counts as one of `stages / devices` parts.
        """
        order = self.orders[device]
        part = self.devices / self.stages
        kind, of = np.divmod(order, self.stages * self.micro_batches)
        split = ~self.whole.ravel()[of]
        at_backward = np.where(split, 1 - kept_for_weight, 1.0)
        released = np.select([kind == BACKWARD, kind == WEIGHT], [at_backward, kept_for_weight], 0.0)
        before = np.cumsum(released) - released
        held: Floats = part * (np.cumsum(kind == FORWARD) - before)
        return held

    def peak_in_flight(self, kept_for_weight: float = 1.0) -> Floats:
        """Return the most that each device holds (`in_flight`) [micro-batches of all its layers]."""
        return np.array([self.in_flight(device, kept_for_weight).max() for device in range(self.devices)])

    def _check_once(self) -> None:
        """Raise InputError unless each forward and, if there are any, each backward runs once, on its device."""
        ran = np.concatenate(self.orders)
        count = np.bincount(ran, minlength=int(np.prod(self.shape))).reshape(self.shape)
        for kind, most in zip(KINDS, count, strict=True):
            for wrong in np.argwhere((most > 1) | ((most == 0) & (kind != "W") & (kind == "F" or self.trains))):
                times = int(most[tuple(wrong)])
                task = Task(kind, int(wrong[1]), int(wrong[0]))
                raise InputError(f"the schedule '{self.name}' runs {task} {_times(times)}; list each task once")
        for number, order in enumerate(self.orders):
            for code in order[self.device.ravel()[order % self.device.size] != number]:
                task = self.task(int(code))
                right = self.device[task.stage, task.micro_batch]
                raise InputError(
                    f"the schedule '{self.name}' runs {task} on device {number}, but that stage of micro-batch "
                    f"{task.micro_batch} is on device {right}; move it there"
                )

    def _check_sequence(self) -> None:
        """Raise InputError for a backward before its forward, or a W before its B."""
        for kind in (BACKWARD, WEIGHT):
            here, before = self.position[kind], self.position[kind - 1]
            for stage, micro_batch in np.argwhere((here >= 0) & (here < before) | (here >= 0) & (before < 0)):
                late = Task(KINDS[kind - 1], int(micro_batch), int(stage))
                raise InputError(
                    f"the schedule '{self.name}' runs {late._replace(kind=KINDS[kind])} before {late}, "
                    "which it continues; swap them"
                )

    def _check_pairs(self) -> None:
        """Raise InputError for a pair that is not a forward and, next on its device, another micro-batch's backward."""
        kind, of = np.divmod(self.pairs, self.device.size)
        device, place = self.device.ravel()[of], self.position.ravel()[self.pairs]
        fits = (kind == (FORWARD, BACKWARD)).all(axis=1) & (of[:, 0] != of[:, 1])
        fits &= (device[:, 0] == device[:, 1]) & (place[:, 0] >= 0) & (place[:, 0] + 1 == place[:, 1])
        for first, second in self.pairs[~fits].tolist():
            raise InputError(
                f"the schedule '{self.name}' runs {self.task(first)} and {self.task(second)} together; pair a "
                "forward with the backward of another micro-batch that follows it on the same device"
            )


def _times(count: int) -> str:
    return "never" if count == 0 else f"{count} times"


def codes(kind: Any, stage: Any, micro_batch: Any, stages: int, micro_batches: int) -> Ints:
    """Return the integers of tasks, by their kinds, stages and micro-batches, numbers or arrays."""
    code: Ints = np.asarray((np.asarray(kind) * stages + np.asarray(stage)) * micro_batches + micro_batch, np.int64)
    return code


def weave(forward: Ints, backward: Ints, warmup: int, weight: Ints | None = None, held_back: int = 0) -> Ints:
    """Return one device's order: `warmup` forwards, then one forward and one backward in turn, then the remaining
    backwards.

    With `weight`, the k-th of those comes right after backward k + `held_back`.
    """
    parts = [forward, backward] + ([] if weight is None else [weight])
    keys = [3 * (np.arange(len(forward)) - warmup), 3 * np.arange(len(backward)) + 1]
    if weight is not None:
        keys.append(3 * (np.arange(len(weight)) + held_back) + 2)
    return np.concatenate(parts)[np.argsort(np.concatenate(keys), kind="stable")]


def one_way(
    name: str, placement: Sequence[int] | Ints, micro_batches: int, orders: Sequence[Ints], **more: Any
) -> Schedule:
    """Return a schedule of one copy of the model: stage s on device `placement[s]`."""
    replica = np.zeros(micro_batches, np.int64)
    return Schedule(name, np.asarray(placement, np.int64)[None, :], replica, tuple(orders), **more)
