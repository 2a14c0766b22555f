"""A GEMM beside a collective: who runs when, what workgroups wait for."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from weft.report.plots.style import Look, Picture, grid, handle, picture, styled
from weft.report.tables import percent
from weft.result import KernelSpan, Result
from weft.result.concurrent import REASONS, Concurrency, Strategies
from weft.result.loops import loop_of, number_of

GEMM = Look("GEMM", "#0072B2")
COLLECTIVE = Look("collective", "#E69F00", "////")
WAITING = Look("launched, but no compute unit is free", "#FFFFFF", "....")
LINK = Look("link", "#009E73")
_LOOKS = {
    "dispatch": WAITING,
    "cache": Look(REASONS["cache"], "#F5B9A0"),
    "memory_cache": Look(REASONS["memory_cache"], "#E08A5C", "...."),
    "memory": Look(REASONS["memory"], "#D55E00", "////"),
    "store": Look(REASONS["store"], "#F0E442", "\\\\\\\\"),
    "link": Look(REASONS["link"], LINK.color, "----"),
    "chunk": Look(REASONS["chunk"], "#CC79A7", "xxxx"),
    "begin": Look(REASONS["begin"], "#999999"),
    "compute": Look(REASONS["compute"], "#56B4E9"),
}
_US = 1e-9
_SEEN = 0.001
"""Share of the longest bar below which a wait is too short to be seen."""
_PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 1}
"""Under words that lines would cross."""


def lanes(ax: Axes, answer: Concurrency) -> None:
    """When each kernel of both streams ran or waited for compute units [us]."""
    for row, (loop, look) in enumerate(((answer.gemm, GEMM), (answer.collective, COLLECTIVE))):
        _lane(ax, row, answer.run, loop.name, look)
    ax.set_yticks((0, 1), ("GEMM", answer.collective.name))
    ax.set_ylim(1.5, -0.5)
    ax.set_title(
        f"GEMM beside {answer.collective.name} ({answer.strategy.name}), one of {answer.ranks} x {answer.gpu}"
    )
    grid(ax, "x")


def _lane(ax: Axes, row: int, run: Result, name: str, look: Look) -> None:
    """The kernels of one stream as bars, every second one lighter."""
    placed = {stage.kernel: stage.start_fs for stage in run.stages if stage.gpu == 0 and stage.index == 0}
    kernels = [k for k in run.kernels if k.gpu == 0 and loop_of(k.name) == name]
    for kernel in kernels:
        number = number_of(kernel.name)
        start = placed.get(kernel.name, kernel.first_workgroup_fs)
        _bar(ax, row, kernel.first_workgroup_fs, start, WAITING, 1.0)
        _bar(ax, row, start, kernel.end_fs, look, 1.0 if number % 2 == 0 else 0.55)
        if len(kernels) > 1:
            _number(ax, row, number, start, kernel, run.total_us)


def _bar(ax: Axes, row: int, start: int, end: int, look: Look, alpha: float) -> None:
    ax.broken_barh(
        [(start * _US, (end - start) * _US)], (row - 0.36, 0.72),
        facecolor=look.color, hatch=look.hatch, edgecolor="#444444", linewidth=0.3, alpha=alpha,
    )  # fmt: skip


def _number(ax: Axes, row: int, number: int, start: int, kernel: KernelSpan, total_us: float) -> None:
    if (kernel.end_fs - start) * _US > total_us / 60:
        ax.text((start + kernel.end_fs) / 2 * _US, row, str(number), ha="center", va="center", fontsize=7)


@styled
def stream_waits(answer: Concurrency) -> Picture:
    """What a workgroup of one GEMM, and of one collective, did or waited for, alone and beside the other [us]."""
    bars = [
        (f"{name}, {how}", waits)
        for name, loop in (("GEMM", answer.gemm), (answer.collective.name, answer.collective))
        for how, waits in (("alone", loop.waits_alone), ("beside", loop.waits))
        if waits
    ]
    figure = picture(10, 0.9 + 0.35 * len(bars))
    ax = figure.subplots()
    left = np.zeros(len(bars))
    seen = _SEEN * max(sum(waits.values()) for _, waits in bars)
    shown = {w: look for w, look in _LOOKS.items() if any(waits.get(w, 0.0) > seen for _, waits in bars)}
    for reason, look in shown.items():
        widths = np.array([waits.get(reason, 0.0) * 1e6 for _, waits in bars])
        ax.barh(range(len(bars)), widths, 0.7, left, color=look.color, hatch=look.hatch, edgecolor="#444444")
        left += widths
    ax.set_yticks(range(len(bars)), [name for name, _ in bars])
    ax.invert_yaxis()
    ax.set_xlabel("time of a workgroup's place [µs]")
    grid(ax, "x")
    figure.legend(handles=[handle(look) for look in shown.values()], loc="outside lower center", ncols=3)
    return figure


@styled
def strategies(found: Strategies) -> Picture:
    """When GEMMs and collectives had ended under each strategy [us], serial execution and the ideal beside them."""
    answers = list(found.answers.values())
    one = answers[0]
    serial = one.serial * 1e6
    figure = picture(10, 1.2 + 0.45 * len(answers))
    ax = figure.subplots()
    for row, answer in enumerate(answers):
        for offset, loop, look in ((-0.19, answer.gemm, GEMM), (0.19, answer.collective, COLLECTIVE)):
            end = loop.end * 1e6
            ax.barh(
                row + offset,
                end,
                0.36,
                color=look.color,
                hatch=look.hatch,
                edgecolor="#444444",
                linewidth=0.3,
            )
        said = f"{answer.speedup:.2f}x, {percent(answer.share_of_ideal)} of the ideal"
        ax.annotate(
            said,
            (answer.makespan * 1e6, row),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox=_PLAIN,
        )
    ax.axvline(serial, color="#444444", linewidth=1, linestyle=":")
    ax.axvline(serial / one.ideal_speedup, color="#444444", linewidth=1, linestyle="--")
    ax.set_xlim(0, max(serial, *(answer.makespan * 1e6 for answer in answers)) * 1.25)
    ax.set_yticks(range(len(answers)), [answer.strategy.name for answer in answers])
    ax.invert_yaxis()
    ax.set_xlabel("time [µs]")
    counts = f"{one.gemm.count} × GEMM beside {one.collective.count} × {one.collective.name}"
    ax.set_title(f"{counts}, {one.ranks} x {one.gpu}")
    grid(ax, "x")
    figure.legend(handles=[handle(look) for look in (GEMM, COLLECTIVE)], loc="outside lower center", ncols=2)
    return figure
