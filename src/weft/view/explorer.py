"""The explorer of a run: streams, chunks, compute units, DRAM and link on one axis of time, and who waited for what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.result import Span, Timeline
from weft.result.timeline import words_of
from weft.view import looks
from weft.view.figure import Figure, alt, areas, spans
from weft.view.table import Table, microseconds, number, text
from weft.view.units import held_stretches
from weft.view.words import us

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_US = 1e-9
"""Microseconds of a femtosecond."""
_BINS = 1500
"""Moments of the panels over time, of all runs together."""
_MOMENTS = (microseconds("time", "time", 2), microseconds("until", "until", 2))
_WAITS_SHOWN = 40
_BUFFERS = {"output": "RS", "received": "RS", "result": "RS result", "gathered": "AG"}
_DEEDS = {"local": "written here", "remote": "arriving", "sent": "sent by DMA"}
_WAITING, _COMPLETE = "waiting to start", "complete"


def phases(run: Timeline, gpu: int = 0) -> dict[str, tuple[float, float]]:
    """When GEMM, reduce-scatter and all-gather, or other operators, ran on a GPU, start and end [us].

    A fused reduce-scatter runs from the first byte that arrives to the last chunk's completion; an ideal's
    phases are placed as its graph says.
    """
    if not run.spans:
        placed = run.graph.critical_path(run.durations)
        return {name: (begin * 1e6, end * 1e6) for name, (begin, end) in placed.items()}
    found: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(span.operator for span in run.spans):
        own = [span for span in run.spans if span.operator == name and span.gpu == gpu]
        found[name] = min(s.start_fs for s in own) * _US, max(s.end_fs for s in own) * _US
    output = [chunk for chunk in run.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [c.first_remote_fs for c in output if c.first_remote_fs is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    if starts and ends and "reduce_scatter" not in found:
        found["reduce_scatter"] = min(starts) * _US, max(ends) * _US
    return dict(
        sorted(found.items(), key=lambda one: list(looks.PHASES).index(one[0]) if one[0] in looks.PHASES else 9)
    )


def operator_looks(run: Timeline) -> looks.Looks:
    """The words and colours of a run's operators."""
    names = list(dict.fromkeys((*looks.PHASES, *(span.operator for span in run.spans))))
    spare = looks.spread([name for name in names if name not in looks.PHASES])
    return dict(looks.PHASES.get(name, (words(name), spare.get(name, ""))) for name in names)


def words(operator: str) -> str:
    """An operator as a legend names it."""
    return looks.PHASES[operator][0] if operator in looks.PHASES else operator.replace("_", "-")


