"""What a whole training run takes and costs, in sentences that follow those of its step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.core.units import format_bytes, format_time
from weft.view.shares import label
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.step.run import Goodput, RunOutcome
    from weft.step.straggler import Delay

_MONEY = "no network, storage, power or people are in it"


def run_sentences(run: RunOutcome | None) -> list[str]:
    """Return how long a run takes, what it costs, and what failures and checkpoints lose."""
    if run is None:
        return []
    said = []
    if run.days is not None and run.tokens is not None:
        between = f" (80 % interval {run.days_80[0]:,.3g} to {run.days_80[1]:,.3g})" if run.days_80 else ""
        lost = ", failures included" if run.goodput and run.goodput.goodput < 1 else ""
        said.append(f"Run: {_tokens(run.tokens)} take {run.days:,.3g} days{between} on {run.gpus:,} GPUs{lost}.")
    if run.price:
        low, high = (run.price.text(run.million_tokens * end) for end in run.interval)
        whole = f"; the run {run.price.text(run.cost)}" if run.cost is not None else ""
        said.append(
            f"Cost: {run.price.text(run.million_tokens)} for a million tokens (80 % interval {low} to {high}){whole}; "
            f"{_MONEY}."
        )
    if run.energy:
        from weft.view.energy import energy_sentences

        said += energy_sentences(run.energy)
    return [*said, *(_failures(run.goodput, run.days) if run.goodput else [])]


def straggler_sentences(late: Delay | None) -> list[str]:
    """Return how much longer a slow part makes a step, how much of its own delay that is, and who waits."""
    if late is None:
        return []
    where = f" in stage {late.stage}, where it costs most," if late.stage is not None else ""
    reaching = f", {percent(late.reaching)} of what it loses itself" if late.own_s else ""
    lead = (
        f"Straggler: {late.straggler.words}{where} makes the step {late.delay_s / late.step_s:.1%} longer "
        f"({format_time(late.delay_s, 3)}{reaching})."
    )
    if late.straggler.what == "gpu":
        axes = " and ".join(label(name).partition(": ")[2] or name for name in late.waits)
        return [f"{lead} Its {axes} groups wait for it." if axes else lead]
    grown = ", ".join(f"{label(name)} {format_time(seconds, 3)}" for name, seconds in late.waits.items())
    return [f"{lead} What grows: {grown}." if grown else f"{lead} All of it is hidden behind compute."]


def _tokens(count: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= factor:
            return f"{count / factor:,.3g}{unit} tokens"
    return f"{count:,.0f} tokens"


def _failures(lost: Goodput, days: float | None) -> list[str]:
    size = format_bytes(int(lost.checkpoint_bytes), 3)
    if math.isinf(lost.mtbf_s):
        return [f"No failures: goodput 100 %; a checkpoint has {size}."]
    total = f"; of {days:,.3g} days {(1 - lost.goodput) * days:.3g} are lost" if days is not None else ""
    lead = (
        f"Goodput {lost.goodput:.1%} with an interruption every {_duration(lost.mtbf_s)}{total}: "
        f"{lost.restarted:.1%} restarting, {lost.repeated:.1%} repeating steps since the last checkpoint, "
        f"{lost.written:.1%} writing checkpoints."
    )
    stops = f", which stops the steps for {_duration(lost.blocked_s)}" if lost.blocked_s < lost.write_s else ""
    every = (
        f"Checkpoint every {_duration(lost.interval_s)}: {size}, written in {_duration(lost.write_s)}{stops}. "
        f"{lost.spares} spare node{'s' * (lost.spares != 1)} of 8 GPUs cover those in repair for 99 % of the time."
    )
    return [lead, every]


def _duration(seconds: float) -> str:
    """Return a time of a run in the unit in which it is read: "2.78 h", "3.9 min"."""
    for factor, unit, least in ((86400, "d", 2 * 86400), (3600, "h", 2 * 3600), (60, "min", 120)):
        if seconds >= least:
            return f"{seconds / factor:.3g} {unit}"
    return format_time(seconds, 3)
