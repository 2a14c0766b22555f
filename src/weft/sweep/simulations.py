"""A simulation as a task of a sweep, defined by its values: graph, system, overlap, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.graph import Graph
from weft.hardware import System
from weft.lower.machine import check_request
from weft.options import RunOptions
from weft.result import Comparison, Timeline
from weft.run.kept import RunInputs
from weft.run.single import assembled, simulate
from weft.schedule import Ideal, Pass, find_pass
from weft.store import Store
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


def comparisons(
    cases: Iterable[tuple[Graph, System, Iterable[str]]],
    options: RunOptions,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
    whole: bool = False,
) -> list[Comparison]:
    """Each graph on its system under its overlaps, the baseline first; other arguments and errors as of `sweep`.

    Every run is made once: ideals are assembled from the runs that they take their times from.
    """
    asked = [(graph, system, [find_pass(name) for name in overlaps]) for graph, system, overlaps in cases]
    tasks = [
        {name: Simulation(graph, system, name, options, whole) for one in chosen for name in one.runs}
        for graph, system, chosen in asked
    ]
    made = timelines((task for each in tasks for task in each.values()), jobs, progress, store)

    def under(one: Pass, graph: Graph, each: Mapping[str, Simulation]) -> Timeline:
        parts = {name: made[each[name]] for name in one.runs}
        return assembled(one, graph, parts) if isinstance(one, Ideal) else parts[one.name]

    return [
        Comparison({one.name: under(one, graph, each) for one in chosen})
        for (graph, _, chosen), each in zip(asked, tasks, strict=True)
    ]