def timeline(runs: Timeline | Mapping[str, Timeline], gpu: int = 0) -> Figure:
    """Simulated runs by name below each other on one axis of time [us], which a brush in the uppermost strip zooms.

    Raises InputError for an ideal, which has no events.
    """
    runs = {runs.overlap: runs} if isinstance(runs, Timeline) else runs
    for run in runs.values():
        if not run.spans:
            raise InputError(
                f"'{run.overlap}' has no timeline: it is an ideal, put together from other runs; draw a simulated "
                "overlap instead"
            )
    until = max(run.seconds for run in runs.values()) * 1e6
    brush = alt.selection_interval(name="brush", encodings=["x"], value={"x": [0, until]})
    data: dict[str, Table] = {}
    panels: list[Any] = []
    for at, (name, run) in enumerate(runs.items()):
        for figure in _panels(f"run{at}", name, run, gpu, brush, _BINS // len(runs)):
            panels.append(figure.chart.properties(title=alt.Title(figure.title, fontSize=12), width=720))
            data |= figure.data
    first = next(iter(runs.values()))
    data["strip"] = _lanes(first, gpu)
    whole = alt.Scale(domain=[0, until], nice=False)
    strip = alt.Chart(alt.NamedData("strip")).transform_filter("datum.is_kernel").mark_bar(height=7).encode(
        alt.X("start_us:Q", title="time [µs], that of all panels", scale=whole), alt.X2("end_us"),
        alt.Y("lane:N", sort=None, axis=None), alt.Color("what:N", legend=None, scale=_scale(operator_looks(first))),
    )  # fmt: skip
    strip = strip.add_params(brush).properties(name="strip", height=14 * len(first.graph.streams) + 16)
    chart = alt.vconcat(strip, alt.vconcat(*panels).resolve_scale(color="independent"))
    shown = " beside ".join(runs)
    queues = "; ".join(
        f"{name}: {run.counters['dram_queue_mean_accesses']:.1f} on average and "
        f"{run.counters['dram_queue_most_accesses']} at most"
        for name, run in runs.items()
        if "dram_queue_mean_accesses" in run.counters
    )
    caption = (
        "All panels share the axis of time of the uppermost strip; a bar tells what it waited for."
        f"{f' In the queue of a memory channel stood, in accesses of 32 B: {queues}.' if queues else ''}"
    )
    return Figure(f"What happens when: {shown}", chart.resolve_scale(color="independent"), data, caption)


def _scale(colors: looks.Looks) -> Any:
    return alt.Scale(domain=list(colors), range=list(colors.values()))


def _panels(key: str, name: str, run: Timeline, gpu: int, brush: Any, bins: int) -> Iterator[Figure]:
    lanes = _lanes(run, gpu)
    kinds = dict.fromkeys(row[2] for row in lanes.rows)
    deeds = {"written here": looks.SKY, "arriving": looks.PINK, "sent by DMA": looks.DARK, _COMPLETE: looks.RED}
    colors = {
        kind: color for kind, color in {**operator_looks(run), _WAITING: "#BBBBBB", **deeds}.items() if kind in kinds
    }
    yield spans(
        f"{name}: kernels, their stages, and chunks", lanes, lane="lane", start="start_us", end="end_us", kind="what",
        looks=colors, offset="row", row_px=26, zoom=brush, unit="", name=f"{key}_kernels",
    )  # fmt: skip
    if run.residency is not None:
        held = _held(run, gpu, bins)
        yield areas(
            f"{name}: compute units held [units]", held, looks=operator_looks(run), zoom=brush,
            height=110, limit=(run.residency.units, f"all {run.residency.units}"), name=f"{key}_held",
        )  # fmt: skip
    if run.series is None:
        return
    causes = looks.cause_looks(list(run.series.traffic))
    rates = {words_of(cause): run.series.rate(cause, gpu) / 1e9 for cause in run.series.traffic}
    peak, link = run.gpu.memory.bandwidth / 1e9, run.gpu.link.bandwidth / 1e9
    yield areas(
        f"{name}: DRAM traffic [GB/s]", over_time(run, {head: rates[head] for head in causes}, bins),
        looks=causes, zoom=brush, limit=(peak, f"peak {peak:,.0f} GB/s"), height=170,
        name=f"{key}_dram",
    )  # fmt: skip
    sent = run.series.link[gpu] / (run.series.bin_fs * 1e-15) / 1e9
    yield areas(
        f"{name}: link out [GB/s]", over_time(run, {"link out": sent}, bins),
        looks={"link out": looks.GREEN}, zoom=brush, limit=(link, f"{link:,.0f} GB/s"), height=70, name=f"{key}_link",
    )  # fmt: skip


def over_time(run: Timeline, rates: Mapping[str, Floats], bins: int = _BINS) -> Table:
    """Values per bin of a run's series as a table over time, so many bins taken together that at most `bins` remain."""
    assert run.series is not None  # asked for by those who have one
    count = run.series.link.shape[1]
    together = max(1, -(-count // bins))
    starts = np.arange(0, count, together)
    sizes = np.diff(np.append(starts, count))
    width = run.series.bin_fs * _US
    means = [np.round(np.add.reduceat(rate, starts) / sizes, 3) for rate in rates.values()]
    columns = list(_MOMENTS)
    columns += [number(f"v{at}", head, "GB/s", ",.1f") for at, head in enumerate(rates)]
    rows = zip(starts * width, (starts + sizes) * width, *means, strict=True)
    return Table(columns, [list(row) for row in rows])


def _held(run: Timeline, gpu: int, bins: int) -> Table:
    """How many compute units each operator's workgroups hold, on average, over time."""
    assert run.residency is not None
    whole = run.seconds * 1e15
    edges = np.linspace(0, whole, bins + 1)
    columns = list(_MOMENTS)
    found = []
    for at, operator in enumerate(dict.fromkeys(span.operator for span in run.spans)):
        kernels = [span.kernel for span in run.spans if span.operator == operator]
        found.append(np.round(held_units(*run.residency.of(gpu, kernels), edges), 2))
        columns.append(number(f"v{at}", words(operator), "units", ",.1f"))
    return Table(columns, [list(row) for row in zip(edges[:-1] * _US, edges[1:] * _US, *found, strict=True)])


def held_units(units: Ints, starts: Ints, ends: Ints, edges: Floats) -> Floats:
    """How many units are held between edges [fs], on average: workgroups of one unit at a time count once."""
    begin, over = (np.sort(moments).astype(np.float64) for moments in held_stretches(units, starts, ends))
    return np.diff(_integral(begin, edges) - _integral(over, edges)) / np.diff(edges)


def _integral(moments: Floats, edges: Floats) -> Floats:
    """The time since each of the moments that have passed, added up, at every edge."""
    passed = np.searchsorted(moments, edges)
    return np.asarray(edges * passed - np.append(0.0, np.cumsum(moments))[passed])


def _lanes(run: Timeline, gpu: int) -> Table:
    """Kernels and stages by operator, and chunks by what was done with them, as bars in lanes."""
    rows = [*_kernel_rows(run, gpu), *_chunk_rows(run, gpu)]
    columns = [
        text("lane"), number("row", " "), text("what"), text("name", "which"), microseconds("start", "start", 2),
        microseconds("end", "end", 2), microseconds("long", "takes", 2), text("waited", "waited for"),
        text("is_kernel", " "),
    ]  # fmt: skip
    made = [(*row[:4], row[4] * _US, row[5] * _US, (row[5] - row[4]) * _US, row[6], not row[1]) for row in rows]
    return Table([*columns[:-1], number("is_kernel", " ")], made)


def _kernel_rows(run: Timeline, gpu: int) -> Iterator[tuple[Any, ...]]:
    for span in (span for span in run.spans if span.gpu == gpu):
        lane = words(span.operator)
        stages = [stage for stage in run.stages if stage.gpu == gpu and stage.kernel == span.kernel]
        begun = stages[0].start_fs if stages else span.first_workgroup_fs
        why = _awaited(run, span)
        yield lane, 0, _WAITING, span.kernel, span.start_fs, begun, why
        yield lane, 0, words(span.operator), span.kernel, begun, span.end_fs, f"{why}; {_spent(span)}".strip("; ")
        if len(stages) > 1:
            for stage in stages:
                said = f"stage {stage.index}, {stage.workgroups} workgroups"
                yield lane, 1 + stage.index % 2, words(span.operator), said, stage.start_fs, stage.end_fs, _spent(span)


def _chunk_rows(run: Timeline, gpu: int) -> Iterator[tuple[Any, ...]]:
    for deed, said in _DEEDS.items():
        for chunk in (chunk for chunk in run.chunks if chunk.gpu == gpu):
            start, end = (getattr(chunk, f"{side}_{deed}_fs") for side in ("first", "last"))
            if start is not None and end is not None:
                what = _BUFFERS.get(chunk.buffer, chunk.buffer)
                name = f"{what} chunk {chunk.position}, {chunk.bytes / 1e6:.1f} MB"
                yield f"{what} {said}", 1 + chunk.position % 2, said, name, start, end, ""
    for chunk in run.chunks:
        if chunk.gpu == gpu and chunk.complete_fs is not None:
            late = run.seconds * 1e15 / 400
            name, at = f"chunk {chunk.position}", chunk.complete_fs
            yield "RS chunks complete", 1, _COMPLETE, name, at - late, at, _completed_by(chunk)


def _completed_by(chunk: Any) -> str:
    """What a chunk waited for at the end: the neighbour's data, or this GPU's own."""
    if chunk.last_remote_fs is None or chunk.last_local_fs is None:
        return ""
    here, there = chunk.last_local_fs, chunk.last_remote_fs
    slower, longer = ("its last tile, computed here", here - there) if here > there else ("the neighbour", there - here)
    return f"{slower}, {us(abs(longer) * 1e-15)} µs after the other"


def _awaited(run: Timeline, span: Span) -> str:
    """What held a kernel up until it was requested: what it depends on, whichever ended last."""
    ends = {name: end for name, (_, end) in phases(run, span.gpu).items()}
    node = next((node for node in run.graph if node.name == span.operator and node.iteration == span.iteration), None)
    before = [
        one for one in run.spans if one.gpu == span.gpu and one.stream == span.stream and one.end_fs <= span.start_fs
    ]
    if span.start_fs == 0:
        return ""
    after = [edge.node for edge in node.edges if edge.node in ends] if node is not None else []
    if after:
        return f"began when {words(max(after, key=lambda name: ends[name]))} had ended"
    return f"began when {max(before, key=lambda one: one.end_fs).kernel} had ended" if before else ""


def _spent(span: Span) -> str:
    """What the workgroups of a kernel spent most time on."""
    whole = sum(span.waits.values())
    most = sorted(span.waits.items(), key=lambda one: -one[1])[:2]
    return ", ".join(f"{spent / whole:.0%} {looks.WAITS[why][0]}" for why, spent in most if spent) if whole else ""


def waits_table(runs: Mapping[str, Timeline], gpu: int = 0) -> Table:
    """The longest waits of runs on a GPU: what waited, for what, from when until when."""
    found = [(name, *row) for name, run in runs.items() for row in _waits(run, gpu)]
    longest = sorted((row for row in found if row[4] > row[3]), key=lambda row: row[3] - row[4])[:_WAITS_SHOWN]
    rows = [(*row[:3], row[3] * _US, row[4] * _US, (row[4] - row[3]) * _US) for row in longest]
    columns = [
        text("run"), text("what", "what waited"), text("for", "for what"), microseconds("start", "from", 2),
        microseconds("end", "until", 2), microseconds("long", "waited", 2),
    ]  # fmt: skip
    table = Table(columns, rows, "The longest waits; click one to see it in the figure above")
    return table if len(runs) > 1 else table.without(["run"])


def _waits(run: Timeline, gpu: int) -> Iterator[tuple[str, str, int, int]]:
    """What waited, for what, from and until [fs]."""
    mine = [span for span in run.spans if span.gpu == gpu]
    for span in mine:
        stages = [stage for stage in run.stages if stage.gpu == gpu and stage.kernel == span.kernel]
        begun = min((stage.start_fs for stage in stages), default=span.first_workgroup_fs)
        if span.start_fs:
            yield (
                span.kernel,
                _awaited(run, span).replace("began when ", "").replace(" had ended", " to end"),
                0,
                span.start_fs,
            )
        yield span.kernel, "its launch", span.start_fs, span.first_workgroup_fs
        if begun > span.first_workgroup_fs:
            holders = {
                one.kernel
                for one in mine
                if one.kernel != span.kernel and one.start_fs < begun and one.end_fs > span.start_fs
            }
            who = ", ".join(sorted(holders)[:3])
            yield span.kernel, f"compute units{f' that {who} held' if who else ''}", span.first_workgroup_fs, begun
    for chunk in (chunk for chunk in run.chunks if chunk.gpu == gpu):
        name = f"{_BUFFERS.get(chunk.buffer, chunk.buffer)} chunk {chunk.position}"
        here, there, sent = chunk.last_local_fs, chunk.last_remote_fs, chunk.first_sent_fs
        if here is not None and there is not None and here != there:
            slower = "its last tile, computed here" if here > there else "the neighbour's data"
            yield name, slower, min(here, there), max(here, there)
        if chunk.complete_fs is not None and sent is not None and sent > chunk.complete_fs:
            yield name, "a DMA engine", chunk.complete_fs, sent
