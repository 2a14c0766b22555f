"""One scenario of a finished study once more, with every moment kept: who held which compute unit under a strategy."""

from __future__ import annotations

from weft.options import RunOptions
from weft.result import CoRun
from weft.run import compare
from weft.run.sweep import Progress
from weft.search.tasks import Bench
from weft.studies.c3.runs import ScenarioRuns
from weft.studies.c3.scenarios import Scenario
from weft.studies.c3.study import C3Study, Case

SHOWN = ("streams", "priority", "partition", "dma")
"""Strategies whose pictures differ."""


def shown_scenario(study: C3Study) -> Scenario:
    """The scenario that is drawn: the shortest of those with times alike and a compute-bound GEMM, if any."""

    def rank(case: Case) -> tuple[bool, bool, float]:
        return case.kind != "GC-equal", case.scenario.bound == "memory", case.serial_s

    return min(study.cases, key=rank).scenario


def timelines(study: C3Study, progress: Progress | None = None) -> dict[str, CoRun]:
    """The scenario's run under each strategy that is drawn, its units as published; simulated anew.

    Raises what the simulations raise.
    """
    bench = Bench.of(study.machine, study.ranks, RunOptions(request_bytes=study.request_bytes))
    one = ScenarioRuns(shown_scenario(study), bench)
    saturation = {name: study.curves.saturation(name) for name in study.curves.bandwidth}
    if progress is not None:
        progress(0, 1, "who held which unit")
    overlaps = [one.as_published(name, saturation).overlap for name in SHOWN]
    made = compare(one.both("streams").graph, bench.system, overlaps, bench.options)
    return {name: made.corun(name) for name in SHOWN}
