"""Colours by name: Okabe and Ito's palette (2008), which is safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.simulate.result.timeline import Cause

BLUE, SKY, GREEN, ORANGE, RED = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
PINK, YELLOW, GREY, DARK = "#CC79A7", "#F0E442", "#999999", "#666666"
PALETTE = (BLUE, RED, GREEN, ORANGE, PINK, SKY, DARK, YELLOW)
"""Colours for names without a fixed colour."""
Looks = Mapping[str, str]
"""Colours by label, in the order of a legend."""

_CAUSES: Mapping[Cause, str] = {
    ("gemm", "read"): BLUE,
    ("gemm", "write"): SKY,
    ("gemm", "update"): "#A8DCFA",
    ("reduce_scatter", "read"): RED,
    ("reduce_scatter", "write"): ORANGE,
    ("reduce_scatter", "update"): YELLOW,
    ("all_gather", "read"): GREEN,
    ("all_gather", "write"): PINK,
    ("tracker", "read"): DARK,
    ("tracker", "write"): "#BBBBBB",
    ("earlier", "write"): GREY,
}
OVERLAPS: Looks = {
    "sequential": GREY, "flux": PINK, "userbuffers": GREEN, "t3": ORANGE, "t3-mca": RED,
    "t3-critical": DARK, "t3-direct": YELLOW, "t3-direct-dma": "#882255", "t3-split-k": "#332288",
    "t3-all-gather": "#117733", "t3-two-level": "#AA4499", "t3-nvls": "#44AA99",
    "remote-loads": "#661100", "deepep": "#6699CC", "t3-all-to-all": "#999933",
    "ideal-overlap": SKY, "ideal-rs-nmc": BLUE,
}  # fmt: skip
STRATEGIES: Looks = {
    "streams": GREY, "priority": ORANGE, "partition": SKY, "priority-partition": BLUE, "dma": GREEN,
    "dma-partition": RED,
}  # fmt: skip
"""Ways for a GEMM and a collective to share a GPU."""
PHASES: Mapping[str, tuple[str, str]] = {
    "gemm": ("GEMM", BLUE),
    "reduce_scatter": ("reduce-scatter (RS)", ORANGE),
    "all_gather": ("all-gather (AG)", GREEN),
}
"""The operators of a sub-layer: label and colour."""
WAITS: Mapping[str, tuple[str, str]] = {
    "compute": ("computing", BLUE),
    "matrix_unit": ("waiting for the matrix unit", SKY),
    "memory": ("loads", RED),
    "store": ("stores", ORANGE),
    "chunk": ("a chunk from the ring", PINK),
}
"""Activities and waits of a kernel's workgroups: label and colour."""
PLACE: Looks = {
    "dispatch": "#BBBBBB",
    "cache": "#F5B9A0",
    "fabric": "#8C564B",
    "memory_cache": "#E08A5C",
    "memory": RED,
    "store": YELLOW,
    "link": GREEN,
    "chunk": PINK,
    "begin": GREY,
    "compute": SKY,
}
"""Colours of the activities and waits of a workgroup slot, by the keys of `REASONS`."""


def cause_color(cause: Cause) -> str:
    """Return the colour of a cause of traffic; other collectives take the all-gather's, further GEMMs the GEMM's."""
    operator, kind = cause
    like = "gemm" if operator.startswith("gemm") else "reduce_scatter" if kind == "update" else "all_gather"
    return _CAUSES.get(cause) or _CAUSES[like, kind]


def cause_looks(causes: Collection[Cause]) -> Looks:
    """Return the colours of causes by their labels, the GEMM's first."""
    from weft.simulate.result.timeline import words_of

    known = [cause for cause in _CAUSES if cause in causes]
    return {words_of(cause): cause_color(cause) for cause in dict.fromkeys((*known, *causes))}


def spread(names: Sequence[str], taken: Collection[str] = ()) -> Looks:
    """Return a colour of the palette for each name, none of those `taken`; when all are used, lighter ones follow."""
    free = [color for color in PALETTE if color not in taken]
    return {name: _tone_color(free[at % len(free)], at // len(free)) for at, name in enumerate(names)}


def _tone_color(color: str, turn: int) -> str:
    """A colour of the palette in its first turn, halfway to white in the second, darker in the third, and so on."""
    towards, share = ((0, 0.0), (255, 0.5), (0, 0.4))[turn % 3]
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (towards - part) * share):02X}" for part in parts)


def overlap_looks(names: Sequence[str]) -> Looks:
    """Return the colours of overlaps; unknown ones get a spare colour."""
    return {name: OVERLAPS.get(name, spread(names)[name]) for name in names}
