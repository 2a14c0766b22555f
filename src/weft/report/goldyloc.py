"""The page of the GOLDYLOC study: every way to run each queue, what GO-kernels change, and the predictor."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.report.page import Figure
from weft.report.plots import goldyloc as plots
from weft.report.study import Section, study_page
from weft.report.tables import Table
from weft.result.gemms_run import GemmsRun
from weft.tuning.watched import Watched

if TYPE_CHECKING:
    from weft.studies.goldyloc import GoldylocStudy

_DEGREES = (1, 2, 4, 8, 16)


def goldyloc_report(
    study: GoldylocStudy, out_dir: str | Path, gpu: Gpu, queue: Watched | None = None
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `queue` is one whose runs are shown.
    """
    return study_page(
        "goldyloc.html.j2",
        study,
        out_dir,
        gpu,
        summary=_summary(study),
        sections=_sections(study, queue),
        cases=_case_table(study),
        changes=_change_table(study),
    )


def _summary(study: GoldylocStudy) -> list[str]:
    """What the page says first."""
    speeds = dict(_speeds(study))
    oracle = geometric_mean(case.of_oracle for case in study.cases)
    best = max(study.cases, key=lambda case: case.over_default)
    fixed = max((name for name in speeds if name.startswith("degree")), key=speeds.__getitem__)
    gain = (
        f"GO-kernels at the chosen degree are {speeds['GOLDYLOC']:.2f} times as fast as all at once with kernels tuned "
        f"alone, at best {best.over_default:.2f} times ({best.title})."
    )
    blind = (
        f"Degrees chosen for networks that the predictor had not seen reach {oracle:.1%} of the oracle's performance; "
        f"always {fixed} gives {speeds[fixed]:.2f} times."
    )
    return [gain, blind]


def held_figure(queue: Watched) -> Figure:
    """Who held which compute unit when, as a queue ran all at once and as chosen."""
    return Figure(
        plots.held_by_gemms(queue),
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time; white is idle. Older GEMMs are served first, and the next one takes what they leave. "
        "Dotted lines part batches.",
    )


def _sections(study: GoldylocStudy, queue: Watched | None) -> list[Section]:
    longest = list({(case.network, case.layer): case for case in study.cases}.values())
    ways = Figure(
        plots.ways_to_run(longest),
        "The longest queue of each layer. Bars: GO-kernels at the chosen degree; numbers: GO-kernels at that fixed "
        "degree. Right of 1 is faster than all at once with kernels tuned alone.",
    )
    degrees = Figure(plots.fixed_degrees(_speeds(study)), "Geometric means over all queues.")
    changes = Figure(
        plots.what_changes(study.changes),
        "Kernels tuned alone cut a GEMM small, to fill the GPU; larger tiles load each operand fewer times and gain "
        "where other GEMMs fill the GPU anyway.",
    )
    losses = Figure(
        plots.losses(study.losses.rows),
        f"Of {study.losses.changed:.0%} of the GEMMs the best tile changes on a half or a quarter of the compute "
        "units.",
    )
    return [
        Section("Every way to run a queue", [ways, degrees]),
        Section("One queue, compute unit by compute unit", [] if queue is None else [held_figure(queue)]),
        Section("What GO-kernels change", [changes, losses]),
    ]


def _speeds(study: GoldylocStudy) -> list[tuple[str, float]]:
    fixed = [(f"degree {degree}", study.at_degree(degree)) for degree in _DEGREES]
    chosen = geometric_mean(case.over_default for case in study.cases)
    oracle = geometric_mean(case.judged.default / case.judged.oracle for case in study.cases)
    return [*fixed, ("GOLDYLOC", chosen), ("oracle", oracle)]


def _case_table(study: GoldylocStudy) -> Table:
    heads = (
        "queue", "sequential [µs]", "default [µs]", *(f"GO {degree} [µs]" for degree in _DEGREES), "degree",
        "GOLDYLOC [µs]", "over default", "over sequential", "of oracle",
    )  # fmt: skip
    rows = [
        (
            case.title,
            _us(case.judged.sequential),
            _us(case.judged.default),
            *(_us(case.judged.at_degree[d]) if d in case.judged.at_degree else "" for d in _DEGREES),
            str(case.degree),
            _us(case.goldyloc),
            f"{case.over_default:.2f}×",
            f"{case.over_sequential:.2f}×",
            f"{case.of_oracle:.1%}",
        )
        for case in study.cases
    ]
    return Table(heads, rows)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def _change_table(study: GoldylocStudy) -> Table:
    heads = (
        "copies",
        "kernel",
        "tile",
        "waves",
        "a unit holds",
        "units busy",
        "cache hits",
        "DRAM [MB]",
        "time [µs]",
    )
    rows = []
    for change in study.changes:
        gemm = change.gemm
        title = f"{change.degree} of {gemm.m}x{gemm.n}x{gemm.k}"
        for kernel, tile, run in (
            ("tuned alone", change.isolated, change.before),
            ("GO-kernel", change.go, change.after),
        ):
            rows.append((title, kernel, *_kernel_cells(tile, run, study.units)))
    return Table(heads, rows, 3)


def _kernel_cells(tile: GemmTiling, run: GemmsRun, units: int) -> tuple[str, ...]:
    held = run.held[0]
    return (
        str(tile),
        f"{sum(run.workgroups) / (units * held):.2f}",
        str(held),
        f"{run.counters['compute_unit_utilization']:.0%}",
        f"{run.hit_rate:.0%}",
        f"{run.total_bytes / 1e6:.1f}",
        _us(run.makespan_s),
    )
