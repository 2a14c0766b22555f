"""The page of one sub-layer under one or several overlaps."""

from __future__ import annotations

from pathlib import Path

from weft.hardware import Gpu
from weft.report import plots
from weft.report.page import Figure, machine_of, write_page
from weft.report.plots.style import case_label
from weft.report.tables import counter_table, overlap_table
from weft.result import Comparison, Result


def run_report(comparison: Comparison | Result, out_dir: str | Path, gpu: Gpu | None = None) -> Path:
    """Write `report.html` on a sub-layer's runs to a folder and return its path.

    `gpu` is the machine if the catalogue does not know it; without one its tables are left out.
    Raises OutputError if the folder cannot be written to.
    """
    if isinstance(comparison, Result):
        comparison = Comparison({comparison.config.overlap: comparison})
    results = list(comparison)
    gpu = gpu or machine_of(results[0].config)
    return write_page(
        "run.html.j2",
        out_dir,
        config=results[0].config,
        name=case_label(results[0].config),
        figures=_figures(comparison),
        overlaps=overlap_table(comparison),
        counters=counter_table(comparison),
        gpu=gpu,
    )


def _figures(comparison: Comparison) -> list[Figure]:
    simulated = [result for result in comparison if not result.parts]
    figures = [
        Figure(
            plots.sub_layer_times(comparison),
            "GEMM above, communication below it, on one time axis: what lies under a GEMM bar is hidden. "
            "A fused reduce-scatter runs from its first byte's arrival to its last chunk's completion.",
        )
    ]
    if not simulated:
        return figures
    figures.append(
        Figure(
            plots.traffic_by_cause(comparison, [result.config.overlap for result in simulated]),
            "All bytes between the memory controllers and DRAM of one GPU, by what caused them.",
        )
    )
    figures += [Figure(_traffic(result), _TRAFFIC) for result in simulated]
    figures += [Figure(plots.timeline(result), timeline_caption(result)) for result in simulated]
    figures.append(Figure(plots.waits(simulated), WAITS_CAPTION))
    return figures


def _traffic(result: Result) -> plots.Picture:
    return plots.traffic_over_time(result, plots.busiest_stages(result))


_TRAFFIC = (
    "DRAM traffic over time. Above, the whole run; below, if communication meets the GEMM, "
    "the shaded stages. "
    "Blue is the GEMM's, warm colours are the reduce-scatter's."
)
WAITS_CAPTION = (
    "Each kernel's workgroups, all their time added up. Two workgroups share a compute unit's matrix unit, "
    "so a busy GEMM shows half its time as waiting for it; time spent on loads and stores is what memory costs."
)


def timeline_caption(result: Result) -> str:
    """What to see in a run's timeline."""
    if any(dma.gpu == 0 for dma in result.dmas):
        return (
            "Every tile of a chunk must be written here and arrive from the neighbour before DMA sends it "
            "on. The chunk that the GEMM makes first is not shown: its stores go straight to the "
            "neighbour, as chunk 1 there."
        )
    return "Chunks go round the ring one after the other once the GEMM is done."
