"""Results as small HTML tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.result.comparison import Comparison
    from weft.result.timeline import Timeline

_TIMES = ("GEMM [µs]", "RS [µs]", "AG [µs]", "total [µs]")


def comparison_html(comparison: Comparison) -> str:
    """Overlaps by row: times, speedup over the first, DRAM traffic."""
    rows = [
        (one.overlap, *times(one), f"{comparison.speedup(one.overlap):.3f}", f"{one.total_bytes / 1e6:,.1f}")
        for one in comparison
    ]
    heads = ("overlap", *_TIMES, "speedup", "DRAM [MB]")
    return html_table(caption(comparison.baseline), heads, rows)


def timeline_html(timeline: Timeline) -> str:
    """Times of one run, then its DRAM traffic by cause."""
    t = html_table(f"{caption(timeline)} under {timeline.overlap}", _TIMES, [times(timeline)], text_columns=0)
    by_cause = [(" ".join(cause), f"{amount / 1e6:,.1f}") for cause, amount in timeline.traffic.items()]
    rows = [*by_cause, ("all", f"{timeline.total_bytes / 1e6:,.1f}")]
    return t + html_table("DRAM traffic of one GPU", ("cause", "MB"), rows)


def caption(timeline: Timeline) -> str:
    """What was run, in a line."""
    shape = "" if timeline.gemm is None else f", {str(timeline.gemm).replace(' x ', ' × ')}"
    return f"{timeline.graph}{shape} on {timeline.gpu.name}"


def times(timeline: Timeline) -> tuple[str, ...]:
    """GEMM, reduce-scatter, all-gather and all [us] as texts."""
    parts = (timeline.duration(name) for name in ("gemm", "reduce_scatter", "all_gather"))
    return tuple(f"{s * 1e6:,.1f}" for s in (*parts, timeline.seconds))


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table whose first columns are text and whose others are numbers."""
    body = "".join(f"<tr>{_cells('td', row, text_columns)}</tr>" for row in rows)
    return (
        f'<table style="font-variant-numeric: tabular-nums">'
        f'<caption style="text-align: left">{escape(title)}</caption>'
        f"<thead><tr>{_cells('th', heads, text_columns)}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cells(tag: str, texts: Sequence[str], text_columns: int) -> str:
    sides = ("left" if at < text_columns else "right" for at in range(len(texts)))
    return "".join(
        f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>' for side, text in zip(sides, texts, strict=True)
    )
