"""One scenario of a finished study once more, with every moment kept: who held which compute unit under a strategy."""

from __future__ import annotations

from weft.hardware import Gpu
from weft.result.concurrent import Concurrency
from weft.simulation import beside
from weft.studies.c3.runs import both, published_units
from weft.studies.c3.scenarios import Scenario
from weft.studies.c3.study import C3Study
from weft.sweep import Progress
from weft.sweep.streams import Setting

SHOWN = ("streams", "priority", "partition", "dma")
"""Strategies whose pictures differ."""


def shown_scenario(study: C3Study) -> Scenario:
    """The scenario that is drawn: the shortest of those with times alike and a compute-bound GEMM, if any."""

    def rank(number: int) -> tuple[bool, bool, float]:
        case = study.cases[number]
        return case.sharing.kind != "GC-equal", case.scenario.bound == "memory", case.sharing.serial_s

    return study.cases[min(range(len(study.cases)), key=rank)].scenario


def timelines(study: C3Study, gpu: Gpu, progress: Progress | None = None) -> dict[str, Concurrency]:
    """The scenario's run under each strategy that is drawn, its units as published; simulated anew.

    `gpu` is the study's. Raises what the simulations raise.
    """
    scenario = shown_scenario(study)
    setting = Setting(gpu, study.ranks, request_bytes=study.request_bytes)
    saturation = {name: study.curves.saturation(name) for name in study.curves.bandwidth}
    found = {}
    for number, name in enumerate(SHOWN):
        if progress is not None:
            progress(number, len(SHOWN), f"who held which unit: {name}")
        task = both(scenario, setting, name, published_units(scenario, name, saturation))
        found[name] = beside(**task.options(), gemms=1, collectives=1)
    return found
