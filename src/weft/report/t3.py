"""The page of the T3 study: speedups, contention in memory, data movement, and what happens when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.hardware import Gpu
from weft.report import plots
from weft.report.page import Figure, machine_of
from weft.report.plots.style import case_label
from weft.report.run import timeline_caption
from weft.report.study import Section, study_page, told
from weft.report.tables import Table, sub_layer_table
from weft.result import Comparison

if TYPE_CHECKING:
    from weft.studies.headline import HeadlineRow
    from weft.studies.t3 import T3Study

_SUMMARY = (
    "t3_mca.speedup.geomean",
    "t3.speedup.geomean",
    "large.t3_mca.speedup.geomean",
    "traffic.total.geomean",
)
LARGE_TP = 32
"""The paper's large models run at this degree; their means are published apart from the others'."""


def t3_report(study: T3Study, out_dir: str | Path, gpu: Gpu | None = None) -> Path:
    """Write `report.html` on a study to a folder and return its path.

    `gpu` is the machine if the catalogue does not know it. Raises OutputError if nothing can be written.
    """
    cases = list(study.comparisons.values())
    rows = study.headline()
    shown = telling_case(cases)
    return study_page(
        "t3.html.j2",
        study,
        out_dir,
        gpu or machine_of(cases[0].baseline.config),
        summary=told(rows, _SUMMARY),
        sections=[
            Section("Speedup", _speedup_figures(cases, rows)),
            Section("Contention in memory", _traffic_figures(shown)),
            Section("Data movement", _cause_figures(cases)),
            Section("What happens when", _timeline_figures(shown)),
        ],
        link_notes=list(dict.fromkeys(case.baseline.config.link_note for case in cases)),
        sub_layers=sub_layer_table(cases),
        work=_work(cases),
    )


def published_means(rows: Sequence[HeadlineRow], prefix: str = "") -> dict[str, float]:
    """Published geometric means of speedups by overlap, of the rows whose ids begin with `prefix`."""
    means = {}
    for row in rows:
        overlap, *what = row.id.removeprefix(prefix).split(".")
        if row.id.startswith(prefix) and what == ["speedup", "geomean"] and isinstance(row.published, float):
            means[overlap.replace("_", "-")] = row.published
    return means


def telling_case(cases: Sequence[Comparison]) -> Comparison:
    """The mid-size FC-2 in which arbitration gains most over plain T3: where contention shows if anywhere."""
    mid_size = [case for case in cases if case.baseline.config.tp < LARGE_TP] or list(cases)
    candidates = [case for case in mid_size if case.baseline.config.sublayer == "fc2"] or mid_size
    both = [case for case in candidates if {"t3", "t3-mca"} <= set(case.results)]
    return max(both or candidates, key=lambda case: case["t3-mca"].speedup_over(case["t3"]) if both else 0)


def _speedup_figures(cases: list[Comparison], rows: Sequence[HeadlineRow]) -> list[Figure]:
    groups = (
        ("", "Mid-size models", [case for case in cases if case.baseline.config.tp < LARGE_TP]),
        ("large.", "Large models", [case for case in cases if case.baseline.config.tp >= LARGE_TP]),
    )
    return [
        _speedup_figure(title, group, published_means(rows, prefix))
        for prefix, title, group in groups
        if group
    ]


def _speedup_figure(title: str, cases: list[Comparison], published: Mapping[str, float]) -> Figure:
    lines = "; dashed lines are the published geometric means, to be compared with the last group of bars"
    return Figure(
        plots.speedups(cases, published, f"{title}: how much faster than sequential?"),
        f"{title}. Bars are simulated sub-layers{lines if published else ''}.",
    )


def _traffic_figures(case: Comparison) -> list[Figure]:
    runs = [case[name] for name in ("t3", "t3-mca") if name in case.results]
    if not runs:
        return []
    alone = case.baseline.times.gemm
    slower = "; ".join(f"{run.config.overlap} {run.times.gemm / alone - 1:+.1%}" for run in runs)
    return [
        Figure(
            plots.traffic_over_time(runs, plots.busiest_stages(runs[0])),
            f"{case_label(case.baseline.config)}: DRAM traffic of a GPU. The GEMM's is blue, the reduce-scatter's warm "
            f"and hatched. Below, the shaded stages bin by bin. The GEMM's time against alone: {slower}.",
        )
    ]


def _cause_figures(cases: list[Comparison]) -> list[Figure]:
    if "t3-mca" not in cases[0].results:
        return []
    caption = (
        "Bytes between the memory controllers and DRAM of one GPU: left the sequential run, right t3-mca. "
        "Reduce-scatter reads shrink most; GEMM reads shrink where outputs no longer push inputs out."
    )
    return [Figure(plots.traffic_by_cause(cases), caption)]


def _timeline_figures(case: Comparison) -> list[Figure]:
    names = [name for name in ("t3-mca", "sequential") if name in case.results]
    return [
        Figure(
            plots.timeline(case[name]), f"{case_label(case.baseline.config)}. {timeline_caption(case[name])}"
        )
        for name in names
    ]


def _work(cases: Sequence[Comparison]) -> Table:
    runs = [result for case in cases for result in case if not result.parts]
    # A sub-layer of the same shape may stand under two names: its runs were made, and count, once.
    runs = list({(run.config.overlap, run.events, run.wall_s): run for run in runs}.values())
    seconds = sum(run.wall_s for run in runs)
    events = sum(run.events for run in runs)
    return Table(
        ("simulated runs", "events", "memory requests", "time, one core [s]", "events/s"),
        [
            (
                f"{len(runs)}",
                f"{events:,}",
                f"{sum(run.requests for run in runs):,}",
                f"{seconds:.1f}",
                f"{events / max(seconds, 1e-9):,.0f}",
            )
        ],
        text_columns=0,
    )
