"""The CU-split study: its table, and the page of slowdowns against compute units and speedups of every sub-layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.report import plots
from weft.report.page import Figure, Section
from weft.report.study import study_page, told
from weft.report.tables import Table, changed, us
from weft.result import Timeline

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.studies.cu_split import CuSplitStudy
    from weft.studies.headline import HeadlineRow


def case_table(study: CuSplitStudy) -> Table:
    """Every sub-layer: times alone, and speedups by the times alone and with both at once, split by split."""
    splits = [f"{study.name(apart)}{what}" for apart in study.splits for what in ("", ", at once")]
    rows = [
        (
            *_labels(case.graph),
            us(case.gemm_s[0], 0),
            us(case.ring_s[0], 0),
            f"{case.speedup(0):.2f}",
            *(f"{v:.2f}" for apart in study.splits for v in (case.speedup(apart), case.simulated(apart))),
        )
        for case in study.cases
    ]
    heads = ("model", "TP", "layer", "GEMM [µs]", "AR [µs]", "ideal", *splits)
    on = f"{study.gpu}{changed(study.machine)}"
    title = f"Sub-layers on {on}: times alone, and speedups by times alone and of both at once"
    return Table(heads, rows, text_columns=3, title=title)


def _labels(graph: Graph) -> tuple[str, str, str]:
    return graph.labels["model"], str(graph.ranks), graph.labels["sublayer"]


def cu_split_report(
    study: CuSplitStudy, out_dir: str | Path, watched: tuple[str, Mapping[int, Timeline]] | None = None
) -> Path:
    """Write `report.html` on the study to a folder and return its path; OutputError if it cannot be written.

    `watched` is a sub-layer's name and its run under every split, by the units of the all-reduce.
    """
    rows = study.headline()
    flight = f"A workgroup of the all-reduce has {study.in_flight // 1024} KiB in flight, half of it where it adds."
    return study_page(
        study,
        out_dir,
        "A GEMM beside an all-reduce: who gets the compute units?",
        f"{len(study.cases)} sub-layers on {study.gpu}, each beside a ring all-reduce of its output's size.",
        told(rows, [row.id for row in rows if row.unit == "ratio"]),
        [
            Section("What compute units are worth to either", [_slowdowns(study, rows)]),
            Section("What overlap could gain, and what it gains", [_speedups(study)]),
            Section("Who held which compute unit", [] if watched is None else [_held(study, *watched)]),
            Section("Speedup of every sub-layer over serial execution", [case_table(study)]),
        ],
        work=[flight],
        explained=("Splitting compute units", "cu-split"),
    )


def _slowdowns(study: CuSplitStudy, rows: Sequence[HeadlineRow]) -> Figure:
    """Both slowdowns against the units of the all-reduce, the published ones as marks."""
    known = {row.id: row.published for row in rows if isinstance(row.published, float)}
    ids = {apart: f"cu_split.{study.name(apart).replace('-', '_')}" for apart in study.splits}
    published = {
        apart: (known.get(f"{id_}.gemm_slowdown"), known.get(f"{id_}.ar_slowdown")) for apart, id_ in ids.items()
    }
    curve = {u: (study.gemm_slowdown(u), study.ring_slowdown(u)) for u in study.curve}
    spread = {u: [(c.gemm_slowdown(u), c.ring_slowdown(u)) for c in study.cases] for u in study.curve}
    return Figure(
        plots.cu_split.slowdowns(curve, spread, published),
        "Thin lines are single sub-layers. A few workgroups have too little on their way to fill the link; once "
        "they do, every further unit only costs the GEMM.",
    )


def _speedups(study: CuSplitStudy) -> Figure:
    series = {"ideal, nothing shared": [c.speedup(0) for c in study.cases]}
    for apart in study.splits:
        series[f"{study.name(apart)}, each alone"] = [c.speedup(apart) for c in study.cases]
        series[f"{study.name(apart)}, both at once"] = [c.simulated(apart) for c in study.cases]
    return Figure(
        plots.cu_split.speedups([case.graph for case in study.cases], series),
        "By the times of each alone, nothing but compute units is shared; at once, memory and cache are too.",
    )


def _held(study: CuSplitStudy, name: str, runs: Mapping[int, Timeline]) -> Figure:
    """Who held which compute unit under every split."""
    owners = {"gemm": 0, "all_reduce": 1}
    ways = [plots.Way(study.name(apart), [run], [owners]) for apart, run in runs.items()]
    return Figure(
        plots.units_by_way(ways, [plots.GEMM, plots.COLLECTIVE._replace(label="all-reduce", hatch="")]),
        f"{name}, both at once: who held which compute unit when; white is idle. What one leaves at its end stays "
        "idle: the masks hold for the other.",
    )
