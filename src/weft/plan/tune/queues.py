"""Queues of independent GEMMs: the fastest kernel of a GEMM for each number that run together, and the best number.

Candidates (GO-kernels) are ranked by the closed form for the whole GPU and for a half and a quarter of its compute
units and of its last-level cache; the first few of each ranking are simulated as copies that run together (GOLDYLOC,
arXiv:2409.02227).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate.gemm import ranked_plans
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlaps.lower.fit import tiling_for
from weft.simulate.result import Timeline
from weft.simulate.single import simulate
from weft.sweep.simulations import Bench, Jobs, Runs, Simulation, Tiled, drain_seconds

DEGREES = (1, 2, 4, 8, 16)
"""Numbers of GEMMs that may run together."""
SHARES = (1, 2, 4)
"""Candidates are ranked for 1/1, 1/2 and 1/4 of the compute units and of the last-level cache."""
FIRST = 3
"""Number of candidates simulated per ranking: once with K cut where that is faster, once with K in one piece."""


@dataclass(frozen=True)
class GoKernels:
    """A GEMM's candidate kernels, and the time of co-running copies with each, by number of copies.

    `runs[degree][tiling]` is the time of `degree` copies [s]. Degree 1 is always included: its fastest candidate is
    the kernel tuned in isolation.
    """

    gemm: Gemm
    runs: Mapping[int, Mapping[GemmTiling, Timeline]]

    @property
    def degrees(self) -> tuple[int, ...]:
        """The numbers of copies that were tried, ascending."""
        return tuple(sorted(self.runs))

    @property
    def fastest_alone(self) -> GemmTiling:
        """The kernel that is fastest alone."""
        return self.best(1)

    def best(self, degree: int) -> GemmTiling:
        """Return the GO-kernel: the fastest for `degree` co-running copies, the first ranked on a tie."""
        tried = self.runs[degree]
        return min(tried, key=lambda tiling: drain_seconds(tried[tiling]))

    def seconds(self, degree: int) -> float:
        """Return the time of `degree` co-running copies with the GO-kernel [s]."""
        return drain_seconds(self.runs[degree][self.best(degree)])

    def tiled_gemm(self, degree: int) -> Tiled:
        """Return the GEMM with its GO-kernel for a degree."""
        return Tiled(self.gemm, self.best(degree))


def candidates(gemm: Gemm, gpu: Gpu, options: RunOptions = SUSTAINED) -> tuple[GemmTiling, ...]:
    """Return the kernels to try, those for the whole GPU first; raises InputError for a dtype that the GPU lacks.

    Kernels with K in one piece are tried beside those that split it: many co-running GEMMs fill the GPU without a
    split.
    """
    if gpu.vendor == "none":  # a model of a GPU without a library: one tile
        return (tiling_for(gemm, gpu, options),)
    ranked = (
        ranked_plans(gemm, part_of(gpu, share), options, split=split)[:FIRST]
        for share in SHARES
        for split in (True, False)
    )
    return tuple(dict.fromkeys(plan.tiling for plans in ranked for plan in plans))


def part_of(gpu: Gpu, share: int) -> Gpu:
    """Return a GPU with 1 / `share` of the compute units and of the last-level cache."""
    if share == 1:
        return gpu
    compute = gpu.compute.model_copy(update={"compute_units": max(gpu.compute.compute_units // share, 1)})
    cache = gpu.cache.model_copy(update={"capacity": gpu.cache.capacity // share})
    return gpu.model_copy(update={"compute": compute, "cache": cache})


def degrees_up_to(count: int) -> tuple[int, ...]:
    """Return the degrees for `count` queued GEMMs: powers of two, and all of them together."""
    if count < 1:
        raise InputError(f"{count} GEMMs are queued; at least one must be")
    together = [count] if count <= DEGREES[-1] else []
    return tuple(sorted({*(degree for degree in DEGREES if degree <= count), *together}))


def go_kernels(gemms: Mapping[Gemm, Iterable[int]], bench: Bench, jobs: Jobs | None = None) -> dict[Gemm, GoKernels]:
    """Return the GO-kernels of some GEMMs, each for the degrees named for it and for 1, by simulating every candidate.

    Raises InputError for a GEMM that no kernel of the GPU's library can run.
    """
    tasks = {
        (gemm, degree, tiling): bench.queue((Tiled(gemm, tiling),) * degree)
        for gemm, degrees in gemms.items()
        for tilings in [candidates(gemm, bench.gpu, bench.options)]
        for degree in sorted({1, *degrees})
        for tiling in tilings
    }
    found = (jobs or Jobs()).run(tasks.values())
    runs: dict[Gemm, dict[int, dict[GemmTiling, Timeline]]] = {}
    for (gemm, degree, tiling), task in tasks.items():
        runs.setdefault(gemm, {}).setdefault(degree, {})[tiling] = found[task]
    return {gemm: GoKernels(gemm, by_degree) for gemm, by_degree in runs.items()}


Kernels = Mapping[Gemm, GoKernels]
"""GO-kernels by GEMM."""
Batches = tuple[Simulation, ...]
DEFAULT = {"concurrency": "default"}
"""The label of the default-concurrency batch."""
_WORTH = 0.01
"""A higher degree must save at least this share of the time, since it occupies memory for more GEMMs at once."""


@dataclass(frozen=True)
class Queue:
    """Independent GEMMs that wait, in the order in which the host queued them."""

    gemms: tuple[Gemm, ...]

    @property
    def alike(self) -> bool:
        """Whether all have the same shape."""
        return len(set(self.gemms)) == 1

    @property
    def degrees(self) -> tuple[int, ...]:
        """The degrees (GEMMs run together) that its length allows."""
        return degrees_up_to(len(self.gemms))


def batch_sizes(queued: int, degree: int) -> tuple[int, ...]:
    """Return the sizes of batches at a degree: full ones, then the rest in the largest allowed ones.

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
    """For every GEMM of some queues, the degrees at which it may run."""
    asked: dict[Gemm, set[int]] = {}
    for queue in queues:
        for gemm in queue.gemms:
            asked.setdefault(gemm, set()).update(queue.degrees)
    return asked


