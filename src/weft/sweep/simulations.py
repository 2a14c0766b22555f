"""A simulation as a task of a sweep, defined by its values: graph, system, overlap, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.options import RunOptions
from weft.core.store import Store
from weft.graph import Graph
from weft.hardware import System
from weft.overlaps import OverlapMethod, find_simulated
from weft.overlaps.lower.machine import check_request
from weft.simulate.kept import RunInputs
from weft.simulate.result import Comparison, Timeline
from weft.simulate.single import assembled, simulate
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
        """The record of the timeline."""
        return self.record(simulate(self.graph, self.system, self.overlap, self.options))


def timelines(
    tasks: Iterable[Simulation], jobs: int = 1, progress: Progress | None = None, store: Store | None = None
) -> dict[Simulation, Timeline]:
    """Every task with its timeline, in the order of the tasks; arguments and errors of `sweep`."""
    records = results(tasks, lambda record: record, jobs, progress, store)
    return {task: task.read(record) for task, record in records.items()}


class Compared:
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
        """The comparison, from the timelines of its simulations."""
        parts = {name: made[task] for name, task in self.tasks.items()}
        return Comparison({one.name: self._under(one, parts) for one in self.methods})

    def _under(self, one: OverlapMethod, parts: Mapping[str, Timeline]) -> Timeline:
        if one.parts:
            return assembled(one, self.graph, {name: parts[name] for name in one.parts})
        return parts[one.name]


def comparisons(
    cases: Iterable[tuple[Graph, System, Iterable[str]]],
    options: RunOptions,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
    whole: bool = False,
) -> list[Comparison]:
    """Each graph on its system under its overlaps, the baseline first; other arguments and errors as of `sweep`.

    Every run is made once.
    """
    asked = [Compared(graph, system, overlaps, options, whole) for graph, system, overlaps in cases]
    made = timelines((task for each in asked for task in each.tasks.values()), jobs, progress, store)
    return [each.of(made) for each in asked]
