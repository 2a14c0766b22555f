"""A recorded run, alone or beside a prediction: the verdict, the tables, the timeline, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.core.report import Part, Report, Section, SystemReport
from weft.core.report.table import Table, number, text
from weft.core.units import format_time
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Lane, bars, timeline_bars
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.torch.traces import Trace
    from weft.torch.traces.comparison import TraceComparison

_MOST_SPANS = 600
"""Pieces of work that the timeline shows, the longest ones."""
_MOST_BARS = 12
"""Operators that the picture of a comparison shows, those with the most time beyond the prediction."""
_WORDS = 60
"""Characters of a name in a table."""


def _count(number_: int, one: str, many: str) -> str:
    return f"{number_:,} {one if number_ == 1 else many}"


def _exposed(trace: Trace) -> list[str]:
    """Return how much communication no compute hides; nothing for a trace without any."""
    total = float(trace.seconds[trace.communicates].sum())
    if not total:
        return []
    exposed, whole = trace.exposed, trace.communication
    share = percent(exposed / trace.makespan)
    first = f"Exposed communication: {format_time(exposed, 3)}, {share} of the time, in which no stream computes."
    rest = (
        f"Communication is under way for {format_time(whole, 3)}, and compute hides {percent(1 - exposed / whole)} of "
        f"that; the times of its kernels add up to {format_time(total, 3)}."
    )
    return [first, rest]


def _group_table(trace: Trace) -> Table:
    """Return a row for each operator and phase: calls, kernels, and measured time."""
    rows = [
        (one.name[:_WORDS], one.phase, "yes" if one.op is not None else "no", one.calls, one.kernels, one.seconds * 1e3,
         one.seconds / max(float(trace.seconds.sum()), 1e-30))
        for one in trace.groups
    ]  # fmt: skip
    columns = [
        text("name", "operator"), text("phase"), text("mapped", "can be timed"), number("calls", format_=","),
        number("kernels", format_=","), number("measured_ms", "measured", "ms", ",.3f"),
        number("share", "of the work", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, "Where the time went")


def timeline(trace: Trace) -> Figure:
    """Return the longest pieces of work on their streams."""
    longest = np.sort(np.argsort(-trace.seconds, kind="stable")[:_MOST_SPANS])
    kinds = {True: "can be timed", False: "unmapped"}
    rows = [
        (f"stream {trace.streams[trace.stream[piece]]}", kinds[bool(trace.operator[piece] >= 0)],
         trace.label(piece)[:_WORDS], trace.start[piece] * 1e3, (trace.start[piece] + trace.seconds[piece]) * 1e3)
        for piece in longest.tolist()
    ]  # fmt: skip
    columns = [text("stream"), text("kind"), text("name", "operator"), number("start", "start", "ms", ",.3f"),
               number("end", "time", "ms", ",.3f")]  # fmt: skip
    return timeline_bars(
        "What ran when?", Table(columns, rows), lane="stream", start="start", end=Axis("end", domain=True),
        color=Color("kind", looks.spread(list(kinds.values()))),
    ).with_caption(f"The {len(rows):,} longest of {len(trace):,} pieces of work.")  # fmt: skip


def _compared_table(answer: TraceComparison) -> Table:
    """Return a row for each operator and phase: measured beside predicted, and what keeps it from being faster."""
    rows = [
        (one.name[:_WORDS], one.phase, one.calls, one.measured * 1e3, one.predicted * 1e3, one.lost * 1e3,
         one.measured / one.predicted if one.predicted else None, one.bound, one.why)
        for one in answer.rows
    ]  # fmt: skip
    columns = [
        text("name", "operator"), text("phase"), number("calls", format_=","),
        number("measured_ms", "measured", "ms", ",.3f"), number("predicted_ms", "predicted", "ms", ",.3f"),
        number("lost_ms", "lost", "ms", ",.3f"), number("ratio", format_="{:.2f}×"), text("bound"),
        text("why", "why"),
    ]  # fmt: skip
    return Table(columns, rows, f"Measured beside {answer.system.gpu.title}; ratio is measured over predicted")


def losses(answer: TraceComparison) -> Figure:
    """Measured and predicted time of the operators that lose the most."""
    kinds = ("measured", "predicted")
    rows = [
        (f"{one.name[:40]}: {one.phase}", kind, seconds * 1e3)
        for one in answer.rows[:_MOST_BARS] for kind, seconds in zip(kinds, (one.measured, one.predicted), strict=True)
    ]  # fmt: skip
    columns = [text("name", "operator"), text("kind"), number("time", "time", "ms", ",.3f")]
    return bars(
        f"Where is the trace slower than {answer.system.gpu.title} could be?", Table(columns, rows),
        lane=Lane("name", "kind"), end="time", color=Color("kind", looks.spread(kinds)),
    ).with_caption("All calls of an operator; those with the most time beyond the prediction.")  # fmt: skip


class TraceReport(Report["Trace"]):
    """A recorded run: how long, how busy, how much is understood."""

    def title(self) -> str:
        """Return the file."""
        return Path(self.answer.path).name

    def sentences(self) -> list[str]:
        """Return what was recorded, and how much of it can be timed."""
        trace, found = self.answer, self.answer.found
        where = f" on {trace.device}" if trace.device else ""
        work = (found.kernels, "kernel", "kernels"), (found.copies, "copy", "copies")
        kernels, copies = (_count(*one) for one in work)
        known = percent(found.mapped / max(found.kernels, 1))
        products = f", {percent(found.products_mapped / max(found.products, 1))} of those that multiply matrices"
        recorded = (
            f"{format_time(trace.makespan, 4)} was recorded{where}; the GPU worked "
            f"{percent(trace.busy / trace.makespan)} of the time: {kernels} and {copies} on "
            f"{_count(len(trace.streams), 'stream', 'streams')}."
        )
        mapped = f"{known} of the kernels have an operator that Weft can time{products * bool(found.products)}."
        return [recorded, *_exposed(trace), mapped]

    def table(self) -> Table:
        """Return where the time went."""
        return _group_table(self.answer)

    def figure(self) -> Figure:
        """Return the work on each stream over time."""
        return timeline(self.answer)


class TraceComparisonReport(SystemReport["TraceComparison"]):
    """A recorded run concurrently with predicted times: what was lost, where, and what is left to the host."""

    def title(self) -> str:
        """Return the file and the GPU."""
        return f"{Path(self.answer.trace.path).name} beside {self.answer.system.gpu.title}"

    def sentences(self) -> list[str]:
        """Return what was lost, where most of it, and the whole with the predicted times."""
        answer, trace = self.answer, self.answer.trace
        gpu = answer.system.gpu.title
        lost = [one for one in answer.rows if one.lost > 0]
        beyond = sum(one.lost for one in lost)
        lead = (
            f"Of {trace.makespan * 1e3:,.2f} ms, operators that can be timed took {answer.measured * 1e3:,.2f} ms; "
            f"{gpu} is predicted to take {answer.predicted * 1e3:,.2f} ms for them. In "
            f"{percent(answer.waiting / trace.makespan)} of the time nothing ran."
        )
        said = [lead]
        if lost:
            first = lost[0]
            said.append(
                f"Against {gpu}, most is lost in {first.name[:_WORDS]} ({first.phase}): "
                f"{_count(first.calls, 'call', 'calls')} took {first.measured * 1e3:,.3f} ms instead of "
                f"{first.predicted * 1e3:,.3f} ms, {percent(first.lost / beyond)} of all that is lost; {first.why}."
            )
        said += _exposed(trace)
        said.append(
            f"With the predicted times the whole takes {answer.seconds * 1e3:,.2f} ms if the host launches as it did, "
            f"and {answer.ahead * 1e3:,.2f} ms if it is always ahead of the GPU."
        )
        return said

    def notes(self) -> list[str]:
        """Return the notes of the comparison."""
        return [f"note: {sentence(note)}" for note in self.answer.notes]

    def table(self) -> Table:
        """Return every operator, measured beside predicted."""
        return _compared_table(self.answer)

    def figures(self) -> Sequence[Figure]:
        """Return what loses most, and the work over time."""
        return [losses(self.answer), timeline(self.answer.trace)]

    def sections(self) -> list[Part]:
        """Return the page: what loses most, the work over time, and every operator."""
        tables = [*self.tables(), _group_table(self.answer.trace)]
        return [*self.figures(), Section("Every operator", tables)]