def _default_batch(queue: Queue, kernels: Kernels, bench: Bench) -> Simulation:
    """Default concurrency: all at once, each with the kernel that is fastest alone."""
    task = bench.queue([kernels[gemm].tiled_gemm(1) for gemm in queue.gemms])
    return replace(task, graph=replace(task.graph, labels=DEFAULT))


def plan_batches(queue: Queue, degree: int, kernels: Kernels, bench: Bench, tuned_for: int | None = None) -> Batches:
    """Return the batches of a degree, with GO-kernels tuned for each batch's size, or for `tuned_for`."""
    return tuple(
        bench.queue([_tiled_gemm(kernels[gemm], tuned_for or len(part)) for gemm in part])
        for part in _parts(queue.gemms, degree)
    )


def _tiled_gemm(kernels: GoKernels, degree: int) -> Tiled:
    """Return the GEMM with its kernel for a degree, or for the next lower one that was tried."""
    return kernels.tiled_gemm(max(one for one in kernels.degrees if one <= degree))


def _parts(gemms: Sequence[Gemm], degree: int) -> Iterator[Sequence[Gemm]]:
    first = 0
    for size in batch_sizes(len(gemms), degree):
        yield gemms[first : first + size]
        first += size


def seconds(batches: Batches, runs: Runs) -> float:
    """Return the time of batches, each begun when the previous one has ended [s]."""
    return sum(drain_seconds(runs[batch]) for batch in batches)


@dataclass(frozen=True)
class QueuePlans:
    """A queue in batches, each begun when the previous one has ended: one by one, all at once, or as chosen."""

    sequential: Batches
    default: Batches
    goldyloc: Batches

    def __iter__(self) -> Iterator[Simulation]:
        return chain(self.sequential, self.default, self.goldyloc)

    def gains(self, runs: Runs) -> tuple[float, float, float]:
        """Speedups: as chosen over all at once, as chosen over one by one, all at once over one by one."""
        one_by_one, together, chosen = (seconds(part, runs) for part in (self.sequential, self.default, self.goldyloc))
        return together / chosen, one_by_one / chosen, one_by_one / together


