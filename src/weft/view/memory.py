"""The memory of a training step: whether it fits, who holds it at the peak, and the curve over a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from weft.core.report import Part, Section, SystemReport
from weft.core.report.table import Table, number, text
from weft.step.result.memory import FRAGMENTATION, DeviceMemory, Memory
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Lines, areas, stacked_bars
from weft.view.plans import framework_sentence, plan_title, shown_devices

if TYPE_CHECKING:
    from weft.step.result.step import Step

_HOLDERS = {
    "weights": ("weights", looks.BLUE, "in the number format of the plan"),
    "gradients": ("gradients", looks.GREEN, "of all weights, as the framework accumulates them"),
    "optimizer": ("optimizer states", looks.ORANGE, "momenta and the main copy of the weights"),
    "weight versions": ("versions of weights", "#004C77", "of passes in flight, where the schedule has no flush"),
    "gathered weights": ("weights gathered", looks.SKY, "whole parts beside the shards (FSDP)"),
    "activations": ("activations", looks.RED, "saved from forward to backward passes, of all micro-batches in flight"),
    "workspace": ("workspace", looks.PINK, "outputs and gradients that live during one pass, recomputed activations"),
    "fragmentation": ("fragmentation", "#DDDDDD", "gaps between tensors that the allocator has reserved [assumed]"),
    "outside": ("outside the allocator", "#BBBBBB",
                "the context of the process and buffers of the collective library [assumed]"),
}  # fmt: skip
"""Who holds memory: label, colour and meaning."""


_KEPT = (
    "; beside a pipeline, FSDP keeps gathered weights and whole gradients until the last micro-batch, which can take "
    "more than ZeRO stage 2"
)
"""Why sharding the weights, too, can need more memory in a pipeline (torchtitan's default, `weft.TrainingPlan`)."""


def fitting(answer: Memory, what: str = "") -> str:
    """Return whether `what` fits, by how much, and what would make it fit, in a sentence."""
    peak, room = answer.peak / 1e9, answer.capacity / 1e9
    where = f" on stage {answer.fullest}" if len(answer.devices) > 1 else ""
    kept = _KEPT * (answer.plan.shards_weights and not answer.plan.gathers_each_pass)
    lead = f"{what} " if what else ""
    if answer.fits:
        words = f"{lead}fits: peak {peak:.1f} GB of {room:.0f} GB{where}, {room - peak:.1f} GB free{kept}."
        return f"{words[:1].upper()}{words[1:]}"
    found = [f"{name} ({size / 1e9:.1f} GB)" for name, size in answer.remedies.items()]
    remedy = f"it would fit with {', or '.join(found[:3])}" if found else "no single change of the plan makes it fit"
    over = f"{peak - room:.1f} GB above the {room:.0f} GB"
    again = "" if answer.plan.recompute == "full" else "; 'weft memory --budget' finds operators to recompute"
    words = f"{lead}does not fit: peak {peak:.1f} GB{where}, {over}; {remedy}{again}{kept}."
    return f"{words[:1].upper()}{words[1:]}"


def holder_table(answer: Memory) -> Table:
    """Who holds the memory at the peak of the fullest device."""
    fullest = answer.devices[answer.fullest]
    rows = [
        (_holder(name)[0], size / 1e9, size / fullest.peak, _holder(name)[2])
        for name, size in fullest.holders.items()
        if size
    ]
    columns = [
        text("holder"), number("size_gb", "size", "GB", ",.2f"), number("share", format_=".1%"),
        text("what", "what it is", prose=True),
    ]  # fmt: skip
    heading = f"Memory of the fullest GPU at its peak, of {answer.capacity / 1e9:.0f} GB"
    return Table(columns, [*rows, ("all", fullest.peak / 1e9, 1.0, "")], heading)


def saved_table(answer: Memory) -> Table:
    """Activations that one micro-batch leaves on the fullest device, by operator, the largest first."""
    saved = sorted(answer.devices[answer.fullest].saved.items(), key=lambda one: -one[1])
    rows = [(name, size / 1e6) for name, size in saved if size]
    columns = [text("operator"), number("size_mb", "saved", "MB", ",.1f")]
    return Table(columns, rows, "Activations of one micro-batch, by part of the model and operator")


def estimator_table(answer: Memory) -> list[Table | str]:
    """Return the fullest device beside what the framework's own estimator says, and what that leaves out."""
    from weft.step.estimators import estimate_as_framework

    used = answer.framework
    said = estimate_as_framework(answer.model, answer.plan, used) if used else None
    if said is None:
        return [f"{used.title if used else 'The framework'} has no formulas of its own for such a plan."]
    found = answer.devices[answer.fullest].holders
    states = sum(found.get(name, 0.0) for name in ("weights", "gradients", "optimizer", "gathered weights"))
    kept = found["activations"] + found["workspace"]
    rows = [("weights, gradients, optimizer states, gathered weights", states / 1e9, said.states / 1e9)]
    if said.activations is not None:
        rows.append(("activations and workspace", kept / 1e9, said.activations / 1e9))
    columns = [text("what"), number("weft_gb", "Weft", "GB", ",.2f"), number("own_gb", "its estimator", "GB", ",.2f")]
    table = Table(columns, rows, f"Beside the estimator of {used.title if used else ''}")
    return [table, f"The estimator is {said.source}; it leaves out {said.leaves_out}."]


def remedy_table(answer: Memory) -> Table:
    """Changes of the plan that would fit, with the peak that each leads to."""
    rows = [(name, size / 1e9) for name, size in answer.remedies.items()]
    return Table([text("change"), number("peak_gb", "peak", "GB", ".1f")], rows, "What would make it fit")


def holders(answer: Memory) -> Figure:
    """Return the peak of each pipeline device by holder, beside the GPU's capacity."""
    lane = "stage {}" if len(answer.devices) > 1 else "each GPU"
    rows = [
        (lane.format(at), _holder(name)[0], size / 1e9)
        for at in shown_devices(len(answer.devices))
        for name, size in answer.devices[at].holders.items()
        if size
    ]
    columns = [text("lane", " "), text("holder"), number("size_gb", "memory at the peak", "GB", ",.2f")]
    table = Table(columns, rows)
    figure = stacked_bars(
        "Memory by holder", table, lane="lane", value="size_gb",
        color=Color("holder", _looks(table.distinct("holder"))), over=[_capacity(answer)],
    )  # fmt: skip
    return figure.with_caption("One GPU of each pipeline stage at its own peak; the dashed line is the GPU's memory.")


def _capacity(answer: Memory) -> Lines:
    columns = [number("size_gb", "capacity", "GB", ".0f"), text("name", " ")]
    return Lines(Table(columns, [(answer.capacity / 1e9, "capacity")]), "size_gb", "name")


def memory_curve(answer: Step, until_s: float = math.inf) -> Figure | None:
    """The memory of the fullest device over the tasks that begin before `until_s`; None if it was not computed."""
    if answer.memory is None:
        return None
    at = answer.memory.fullest
    table = _held_table(answer, at, answer.memory.devices[at], until_s)
    span = [table.column("time_s")[0], min(table.column("until_s")[-1], until_s)]
    capacity = answer.memory.capacity / 1e9
    figure = areas(
        "Memory over the step", table, x=Axis("time_s", title="time [s]", domain=span),
        until="until_s", looks=_looks(table.heads[2:]), limit=(capacity, f"{capacity:.0f} GB"), height=220,
        name="memory",
    )  # fmt: skip
    where = f"The GPU of stage {at}" if len(answer.memory.devices) > 1 else "One GPU"
    return figure.with_caption(f"{where}, in GB; activations rise with every forward pass that is in flight.")


def _held_table(answer: Step, at: int, device: DeviceMemory, until_s: float) -> Table:
    """Memory [GB] by holder at every task of a device that begins before a time."""
    order = answer.pipeline.schedule.orders[at]
    start, end = (np.asarray(times).flat[order] for times in (answer.pipeline.start, answer.pipeline.end))
    held, working = device.held / 1e9, device.working / 1e9
    kept = np.flatnonzero(start < until_s)
    most = 500
    if len(kept) > most:  # only the beginning and the end, which differ from the steady part between them
        kept = np.r_[kept[: most // 2], kept[-most // 2 :]]
    start, end, held, working = start[kept], end[kept], held[kept], working[kept]
    passing = [(begin, *rest) for begin, *rest in zip(start, [*start[1:], end[-1]], held, working, strict=True)]
    if end[-1] < until_s:  # after its last task the device ends the step
        passing += [(moment, answer.seconds, device.left / 1e9, 0.0) for moment in (end[-1], answer.seconds)]
    fixed = {name: size / 1e9 for name, size in device.fixed.items()}
    tensors = sum(size for name, size in fixed.items() if name != "outside")
    rows = [
        (*times, *fixed.values(), active, work, FRAGMENTATION * (tensors + active + work))
        for *times, active, work in passing
    ]
    names = [*fixed, "activations", "workspace", "fragmentation"]
    sizes = (number(name.replace(" ", "_"), _holder(name)[0], format_=".2f") for name in names)
    return Table([number("time_s", "from", "s", ",.4f"), number("until_s", "until", "s", ",.4f"), *sizes], rows)


def _holder(name: str) -> tuple[str, str, str]:
    return _HOLDERS.get(name, (name, "", ""))


def _looks(names: list[str]) -> looks.Looks:
    return {label: color for label, color, _ in _HOLDERS.values() if label in names}


class MemoryReport(SystemReport[Memory]):
    """What a plan holds on its fullest GPU, and what would make it fit."""

    explained = "memory"
    details_flag = "--explain"

    def title(self) -> str:
        """Return the model, the machine and the plan."""
        return f"Memory of {plan_title(self.answer.model, self.answer.system, self.answer.plan)}"

    def sentences(self) -> list[str]:
        """Return whether the plan fits, how much is free, and whose defaults it has."""
        answer = self.answer
        used = answer.framework
        return [fitting(answer), *([framework_sentence(used, answer.plan, answer.defaulted)] if used else [])]

    def notes(self) -> list[str]:
        """Return what was chosen, and which options have no effect."""
        return list(self.answer.notes)

    def tables(self) -> list[Table]:
        """Return the holders of the fullest GPU, and what would make the plan fit."""
        return [holder_table(self.answer), *self._remedies()]

    def details(self) -> list[Table | str]:
        """Return the saved tensors, and what the framework's own estimator says."""
        return [saved_table(self.answer), *estimator_table(self.answer)]

    def figure(self) -> Figure:
        """Return the holders of every device."""
        return holders(self.answer)

    def sections(self) -> list[Part]:
        """Return the holders, what would make the plan fit, and the activations."""
        return [
            *self.figures(),
            holder_table(self.answer),
            Section("What would make it fit", self._remedies()),
            Section("Activations", self.details()),
        ]

    def _remedies(self) -> list[Table]:
        return [remedy_table(self.answer)] if self.answer.remedies else []
