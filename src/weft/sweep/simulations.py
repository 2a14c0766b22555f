"""A simulation as a task of a sweep, defined by its values: graph, system, overlap, options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weft.graph import Collective, Gemm, Graph
from weft.hardware import System
from weft.lower.machine import check_request
from weft.options import RunOptions
from weft.result import Comparison, Timeline
from weft.result.stored import as_record, from_record, plain, summary
from weft.run.single import assembled, simulate
from weft.schedule import Ideal, Pass, find_pass
from weft.schedule.arbiters import ArbiterPolicy, find_policy
from weft.store import Store
from weft.sweep.tasks import Progress, results

_FLOPS_PER_WEIGHT = 1e9
_BYTES_PER_WEIGHT = 1e6


@dataclass(frozen=True)
class Simulation:
    """A graph on a system under an overlap.

    Its record is the timeline, with spans and series only if `whole`. `about` is a note for people. Raises InputError
    for a request size that the GPU does not support.
    """

    graph: Graph
    system: System
    overlap: str | Pass = "streams"
    options: RunOptions = field(default_factory=RunOptions)
    whole: bool = False
    about: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.options.request_bytes is not None:
            check_request(self.system.gpu, self.options.request_bytes)  # fail early, before processes start

    @property
    def title(self) -> str:
        """A short description of the run."""
        return ", ".join(filter(None, (str(self.graph), find_pass(self.overlap).name, self.about)))

    @property
    def weight(self) -> float:
        """Rough relative duration of the run."""
        return work_weight(self.graph)

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the record."""
        return {
            "graph": plain(replace(self.graph, title="", labels={})),
            "system": self.system.inputs(),
            "overlap": plain(replace(find_pass(self.overlap), summary="", title="")),
            "options": plain(self.options),
            "arbiter": policy_identity(find_policy(self.options.arbiter or find_pass(self.overlap).arbiter)),
            "whole": self.whole,
        }

    def run(self) -> Mapping[str, Any]:
        """The record of the timeline, without the system, title and labels, which the task already holds."""
        made = simulate(self.graph, self.system, self.overlap, self.options)
        return as_record(retitled(None, "", {}, made if self.whole else summary(made)))

    def read(self, record: Mapping[str, Any]) -> Timeline:
        """The timeline that a record holds, on the task's system, under the task's title and labels."""
        return retitled(self.system, self.graph.title, self.graph.labels, from_record(record))


def work_weight(graph: Graph) -> float:
    """Rough relative duration of a simulation of a graph."""
    moved = sum(node.op.bytes for node in graph if isinstance(node.op, Collective))
    work = sum(node.op.flops for node in graph if isinstance(node.op, Gemm))
    return work / _FLOPS_PER_WEIGHT + moved / _BYTES_PER_WEIGHT


def policy_identity(policy: ArbiterPolicy) -> list[str]:
    """The identity of an arbitration policy: its name, and the byte code of its function."""
    code = policy.rule.__code__
    return [policy.name, code.co_code.hex(), repr(code.co_consts), repr(code.co_names)]


def retitled(system: Any, title: str, labels: Mapping[str, str], timeline: Timeline) -> Timeline:
    """A timeline and its parts on another system, under another title and labels."""
    parts = tuple(retitled(system, title, labels, part) for part in timeline.parts)
    return replace(timeline, system=system, graph=replace(timeline.graph, title=title, labels=labels), parts=parts)


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
