"""The C3 study: its tables, and the page of shares of the ideal beside the published ones, scenarios, and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.report import plots
from weft.report.page import Figure, Section
from weft.report.study import study_page, told
from weft.report.tables import Table, percent, us
from weft.result import CoRun
from weft.result.metrics import CLASSES
from weft.result.timeline import REASONS
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.studies.c3 import C3Study, Case
    from weft.studies.headline import HeadlineRow

_SUMMARY = ("c3.base", "c3.priority", "c3.dma_partition", "c3.max_speedup")


def c3_report(
    study: C3Study, out_dir: str | Path, timelines: Mapping[str, CoRun] | None = None, drawn: str = ""
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `timelines` are the runs of one scenario, `drawn`, by strategy: who held which compute unit when.
    """
    rows, suite = study.headline(), study.suite
    where = f"{study.ranks} × {study.gpu}"
    shares = (
        "Share of the ideal under each strategy, with compute units as published; ideal and fastest of all that was "
        "searched as speedups over serial execution."
    )
    longest = (
        "What a workgroup does or waits for longest, all that run in its place added up; copies by DMA engines have no "
        "workgroups. Slowdowns are over the time alone, by compute units."
    )
    slowdowns = "Slowdowns of every scenario under every strategy, and where its time goes"
    return study_page(
        study,
        out_dir,
        "A GEMM beside a collective: what does each strategy save?",
        f"{suite.title}: {len(study.cases)} scenarios on {where}.",
        told(rows, _SUMMARY),
        [
            *_sections(study, rows),
            _timelines(timelines or {}, drawn),
            Section("Mean share of the ideal by class", [_CLASSED, class_table(study)]),
            Section("Every scenario", [shares, _share_table(study)]),
            Section(slowdowns, [longest, _wait_table(study)], folded=True),
            Section("How the scenarios were chosen", [suite.rule] if suite.rule else []),
        ],
        work=[f"{study.runs} runs of {study.events:,} events in {study.simulated_s:.0f} s of one core."],
        paper="C3 and ConCCL",
        explained=("A GEMM beside a collective", "c3"),
    )


_CLASSED = "G-long: the GEMM takes more than 1.15 times as long as the collective; C-long: the reverse."


def _published(rows: Sequence[HeadlineRow], names: Sequence[str]) -> dict[str, float]:
    """Published shares by strategy."""
    by_id = {row.id.removeprefix("c3."): row.published for row in rows if isinstance(row.published, float)}
    ids = {name: "base" if name == "streams" else name.replace("-", "_") for name in names}
    return {name: value for name, id_ in ids.items() if (value := by_id.get(id_)) is not None}


def _sections(study: C3Study, rows: Sequence[HeadlineRow]) -> list[Section]:
    cases, curves = study.cases, study.curves
    shares = Figure(
        plots.c3.shares(cases, _published(rows, cases[0].strategies)),
        "Serial execution with the collective on compute units is 0 %, hiding the shorter of both for nothing 100 %. "
        "Where the collective is the longer one, faster DMA engines may exceed it.",
    )
    slowdowns = Figure(
        plots.c3.slowdowns(cases),
        "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that waits for "
        "the GEMM to leave compute units free lies far up.",
    )
    units = Figure(
        plots.c3.compute_unit_curves(curves.slowdown, curves.boundness, curves.bandwidth),
        "Left: thin lines are single GEMMs, whose tiles come in waves. Right: a workgroup has only so many bytes on "
        "their way, so that few of them do not fill the links.",
    )
    drivers = Figure(
        plots.c3.drivers(curves.cu_s, curves.dma_s),
        "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per peer and waits "
        "for their completion.",
    )
    return [
        Section("How much of the ideal", [shares]),
        Section("What each costs the other", [slowdowns]),
        Section("Why", [units, drivers]),
    ]


