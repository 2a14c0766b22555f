"""Numbers and names in words, and tables that several answers share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from weft.core.report.table import NONE, Table, microseconds, texts

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.hardware import Gpu, Provenance
    from weft.simulate.result import Timeline

PHASES = (
    microseconds("gemm", "GEMM"), microseconds("rs", "RS"), microseconds("ag", "AG"), microseconds("total", "total")
)  # fmt: skip


def us(seconds: float, digits: int = 1) -> str:
    """Return a time in microseconds, without the unit."""
    return f"{seconds * 1e6:,.{digits}f}"


def percent(share: float | None) -> str:
    """Return a fraction in whole percent, never "-0%"; a dash for None."""
    return NONE if share is None else f"{round(share, 2) + 0:.0%}"


def sentence(words: str) -> str:
    """Make a sentence: capital first letter, one full stop at the end."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def case_label(graph: Graph) -> str:
    """Return a short label of the sub-layer that a graph is."""
    names = dict.fromkeys(filter(None, (graph.labels.get("model"), graph.labels.get("sublayer"))))
    return f"{' '.join(names)}, TP {graph.ranks}" if names else str(graph)


def changed_values(gpu: Gpu) -> str:
    """Return the values of a GPU that the user changed, to append to its name."""
    return "".join(f", {change}" for change in gpu.changes)


def phase_times(run: Timeline) -> list[float]:
    """Return the times of GEMM, reduce-scatter, all-gather and total [us]."""
    return [*(run.duration(name) * 1e6 for name in ("gemm", "reduce_scatter", "all_gather")), run.seconds * 1e6]


def effort(runs: Iterable[Timeline]) -> str:
    """Return how much was simulated, in a sentence; runs shared with an assembled ideal count once."""
    made = list({id(run): run for each in runs for run in (each.parts or (each,))}.values())
    events, cpu_s, options = sum(run.events for run in made), sum(run.cpu_s for run in made), made[0].options
    effort = f"{events / 1e6:.1f} million events in {cpu_s:.1f} s"
    memory = "" if options.memory == "banks" else f", memory by {options.memory}"
    return f"{effort}; mode {options.mode}, requests of {options.request_bytes} B{memory}"


def link_note(run: Timeline) -> str:
    """Return which ring limits the link of a GPU; empty if its own link does, or on two levels."""
    from weft.graph import TrackedRing
    from weft.overlaps.lower.machine import ring_note

    kernels = (node.choice.kernel for node in run.graph)
    two_level = any(isinstance(kernel, TrackedRing) and kernel.two_level for kernel in kernels)
    return "" if two_level else ring_note(run.system)


def machine_table(
    gpu: Gpu, kinds: Sequence[str] = ("published", "peak", "measured", "derived", "set by user")
) -> Table:
    """Return the machine's values of the given kinds, with their sources."""
    rows = [(path, p.text, p.kind, p.source) for path, p in gpu.provenance.items() if p.kind in kinds]
    return Table(texts(("value", "is", "kind", "source")), rows)


def assumed_table(gpu: Gpu) -> Table:
    """Return the machine's assumed values, each with its plausible range and the reason."""
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
