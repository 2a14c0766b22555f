"""The parts of a step in words and colours: computing by class of operator, exposed communication, idle time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from weft.core.report.table import Table, number, text
from weft.step.result.step import RESIDUAL, exposed_axis, exposed_part
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, stacked_bars
from weft.view.plans import AXES

_WHAT = {
    "gemm": "matrix products",
    "grouped_gemm": "matrix products of the experts",
    "attention": "attention scores, softmax and weighted values",
    "scan": "states of linear attention and state-space layers (Mamba), not measured: a rate is assumed",
    "casts": "operands of 8 or 4 bits, made of 16-bit tensors",
    "norm": "layer norms and RMS norms",
    "element-wise": "activation functions, biases, residual sums, rotary positions",
    "embedding": "rows of the embedding table",
    "loss": "cross entropy of the logits",
    "recompute": "activations that the backward pass recomputes (activation checkpointing)",
    "optimizer": "the update of the weights, and the norm of the gradients",
    "contention": "compute slowed down by concurrent communication",
    RESIDUAL: "what measured steps take beyond modelled kernels and waits (calibration residual); fitted",
    "bubble": "stages that wait for their first or next micro-batch, as the schedule has it",
    "imbalance": "stages that wait for slower ones",
    "wait": "kernels that wait for others of their stream",
    "launch gaps": "kernels that wait for the host to launch them",
    "host": "the GPU waits for the host between two steps",
    "queue": "the request waits until its first prompt token is computed",
    "prefill": "from then to the first output token",
    "decode": "from the first output token to the last",
}
COLORS = {
    "gemm": looks.BLUE,
    "grouped_gemm": "#004C77",
    "attention": looks.SKY,
    "scan": "#1B9E9E",
    "casts": "#9E9AC8",
    "norm": looks.GREEN,
    "element-wise": "#66C2A5",
    "embedding": "#B3DE69",
    "loss": "#8DD3C7",
    "recompute": looks.PINK,
    "optimizer": looks.YELLOW,
    "contention": "#CC6677",
    RESIDUAL: "#88AACC",
    exposed_part("tp"): looks.RED,
    exposed_part("cp"): "#F28E5C",
    exposed_part("ep"): "#A63603",
    exposed_part("dp"): looks.ORANGE,
    exposed_part("pp"): "#8C510A",
    exposed_part("host"): "#6A3D9A",
    "bubble": "#BBBBBB",
    "imbalance": looks.GREY,
    "wait": looks.DARK,
    "launch gaps": "#444444",
}
"""Colours of the parts, in the order of the waterfall."""
COMPUTE = (
    "gemm",
    "grouped_gemm",
    "attention",
    "scan",
    "casts",
    "norm",
    "element-wise",
    "embedding",
    "loss",
    "recompute",
    "optimizer",
)
"""The parts in which the compute stream computes."""
_LABELS = {
    "gemm": "GEMM",
    "grouped_gemm": "experts' GEMM",
    "recompute": "recomputation",
    "streaming": "norm or element-wise",
}
_LOSSES = {
    "bubble": "pipeline bubble", "imbalance": "unequal stages", "recompute": "recomputation",
    "contention": "contention with communication", RESIDUAL: "calibration residual",
}  # fmt: skip


def label(name: str) -> str:
    """Return a part as tables and legends show it."""
    axis = exposed_axis(name)
    shown = axis.upper() if len(axis) == 2 else axis
    return f"exposed: {shown}" if axis else _LABELS.get(name, name)


def meaning(name: str) -> str:
    """Return what a part is, in words."""
    axis = exposed_axis(name)
    return f"compute waits for {AXES.get(axis, axis)} communication" if axis else _WHAT.get(name, "")


def loss(name: str) -> str:
    """Return the name of a loss: a part of the step that is no useful compute."""
    axis = exposed_axis(name)
    return f"exposed {AXES.get(axis, axis)} communication" if axis else _LOSSES.get(name, name)


def order_parts(parts: Mapping[str, float]) -> list[str]:
    """Return the parts of a step in the order of the waterfall: computing, exposed communication, idle time."""
    return [*(name for name in COLORS if name in parts), *(name for name in parts if name not in COLORS)]


def colors(table: Table) -> dict[str, str]:
    """The colours of the parts that a table names in its column "part"; unknown parts get those of absent ones."""
    shown, named = table.distinct("part"), {label(name): color for name, color in COLORS.items()}
    free = cycle([color for name, color in named.items() if name not in shown])
    known = {name: color for name, color in named.items() if name in shown}
    return {**known, **{name: next(free) for name in shown if name not in known}}


def waterfall(
    title: str, lanes: Mapping[str, Mapping[str, float]], whole: float | None = None, of: str = "the step"
) -> Figure:
    """A bar for each lane that stacks its parts [s], as shares of the `whole` time, `of` something, or of its own."""
    rows = [
        (lane, label(name), parts[name] / (whole or sum(parts.values())), parts[name] * 1e3)
        for lane, parts in lanes.items()
        for name in order_parts(parts)
        if parts[name] > 0
    ]
    share = number("share", f"share of {of}", format_=".1%")
    table = Table([text("lane", " "), text("part"), share, number("time_ms", "time", "ms", ",.3f")], rows)
    return stacked_bars(
        title, table, lane="lane", value=Axis("share", percent=True), color=Color("part", colors(table)),
    )  # fmt: skip


def seconds(value: float) -> str:
    """Return a time in the unit that suits a step."""
    shown, unit = (value, "s") if value >= 1 else (value * 1e3, "ms")
    return f"{shown:,.{2 if shown < 10 else 1 if shown < 100 else 0}f} {unit}"
