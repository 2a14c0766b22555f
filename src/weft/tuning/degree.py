"""How many queued GEMMs run together: batches of a degree, what they take, and the best of all degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.overlap.gemms import TiledGemm
from weft.result.gemms_run import GemmsRun
from weft.tuning.batches import Batch, Bench
from weft.tuning.kernels import GoKernels, degrees_up_to
from weft.workload import Gemm

Kernels = Mapping[Gemm, GoKernels]
"""GO-kernels by GEMM."""
WORTH = 0.01
"""A higher degree must gain so much of the time to be preferred: it holds memory for more GEMMs at once."""


@dataclass(frozen=True)
class Queue:
    """GEMMs that wait, all independent, in the order in which the host put them there."""

    gemms: tuple[Gemm, ...]

    @property
    def alike(self) -> bool:
        """Whether all are of one shape."""
        return len(set(self.gemms)) == 1

    @property
    def degrees(self) -> tuple[int, ...]:
        """How many of them may run together."""
        return degrees_up_to(len(self.gemms))


def batch_sizes(queued: int, degree: int) -> tuple[int, ...]:
    """Full batches of a degree, and the rest in the largest batches that it allows.

    >>> batch_sizes(7, 4)
    (4, 2, 1)
    """
    sizes = [degree] * (queued // degree)
    rest = queued % degree
    while rest:
        size = max(one for one in degrees_up_to(rest) if one & (one - 1) == 0)
        sizes.append(size)
        rest -= size
    return tuple(sizes)


def asked_degrees(queues: Sequence[Queue]) -> dict[Gemm, set[int]]:
    """For every GEMM of some queues the degrees at which it may run."""
    asked: dict[Gemm, set[int]] = {}
    for queue in queues:
        for gemm in queue.gemms:
            asked.setdefault(gemm, set()).update(queue.degrees)
    return asked


def sequential(queue: Queue, kernels: Kernels) -> float:
    """One after another, each with the kernel that is fastest alone [s]."""
    return sum(kernels[gemm].seconds(1) for gemm in queue.gemms)


def default_batch(queue: Queue, kernels: Kernels, bench: Bench) -> Batch:
    """Default concurrency: all at once, each with the kernel that is fastest alone."""
    return bench.batch(kernels[gemm].tiled(1) for gemm in queue.gemms)


def planned(
    queue: Queue, degree: int, kernels: Kernels, bench: Bench, tuned_for: int | None = None
) -> tuple[Batch, ...]:
    """The batches of a degree, with GO-kernels tuned for the size of each batch, or for `tuned_for`."""
    return tuple(
        bench.batch(_tiled(kernels[gemm], tuned_for or len(part)) for gemm in part)
        for part in _parts(queue.gemms, degree)
    )


def _tiled(kernels: GoKernels, degree: int) -> TiledGemm:
    """The kernel for a degree, or for the next below that was tried."""
    return kernels.tiled(max(one for one in kernels.degrees if one <= degree))


def _parts(gemms: Sequence[Gemm], degree: int) -> Iterator[Sequence[Gemm]]:
    first = 0
    for size in batch_sizes(len(gemms), degree):
        yield gemms[first : first + size]
        first += size


@dataclass(frozen=True)
class Plans:
    """A queue in batches, each begun when the one before it has ended: one after another, all at once, as chosen."""

    sequential: tuple[Batch, ...]
    default: tuple[Batch, ...]
    goldyloc: tuple[Batch, ...]

    def batches(self) -> Iterator[Batch]:
        """Everything that has to be simulated."""
        yield from (*self.sequential, *self.default, *self.goldyloc)


def plans(queue: Queue, degree: int, kernels: Kernels, bench: Bench) -> Plans:
    """How a queue runs with the kernels that are fastest alone, and with GO-kernels at a degree."""
    alone = tuple(bench.batch((kernels[gemm].tiled(1),)) for gemm in queue.gemms)
    return Plans(alone, (default_batch(queue, kernels, bench),), planned(queue, degree, kernels, bench))


def needed(queue: Queue, kernels: Kernels, bench: Bench) -> Iterator[Batch]:
    """Every batch that has to be simulated to judge a queue: default concurrency, each degree, each set of kernels."""
    yield default_batch(queue, kernels, bench)
    for degree in queue.degrees:
        yield from planned(queue, degree, kernels, bench)
        if not queue.alike:
            for tuned_for in queue.degrees:
                yield from planned(queue, degree, kernels, bench, tuned_for)


@dataclass(frozen=True)
class Judged:
    """A queue under every way to run it [s]: one after another, default concurrency, GO-kernels at each degree, and the
    oracle, the fastest of every degree with the kernels of every degree.
    """

    queue: Queue
    sequential: float
    default: float
    at_degree: Mapping[int, float]
    oracle: float

    @property
    def best_degree(self) -> int:
        """The least degree that comes within `WORTH` of the best one."""
        limit = min(self.at_degree.values()) * (1 + WORTH)
        return min(degree for degree, seconds in self.at_degree.items() if seconds <= limit)

    def at(self, degree: int) -> float:
        """GO-kernels at a fixed degree, or at the highest that the queue allows [s]."""
        return self.at_degree[max(one for one in self.at_degree if one <= degree)]


def judge(queue: Queue, kernels: Kernels, bench: Bench, runs: Mapping[Batch, GemmsRun]) -> Judged:
    """What a queue takes under every way to run it, from the runs of its `needed` batches."""

    def seconds(batches: Sequence[Batch]) -> float:
        return sum(runs[batch].makespan_s for batch in batches)

    at_degree = {degree: seconds(planned(queue, degree, kernels, bench)) for degree in queue.degrees}
    mixed = () if queue.alike else queue.degrees
    others = (
        seconds(planned(queue, degree, kernels, bench, tuned_for))
        for degree in queue.degrees
        for tuned_for in mixed
    )
    default = runs[default_batch(queue, kernels, bench)].makespan_s
    alone = sequential(queue, kernels)
    return Judged(queue, alone, default, at_degree, min([*at_degree.values(), *others, default]))
