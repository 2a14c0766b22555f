"""The page of a GEMM beside a collective."""

from __future__ import annotations

from pathlib import Path

from weft.hardware import Gpu
from weft.report import plots
from weft.report.page import Figure, machine_of, write_page
from weft.report.tables import Table, counter_table, percent
from weft.result import Comparison
from weft.result.concurrent import Concurrency, Strategies


def concurrency_report(answer: Concurrency | Strategies, out_dir: str | Path, gpu: Gpu | None = None) -> Path:
    """Write `report.html` on what a GEMM and a collective cost each other to a folder and return its path.

    Of several strategies the page compares all and shows the runs of the first and of the best one. `gpu` is the
    machine if the catalogue does not know it. Raises OutputError if the folder cannot be written to.
    """
    shown = _shown(answer)
    config = shown[0].run.config
    gpu = gpu or machine_of(config)
    single = isinstance(answer, Concurrency)
    return write_page(
        "beside.html.j2",
        out_dir,
        config=config,
        name=f"GEMM beside {shown[0].collective.name}, {shown[0].ranks} GPUs",
        how=_how(shown[0]) if single else "Strategies side by side.",
        grids=list(dict.fromkeys(str(one.grid) for one in _all(answer) if single or one.apart is not None)),
        refused=[] if isinstance(answer, Concurrency) else sorted(set(answer.refused.values())),
        overview=_loops(answer) if isinstance(answer, Concurrency) else _strategies(answer),
        whole=_whole(answer) if isinstance(answer, Concurrency) else None,
        figures=_figures(answer),
        traffic=[(one.strategy.title, _traffic(one)) for one in shown],
        counters=counter_table(Comparison({one.run.config.overlap: one.run for one in shown})),
        gpu=gpu,
    )


def _all(answer: Concurrency | Strategies) -> list[Concurrency]:
    return [answer] if isinstance(answer, Concurrency) else list(answer.answers.values())


def _shown(answer: Concurrency | Strategies) -> list[Concurrency]:
    """The answers whose runs are shown: the only one, or the first strategy's and the best one's."""
    if isinstance(answer, Concurrency):
        return [answer]
    first = next(iter(answer.answers.values()))
    return [first] if answer.best is first else [first, answer.best]


def _how(answer: Concurrency) -> str:
    apart = "" if answer.apart is None else f", {answer.apart} compute units apart"
    return f"{answer.strategy.title}: {answer.strategy.summary}{apart}; {answer.first} launched first."


def _strategies(found: Strategies) -> Table:
    """Every strategy by row: slowdowns, makespan, share of the ideal, what was waited for."""
    heads = (
        "strategy",
        "longer by",
        "units apart",
        "GEMM slowdown",
        "collective slowdown",
        "both [µs]",
        "speedup",
        "of the ideal",
    )
    return Table(heads, [_strategy_row(one) for one in found.answers.values()], text_columns=2)


def _strategy_row(one: Concurrency) -> tuple[str, ...]:
    return (
        one.strategy.name,
        one.causes,
        "–" if one.apart is None else str(one.apart),
        f"{one.gemm.slowdown:.3f}×",
        f"{one.collective.slowdown:.3f}×",
        f"{one.makespan * 1e6:,.1f}",
        f"{one.speedup:.3f}×",
        percent(one.share_of_ideal),
    )


def _traffic(answer: Concurrency) -> Table:
    """What passed caches, DRAM and link, alone and side by side."""
    heads = ("what [MB]", "GEMM alone", "collective alone", "both alone", "side by side")
    rows = [
        (words, *(f"{amount:,.1f}" if amount else "–" for amount in (one, other, one + other, both)))
        for words, (one, other, both) in answer.traffic().items()
    ]
    return Table(heads, rows)


def _loops(answer: Concurrency) -> Table:
    heads = ("loop", "iterations", "alone [µs]", "beside [µs]", "slowdown", "while both run", "ends at [µs]")
    rows = [
        (
            name,
            str(loop.count),
            f"{loop.alone * 1e6:,.1f}",
            f"{loop.concurrent * 1e6:,.1f}",
            f"{loop.slowdown:.3f}×",
            f"{loop.slowdown_both:.3f}×",
            f"{loop.end * 1e6:,.1f}",
        )
        for name, loop in (("GEMM", answer.gemm), (answer.collective.name, answer.collective))
    ]
    return Table(heads, rows)


def _whole(answer: Concurrency) -> Table:
    """Both loops side by side against one after the other."""
    ideal = answer.serial / answer.ideal_speedup
    rows = (
        ("one after the other", f"{answer.serial * 1e6:,.1f}", "1.000×", "0%"),
        (
            "side by side",
            f"{answer.makespan * 1e6:,.1f}",
            f"{answer.speedup:.3f}×",
            percent(answer.share_of_ideal),
        ),
        ("ideal: neither slows the other", f"{ideal * 1e6:,.1f}", f"{answer.ideal_speedup:.3f}×", "100%"),
    )
    return Table(("both", "time [µs]", "speedup", "of the ideal gain"), rows)


def _figures(answer: Concurrency | Strategies) -> list[Figure]:
    if isinstance(answer, Concurrency):
        return _run_figures(answer, answer.makespan)
    compared = Figure(
        plots.strategies(answer),
        "When the GEMMs and the collectives had ended under each strategy. One after the other takes until the dotted "
        "line, with the collective on compute units; the dashed one is the ideal, in which neither slows the other.",
    )
    shown = _shown(answer)
    until = max(one.makespan for one in shown)
    return [compared, *(figure for one in shown for figure in _run_figures(one, until))]


def _run_figures(answer: Concurrency, until: float) -> list[Figure]:
    """The pictures of one run, with a time axis until then [s]."""
    figures = [
        Figure(
            plots.held_units(answer, until),
            "Who held which compute unit when. Above, both streams: a kernel that is launched while the other has "
            "workgroups to place waits for compute units. Below, a line per compute unit; kernels of a loop take turns "
            "in two shades, white is idle.",
        ),
        Figure(
            plots.channel_owners(answer, until),
            "Whose bytes passed when: what the DRAM of one GPU moved for whom, its peak dotted, and what its link "
            "carried.",
        ),
    ]
    if answer.gemm.waits:
        figures.append(
            Figure(
                plots.stream_waits(answer),
                "Where the time of a place for one workgroup went, on average over the iterations of a loop. Waves of "
                "workgroups in one place add up: a GEMM that needs a wave more on fewer compute units computes longer.",
            )
        )
    return figures
