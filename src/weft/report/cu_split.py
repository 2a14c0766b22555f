"""The page of the CU-split study: slowdowns against compute units, speedups of every sub-layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from weft.hardware import Gpu
from weft.report.headline import HeadlineRow
from weft.report.page import Figure, write_page
from weft.report.plots import Way, units_by_way
from weft.report.plots import cu_split as plots
from weft.report.plots.streams import COLLECTIVE, GEMM
from weft.report.tables import Table, amount, assumed_table, headline_table, machine_table
from weft.result import Result
from weft.result.loops import is_gemm


class Case(Protocol):
    """A sub-layer's GEMM and all-reduce."""

    @property
    def case(self) -> tuple[str, int, str]:
        """Model, degree of tensor parallelism, sub-layer."""

    def gemm_slowdown(self, apart: int) -> float:
        """How much longer the GEMM takes with so many units fewer."""

    def ring_slowdown(self, apart: int) -> float:
        """How much longer the all-reduce takes on so many units."""

    def speedup(self, apart: int) -> float:
        """What overlap could gain from the times of each alone (0: each on all units)."""

    def simulated(self, apart: int) -> float:
        """What it gains where both run at once."""


class Study(Protocol):
    """What the page needs to know of the study."""

    @property
    def cases(self) -> Sequence[Case]:
        """Every sub-layer."""

    @property
    def splits(self) -> Sequence[int]:
        """Units of the all-reduce in every split."""

    @property
    def curve(self) -> Sequence[int]:
        """Units of the all-reduce in the curves."""

    @property
    def gpu(self) -> str:
        """The GPU's name."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Values of the machine that the user set."""

    @property
    def in_flight(self) -> int:
        """What a workgroup of the all-reduce has on its way [bytes]."""

    @property
    def request_bytes(self) -> int:
        """Size of a memory request [bytes]."""

    @property
    def notes(self) -> Sequence[str]:
        """What must be known to read the figures."""

    @property
    def comparable(self) -> bool:
        """Whether the published figures hold."""

    def name(self, apart: int) -> str:
        """A split as it is written."""

    def ring_slowdown(self, apart: int) -> float:
        """The all-reduce's, in the mean."""

    def gemm_slowdown(self, apart: int) -> float:
        """The GEMM's, in the mean."""

    def headline(self) -> Sequence[HeadlineRow]:
        """Weft's figures beside published ones."""


Runs = Mapping[int, Result]


def cu_split_report(
    study: Study, out_dir: str | Path, gpu: Gpu, watched: tuple[str, Runs] | None = None
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `watched` is a sub-layer's name and its run under every split, by the units of the all-reduce.
    """
    rows = study.headline()
    return write_page(
        "cu_split.html.j2",
        out_dir,
        study=study,
        summary=_summary(rows),
        headline=headline_table(rows),
        figures=[*_figures(study, rows), *([] if watched is None else [_held(study, *watched)])],
        cases=_case_table(study),
        gpu=gpu,
        machine=machine_table(gpu),
        assumed=assumed_table(gpu),
        config=_Config(study),
    )


class _Config:
    """What the page's part on the machine asks for."""

    mode, link_note = "mirrored", ""

    def __init__(self, study: Study) -> None:
        self.gpu, self.changed, self.request_bytes = study.gpu, study.changed, study.request_bytes


def _summary(rows: Sequence[HeadlineRow]) -> list[str]:
    return [
        f"{row.what}: {amount(row.weft, row.unit)} simulated"
        + ("" if row.published is None else f", {amount(row.published, row.unit)} published")
        for row in rows
        if row.unit == "ratio"
    ]


def _figures(study: Study, rows: Sequence[HeadlineRow]) -> list[Figure]:
    known = {row.id: row.published for row in rows if isinstance(row.published, float)}
    published = {
        apart: tuple(
            known.get(f"cu_split.{study.name(apart).replace('-', '_')}.{who}_slowdown")
            for who in ("gemm", "ar")
        )
        for apart in study.splits
    }
    curve = {u: (study.gemm_slowdown(u), study.ring_slowdown(u)) for u in study.curve}
    spread = {u: [(c.gemm_slowdown(u), c.ring_slowdown(u)) for c in study.cases] for u in study.curve}
    series = {"ideal, nothing shared": [c.speedup(0) for c in study.cases]}
    for apart in study.splits:
        series[f"{study.name(apart)}, each alone"] = [c.speedup(apart) for c in study.cases]
        series[f"{study.name(apart)}, both at once"] = [c.simulated(apart) for c in study.cases]
    return [
        Figure(
            plots.slowdowns(curve, spread, {u: (pair[0], pair[1]) for u, pair in published.items()}),
            "Thin lines are single sub-layers. A few workgroups have too little on their way to fill the link; once "
            "they do, every further unit only costs the GEMM.",
        ),
        Figure(
            plots.speedups([case.case for case in study.cases], series),
            "By the times of each alone, nothing but compute units is shared; at once, memory and cache are too.",
        ),
    ]


def _held(study: Study, name: str, runs: Runs) -> Figure:
    """Who held which compute unit under every split."""
    ways = [
        Way(
            study.name(apart),
            [run],
            [[int(not is_gemm(kernel)) for kernel in run.residency.kernels]],
        )
        for apart, run in runs.items()
        if run.residency is not None
    ]
    return Figure(
        units_by_way(ways, [GEMM, COLLECTIVE._replace(label="all-reduce", hatch="")]),
        f"{name}, both at once: who held which compute unit when; white is idle. What one leaves at its end stays "
        "idle: the masks hold for the other.",
    )


def _case_table(study: Study) -> Table:
    splits = [f"{study.name(apart)}{what}" for apart in study.splits for what in ("", ", at once")]
    rows = [
        (
            *map(str, case.case),
            f"{case.speedup(0):.2f}",
            *(f"{v:.2f}" for apart in study.splits for v in (case.speedup(apart), case.simulated(apart))),
        )
        for case in study.cases
    ]
    return Table(("model", "TP", "sub-layer", "ideal", *splits), rows, text_columns=3)
