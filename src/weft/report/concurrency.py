"""The page of a GEMM beside a collective."""

from __future__ import annotations

from pathlib import Path

from weft.hardware import Gpu
from weft.report import plots
from weft.report.page import Figure, machine_of, write_page
from weft.report.tables import Table, assumed_table, counter_table, machine_table
from weft.result import Comparison
from weft.result.concurrent import Concurrency


def concurrency_report(answer: Concurrency, out_dir: str | Path, gpu: Gpu | None = None) -> Path:
    """Write `report.html` on what a GEMM and a collective cost each other to a folder and return its path.

    `gpu` is the machine if the catalogue does not know it. Raises OutputError if the folder cannot be written to.
    """
    gpu = gpu or machine_of(answer.run.config)
    return write_page(
        "run.html.j2",
        out_dir,
        config=answer.run.config,
        name=f"GEMM beside {answer.collective.name}, {answer.ranks} GPUs",
        figures=_figures(answer),
        overlaps=_loops(answer),
        counters=counter_table(Comparison({answer.run.config.overlap: answer.run})),
        gpu=gpu,
        machine=machine_table(gpu) if gpu else None,
        assumed=assumed_table(gpu) if gpu else None,
    )


def _loops(answer: Concurrency) -> Table:
    heads = ("loop", "iterations", "alone [µs]", "beside [µs]", "slowdown", "while both run", "ends at [µs]")
    rows = [
        (
            loop.name,
            str(loop.count),
            f"{loop.alone * 1e6:,.1f}",
            f"{loop.concurrent * 1e6:,.1f}",
            f"{loop.slowdown:.3f}×",
            f"{loop.slowdown_both:.3f}×",
            f"{loop.end * 1e6:,.1f}",
        )
        for loop in (answer.gemm, answer.collective)
    ]
    both = (
        "both, one after the other",
        "",
        f"{answer.serial * 1e6:,.1f}",
        "",
        f"{answer.speedup:.3f}× faster",
        "",
    )
    return Table(heads, [*rows, (*both, f"{answer.makespan * 1e6:,.1f}")])


def _figures(answer: Concurrency) -> list[Figure]:
    figures = [
        Figure(
            plots.held_units(answer),
            "Who held which compute unit when. Above, both streams: a kernel that is launched while the other has "
            "workgroups to place waits for compute units. Below, a line per compute unit; kernels of a loop take turns "
            "in two shades, white is idle.",
        ),
        Figure(
            plots.channel_owners(answer),
            "Whose bytes passed when: what the DRAM of one GPU moved for whom, its peak dotted, and what its link "
            "carried.",
        ),
    ]
    if answer.gemm.waits:
        figures.append(
            Figure(
                plots.stream_waits(answer),
                "Where the time of one workgroup's place went, on average over the iterations of a loop.",
            )
        )
    return figures
