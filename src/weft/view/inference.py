"""A step of inference: the verdict in words, where the time goes, and what the memory holds."""

from __future__ import annotations

from pathlib import Path

from weft.result.inference import Inference
from weft.result.step import exposed_axis
from weft.view import looks
from weft.view.figure import Figure, stacked_bars
from weft.view.page import Section, machine_section, write_page
from weft.view.plans import AXES
from weft.view.shares import COLORS, label, meaning, ordered, seconds
from weft.view.table import Table, number, text
from weft.view.words import percent


def verdict(answer: Inference) -> list[str]:
    """The answer in sentences: latency and throughput, what takes longest, and whether it fits."""
    on = f"{answer.plan.tp} GPU" + "s" * (answer.plan.tp > 1)
    sequences = f"{answer.batch} sequence" + "s" * (answer.batch > 1)
    if answer.phase == "prefill":
        lead = (
            f"{answer.model.title} reads {sequences} of {answer.tokens:,} tokens in {seconds(answer.seconds)} on {on}"
        )
    else:
        lead = (
            f"{answer.model.title} writes a token in {seconds(answer.seconds)} on {on}, with {sequences} of "
            f"{answer.tokens:,} tokens of context"
        )
    rate = f": {answer.tokens_per_s:,.0f} tokens/s"
    if answer.replicas > 1:
        rate += f", {answer.replicas * answer.tokens_per_s:,.0f} on the {answer.replicas} replicas of the system"
    worst = sorted(answer.parts.items(), key=lambda part: -part[1])[:3]
    where = ", ".join(f"{percent(time / answer.seconds)} {_spent(name)}" for name, time in worst)
    return [f"{lead}{rate}.", f"Most of it is {where}.", _fitting(answer), *answer.notes]


def _spent(name: str) -> str:
    """A part of the time in words."""
    axis = exposed_axis(name)
    return f"exposed communication of {AXES.get(axis, axis)}" if axis else label(name)


def _fitting(answer: Inference) -> str:
    """Whether weights and cache fit, in a sentence."""
    held, room = (answer.weights + answer.cache) / 1e9, answer.capacity / 1e9
    sizes = f"{answer.weights / 1e9:.1f} GB of weights and {answer.cache / 1e9:.2f} GB of keys and values"
    if answer.fits:
        most = f"{answer.most_sequences:,} such sequences would"
        return f"Each GPU holds {sizes}, {held:.1f} of {room:.0f} GB; at most {most}."
    return f"It does not fit: {sizes} are {held - room:.1f} GB above the {room:.0f} GB of a GPU; give a larger --tp."


def title(answer: Inference) -> str:
    """The model, the phase and the machine on one line."""
    what = "context" if answer.phase == "decode" else "prompt"
    return (
        f"{answer.phase.capitalize()} of {answer.model.title} on {answer.system.name}, TP {answer.plan.tp}, batch "
        f"{answer.batch}, {answer.tokens:,} tokens of {what}, {answer.plan.dtype}"
    )


def part_table(answer: Inference) -> Table:
    """Where the time goes; the shares add up to 100 %."""
    rows = [
        (label(name), answer.parts[name] * 1e3, answer.parts[name] / answer.seconds, meaning(name))
        for name in ordered(answer.parts)
    ]
    columns = [
        text("part"), number("time_ms", "time", "ms", ",.3f"), number("share", format_=".1%"),
        text("what", "what it is", prose=True),
    ]  # fmt: skip
    return Table(columns, [*rows, ("all", answer.seconds * 1e3, 1.0, "")], title(answer))


def memory_table(answer: Inference) -> Table:
    """What each GPU holds."""
    rows = [
        ("weights", answer.weights / 1e9),
        ("keys and values", answer.cache / 1e9),
        ("memory of the GPU", answer.capacity / 1e9),
    ]
    return Table([text("what", "each GPU"), number("size_gb", "size", "GB", ",.2f")], rows, "Memory")


def inference_parts(answer: Inference) -> list[Table | str]:
    """What a terminal shows of a step of inference."""
    return [*verdict(answer), part_table(answer)]


def shares(answer: Inference) -> Figure:
    """Where the time goes, as one bar."""
    rows = [
        (answer.phase, label(name), answer.parts[name] * 1e3, answer.parts[name] / answer.seconds)
        for name in ordered(answer.parts)
    ]
    columns = [
        text("lane", " "), text("part"), number("time_ms", "time", "ms", ",.3f"), number("share", format_=".1%"),
    ]  # fmt: skip
    table = Table(columns, rows)
    colors = {**looks.spread(table.distinct("part")), **{label(name): color for name, color in COLORS.items()}}
    return stacked_bars(
        "Where does the time go?", table, lane="lane", part="part", value="time_ms", looks=colors
    ).captioned("One GPU; exposed communication is what computing waits for.")


def inference_page(answer: Inference, folder: str | Path) -> Path:
    """Write `report.html` on a step of inference to a folder and return its path; OutputError if that fails."""
    lead, *rest = verdict(answer)
    return write_page(
        folder,
        title(answer),
        lead,
        [
            rest,
            shares(answer),
            part_table(answer),
            Section("Memory", [memory_table(answer)]),
            machine_section(answer.system.gpu),
        ],
        "inference",
    )
