"""The T3 study: its table of sub-layers, and the page of speedups, contention, data movement, and what happens when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.lower.machine import ring_note
from weft.report import plots
from weft.report.page import Figure, Section
from weft.report.run import timeline_caption
from weft.report.study import study_page, told
from weft.report.tables import Table, case_label, changed, phase_times, us
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


def sub_layer_table(study: T3Study) -> Table:
    """Times of the sequential run and every overlap's speedup over it, sub-layer by sub-layer."""
    cases = list(study.comparisons.values())
    names = [name for name in cases[0].timelines if name != "sequential"]
    rows = []
    for case in cases:
        first = case.baseline
        model, layer = (first.graph.labels.get(name, "custom") for name in ("model", "sublayer"))
        speedups = (f"{case.speedup(name):.3f}" for name in names)
        rows.append((model, str(first.graph.ranks), layer, *map(us, phase_times(first)), *speedups))
    heads = ("model", "TP", "layer", "GEMM [µs]", "RS [µs]", "AG [µs]", "total [µs]", *names)
    title = f"Sub-layers on {study.gpu}{changed(study.machine)}: times under sequential, speedups over it"
    return Table(heads, rows, text_columns=3, title=title)


def link_notes(study: T3Study) -> list[str]:
    """What the ring makes of the link of a GPU, by degree."""
    return list(dict.fromkeys(ring_note(case.baseline.system) for case in study.comparisons.values()))


def t3_report(study: T3Study, out_dir: str | Path) -> Path:
    """Write `report.html` on a study to a folder and return its path; OutputError if nothing can be written."""
    cases, rows = list(study.comparisons.values()), study.headline()
    shown = telling_case(cases)
    lead = f"{len(cases)} sub-layers on {study.gpu}."
    if not study.comparable:
        lead = (
            f"{len(cases)} sub-layers of the T3 study ({study.PAPER}) on {study.gpu}{changed(study.machine)}: what a "
            "tracker, near-memory updates and triggered DMA would bring there. Nothing is published for this machine."
        )
    own = f"What T3 would buy on {study.machine.title}"
    every = "Times are those of the sequential run; the last columns are speedups over it."
    return study_page(
        study,
        out_dir,
        "T3: what is published, and what Weft simulates" if study.comparable else own,
        lead,
        told(rows, _SUMMARY),
        [
            Section("Speedup", _speedup_figures(cases, rows)),
            Section("Contention in memory", _traffic_figures(shown)),
            Section("Data movement", _cause_figures(cases)),
            Section("What happens when", _timeline_figures(shown)),
            Section("Every sub-layer", [every, sub_layer_table(study)]),
        ],
        work=[_work(cases)],
        link_notes=link_notes(study),
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
    mid_size = [case for case in cases if case.baseline.graph.ranks < LARGE_TP] or list(cases)
    candidates = [case for case in mid_size if case.baseline.graph.labels.get("sublayer") == "fc2"] or mid_size
    both = [case for case in candidates if {"t3", "t3-mca"} <= set(case.timelines)]
    return max(both or candidates, key=lambda case: case["t3"].seconds / case["t3-mca"].seconds if both else 0)


def _speedup_figures(cases: list[Comparison], rows: Sequence[HeadlineRow]) -> list[Figure]:
    large = [case for case in cases if case.baseline.graph.ranks >= LARGE_TP]
    small = [case for case in cases if case.baseline.graph.ranks < LARGE_TP]
    groups = (("", "Mid-size models", small), ("large.", "Large models", large))
    return [_speedup_figure(title, group, published_means(rows, prefix)) for prefix, title, group in groups if group]


def _speedup_figure(title: str, cases: list[Comparison], published: Mapping[str, float]) -> Figure:
    lines = "; dashed lines are the published geometric means, to be compared with the last group of bars"
    return Figure(
        plots.speedups(cases, published, f"{title}: how much faster than sequential?"),
        f"{title}. Bars are simulated sub-layers{lines if published else ''}.",
    )


def _traffic_figures(case: Comparison) -> list[Figure]:
    runs = [case[name] for name in ("t3", "t3-mca") if name in case.timelines]
    if not runs:
        return []
    alone = case.baseline.duration("gemm")
    slower = "; ".join(f"{run.overlap} {run.duration('gemm') / alone - 1:+.1%}" for run in runs)
    return [
        Figure(
            plots.traffic_over_time(runs, plots.busiest_stages(runs[0])),
            f"{case_label(case.baseline.graph)}: DRAM traffic of a GPU. The GEMM's is blue, the reduce-scatter's warm "
            f"and hatched. Below, the shaded stages bin by bin. The GEMM's time against alone: {slower}.",
        )
    ]


def _cause_figures(cases: list[Comparison]) -> list[Figure]:
    if "t3-mca" not in cases[0].timelines:
        return []
    caption = (
        "Bytes between the memory controllers and DRAM of one GPU: left the sequential run, right t3-mca. "
        "Reduce-scatter reads shrink most; GEMM reads shrink where outputs no longer push inputs out."
    )
    return [Figure(plots.traffic_by_cause(cases), caption)]


def _timeline_figures(case: Comparison) -> list[Figure]:
    names = [name for name in ("t3-mca", "sequential") if name in case.timelines]
    return [
        Figure(plots.timeline(case[name]), f"{case_label(case.baseline.graph)}. {timeline_caption(case[name])}")
        for name in names
    ]


def _work(cases: Sequence[Comparison]) -> Table:
    runs = [result for case in cases for result in case if not result.parts]
    # A sub-layer of the same shape may stand under two names: its runs were made, and count, once.
    runs = list({(run.overlap, run.events, run.wall_s): run for run in runs}.values())
    seconds = sum(run.wall_s for run in runs)
    events = sum(run.events for run in runs)
    heads = ("simulated runs", "events", "memory requests", "time, one core [s]", "events/s")
    requests, rate = sum(run.requests for run in runs), events / max(seconds, 1e-9)
    cells = (f"{len(runs)}", f"{events:,}", f"{requests:,}", f"{seconds:.1f}", f"{rate:,.0f}")
    return Table(heads, [cells], text_columns=0)
