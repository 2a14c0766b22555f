"""The page of the C3 study: shares of the ideal beside the published ones, every scenario, and the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from weft.hardware import Gpu
from weft.report.headline import HeadlineRow
from weft.report.page import Figure, write_page
from weft.report.plots import c3 as plots
from weft.report.plots import held_units
from weft.report.tables import Table, amount, assumed_table, headline_table, machine_table
from weft.result.concurrent import Concurrency
from weft.result.sharing import CLASSES, Sharing
from weft.units import format_bytes


class Case(Protocol):
    """A scenario and what strategies make of it."""

    @property
    def scenario(self) -> Any:
        """The scenario: `layer`, `gemm`, `collective`, `size` [bytes]."""

    @property
    def sharing(self) -> Sharing:
        """Times alone and together."""

    @property
    def best(self) -> tuple[str, int | None]:
        """The strategy, and the compute units set apart, of the fastest run."""

    @property
    def best_s(self) -> float:
        """The fastest run [s]."""

    @property
    def chosen(self) -> tuple[str, int | None] | None:
        """The same of what the heuristics choose; None where they were not asked."""

    @property
    def heuristic_loss(self) -> float | None:
        """How much longer that takes than the fastest run."""


class Study(Protocol):
    """What the page needs to know of the study."""

    @property
    def cases(self) -> Sequence[Case]:
        """Every scenario."""

    @property
    def curves(self) -> Any:
        """`slowdown`, `boundness`, `bandwidth`, `cu_s` and `dma_s`."""

    @property
    def suite(self) -> Any:
        """`title` and `rule`."""

    @property
    def notes(self) -> Sequence[str]:
        """What must be known to read the figures."""

    @property
    def gpu(self) -> str:
        """The GPU's name."""

    @property
    def ranks(self) -> int:
        """How many of them."""

    @property
    def request_bytes(self) -> int:
        """Size of a memory request [bytes]."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Values of the machine that the user set."""

    @property
    def runs(self) -> int:
        """How many simulations."""

    @property
    def events(self) -> int:
        """Their events."""

    @property
    def simulated_s(self) -> float:
        """What they took on one core [s]."""

    @property
    def comparable(self) -> bool:
        """Whether published figures hold."""

    def share(self, strategy: str, kind: str | None = None) -> float | None:
        """Mean share of the ideal, over one class or all."""

    def headline(self) -> Sequence[HeadlineRow]:
        """Weft's figures beside published ones."""


