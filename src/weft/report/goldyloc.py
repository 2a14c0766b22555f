"""The page of the GOLDYLOC study: every way to run each queue, what GO-kernels change, and the predictor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Protocol

from weft.hardware import Gpu
from weft.report.headline import HeadlineRow
from weft.report.page import Figure, write_page
from weft.report.plots import goldyloc as plots
from weft.report.tables import Table, assumed_table, headline_table, machine_table

_DEGREES = (1, 2, 4, 8, 16)


class Study(Protocol):
    """What the page needs to know of the study."""

    @property
    def cases(self) -> Sequence[Any]:
        """Every queue: `title`, `judged`, `degree`, `goldyloc` [s] and its ratios."""

    @property
    def changes(self) -> Sequence[Any]:
        """What GO-kernels change."""

    @property
    def losses(self) -> Any:
        """What the whole GPU's kernels lose on its parts: `rows`, `median`, `changed`."""

    @property
    def suite(self) -> Any:
        """`title`, `rule` and `networks`."""

    @property
    def notes(self) -> Sequence[str]:
        """What must be known to read the figures."""

    @property
    def gpu(self) -> str:
        """The GPU's name."""

    @property
    def units(self) -> int:
        """Its compute units."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Values of the machine that the user set."""

    @property
    def clock(self) -> str:
        """What the compute units ran at."""

    @property
    def runs(self) -> int:
        """How many simulations."""

    @property
    def events(self) -> int:
        """Their events."""

    @property
    def request_bytes(self) -> int:
        """Size of a memory request [bytes]."""

    @property
    def comparable(self) -> bool:
        """Whether published figures hold."""

    def at_degree(self, degree: int) -> float:
        """GO-kernels at a fixed degree over default concurrency."""

    def headline(self) -> Sequence[HeadlineRow]:
        """Weft's figures beside published ones."""


def goldyloc_report(study: Study, out_dir: str | Path, gpu: Gpu, queue: Any = None) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `queue` is one whose runs are shown, a `weft.tuning.watched.Watched`.
    """
    return write_page(
        "goldyloc.html.j2",
        out_dir,
        study=study,
        comparable=study.comparable,
        summary=_summary(study),
        headline=headline_table(study.headline()),
        sections=_sections(study, queue),
        cases=_case_table(study),
        changes=_change_table(study),
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


def _summary(study: Study) -> list[str]:
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


def held_figure(queue: Any) -> Figure:
    """Who held which compute unit when, as a queue ran all at once and as chosen."""
    return Figure(
        plots.held_by_gemms(queue),
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time; white is idle. Older GEMMs are served first, and the next one takes what they leave. "
        "Dotted lines part batches.",
    )


def _sections(study: Study, queue: Any) -> list[tuple[str, list[Figure]]]:
    longest = list({(case.network, case.layer): case for case in study.cases}.values())
    return [
        (
            "Every way to run a queue",
            [
                Figure(
                    plots.ways_to_run(longest),
                    "The longest queue of each layer. Bars: GO-kernels at the chosen degree; numbers: GO-kernels "
                    "at that fixed degree. Right of 1 is faster than all at once with kernels tuned alone.",
                ),
                Figure(plots.fixed_degrees(_speeds(study)), "Geometric means over all queues."),
            ],
        ),
        ("One queue, compute unit by compute unit", [] if queue is None else [held_figure(queue)]),
        (
            "What GO-kernels change",
            [
                Figure(
                    plots.what_changes(study.changes),
                    "Kernels tuned alone cut a GEMM small, to fill the GPU; larger tiles load each operand fewer times "
                    "and gain where other GEMMs fill the GPU anyway.",
                ),
                Figure(
                    plots.losses(study.losses.rows),
                    f"Of {study.losses.changed:.0%} of the GEMMs the best tile changes on a half or a quarter of the "
                    "compute units.",
                ),
            ],
        ),
    ]


def _speeds(study: Study) -> list[tuple[str, float]]:
    fixed = [(f"degree {degree}", study.at_degree(degree)) for degree in _DEGREES]
    chosen = geometric_mean(case.over_default for case in study.cases)
    oracle = geometric_mean(case.judged.default / case.judged.oracle for case in study.cases)
    return [*fixed, ("GOLDYLOC", chosen), ("oracle", oracle)]


def _case_table(study: Study) -> Table:
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


def _change_table(study: Study) -> Table:
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


def _kernel_cells(tile: Any, run: Any, units: int) -> tuple[str, ...]:
    held = run.held[0]
    return (
        f"{tile.rows} x {tile.columns} x {tile.step}",
        f"{sum(run.workgroups) / (units * held):.2f}",
        str(held),
        f"{run.counters['compute_unit_utilization']:.0%}",
        f"{run.hit_rate:.0%}",
        f"{run.total_bytes / 1e6:.1f}",
        _us(run.makespan_s),
    )
