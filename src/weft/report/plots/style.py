"""How every picture looks: colours that the colour-blind can tell apart, hatches for grey print, one font."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from weft.graph import Graph
from weft.result.timeline import Cause, words_of

P = ParamSpec("P")
_PATH = re.compile(r' d="[^"]*"')
_DECIMALS = re.compile(r"(\.\d\d)\d+")


class Look(NamedTuple):
    """A name for people, a colour of Okabe and Ito's palette (2008) and a hatch."""

    label: str
    color: str
    hatch: str = ""


CAUSES: Mapping[Cause, Look] = {
    cause: Look(words_of(cause), color, hatch)
    for cause, color, hatch in (
        (("gemm", "read"), "#0072B2", ""),
        (("gemm", "write"), "#56B4E9", ""),
        (("gemm", "update"), "#A8DCFA", ""),
        (("reduce_scatter", "read"), "#D55E00", "////"),
        (("reduce_scatter", "write"), "#E69F00", "\\\\\\\\"),
        (("reduce_scatter", "update"), "#F0E442", "xxxx"),
        (("all_gather", "read"), "#009E73", ".."),
        (("all_gather", "write"), "#CC79A7", "----"),
        (("tracker", "spill"), "#000000", ""),
        (("earlier", "write"), "#999999", ""),
    )
}
"""DRAM traffic by cause: compute is blue and plain, communication warm and hatched."""

OVERLAPS: Mapping[str, Look] = {
    "sequential": Look("sequential", "#999999"),
    "flux": Look("flux", "#CC79A7", "----"),
    "chunked": Look("chunked", "#009E73", "\\\\\\\\"),
    "t3": Look("t3", "#E69F00"),
    "t3-mca": Look("t3-mca", "#D55E00", "////"),
    "ideal-overlap": Look("ideal-overlap", "#56B4E9", ".."),
    "ideal-rs-nmc": Look("ideal-rs-nmc", "#0072B2", "xxxx"),
}

STRATEGIES: Mapping[str, Look] = {
    "streams": Look("streams", "#999999"),
    "priority": Look("priority", "#E69F00", "////"),
    "partition": Look("partition", "#56B4E9", ".."),
    "priority-partition": Look("priority-partition", "#0072B2", "xxxx"),
    "dma": Look("dma", "#009E73", "\\\\\\\\"),
    "dma-partition": Look("dma-partition", "#D55E00", "----"),
}
"""Ways for a GEMM and a collective to share a GPU."""

PHASES: Mapping[str, Look] = {
    "gemm": Look("GEMM", "#0072B2"),
    "reduce_scatter": Look("reduce-scatter (RS)", "#E69F00", "////"),
    "all_gather": Look("all-gather (AG)", "#009E73", ".."),
}

WAITS: Mapping[str, Look] = {
    "compute": Look("computing", "#0072B2"),
    "matrix_unit": Look("matrix unit taken by another workgroup", "#56B4E9", ".."),
    "memory": Look("loads", "#D55E00", "////"),
    "store": Look("stores", "#E69F00", "\\\\\\\\"),
    "chunk": Look("a chunk from the ring", "#CC79A7", "xxxx"),
}

_SPARE = ("#CC79A7", "#009E73", "#F0E442", "#000000")
_SUBLAYERS = {"op": "OP", "fc1": "FC-1", "fc2": "FC-2", "ip": "IP"}
_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "hatch.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "patch.linewidth": 0.4,
    "figure.titlesize": 10,
    "figure.titleweight": "bold",
    "svg.fonttype": "none",
    "svg.hashsalt": "weft",
}


class Picture(Figure):
    """A matplotlib Figure that shows itself in a notebook without pyplot."""

    def svg(self) -> str:
        """The picture as an SVG element; the same picture gives the same text."""
        with mpl.rc_context(_RC):
            buffer = io.StringIO()
            self.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return _PATH.sub(_rounded, text[text.index("<svg") :])

    def png(self, dots_per_inch: int = 80) -> bytes:
        """The picture as a PNG file."""
        with mpl.rc_context(_RC):
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=dots_per_inch, metadata={"Software": None})
        return buffer.getvalue()

    def _repr_svg_(self) -> str:
        return self.svg()