def plans(queue: Queue, degree: int, kernels: Kernels, bench: Bench) -> QueuePlans:
    """Return how a queue runs with the kernels that are fastest alone, and with GO-kernels at a degree."""
    sequential, chosen = (plan_batches(queue, each, kernels, bench) for each in (1, degree))
    return QueuePlans(sequential, (_default_batch(queue, kernels, bench),), chosen)


def _ways(queue: Queue, kernels: Kernels, bench: Bench) -> dict[tuple[int, int | None], Batches]:
    """The batches of each degree with kernels for each batch's size (None); for mixed shapes also for each degree."""
    tuned_for = (None,) if queue.alike else (None, *queue.degrees)
    return {
        (degree, one): plan_batches(queue, degree, kernels, bench, one) for degree in queue.degrees for one in tuned_for
    }


def needed_simulations(queue: Queue, kernels: Kernels, bench: Bench) -> Iterator[Simulation]:
    """Yield every batch to simulate for a queue: default concurrency, each degree, each set of kernels."""
    yield _default_batch(queue, kernels, bench)
    yield from chain.from_iterable(_ways(queue, kernels, bench).values())


@dataclass(frozen=True)
class Judged:
    """A queue under every way to run it [s]: default concurrency, GO-kernels at each degree, and the oracle.

    The oracle is the fastest of every degree with the kernels of every degree.
    """

    queue: Queue
    default: float
    at_degree: Mapping[int, float]
    oracle: float

    @property
    def sequential(self) -> float:
        """One after another [s]."""
        return self.at_degree[1]

    @property
    def best_degree(self) -> int:
        """The smallest degree whose time is within `_WORTH` of the best one."""
        limit = min(self.at_degree.values()) * (1 + _WORTH)
        return min(degree for degree, seconds in self.at_degree.items() if seconds <= limit)

    def at(self, degree: int) -> float:
        """GO-kernels at a fixed degree, or at the highest that the queue allows [s]."""
        return self.at_degree[max(one for one in self.at_degree if one <= degree)]


def judge(queue: Queue, kernels: Kernels, bench: Bench, runs: Runs) -> Judged:
    """The times of a queue under every way to run it, from the runs of its `needed` batches."""
    took = {way: seconds(batches, runs) for way, batches in _ways(queue, kernels, bench).items()}
    at_degree = {degree: s for (degree, tuned_for), s in took.items() if tuned_for is None}
    default = drain_seconds(runs[_default_batch(queue, kernels, bench)])
    return Judged(queue, default, at_degree, min(*took.values(), default))


def judge_queues(queues: Sequence[Queue], bench: Bench, jobs: Jobs) -> tuple[list[Judged], dict[Gemm, GoKernels], Runs]:
    """Return every queue judged, the GO-kernels of their GEMMs, and the runs of all batches.

    Raises what `go_kernels` raises.
    """
    kernels = go_kernels(asked_degrees(queues), bench, jobs)
    runs = jobs.run(batch for queue in queues for batch in needed_simulations(queue, kernels, bench))
    return [judge(queue, kernels, bench, runs) for queue in queues], kernels, runs


@dataclass(frozen=True)
class WatchedQueue:
    """A queue of the GEMMs `names`, run all at once, and as chosen: batch by batch, in the order of the queue.

    `sizes` counts the GEMMs of every chosen batch.
    """

    title: str
    names: tuple[str, ...]
    default: tuple[Timeline, ...]
    chosen: tuple[Timeline, ...]
    sizes: tuple[int, ...]


def watch_queue(title: str, plans: QueuePlans) -> WatchedQueue:
    """Simulate a queue's batches again with full timelines."""
    names = tuple(str(node.op) for batch in plans.default for node in batch.graph)
    sizes = tuple(len(batch.graph) for batch in plans.goldyloc)
    return WatchedQueue(title, names, _runs(plans.default), _runs(plans.goldyloc), sizes)


def _runs(batches: Batches) -> tuple[Timeline, ...]:
    return tuple(simulate(one.graph, one.system, one.overlap, one.options) for one in batches)
