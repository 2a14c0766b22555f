"""Numbers and names in words, and tables that several answers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.core.report.table import NONE, Column, Shown, Table, microseconds, text, texts

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.hardware import Gpu, Provenance
    from weft.papers.headline import HeadlineRow, Published
    from weft.simulate.result import Timeline

_PERCENT = ("fraction", "share")
PHASES = (
    microseconds("gemm", "GEMM"), microseconds("rs", "RS"), microseconds("ag", "AG"), microseconds("total", "total")
)  # fmt: skip


def us(seconds: float, digits: int = 1) -> str:
    """A time in microseconds, without the unit."""
    return f"{seconds * 1e6:,.{digits}f}"


def percent(share: float | None) -> str:
    """A fraction in whole percent, never "-0%"; a dash for None."""
    return NONE if share is None else f"{round(share, 2) + 0:.0%}"


def sentence(words: str) -> str:
    """Make a sentence: capital first letter, one full stop at the end."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def case_label(graph: Graph) -> str:
    """A short label of the sub-layer that a graph is."""
    names = dict.fromkeys(filter(None, (graph.labels.get("model"), graph.labels.get("sublayer"))))
    return f"{' '.join(names)}, TP {graph.ranks}" if names else str(graph)


def changed(gpu: Gpu) -> str:
    """The values of a GPU that the user changed, to append to its name."""
    return "".join(f", {change}" for change in gpu.changes)


def phase_times(run: Timeline) -> list[float]:
    """Times of GEMM, reduce-scatter, all-gather and total [us]."""
    return [*(run.duration(name) * 1e6 for name in ("gemm", "reduce_scatter", "all_gather")), run.seconds * 1e6]


def effort(runs: Iterable[Timeline]) -> str:
    """How much was simulated, in a sentence; runs shared with an assembled ideal count once."""
    made = list({id(run): run for each in runs for run in (each.parts or (each,))}.values())
    events, cpu_s, options = sum(run.events for run in made), sum(run.cpu_s for run in made), made[0].options
    effort = f"{events / 1e6:.1f} million events in {cpu_s:.1f} s"
    memory = "" if options.memory == "banks" else f", memory by {options.memory}"
    return f"{effort}; mode {options.mode}, requests of {options.request_bytes} B{memory}"


def link_note(run: Timeline) -> str:
    """Which ring limits the link of a GPU; empty if its own link does, or on two levels, whose links are apart."""
    from weft.graph import TrackedRing
    from weft.overlaps.lower.machine import ring_note

    kernels = (node.choice.kernel for node in run.graph)
    two_level = any(isinstance(kernel, TrackedRing) and kernel.two_level for kernel in kernels)
    return "" if two_level else ring_note(run.system)


def headline_table(rows: Sequence[HeadlineRow], title: str = "") -> Table:
    """Published figure, Weft's, and the difference, per row; Weft's alone if nothing is published."""
    columns = [text("figure"), *(Column(key, is_number=True) for key in ("published", "weft", "difference"))]
    table = Table(columns, [(row.what, *_headline_cells(row)) for row in rows], title)
    return table if any(row.published is not None for row in rows) else table.without(("published", "difference"))


def _headline_cells(row: HeadlineRow) -> tuple[Shown, Shown, Shown]:
    """Published figure, Weft's with one more digit, and the difference; blank if nothing is published."""
    published = "" if row.published is None else amount(row.published, row.unit)
    difference = "" if row.difference is None else gap(row.difference, row.unit)
    low = row.published[0] if isinstance(row.published, tuple) else row.published
    return (
        Shown(low, published),
        Shown(row.weft, amount(row.weft, row.unit, more=True)),
        Shown(row.difference, difference),
    )


_SMALL = 0.01
"""Share below which simulated figures have two digits that count, not one behind the point."""


def amount(value: Published, unit: str, more: bool = False) -> str:
    """A headline figure or range with its unit: fractions and shares in percent.

    `more` gives simulated figures one digit more than published ones.
    """
    if isinstance(value, tuple):
        return " to ".join(amount(end, unit, more) for end in value)
    if unit in _PERCENT:
        sign = "+" if unit == "fraction" else ""
        digits = ".3g" if not more else ".1f" if abs(value) >= _SMALL or not value else ".2g"
        return f"{100 * value:{sign}{digits}}%"
    return f"{value:.{3 if more else 2}f}x" if unit == "ratio" else f"{value:.4g} {unit}".rstrip()


def gap(value: float, unit: str) -> str:
    """The difference of headline figures with its sign; of fractions and shares in percentage points."""
    if unit in _PERCENT:
        return f"{round(100 * value, 1) + 0.0:+.1f} pp"
    return f"{value:+.3f}" if unit == "ratio" else f"{value:+.4g}"


def machine_table(
    gpu: Gpu, kinds: Sequence[str] = ("published", "peak", "measured", "derived", "set by user")
) -> Table:
    """The machine's values of the given kinds, with their sources."""
    rows = [(path, p.text, p.kind, p.source) for path, p in gpu.provenance.items() if p.kind in kinds]
    return Table(texts(("value", "is", "kind", "source")), rows)


def assumed_table(gpu: Gpu) -> Table:
    """The machine's assumed values, each with its plausible range and the reason."""
    rows = [(path, p.text, _range(p), p.source) for path, p in gpu.provenance.items() if p.kind == "assumed"]
    return Table(texts(("value", "is", "plausible range", "reason")), rows)


def sourced_table(title: str, name: str, values: Mapping[str, str], provenance: Mapping[str, Provenance]) -> Table:
    """Values with kind, plausible range and source; `name` is the head of the key column."""
    known = [(key, is_, provenance.get(key)) for key, is_ in values.items()]
    rows = [(k, is_, p.kind if p else "", _range(p), p.source if p else "") for k, is_, p in known]
    return Table(texts((name, "value", "kind", "plausible range", "source")), rows, title, {"source": "Sources"})


def _range(provenance: Provenance | None) -> str:
    if provenance is None or provenance.low is None:
        return ""
    return f"{provenance.low} to {provenance.high}"