def _rounded(path: re.Match[str]) -> str:
    """A path with hundredths of a point, half the size and the same to the eye."""
    return _DECIMALS.sub(r"\1", path.group())


def styled(draw: Callable[P, Picture]) -> Callable[P, Picture]:
    """Draw in Weft's style and leave the user's own settings as they were."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Picture:
        with mpl.rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapped


def picture(width: float, height: float) -> Picture:
    """An empty picture of that size [inch] whose parts are laid out so that nothing overlaps."""
    return Picture(figsize=(width, height), layout="constrained")


def overlap_look(name: str, index: int = 0) -> Look:
    """The look of an overlap; ones that Weft does not know get a spare colour."""
    return OVERLAPS.get(name, Look(name, _SPARE[index % len(_SPARE)], "++"))


def cause_look(cause: Cause) -> Look:
    """The look of a cause of traffic: that of an all-gather for another collective, of the GEMM for one of several."""
    operator, kind = cause
    like = "gemm" if operator.startswith("gemm") else "reduce_scatter" if kind == "update" else "all_gather"
    return CAUSES.get(cause) or CAUSES[like, kind]._replace(label=words_of(cause))


def handle(look: Look) -> Patch:
    """What a legend shows for a look."""
    return Patch(facecolor=look.color, hatch=look.hatch, edgecolor="#444444", label=look.label)


def grid(ax: Axes, axis: str = "y") -> None:
    """Faint lines to read values from one axis."""
    ax.grid(visible=True, axis="x" if axis == "x" else "y")
    ax.tick_params(length=2)


def group_labels(ax: Axes, cases: Sequence[tuple[str, int, str]], more: Mapping[str, float] | None = None) -> None:
    """Every sub-layer below its bars; its model and degree once below those that share them, parted by thin lines.

    `more` are other labels with their places.
    """
    others = more or {}
    labels = [*(_SUBLAYERS.get(name, name) for _, _, name in cases), *others]
    ax.set_xticks([*range(len(cases)), *others.values()], labels)
    keys = [case[:2] for case in cases]
    ends = [at for at in range(1, len(keys) + 1) if at == len(keys) or keys[at] != keys[at - 1]]
    for start, end in zip([0, *ends], ends, strict=False):
        model, tp = keys[start]
        ax.annotate(
            f"{model}\nTP {tp}", ((start + end - 1) / 2, 0), (0, -19), ha="center", va="top", fontsize=8,
            xycoords=("data", "axes fraction"), textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
        ax.axvline(end - 0.5, color="#aaaaaa", linewidth=0.6)


def case_of(graph: Graph) -> tuple[str, int, str]:
    """Model, degree and name of a sub-layer."""
    return graph.labels.get("model") or "custom", graph.ranks, graph.labels.get("sublayer", "")


def bar(ax: Axes, at: float, start: float, width: float, look: Look, height: float = 0.7, **more: Any) -> None:
    """A bar on an axis of time, or of amounts, from `start` on, around the line `at`."""
    ax.barh(at, width, height, start, color=look.color, hatch=look.hatch, **{"edgecolor": "#444444", **more})


def stack(ax: Axes, rows: Sequence[Mapping[Any, float]], looks: Mapping[Any, Look]) -> None:
    """A bar per row, the first one above, that stacks the row's amounts in the order of `looks`."""
    for at, amounts in enumerate(rows):
        left = 0.0
        for name, look in looks.items():
            bar(ax, at, left, amounts.get(name, 0.0), look)
            left += amounts.get(name, 0.0)
    ax.invert_yaxis()
    grid(ax, "x")


def legend(figure: Picture, looks: Iterable[Look], columns: int = 4, more: Iterable[Any] = ()) -> None:
    """What the looks mean, below the picture."""
    handles = [*map(handle, looks), *more]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, min(len(handles), columns)))


def note(ax: Axes, text: str, place: tuple[float, float], offset: tuple[float, float] = (4, 0), **more: Any) -> None:
    """Words beside a place of the picture, or above it."""
    side = {"va": "center"} if offset[0] else {"ha": "center"}
    ax.annotate(text, place, offset, **{"textcoords": "offset points", **side, **more})
