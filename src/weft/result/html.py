"""Results as small HTML tables, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.result.comparison import Comparison
    from weft.result.result import Result

_TIMES = ("GEMM [µs]", "RS [µs]", "AG [µs]", "total [µs]")


def comparison_html(comparison: Comparison) -> str:
    """Overlaps by row: times, speedup over sequential where it is among them, DRAM traffic."""
    results = list(comparison)
    with_speedup = "sequential" in comparison.results
    rows = [
        (
            result.config.overlap,
            *times(result),
            *((f"{comparison.speedup(result.config.overlap):.3f}",) if with_speedup else ()),
            f"{result.total_bytes / 1e6:,.1f}",
        )
        for result in results
    ]
    heads = ("overlap", *_TIMES, *(("speedup",) if with_speedup else ()), "DRAM [MB]")
    return html_table(caption(results[0]) if results else "no result", heads, rows)


def result_html(result: Result) -> str:
    """Times of one run, then its DRAM traffic by cause."""
    t = html_table(
        f"{caption(result)} under {result.config.overlap}", _TIMES, [times(result)], text_columns=0
    )
    by_cause = [(name.replace("_", " "), f"{amount / 1e6:,.1f}") for name, amount in result.bytes.items()]
    rows = [*by_cause, ("all", f"{result.total_bytes / 1e6:,.1f}")]
    return t + html_table("DRAM traffic of one GPU", ("cause", "MB"), rows)


def caption(result: Result) -> str:
    """What was run, in a line."""
    c = result.config
    name = " ".join(dict.fromkeys(filter(None, (c.model, c.sublayer))))
    return f"{name}, TP {c.tp}, {c.m} × {c.n} × {c.k} {c.dtype} on {c.gpu}"


def times(result: Result) -> tuple[str, ...]:
    """GEMM, reduce-scatter, all-gather and all [us] as texts."""
    t = result.times
    return tuple(f"{s * 1e6:,.1f}" for s in (t.gemm, t.reduce_scatter, t.all_gather, t.total))


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
        f'<{tag} style="text-align: {side}">{escape(text)}</{tag}>'
        for side, text in zip(sides, texts, strict=True)
    )
