"""The page of the C3 study: shares of the ideal beside the published ones, every scenario, and the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.hardware import Gpu
from weft.report.page import Figure
from weft.report.plots import c3 as plots
from weft.report.plots import held_units
from weft.report.study import Section, study_page, told
from weft.report.tables import Table, percent
from weft.result.concurrent import REASONS, Concurrency
from weft.result.sharing import CLASSES
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.studies.c3 import C3Study, Case
    from weft.studies.headline import HeadlineRow

_SUMMARY = ("c3.base", "c3.priority", "c3.dma_partition", "c3.max_speedup")


def c3_report(
    study: C3Study,
    out_dir: str | Path,
    gpu: Gpu,
    timelines: Mapping[str, Concurrency] | None = None,
    drawn: str = "",
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `timelines` are the runs of one scenario, `drawn`, by strategy: who held which compute unit when.
    """
    rows = study.headline()
    return study_page(
        "c3.html.j2",
        study,
        out_dir,
        gpu,
        summary=told(rows, _SUMMARY),
        sections=[*_sections(study, rows), _timelines(timelines or {}, drawn)],
        classes=_class_table(study),
        scenarios=_scenario_table(study),
        waits=_wait_table(study),
    )


def _published(rows: Sequence[HeadlineRow], names: Sequence[str]) -> dict[str, float]:
    """Published shares by strategy."""
    by_id = {row.id.removeprefix("c3."): row.published for row in rows if isinstance(row.published, float)}
    ids = {name: "base" if name == "streams" else name.replace("-", "_") for name in names}
    return {name: value for name, id_ in ids.items() if (value := by_id.get(id_)) is not None}


def _sections(study: C3Study, rows: Sequence[HeadlineRow]) -> list[Section]:
    cases, curves = [case.sharing for case in study.cases], study.curves
    shares = Figure(
        plots.shares(cases, _published(rows, list(cases[0].runs))),
        "Serial execution with the collective on compute units is 0 %, hiding the shorter of both for nothing 100 %. "
        "Where the collective is the longer one, faster DMA engines may exceed it.",
    )
    slowdowns = Figure(
        plots.slowdowns(cases),
        "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that waits for "
        "the GEMM to leave compute units free lies far up.",
    )
    units = Figure(
        plots.compute_unit_curves(curves.slowdown, curves.boundness, curves.bandwidth),
        "Left: thin lines are single GEMMs, whose tiles come in waves. Right: a workgroup has only so many bytes on "
        "their way, so that few of them do not fill the links.",
    )
    drivers = Figure(
        plots.drivers(curves.cu_s, curves.dma_s),
        "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per peer and waits "
        "for their completion.",
    )
    return [
        Section("How much of the ideal", [shares]),
        Section("What each costs the other", [slowdowns]),
        Section("Why", [units, drivers]),
    ]


def _timelines(runs: Mapping[str, Concurrency], drawn: str) -> Section:
    """Who held which compute unit under each strategy."""
    until = max((run.makespan for run in runs.values()), default=None)
    return Section(
        "Who held which compute unit",
        [Figure(held_units(run, until), _seen(name, run)) for name, run in runs.items()],
        f"One scenario, {drawn}, on one of the GPUs; both are launched at 0. Above, when each kernel ran and when it "
        "waited for compute units; below, a line per compute unit, white where it was idle.",
    )


def _seen(name: str, run: Concurrency) -> str:
    """What to see in a strategy's picture."""
    ends = ", ".join(
        f"the {what} ends at {loop.end * 1e6:,.0f} µs ({loop.end / loop.alone:.2f} × its time alone)"
        for what, loop in (("GEMM", run.gemm), ("collective", run.collective))
    )
    apart = "" if run.apart is None else f", {run.apart} compute units apart"
    return f"{name}{apart}: {ends}; {percent(run.share_of_ideal)} of the ideal."


def _class_table(study: C3Study) -> Table:
    names = list(study.cases[0].sharing.runs)
    rows = [(name, *(percent(study.share(name, kind)) for kind in (None, *CLASSES))) for name in names]
    return Table(("strategy", "all", *CLASSES), rows)


def _name(case: Case) -> tuple[str, str, str]:
    scenario = case.scenario
    beside = f"{scenario.collective} {format_bytes(scenario.size, 4)}"
    return scenario.layer, "×".join(map(str, scenario.gemm)), beside


def _scenario_table(study: C3Study) -> Table:
    names = list(study.cases[0].sharing.runs)
    rows = []
    for case in study.cases:
        s = case.sharing
        shares = (percent(s.share(name)) for name in names)
        times = (f"{s.gemm_s * 1e6:,.0f}", f"{s.collective_s * 1e6:,.0f}", f"{s.ideal:.2f}")
        best = f"{case.best[0]}{'' if case.best[1] is None else f' {case.best[1]}'}"
        rows.append((*_name(case)[1:], s.kind, *times, *shares, f"{s.serial_s / case.best_s:.2f}, {best}"))
    heads = ("GEMM", "beside", "class", "GEMM [µs]", "collective [µs]", "ideal", *names, "fastest")
    return Table(heads, rows, text_columns=3)


def _heuristics(case: Case) -> str:
    """What the heuristics choose, and what it loses."""
    if case.chosen is None or case.heuristic_loss is None:
        return "–"
    return f"{_way(case.chosen)}, {case.heuristic_loss:+.1%}"


def _way(chosen: tuple[str, int | None]) -> str:
    """A strategy and the compute units that it sets apart."""
    return chosen[0] if chosen[1] is None else f"{chosen[0]} {chosen[1]}"


def _wait_table(study: C3Study) -> Table:
    """Every scenario and strategy: where most of the time of a workgroup of each went, and slowdowns."""
    rows = [
        (
            *_name(case),
            name,
            *(_longest(case.sharing.runs[name].waits.get(loop, {})) for loop in ("gemm", "collective")),
            f"{case.sharing.gemm_slowdown(name):.2f}×",
            f"{case.sharing.collective_slowdown(name):.2f}×",
        )
        for case in study.cases
        for name in case.sharing.runs
    ]
    heads = ("layer", "GEMM", "beside", "strategy", "GEMM: most of its time", "collective: most of its time")
    return Table((*heads, "GEMM", "collective"), rows, text_columns=len(heads))


def _longest(waits: Mapping[str, float]) -> str:
    """Where most of the time went, in words: the two longest."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(
        f"{REASONS.get(why, why)} {seconds * 1e6:,.0f}\N{NO-BREAK SPACE}µs"
        for why, seconds in longest
        if seconds > 0
    )
