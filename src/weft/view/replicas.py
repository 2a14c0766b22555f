"""Replicas: rules by which workers wait for each other, and textbook algorithms beside those of libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.view import looks
from weft.view.figure import Figure, bars, curves
from weft.view.table import Table, microseconds, number, text, times_faster

if TYPE_CHECKING:
    from weft.estimate.consistency import Consistency
    from weft.estimate.textbook import Choices


def rule_table(answer: Consistency) -> Table:
    """Every rule: how long an update of every worker takes, and how stale the weights are."""
    rows = [
        (pace.rule, pace.step, answer.speedup(pace), "closed form" if pace.exact else "simulated", pace.mean_lag,
         max(pace.lag, default=0), pace.delay)
        for pace in answer.paces
    ]  # fmt: skip
    columns = [
        text("rule"), number("step_s", "step", "s", ".4g"), times_faster("speedup", format_=".2f"), text("by"),
        number("mean_lag", "steps ahead", format_=".1f"), number("most_lag", "at most", format_=",.0f"),
        number("delay", "updates missed", format_=".1f"),
    ]  # fmt: skip
    return Table(columns, rows, f"Updates of {answer.workers} workers, by how far they may be ahead of the slowest")


def paces(answer: Consistency) -> Figure:
    """Time of an update of every worker under each rule."""
    rows = [(pace.rule, "step", pace.step, f"{pace.step:.3g} s") for pace in answer.paces]
    columns = [
        text("rule"),
        text("kind"),
        number("step_s", "time of an update of every worker", "s"),
        text("said", " "),
    ]
    return bars(
        "What does waiting cost?", Table(columns, rows), lane="rule", kind="kind", end="step_s",
        looks={"step": looks.BLUE}, label="said",
    ).captioned("BSP waits for all workers, SSP n for those more than n steps behind, ASP for none.")  # fmt: skip


def choice_table(answer: Choices) -> Table:
    """Every size: the fastest textbook algorithm and the library's choice, each with its time."""
    rows = zip(
        answer.bytes / 1e6, answer.textbook, answer.textbook_s * 1e6, answer.library, answer.library_s * 1e6,
        strict=True,
    )  # fmt: skip
    columns = [
        number("size_mb", "size", "MB", ",.4g"), text("textbook"), microseconds("textbook", "textbook's time"),
        text("library", "library's choice"), microseconds("library", "library's time"),
    ]  # fmt: skip
    title = f"{answer.collective} of {answer.ranks} ranks on {answer.system}: textbook and library"
    return Table(columns, list(rows), title)


def choices(answer: Choices) -> Figure:
    """Time over size, of the textbook's best algorithm and of the library's choice."""
    rows = [
        (size / 1e6, who, algorithm, seconds * 1e6)
        for who, names, times in (
            ("textbook", answer.textbook, answer.textbook_s), ("library", answer.library, answer.library_s),
        )
        for size, algorithm, seconds in zip(answer.bytes, names, times, strict=True)
    ]  # fmt: skip
    columns = [
        number("size_mb", "size", "MB", ",.4g"),
        text("who", " "),
        text("algorithm"),
        microseconds("time", "time"),
    ]
    return curves(
        "What does the textbook leave out?", Table(columns, rows), x="size_mb", y="time_us", series="who",
        looks={"textbook": looks.GREY, "library": looks.BLUE}, log_x=True, log_y=True,
    ).captioned(choice_table(answer).title)  # fmt: skip
