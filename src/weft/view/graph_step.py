"""A captured graph on one GPU: the verdict, the table of its shares, and the picture."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from weft.units import format_bytes
from weft.view.figure import Figure, stacked_bars
from weft.view.page import Part, Section, machine_section, write_page
from weft.view.shares import COLORS, label
from weft.view.table import Table, number, text
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.result.graph_step import GraphStep


def verdict(answer: GraphStep) -> list[str]:
    """The answer in sentences: the time, the rate, and the memory."""
    held = f"{format_bytes(answer.peak_bytes, 4)} of the {format_bytes(answer.gpu.memory.capacity)}"
    fits = "its tensors take" if answer.fits else "it does not fit: its tensors take"
    ranks = answer.graph.ranks
    where = f"each of {ranks} x {answer.gpu.title}" if ranks > 1 else answer.gpu.title
    lead = (
        f"{answer.graph} takes {answer.seconds * 1e3:,.2f} ms on {where}, {answer.launches:,} operators at "
        f"{answer.flops / answer.seconds / 1e12:,.1f} TFLOP/s; {fits} {held} of the GPU at their peak."
    )
    beside = answer.exposed + answer.hidden
    waits = (
        f"Streams beside computing run for {beside * 1e3:,.2f} ms, and {answer.exposed * 1e3:,.2f} ms of it is exposed."
    )
    return [
        lead,
        *([waits] if beside else []),
        f"{percent(answer.by_bytes)} of the time is in operators that are timed by their bytes alone.",
    ]


def share_table(answer: GraphStep) -> Table:
    """A row for each phase and class of operator: how many, time, work and data."""
    rows = [
        (
            one.phase,
            label(one.kind),
            one.operators,
            one.seconds * 1e3,
            one.seconds / answer.seconds,
            one.flops / 1e12,
            one.bytes / 1e9,
            one.hidden * 1e3,
        )
        for one in answer.shares
    ]  # fmt: skip
    columns = [
        text("phase"), text("kind"), number("operators", format_=","), number("time_ms", "time", "ms", ",.3f"),
        number("share", "of the step", format_=".1%"), number("tflop", "work", "TFLOP", ",.3f"),
        number("gigabytes", "data", "GB", ",.2f"),
        number("hidden_ms", "hidden", "ms", ",.3f"),
    ]  # fmt: skip
    return Table(columns, rows, f"{answer.graph} on {answer.gpu.title}")


def shares(answer: GraphStep) -> Figure:
    """A bar for each phase that stacks the time of its classes of operators."""
    kinds = dict.fromkeys(label(one.kind) for one in answer.shares)
    named = {label(name): color for name, color in COLORS.items()}
    free = cycle([color for name, color in named.items() if name not in kinds])
    return stacked_bars(
        "Where does the time go?", share_table(answer), lane="phase", part="kind", value="time_ms",
        looks={name: named.get(name) or next(free) for name in kinds},
    ).captioned("Time of the operators of each phase; of other streams, what computing waits for them.")  # fmt: skip


def graph_step_parts(answer: GraphStep) -> list[Table | str]:
    """What the terminal shows: the verdict, the table, and notes."""
    return [*verdict(answer), share_table(answer), *(f"note: {sentence(note)}" for note in answer.notes)]


def graph_step_page(answer: GraphStep, folder: Path) -> Path:
    """Write `report.html` on a captured graph to a folder and return its path; OutputError if that fails."""
    lead, *rest = verdict(answer)
    notes: list[Part] = [[sentence(note) for note in answer.notes]]
    parts: list[Part] = [*rest, shares(answer), Section("Every phase", [share_table(answer), *notes])]
    return write_page(folder, f"{answer.graph} on {answer.gpu.title}", lead, [*parts, machine_section(answer.gpu)])
