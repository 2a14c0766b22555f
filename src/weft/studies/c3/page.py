"""Tables and page of the C3 study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft.report import Part, Section
from weft.report.table import Column, Shown, Table, microseconds, number, text, texts, times_faster
from weft.result import CoRun
from weft.result.metrics import CLASSES
from weft.result.timeline import REASONS
from weft.schedule import SHARING
from weft.studies.c3.runs import Case
from weft.studies.c3.scenarios import IDS
from weft.units import format_bytes
from weft.view.corun import held_units
from weft.view.explorer import timeline, waits_table
from weft.view.studies import (
    bandwidth_against_units,
    drivers,
    gemm_against_units,
    strategy_shares,
    strategy_slowdowns,
)  # fmt: skip
from weft.view.words import percent, us

if TYPE_CHECKING:
    from weft.studies.c3.study import C3Study

_COLUMNS = (
    text("gemm", "GEMM"), text("beside"), text("class"), microseconds("gemm", "GEMM", 0),
    microseconds("collective", "collective", 0), times_faster("ideal", format_=".2f"),
)  # fmt: skip


def sections(study: C3Study, watched: Mapping[str, CoRun]) -> list[Part]:
    """Shares of the ideal, mutual slowdowns and their causes, compute units over time, and every scenario."""
    every = (
        "Share of the ideal under each strategy, with compute units as published; ideal and fastest of all that "
        "was searched as speedups over serial execution."
    )
    longest = (
        "What a workgroup does or waits for longest, all that run in its place added up; copies by DMA engines "
        "have no workgroups. Slowdowns are over the time alone, by compute units."
    )
    classed = "G-long: the GEMM takes more than 1.15 times as long as the collective; C-long: the reverse."
    shares, slowdowns, *why = _figures(study)
    return [
        Section("How much of the ideal", [shares]),
        Section("What each costs the other", [slowdowns]),
        Section("Why", why),
        Section("Who held which compute unit", _timelines(watched, study.shown.scenario.title) if watched else []),
        Section("Mean share of the ideal by class", [classed, class_table(study)]),
        Section("Every scenario", [every, share_table(study)]),
        Section(
            "Slowdowns of every scenario under every strategy, and where its time goes",
            [longest, wait_table(study)],
            folded=True,
        ),
        Section("How the scenarios were chosen", [study.suite.rule] if study.suite.rule else []),
    ]


def _figures(study: C3Study) -> list[Part]:
    curves = study.curves
    return [
        strategy_shares(study.cases, _published(study)).captioned(
            "Serial execution with the collective on compute units is 0 %, hiding the shorter of both at no cost 100 "
            "%. Where the collective is the longer one, faster DMA engines may exceed it.",
        ),
        strategy_slowdowns(study.cases).captioned(
            "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that waits "
            "for the GEMM to leave compute units free lies far up.",
        ),
        gemm_against_units(curves.slowdown, curves.boundness).captioned(
            "Thin lines are single GEMMs, whose tiles come in waves."
        ),
        bandwidth_against_units(curves.bandwidth).captioned(
            "A workgroup has only so many bytes in flight, so that few of them do not fill the links."
        ),
        drivers(curves.cu_s, curves.dma_s).captioned(
            "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per peer and "
            "waits for their completion.",
        ),
    ]


def _published(study: C3Study) -> dict[str, float]:
    """Published shares by strategy."""
    known = {row.id: row.published for row in study.headline() if isinstance(row.published, float)}
    return {name: known[id_] for name, id_ in IDS.items() if id_ in known}


def _timelines(runs: Mapping[str, CoRun], drawn: str) -> list[Part]:
    """Which operator held which compute unit under each strategy."""
    until = max(run.makespan for run in runs.values())
    said = (
        f"One scenario, {drawn}, on one of the GPUs; both are launched at 0. First, when each kernel ran and what it "
        "waited for; then a line per compute unit, empty where it was idle."
    )
    shown = {name: run.run for name, run in runs.items()}
    return [said, timeline(shown), waits_table(shown), *(held_units(run, until) for run in runs.values())]


def class_table(study: C3Study) -> Table:
    """The mean share of the ideal of each strategy, by class."""
    rows = [(name, *(study.share(name, kind) for kind in (None, *CLASSES))) for name in SHARING]
    kinds = {"all": "all", **{kind: f"{kind}: {words}" for kind, words in CLASSES.items()}}
    columns = [text("strategy"), *(number(kind, head, format_=percent) for kind, head in kinds.items())]
    return Table(columns, rows, "Mean share of the ideal speedup")


def speedup_table(study: C3Study) -> Table:
    """Every scenario: isolated times, the ideal, every strategy's speedup over serial execution, and the best way."""
    columns = [*(times_faster(name, format_=".2f") for name in SHARING), text("best", prose=True)]
    title = f"{study.suite.title}: {study.ranks} x {study.gpu}, times alone, speedups over serial execution"
    return _every_scenario(study, Case.speedup, columns, _best, title)


def share_table(study: C3Study) -> Table:
    """Every scenario: isolated times, the ideal, every strategy's share of it, and the fastest way."""

    def fastest(case: Case) -> Shown:
        speedup = case.alone.speedup(case.seconds[case.best])
        return Shown(speedup, f"{speedup:.2f}, {_best(case)}")

    columns = [*(number(name, format_=percent) for name in SHARING), number("fastest")]
    return _every_scenario(study, Case.share, columns, fastest)


def _every_scenario(
    study: C3Study,
    figure: Callable[[Case, str], float],
    columns: list[Column],
    last: Callable[[Case], Any],
    title: str = "",
) -> Table:
    """A row per scenario: isolated times, the `figure` of every strategy, and the columns in `last`."""
    rows = [
        (
            *_name(case),
            case.kind,
            case.alone.gemm_s * 1e6,
            case.alone.collective_s * 1e6,
            case.alone.ideal,
            *(figure(case, strategy) for strategy in SHARING),
            last(case),
        )
        for case in study.cases
    ]
    return Table([*_COLUMNS, *columns], rows, title)


def wait_table(study: C3Study) -> Table:
    """Every scenario and strategy: the longest waits of a workgroup on each side, and slowdowns."""
    rows = [
        (
            case.scenario.layer,
            *_name(case),
            name,
            *(_longest(run.waits(operator)) for operator in ("gemm", case.scenario.collective)),
            case.gemm_slowdown(name),
            case.collective_slowdown(name),
        )
        for case in study.cases
        for name, run in case.comparison.timelines.items()
    ]
    heads = ("layer", "GEMM", "beside", "strategy", "GEMM: most of its time", "collective: most of its time")
    slower = [times_faster(f"{what}_slowdown", what, "{:.2f}×") for what in ("GEMM", "collective")]
    return Table([*texts(heads), *slower], rows)


def _name(case: Case) -> tuple[str, str]:
    one = case.scenario
    return "×".join(map(str, one.gemm)), f"{one.collective} {format_bytes(one.size, 4)}"


def _best(case: Case) -> str:
    return " ".join(str(part) for part in case.best if part is not None)


def _longest(waits: Mapping[str, float]) -> str:
    """The two longest waits, in words."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{REASONS[why]} {us(s, 0)}\N{NO-BREAK SPACE}µs" for why, s in longest if s > 0)
