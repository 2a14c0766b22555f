"""The page of the CU-split study: slowdowns against compute units, speedups of every sub-layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.hardware import Gpu
from weft.report.page import Figure
from weft.report.plots import Way, units_by_way
from weft.report.plots import cu_split as plots
from weft.report.plots.streams import COLLECTIVE, GEMM
from weft.report.study import Section, study_page, told
from weft.report.tables import Table
from weft.result import Result
from weft.result.loops import is_gemm

if TYPE_CHECKING:
    from weft.studies.cu_split import CuSplitStudy
    from weft.studies.headline import HeadlineRow


def cu_split_report(
    study: CuSplitStudy,
    out_dir: str | Path,
    gpu: Gpu,
    watched: tuple[str, Mapping[int, Result]] | None = None,
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `watched` is a sub-layer's name and its run under every split, by the units of the all-reduce.
    """
    rows = study.headline()
    return study_page(
        "cu_split.html.j2",
        study,
        out_dir,
        gpu,
        summary=told(rows, [row.id for row in rows if row.unit == "ratio"]),
        sections=[
            Section("What compute units are worth to either", [_slowdowns(study, rows)]),
            Section("What overlap could gain, and what it gains", [_speedups(study)]),
            Section("Who held which compute unit", [] if watched is None else [_held(study, *watched)]),
        ],
        cases=_case_table(study),
    )


def _slowdowns(study: CuSplitStudy, rows: Sequence[HeadlineRow]) -> Figure:
    """Both slowdowns against the units of the all-reduce, the published ones as marks."""
    known = {row.id: row.published for row in rows if isinstance(row.published, float)}
    ids = {apart: f"cu_split.{study.name(apart).replace('-', '_')}" for apart in study.splits}
    published = {
        apart: (known.get(f"{id_}.gemm_slowdown"), known.get(f"{id_}.ar_slowdown"))
        for apart, id_ in ids.items()
    }
    curve = {u: (study.gemm_slowdown(u), study.ring_slowdown(u)) for u in study.curve}
    spread = {u: [(c.gemm_slowdown(u), c.ring_slowdown(u)) for c in study.cases] for u in study.curve}
    return Figure(
        plots.slowdowns(curve, spread, published),
        "Thin lines are single sub-layers. A few workgroups have too little on their way to fill the link; once "
        "they do, every further unit only costs the GEMM.",
    )


def _speedups(study: CuSplitStudy) -> Figure:
    series = {"ideal, nothing shared": [c.speedup(0) for c in study.cases]}
    for apart in study.splits:
        series[f"{study.name(apart)}, each alone"] = [c.speedup(apart) for c in study.cases]
        series[f"{study.name(apart)}, both at once"] = [c.simulated(apart) for c in study.cases]
    return Figure(
        plots.speedups([case.case for case in study.cases], series),
        "By the times of each alone, nothing but compute units is shared; at once, memory and cache are too.",
    )


def _held(study: CuSplitStudy, name: str, runs: Mapping[int, Result]) -> Figure:
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


def _case_table(study: CuSplitStudy) -> Table:
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