def _timelines(runs: Mapping[str, CoRun], drawn: str) -> Section:
    """Who held which compute unit under each strategy."""
    until = max((run.makespan for run in runs.values()), default=None)
    said = (
        f"One scenario, {drawn}, on one of the GPUs; both are launched at 0. Above, when each kernel ran and when it "
        "waited for compute units; below, a line per compute unit, white where it was idle."
    )
    figures = [Figure(plots.held_units(run, until), _seen(name, run)) for name, run in runs.items()]
    return Section("Who held which compute unit", [said, *figures] if figures else [])


def _seen(name: str, run: CoRun) -> str:
    """What to see in a strategy's picture."""
    ends = ", ".join(
        f"the {what} ends at {us(loop.end, 0)} µs ({loop.end / loop.alone:.2f} × its time alone)"
        for what, loop in (("GEMM", run.gemm), ("collective", run.collective))
    )
    apart = "" if run.apart is None else f", {run.apart} compute units apart"
    return f"{name}{apart}: {ends}; {percent(run.share_of_ideal)} of the ideal."


def class_table(study: C3Study) -> Table:
    """The mean share of the ideal of each strategy, by class."""
    names = study.cases[0].strategies
    rows = [(name, *(percent(study.share(name, kind)) for kind in (None, *CLASSES))) for name in names]
    heads = ("strategy", "all", *(f"{kind}: {words}" for kind, words in CLASSES.items()))
    return Table(heads, rows, title="Mean share of the ideal speedup")


def _name(case: Case) -> tuple[str, str]:
    one = case.scenario
    return "×".join(map(str, one.gemm)), f"{one.collective} {format_bytes(one.size, 4)}"


def _best(case: Case) -> str:
    return case.best.strategy if case.best.units is None else f"{case.best.strategy} {case.best.units}"


def scenario_table(study: C3Study) -> Table:
    """Every scenario: times alone, the ideal, and every strategy's speedup over serial execution."""
    names = study.cases[0].strategies
    rows = [(*_times(case), *(f"{case.speedup(name):.2f}" for name in names), _best(case)) for case in study.cases]
    heads = (*_HEADS, *names, "best")
    title = f"{study.suite.title}: {study.ranks} x {study.gpu}, times alone, speedups over serial execution"
    return Table(heads, rows, text_columns=3, title=title, prose=1)


def _share_table(study: C3Study) -> Table:
    """Every scenario: times alone, the ideal, and every strategy's share of it."""
    names = study.cases[0].strategies
    rows = [
        (
            *_times(case),
            *(percent(case.share(name)) for name in names),
            f"{case.serial_s / case.best.seconds:.2f}, {_best(case)}",
        )
        for case in study.cases
    ]
    return Table((*_HEADS, *names, "fastest"), rows, text_columns=3)


_HEADS = ("GEMM", "beside", "class", "GEMM [µs]", "collective [µs]", "ideal")


def _times(case: Case) -> tuple[str, ...]:
    return *_name(case), case.kind, us(case.gemm_s, 0), us(case.collective_s, 0), f"{case.ideal:.2f}"


def _wait_table(study: C3Study) -> Table:
    """Every scenario and strategy: where most of the time of a workgroup of each went, and slowdowns."""
    rows = [
        (
            case.scenario.layer,
            *_name(case),
            name,
            *(_longest(run.waits(operator)) for operator in ("gemm", case.scenario.collective)),
            f"{case.gemm_slowdown(name):.2f}×",
            f"{case.collective_slowdown(name):.2f}×",
        )
        for case in study.cases
        for name, run in case.comparison.timelines.items()
    ]
    heads = ("layer", "GEMM", "beside", "strategy", "GEMM: most of its time", "collective: most of its time")
    return Table((*heads, "GEMM", "collective"), rows, text_columns=len(heads))


def _longest(waits: Mapping[str, float]) -> str:
    """Where most of the time went, in words: the two longest."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{REASONS[why]} {us(s, 0)}\N{NO-BREAK SPACE}µs" for why, s in longest if s > 0)
