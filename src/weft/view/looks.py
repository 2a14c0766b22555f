"""Colours by name: Okabe and Ito's palette (2008), which the colour-blind tell apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.result.timeline import REASONS, Cause, words_of

BLUE, SKY, GREEN, ORANGE, RED = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
PINK, YELLOW, GREY, DARK = "#CC79A7", "#F0E442", "#999999", "#666666"
PALETTE = (BLUE, RED, GREEN, ORANGE, PINK, SKY, DARK, YELLOW)
"""Colours for what has no colour of its own."""
Looks = Mapping[str, str]
"""The colour of each thing by its name in words, in the order of a legend."""

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
    "sequential": GREY, "flux": PINK, "chunked": GREEN, "t3": ORANGE, "t3-mca": RED, "ideal-overlap": SKY,
    "ideal-rs-nmc": BLUE,
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
"""The operators of a sub-layer: words and colour."""
WAITS: Mapping[str, tuple[str, str]] = {
    "compute": ("computing", BLUE),
    "matrix_unit": ("waiting for the matrix unit", SKY),
    "memory": ("loads", RED),
    "store": ("stores", ORANGE),
    "chunk": ("a chunk from the ring", PINK),
}
"""What the workgroups of a kernel do or wait for: words and colour."""
PLACE: Looks = {
    REASONS["dispatch"]: "#BBBBBB",
    REASONS["cache"]: "#F5B9A0",
    REASONS["memory_cache"]: "#E08A5C",
    REASONS["memory"]: RED,
    REASONS["store"]: YELLOW,
    REASONS["link"]: GREEN,
    REASONS["chunk"]: PINK,
    REASONS["begin"]: GREY,
    REASONS["compute"]: SKY,
}
"""What a workgroup's place does or waits for."""


def cause_color(cause: Cause) -> str:
    """The colour of a cause of traffic: an all-gather's for another collective, the GEMM's for one of several."""
    operator, kind = cause
    like = "gemm" if operator.startswith("gemm") else "reduce_scatter" if kind == "update" else "all_gather"
    return _CAUSES.get(cause) or _CAUSES[like, kind]


def cause_looks(causes: Collection[Cause]) -> Looks:
    """The colours of causes by their words, the GEMM's first."""
    known = [cause for cause in _CAUSES if cause in causes]
    return {words_of(cause): cause_color(cause) for cause in dict.fromkeys((*known, *causes))}


def spread(names: Sequence[str]) -> Looks:
    """A colour of the palette for each name; after eight of them they repeat."""
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(names)}


def overlap_looks(names: Sequence[str]) -> Looks:
    """The colours of overlaps; ones that Weft does not know get a spare colour."""
    return {name: OVERLAPS.get(name, spread(names)[name]) for name in names}
