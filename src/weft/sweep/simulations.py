"""Simulations as tasks of a sweep: one defined by its values, and those of searches over queues and co-runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from weft import hardware
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.graph import Collective, Driver, Gemm, Graph, LibraryCollective, concurrent, gemm_queue
from weft.hardware import Described, Gpu, System
from weft.kernels import GemmTiling
from weft.kernels.library.interconnect import MOST_CHANNELS
from weft.overlaps import STRATEGIES, OverlapMethod, find_simulated
from weft.overlaps.lower.machine import check_request
from weft.simulate import alone
from weft.simulate.kept import RunInputs
from weft.simulate.result import Comparison, Timeline
from weft.simulate.result.metrics import class_of, ideal_speedup, share_of_ideal
from weft.simulate.single import assemble_ideal, simulate
from weft.sweep.tasks import Progress, results


@dataclass(frozen=True)
class Simulation(RunInputs):
    """A simulation as a task: a graph on a system under an overlap.

    Raises InputError for a request size that the GPU does not support.
    """

    def __post_init__(self) -> None:
        if self.options.request_bytes is not None:
            check_request(self.system.gpu, self.options.request_bytes)  # fail early, before processes start

    def run(self) -> Mapping[str, Any]:
        """Return the record of the timeline."""
        return self.record(simulate(self.graph, self.system, self.overlap, self.options))


def timelines(
    tasks: Iterable[Simulation], jobs: int = 1, progress: Progress | None = None, store: Store | None = None
) -> dict[Simulation, Timeline]:
    """Return every task with its timeline, in the order of the tasks; arguments and errors of `sweep`."""
    records = results(tasks, lambda record: record, jobs, progress, store)
    return {task: task.read(record) for task, record in records.items()}


class ComparedGraph:
    """A graph on a system under several overlaps, the baseline first: the simulations that it takes, and its answer.

    Ideals are assembled from the runs that they take their times from. Raises UnknownNameError for an unknown overlap.
    """

    def __init__(
        self, graph: Graph, system: System, overlaps: Iterable[str], options: RunOptions, whole: bool = False
    ) -> None:
        self.graph, self.methods = graph, [find_simulated(name) for name in overlaps]
        names = dict.fromkeys(name for one in self.methods for name in one.parts or (one.name,))
        self.tasks = {name: Simulation(graph, system, name, options, whole) for name in names}

    def of(self, made: Mapping[Simulation, Timeline]) -> Comparison:
        """Return the comparison, from the timelines of its simulations."""
        parts = {name: made[task] for name, task in self.tasks.items()}
        return Comparison({one.name: self._under(one, parts) for one in self.methods})

    def _under(self, one: OverlapMethod, parts: Mapping[str, Timeline]) -> Timeline:
        if one.parts:
            return assemble_ideal(one, self.graph, {name: parts[name] for name in one.parts})
        return parts[one.name]


def comparisons(
    cases: Iterable[tuple[Graph, System, Iterable[str]]],
    options: RunOptions,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
    whole: bool = False,
) -> list[Comparison]:
    """Return each graph on its system under its overlaps, the baseline first; other arguments and errors as of `sweep`.

    Every run is made once.
    """
    asked = [ComparedGraph(graph, system, overlaps, options, whole) for graph, system, overlaps in cases]
    made = timelines((task for each in asked for task in each.tasks.values()), jobs, progress, store)
    return [each.of(made) for each in asked]


Runs = Mapping[Simulation, Timeline]
"""Timelines by task."""


class Tiled(NamedTuple):
    """A GEMM and the tile of its kernel."""

    gemm: Gemm
    tiling: GemmTiling


@dataclass(frozen=True)
class Jobs:
    """How to run tasks: number of processes, the store of answers (None: none), and the progress callback."""

    count: int = 1
    store: Store | None = None
    progress: Progress | None = None

    def run(self, tasks: Iterable[Simulation]) -> Runs:
        """Return every task with its timeline; equal tasks are simulated once."""
        return timelines(tasks, self.count, self.progress, self.store)


class Alone(NamedTuple):
    """Isolated times of a GEMM and of a collective on compute units [s], and the gains of co-runs over them."""

    gemm_s: float
    collective_s: float

    @property
    def serial_s(self) -> float:
        """Time of the GEMMs and the collectives, serially [s]."""
        return self.gemm_s + self.collective_s

    @property
    def ideal(self) -> float:
        """Speedup over serial execution if the shorter one were hidden entirely."""
        return ideal_speedup(*self)

    @property
    def kind(self) -> str:
        """The class (one of `weft.simulate.result.metrics.CLASSES`) of the two times."""
        return class_of(*self)

    def speedup(self, makespan_s: float) -> float:
        """Serial time over the makespan of a co-run."""
        return self.serial_s / makespan_s

    def share(self, makespan_s: float) -> float:
        """Fraction of the ideal saving that a co-run reaches; below 0 if it is slower than serial execution."""
        return share_of_ideal(self.speedup(makespan_s), self.ideal)


def by_dma(strategy: str) -> bool:
    """Return whether DMA engines drive the collective under a strategy."""
    return STRATEGIES[strategy].driver is Driver.DMA


def drain_seconds(run: Timeline) -> float:
    """Return when all writes of the kernels have reached memory, so that what follows finds an idle GPU [s]."""
    return run.counters["drained_s"]


@dataclass(frozen=True)
class Bench:
    """A test bench for tasks: equal GPUs of a system, and options."""

    system: System
    options: RunOptions = field(default_factory=RunOptions)

    @classmethod
    def of(cls, machine: Described, ranks: int | None = None, options: RunOptions | None = None) -> Bench:
        """Return a bench of a system, or of `ranks` GPUs; InputError for more GPUs than one node holds."""
        system = hardware.system(machine, gpus=ranks)
        if system.nodes > 1:
            each = system.gpus_per_node
            raise InputError(f"{system.gpus} ranks do not fit into a node; take at most {each}")
        return cls(system, options or RunOptions())

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self.system.gpu

    def queue(self, gemms: Iterable[Tiled], units: int | None = None) -> Simulation:
        """GEMMs launched together, each in a queue of its own, on `units` compute units (None: all)."""
        each, tilings = zip(*gemms, strict=True)
        taken = 0 if units is None else self.gpu.compute.compute_units - units
        return self._task(gemm_queue(each, tilings=tilings), taken)

    def gemm(self, gemm: Gemm, taken: int = 0) -> Simulation:
        """Return a GEMM alone, with `taken` compute units taken off it."""
        return self._task(alone(gemm, self.system.gpus), taken)

    def collective(self, collective: Collective, units: int | None = None, in_flight: int | None = None) -> Simulation:
        """A collective alone: by a channel for each of `units` compute units, by DMA engines (0), or as the library
        runs it (None).

        With `in_flight` it is a plain ring whose workgroups have `in_flight` bytes in flight each.
        """
        overlap = replace(STRATEGIES["dma" if units == 0 else "streams"], in_flight=in_flight)
        channels = units if in_flight else self.channels(units)
        return Simulation(
            alone(collective, kernel=LibraryCollective(channels=channels or None)), self.system, overlap, self.options
        )

    def channels(self, units: int | None) -> int | None:
        """Return a channel for each of `units` compute units, as far as the library has them (None: its own number)."""
        return None if units is None else min(units, MOST_CHANNELS.get(self.gpu.vendor, units))

    def together(
        self, gemm: Gemm, collective: Collective, strategy: str, units: int | None = None, **changes: Any
    ) -> Simulation:
        """Both under a strategy, with `units` compute units reserved if it partitions; `changes` as in `Sharing`.

        A collective on compute units reserved for it has a channel for each, unless `changes` say otherwise; a plain
        ring always has.
        """
        if not by_dma(strategy) and "in_flight" not in changes:
            changes = {"channels": self.channels(units), **changes}
        overlap = replace(STRATEGIES[strategy], units=units, **changes)
        return Simulation(concurrent(gemm, collective), self.system, overlap, self.options)

    def _task(self, graph: Graph, taken: int) -> Simulation:
        overlap = replace(STRATEGIES["partition"], units=taken) if taken else STRATEGIES["streams"]
        return Simulation(graph, self.system, overlap, self.options)
