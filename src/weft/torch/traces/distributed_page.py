"""The ranks of a recorded run: which one the others wait for, a bar for each rank, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.report import Report
from weft.core.report.table import Table, number, text
from weft.core.units import format_time
from weft.view import looks
from weft.view.figure import Color, Figure, stacked_bars
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.torch.traces.distributed import DistributedTrace, RankTime

_MOST_BARS = 32
"""Ranks that the picture shows: those that take longest."""
_PARTS = ("compute", "exposed transfer", "exposed wait", "host copies alone", "idle")
_REASON = 0.5
"""Least share of a rank's lateness that its compute or idle time must explain to be named as the cause."""


def _late(answer: DistributedTrace) -> str:
    """Return which rank is late, by how much, and why as far as its own time says."""
    if not answer.matched:
        return "Who waits for whom is not known: no collective was found on all ranks of its group."
    late, waits = answer.straggler, _mean(answer.ranks, "wait")
    if late is None:
        return (
            f"No rank stands out as late: a rank waits {format_time(waits, 3)} for others, "
            f"{percent(waits / answer.seconds)} of the time."
        )
    compute, idle = answer.beyond_median(late)
    reason = ""
    if compute >= _REASON * late.caused:
        reason = f" It computes {format_time(compute, 3)} longer than the median of the others."
    elif idle >= _REASON * late.caused:
        reason = f" It is idle {format_time(idle, 3)} longer than the others: look at its host and data loading."
    return (
        f"Rank {late.rank} is the straggler: last into {late.late:,} of {late.joined:,} collectives, for which each "
        f"other rank waits {format_time(late.caused, 3)}, {percent(late.caused / answer.seconds)} of the time.{reason}"
    )


def _mean(ranks: tuple[RankTime, ...], name: str) -> float:
    return float(sum(getattr(one, name) for one in ranks)) / len(ranks)


def _spread(ranks: tuple[RankTime, ...], name: str) -> str:
    """Return the mean and the extremes of a time, with their ranks."""
    least, most = (choose(ranks, key=lambda one: float(getattr(one, name))) for choose in (min, max))
    low, high = (format_time(getattr(one, name), 3) for one in (least, most))
    if low == high:
        return f"{low} on every rank"
    return f"{format_time(_mean(ranks, name), 3)} on average ({low} on rank {least.rank} to {high} on rank {most.rank})"


class DistributedTraceReport(Report["DistributedTrace"]):
    """A recorded run, rank by rank: exposed communication, the straggler, the spread."""

    def title(self) -> str:
        """Return the folder or file."""
        return f"{Path(self.answer.path).name}: {len(self.answer.ranks)} ranks"

    def sentences(self) -> list[str]:
        """Return the exposed communication, who is late, the spread, and what is predicted."""
        answer, ranks = self.answer, self.answer.ranks
        seconds = _mean(ranks, "seconds")
        steps = f", {len(answer.steps)} {'step' if len(answer.steps) == 1 else 'steps'}" * bool(answer.steps)
        device = f" on {answer.device}" * bool(answer.device)
        exposed = (
            f"Exposed communication: {_spread(ranks, 'exposed')}, {percent(_mean(ranks, 'exposed') / seconds)} of the "
            f"time; during {format_time(_mean(ranks, 'exposed_wait'), 3)} of it a rank waits for a later one. Compute "
            f"hides {format_time(_mean(ranks, 'hidden'), 3)} of communication."
        )
        said = [
            f"{len(ranks)} ranks were recorded by {answer.tool}{device}: {format_time(answer.seconds, 4)}{steps}.",
            exposed,
            _late(answer),
            f"Compute takes {_spread(ranks, 'compute')}; idle time is {_spread(ranks, 'idle')}.",
        ]
        if answer.system:
            predicted, ahead = (max(getattr(one, key) or 0.0 for one in ranks) for key in ("predicted", "ahead"))
            said.append(
                f"With the predicted times of {answer.system} the slowest rank takes {format_time(predicted, 4)} if "
                f"the host launches as it did, and {format_time(ahead, 4)} if it is always ahead of the GPU; measured "
                f"{format_time(answer.seconds, 4)}."
            )
        return said

    def lead(self) -> str:
        """Return the exposed communication."""
        return self.sentences()[1]

    def notes(self) -> list[str]:
        """Return what is left out, and how collectives are matched."""
        answer = self.answer
        matched = (
            f"{answer.matched:,} of {answer.collectives:,} kernels of collectives are matched between ranks; a wait is "
            "charged to the rank whose kernel takes least time, since collectives end together"
        )
        return [f"note: {sentence(note)}" for note in (*answer.notes, *((matched,) if answer.collectives else ()))]

    def table(self) -> Table:
        """Return a row for each rank."""
        ms = {"unit": "ms", "format_": ",.3f"}
        rows = [
            (one.rank, one.seconds * 1e3, one.compute * 1e3, one.hidden * 1e3, one.exposed * 1e3,
             one.exposed / one.seconds, one.exposed_wait * 1e3, one.copies * 1e3, one.idle * 1e3, one.late, one.joined,
             one.wait * 1e3, one.caused * 1e3, None if one.predicted is None else one.predicted * 1e3, one.file)
            for one in self.answer.ranks
        ]  # fmt: skip
        columns = [
            number("rank", format_="d"), number("measured_ms", "measured", **ms), number("compute_ms", "compute", **ms),
            number("hidden_ms", "hidden comm.", **ms), number("exposed_ms", "exposed comm.", **ms),
            number("exposed_share", "exposed", format_=".1%"), number("exposed_wait_ms", "exposed wait", **ms),
            number("copies_ms", "host copies alone", **ms), number("idle_ms", "idle", **ms),
            number("late", "last into", format_=","), number("joined", "collectives", format_=","),
            number("wait_ms", "waits", **ms), number("caused_ms", "others wait", **ms),
            number("predicted_ms", "predicted", **ms), text("file"),
        ]  # fmt: skip
        used = {"predicted_ms": self.answer.system, "copies_ms": any(one.copies for one in self.answer.ranks)}
        return Table(columns, rows, "Time of each rank").without([key for key, is_used in used.items() if not is_used])

    def figure(self) -> Figure:
        """Return a bar for each rank that stacks where its time went."""
        shown = sorted(sorted(self.answer.ranks, key=lambda one: -one.seconds)[:_MOST_BARS], key=lambda one: one.rank)
        rows = []
        for one in shown:
            parts = one.compute, one.exposed - one.exposed_wait, one.exposed_wait, one.copies, one.idle
            rows += [(f"rank {one.rank}", part, seconds * 1e3) for part, seconds in zip(_PARTS, parts, strict=True)]
        columns = [text("rank"), text("part"), number("time_ms", "time", "ms", ",.3f")]
        return stacked_bars(
            "Where does the time of each rank go?", Table(columns, rows), lane="rank", value="time_ms",
            color=Color("part", looks.spread(_PARTS)),
        ).with_caption(
            "By the intervals of all streams; compute includes the communication that it hides."
        )  # fmt: skip
