"""The GOLDYLOC study: its tables, and the page of every way to run each queue and of what GO-kernels change."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from weft.kernels import GemmTiling
from weft.report import plots
from weft.report.page import Figure, Section
from weft.report.study import study_page
from weft.report.tables import Table, us
from weft.result import Timeline
from weft.search.tasks import drained

if TYPE_CHECKING:
    from weft.search.watched import Watched
    from weft.studies.goldyloc import GoldylocStudy

_DEGREES = (1, 2, 4, 8, 16)


def goldyloc_report(study: GoldylocStudy, out_dir: str | Path, queue: Watched | None = None) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `queue` is one whose runs are shown.
    """
    suite = study.suite
    waves = (
        "Waves: workgroups of all copies over what the GPU holds at once. Units busy: share of time that matrix units "
        "compute."
    )
    sources = [f"{name}: {source}" for name, source in suite.networks.items()]
    return study_page(
        study,
        out_dir,
        "Independent GEMMs together: how many, and with which kernels?",
        f"{suite.title}: {len(study.cases)} queues on {study.gpu}.",
        _summary(study),
        [
            *_sections(study, queue),
            Section("Kernels tuned alone, and for the share they get", [waves, _change_table(study)]),
            Section("Every queue", [case_table(study)]),
            Section("How the suite was chosen", [suite.rule, sources] if suite.rule else []),
        ],
        work=[f"{study.runs} runs of {study.events:,} events; compute units at the {study.clock} clock."],
        paper="GOLDYLOC",
        explained=("Independent GEMMs together", "goldyloc"),
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
        plots.goldyloc.held_by_gemms(queue),
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time; white is idle. Older GEMMs are served first, and the next one takes what they leave. "
        "Dotted lines part batches.",
    )


def _sections(study: GoldylocStudy, queue: Watched | None) -> list[Section]:
    longest = list({(case.network, case.layer): case for case in study.cases}.values())
    ways = Figure(
        plots.goldyloc.ways_to_run(longest),
        "The longest queue of each layer. Bars: GO-kernels at the chosen degree; numbers: GO-kernels at that fixed "
        "degree. Right of 1 is faster than all at once with kernels tuned alone.",
    )
    degrees = Figure(plots.goldyloc.fixed_degrees(_speeds(study)), "Geometric means over all queues.")
    changes = Figure(
        plots.goldyloc.what_changes(study.changes),
        "Kernels tuned alone cut a GEMM small, to fill the GPU; larger tiles load each operand fewer times and gain "
        "where other GEMMs fill the GPU anyway.",
    )
    losses = Figure(
        plots.goldyloc.losses(study.losses.rows),
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


def case_table(study: GoldylocStudy) -> Table:
    """Every queue: one after another, by default, with GO-kernels at each degree and at the chosen one."""
    heads = (
        "queue", "sequential", "default", *(f"GO {degree}" for degree in _DEGREES), "degree", "GOLDYLOC",
        "over default", "over sequential", "of oracle",
    )  # fmt: skip
    rows = [
        (
            case.title,
            us(case.judged.sequential),
            us(case.judged.default),
            *(us(case.judged.at_degree[d]) if d in case.judged.at_degree else "" for d in _DEGREES),
            str(case.degree),
            us(case.goldyloc),
            f"{case.over_default:.2f}×",
            f"{case.over_sequential:.2f}×",
            f"{case.of_oracle:.1%}",
        )
        for case in study.cases
    ]
    return Table(heads, rows, title=f"{study.suite.title}: {study.gpu}, times [µs]", spare=heads[3:8])


def _change_table(study: GoldylocStudy) -> Table:
    heads = (
        "copies", "kernel", "tile", "waves", "a unit holds", "units busy", "cache hits", "DRAM [MB]", "time [µs]",
    )  # fmt: skip
    rows = [
        (f"{one.degree} of {one.gemm.m}x{one.gemm.n}x{one.gemm.k}", kernel, *_kernel(tile, run, study.units))
        for one in study.changes
        for kernel, tile, run in (("tuned alone", one.isolated, one.before), ("GO-kernel", one.go, one.after))
    ]
    return Table(heads, rows, 3)


def _kernel(tile: GemmTiling, run: Timeline, units: int) -> tuple[str, ...]:
    resident, counters = run.spans[0].resident, run.counters
    loads = sum(counters[name] for name in ("cache_hits", "cache_merged_misses", "cache_misses"))
    return (
        str(tile),
        f"{sum(span.workgroups for span in run.spans) / (units * resident):.2f}",
        str(resident),
        f"{counters['compute_unit_utilization']:.0%}",
        f"{1 - counters['cache_misses'] / max(loads, 1):.0%}",
        f"{run.total_bytes / 1e6:.1f}",
        us(drained(run)),
    )