def c3_report(
    study: Study,
    out_dir: str | Path,
    gpu: Gpu,
    timelines: Mapping[str, Concurrency] | None = None,
    drawn: str = "",
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `timelines` are the runs of one scenario, `drawn`, by strategy: who held which compute unit when.
    """
    rows = study.headline()
    return write_page(
        "c3.html.j2",
        out_dir,
        study=study,
        comparable=study.comparable,
        summary=_summary(study, rows),
        headline=headline_table(rows),
        sections=_sections(study, rows),
        timelines=_timelines(timelines or {}),
        drawn=drawn,
        classes=_class_table(study),
        scenarios=_scenario_table(study),
        waits=_wait_table(study),
        gpu=gpu,
        machine=machine_table(gpu),
        assumed=assumed_table(gpu),
        config=_Config(study.gpu, study.changed, study.request_bytes),
    )


class _Config:
    """What the page's part on the machine asks for."""

    mode, link_note = "mirrored", ""

    def __init__(self, gpu: str, changed: tuple[str, ...], request_bytes: int) -> None:
        self.gpu, self.changed, self.request_bytes = gpu, changed, request_bytes


def _summary(study: Study, rows: Sequence[HeadlineRow]) -> list[str]:
    wanted = ("c3.base", "c3.priority", "c3.dma_partition", "c3.max_speedup")
    found = {row.id: row for row in rows}
    return [
        f"{row.what}: {amount(row.weft, row.unit)} simulated"
        + ("" if row.published is None else f", {amount(row.published, row.unit)} published")
        for row in (found[name] for name in wanted if name in found)
    ]


def _published(rows: Sequence[HeadlineRow], names: Sequence[str]) -> dict[str, float]:
    """Published shares by strategy."""
    by_id = {row.id.removeprefix("c3."): row.published for row in rows if isinstance(row.published, float)}
    ids = {name: "base" if name == "streams" else name.replace("-", "_") for name in names}
    return {name: value for name, id_ in ids.items() if (value := by_id.get(id_)) is not None}


def _sections(study: Study, rows: Sequence[HeadlineRow]) -> list[tuple[str, list[Figure]]]:
    cases, curves = [case.sharing for case in study.cases], study.curves
    bars = plots.shares(cases, _published(rows, list(cases[0].runs)))
    return [
        (
            "How much of the ideal",
            [
                Figure(
                    bars,
                    "Serial execution with the collective on compute units is 0 %, hiding the shorter of both "
                    "for nothing 100 %. Where the collective is the longer one, faster DMA engines may exceed it.",
                )
            ],
        ),
        (
            "What each costs the other",
            [
                Figure(
                    plots.slowdowns(cases),
                    "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that "
                    "waits for the GEMM to leave compute units free lies far up.",
                )
            ],
        ),
        (
            "Why",
            [
                Figure(
                    plots.compute_unit_curves(curves.slowdown, curves.boundness, curves.bandwidth),
                    "Left: thin lines are single GEMMs, whose tiles come in waves. Right: a workgroup has only so "
                    "many bytes on their way, so that few of them do not fill the links.",
                ),
                Figure(
                    plots.drivers(curves.cu_s, curves.dma_s),
                    "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per "
                    "peer and waits for their completion.",
                ),
            ],
        ),
    ]


def _timelines(runs: Mapping[str, Concurrency]) -> list[Figure]:
    """Who held which compute unit under each strategy."""
    return [Figure(held_units(run), _seen(name, run)) for name, run in runs.items()]


def _seen(name: str, run: Concurrency) -> str:
    """What to see in a strategy's picture."""
    ends = ", ".join(
        f"the {what} ends at {loop.end * 1e6:,.0f} µs ({loop.end / loop.alone:.2f} × its time alone)"
        for what, loop in (("GEMM", run.gemm), ("collective", run.collective))
    )
    apart = "" if run.apart is None else f", {run.apart} compute units apart"
    return f"{name}{apart}: {ends}; {run.share_of_ideal:.0%} of the ideal."


def _class_table(study: Study) -> Table:
    names = list(study.cases[0].sharing.runs)
    rows = [
        (name, _percent(study.share(name)), *(_percent(study.share(name, kind)) for kind in CLASSES))
        for name in names
    ]
    return Table(("strategy", "all", *CLASSES), rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _name(case: Case) -> tuple[str, str, str]:
    scenario = case.scenario
    beside = f"{scenario.collective} {format_bytes(scenario.size, 4)}"
    return scenario.layer, "×".join(map(str, scenario.gemm)), beside


def _scenario_table(study: Study) -> Table:
    names = list(study.cases[0].sharing.runs)
    rows = []
    for case in study.cases:
        s = case.sharing
        shares = (f"{s.share(name):.0%}" for name in names)
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


def _wait_table(study: Study) -> Table:
    """Every scenario and strategy: slowdowns, and what a workgroup of each waited for most."""
    rows = [
        (
            *_name(case),
            name,
            f"{case.sharing.gemm_slowdown(name):.2f}",
            f"{case.sharing.collective_slowdown(name):.2f}",
            *(_longest(case.sharing.runs[name].waits.get(loop, {})) for loop in ("gemm", "collective")),
        )
        for case in study.cases
        for name in case.sharing.runs
    ]
    heads = (
        "layer",
        "GEMM",
        "beside",
        "strategy",
        "GEMM ×",
        "collective ×",
        "GEMM waits",
        "collective waits",
    )
    return Table(heads, rows, text_columns=4)


def _longest(waits: Mapping[str, float]) -> str:
    """The two longest waits in words."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{why} {seconds * 1e6:,.0f} µs" for why, seconds in longest if seconds > 0)
