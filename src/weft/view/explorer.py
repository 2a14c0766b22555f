"""The explorer of a run: streams, chunks, compute units, DRAM and link on one time axis, and the longest waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.core.report.table import Table, microseconds, number, text
from weft.simulate.result import Span, Timeline
from weft.simulate.result.timeline import ChunkSpan, words_of
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Lane, alt, areas, stack_figures, timeline_bars
from weft.view.units import held_stretches
from weft.view.words import us

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_US = 1e-9
"""One femtosecond in microseconds."""
_BINS = 1500
"""Number of time steps of the panels, over all runs together."""
_WAITS_SHOWN = 40
_BUFFERS = {"output": "RS", "received": "RS", "gathered": "AG", "arriving": "tokens", "coming": "answers"}
_MOVES = {"local": "written here", "remote": "arriving", "sent": "sent by DMA"}
_WAITING, _COMPLETE = "waiting to start", "complete"


def phases(run: Timeline, gpu: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end [us] of the GEMM, the reduce-scatter, the all-gather and other operators on a GPU.

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
    if starts and ends:
        found.setdefault("reduce_scatter", (min(starts) * _US, max(ends) * _US))
    order = [*looks.PHASES, *found]
    return dict(sorted(found.items(), key=lambda one: order.index(one[0])))


def operator_looks(run: Timeline) -> looks.Looks:
    """Return the labels and colours of a run's operators, no two alike: those of a sub-layer have their own.

    Others take neither those nor the colours of complete chunks and of the link.
    """
    names = dict.fromkeys(span.operator for span in run.spans)
    taken = {looks.RED, looks.GREEN, *(color for name, (_, color) in looks.PHASES.items() if name in names)}
    spare = looks.spread([words(name) for name in names if name not in looks.PHASES], taken)
    return {**dict(looks.PHASES.values()), **spare}


def words(operator: str) -> str:
    """Return an operator's label in a legend."""
    return looks.PHASES[operator][0] if operator in looks.PHASES else operator.replace("_", "-")


def timeline(runs: Timeline | Mapping[str, Timeline], gpu: int = 0) -> Figure:
    """Simulated runs one below the other on a common time axis [us]; brushing the top strip zooms.

    Raises InputError for an ideal, which has no events.
    """
    runs = {runs.overlap: runs} if isinstance(runs, Timeline) else runs
    for run in runs.values():
        if not run.spans:
            raise InputError(
                f"'{run.overlap}' has no timeline: it is an ideal, assembled from other runs; draw a simulated "
                "overlap instead"
            )
    until = max(run.seconds for run in runs.values()) * 1e6
    brush = alt.selection_interval(name="brush", encodings=["x"], value={"x": [0, until]})
    panels = [
        panel
        for at, (name, run) in enumerate(runs.items())
        for panel in _panels(f"run{at}", name, run, gpu, brush, _BINS // len(runs))
    ]
    first = next(iter(runs.values()))
    colors = operator_looks(first)
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    whole = alt.Scale(domain=[0, until], nice=False)
    strip = alt.Chart(alt.NamedData("strip")).transform_filter("datum.is_kernel").mark_bar(height=7).encode(
        alt.X("start_us:Q", title="time [µs], that of all panels", scale=whole), alt.X2("end_us"),
        alt.Y("lane:N", sort=None, axis=None), alt.Color("what:N", legend=None, scale=scale),
    )  # fmt: skip
    strip = strip.add_params(brush).properties(name="strip", height=14 * len(first.graph.streams) + 16)
    queues = "; ".join(
        f"{name}: {run.counters['dram_queue_mean_accesses']:.1f} on average, "
        f"{run.counters['dram_queue_most_accesses']} at most"
        for name, run in runs.items()
        if "dram_queue_mean_accesses" in run.counters
    )
    caption = (
        "All panels share the axis of time of the uppermost strip; the tooltip of a bar says what it waited for."
        f"{f' Accesses of 32 B in the queue of a memory channel: {queues}.' if queues else ''}"
    )
    return stack_figures(
        f"What happens when: {' beside '.join(runs)}", panels, caption, titled=True,
        strip=Figure("", strip, {"strip": _lanes(first, gpu)}),
    )  # fmt: skip


def _panels(key: str, name: str, run: Timeline, gpu: int, brush: Any, bins: int) -> Iterator[Figure]:
    """Lanes of kernels and chunks, then compute units held, DRAM traffic and link traffic over time."""
    lanes, operators = _lanes(run, gpu), operator_looks(run)
    moves = {"written here": looks.SKY, "arriving": looks.PINK, "sent by DMA": looks.DARK, _COMPLETE: looks.RED}
    colors = {**operators, _WAITING: "#BBBBBB", **moves}
    yield timeline_bars(
        f"{name}: kernels, their stages, and chunks", lanes, lane=Lane("lane", "row", px=26), start="start_us",
        end=Axis("end_us", title=" ", domain=brush), color=Color("what", colors), name=f"{key}_kernels",
    )  # fmt: skip
    if run.residency is not None:
        yield areas(
            f"{name}: compute units held [units]", _held_units(run, gpu, bins), x=Axis("time_us", domain=brush),
            looks=operators, height=110, limit=(run.residency.units, f"all {run.residency.units}"), name=f"{key}_held",
        )  # fmt: skip
    if run.series is None:
        return
    causes = looks.cause_looks(list(run.series.traffic))
    rates = {words_of(cause): run.series.rate(cause, gpu) / 1e9 for cause in run.series.traffic}
    peak, link = run.gpu.memory.bandwidth / 1e9, run.gpu.link.bandwidth / 1e9
    yield areas(
        f"{name}: DRAM traffic [GB/s]", over_time(run, {head: rates[head] for head in causes}, bins),
        x=Axis("time_us", domain=brush), looks=causes, limit=(peak, f"peak {peak:,.0f} GB/s"), height=170,
        name=f"{key}_dram",
    )  # fmt: skip
    sent = {"link out": run.series.link[gpu] / (run.series.bin_fs * 1e-15) / 1e9}
    yield areas(
        f"{name}: link out [GB/s]", over_time(run, sent, bins), x=Axis("time_us", domain=brush),
        looks={"link out": looks.GREEN}, limit=(link, f"{link:,.0f} GB/s"), height=70, name=f"{key}_link",
    )  # fmt: skip


def over_time(run: Timeline, rates: Mapping[str, Floats], bins: int = _BINS) -> Table:
    """Return a run's series as a table over time; neighbouring bins are averaged to give `bins` bins."""
    assert run.series is not None  # checked by the callers
    count = run.series.link.shape[1]
    starts = np.arange(0, count, max(1, -(-count // bins)))
    edges = np.append(starts, count)
    means = {head: np.round(np.add.reduceat(rate, starts) / np.diff(edges), 3) for head, rate in rates.items()}
    return _steps(edges * float(run.series.bin_fs), means, "GB/s")


def _held_units(run: Timeline, gpu: int, bins: int) -> Table:
    """Return how many compute units each operator's workgroups hold, on average, over time."""
    assert run.residency is not None
    edges = np.linspace(0, run.seconds * 1e15, bins + 1)
    found = {}
    for operator in dict.fromkeys(span.operator for span in run.spans):
        kernels = [span.kernel for span in run.spans if span.operator == operator]
        found[words(operator)] = np.round(held_units(*run.residency.of(gpu, kernels), edges), 2)
    return _steps(edges, found, "units")


def _steps(edges: Floats, values: Mapping[str, Floats], unit: str) -> Table:
    """Return a step function with the given edges [fs] as a table over time [us]."""
    columns = [microseconds("time", "time", 2), microseconds("until", "until", 2)]
    columns += [number(f"v{at}", head, unit, ",.1f") for at, head in enumerate(values)]
    rows = zip(edges[:-1] * _US, edges[1:] * _US, *values.values(), strict=True)
    return Table(columns, [list(row) for row in rows])


def held_units(units: Ints, starts: Ints, ends: Ints, edges: Floats) -> Floats:
    """Average number of held units between edges [fs]; overlapping workgroups on one unit count once."""
    _, *moments = held_stretches(units, starts, ends)
    begin, over = (np.sort(each).astype(np.float64) for each in moments)
    return np.diff(_integral(begin, edges) - _integral(over, edges)) / np.diff(edges)


def _integral(moments: Floats, edges: Floats) -> Floats:
    """At every edge, the sum of the times elapsed since all earlier moments."""
    passed = np.searchsorted(moments, edges)
    return np.asarray(edges * passed - np.append(0.0, np.cumsum(moments))[passed])


def _lanes(run: Timeline, gpu: int) -> Table:
    """Bars in lanes: kernels and stages by operator, chunks by activity."""
    columns = [
        text("lane"), number("row", " "), text("what"), text("name", "which"), microseconds("start", "start", 2),
        microseconds("end", "end", 2), microseconds("long", "takes", 2), text("waited", "waited for"),
        number("is_kernel", " "),
    ]  # fmt: skip
    rows = [
        (*about, start * _US, end * _US, (end - start) * _US, why, not about[1])
        for *about, start, end, why in (*_kernel_rows(run, gpu), *_chunk_rows(run, gpu))
    ]
    return Table(columns, rows)


def _kernel_rows(run: Timeline, gpu: int) -> Iterator[tuple[Any, ...]]:
    """Lane, row, operator, name, start, end [fs] and dependency of every kernel and its stages."""
    for span in (span for span in run.spans if span.gpu == gpu):
        lane, begun = words(span.operator), _begun(run, span)
        awaited = _awaited_name(run, span)
        why = f"began when {awaited} had ended" if awaited else ""
        yield lane, 0, _WAITING, span.kernel, span.start_fs, begun, why
        yield lane, 0, lane, span.kernel, begun, span.end_fs, f"{why}; {_spent(span)}".strip("; ")
        stages = [stage for stage in run.stages if stage.gpu == gpu and stage.kernel == span.kernel]
        for stage in stages if len(stages) > 1 else ():
            said = f"stage {stage.index}, {stage.workgroups} workgroups"
            yield lane, 1 + stage.index % 2, lane, said, stage.start_fs, stage.end_fs, _spent(span)


def _begun(run: Timeline, span: Span) -> int:
    """Return when the first stage of a kernel started [fs]."""
    stages = (stage.start_fs for stage in run.stages if (stage.gpu, stage.kernel) == (span.gpu, span.kernel))
    return min(stages, default=span.first_workgroup_fs)


def chunk_moves(run: Timeline, gpu: int) -> Iterator[tuple[ChunkSpan, str, int, int]]:
    """Yield every chunk of a GPU, its activity ("written here", "arriving" or "sent by DMA"), start and end [fs]."""
    for move, said in _MOVES.items():
        for chunk in (chunk for chunk in run.chunks if chunk.gpu == gpu):
            start, end = (getattr(chunk, f"{side}_{move}_fs") for side in ("first", "last"))
            if start is not None and end is not None:
                yield chunk, said, start, end


def _chunk_rows(run: Timeline, gpu: int) -> Iterator[tuple[Any, ...]]:
    for chunk, said, start, end in chunk_moves(run, gpu):
        name = f"{_name(chunk)}, {chunk.bytes / 1e6:.1f} MB"
        yield f"{_buffer(chunk)} {said}", 1 + chunk.position % 2, said, name, start, end, ""
    for chunk in run.chunks:
        if chunk.gpu == gpu and chunk.complete_fs is not None:
            begin = chunk.complete_fs - run.seconds * 1e15 / 400
            name, (why, late, _) = f"chunk {chunk.position}", _last_arrival(chunk)
            said = f"{why}, {us(late * 1e-15)} µs after the other" if why else ""
            yield "RS chunks complete", 1, _COMPLETE, name, begin, chunk.complete_fs, said


def _buffer(chunk: ChunkSpan) -> str:
    return _BUFFERS.get(chunk.buffer, chunk.buffer)


def _name(chunk: ChunkSpan) -> str:
    return f"{_buffer(chunk)} chunk {chunk.position}"


def _last_arrival(chunk: ChunkSpan) -> tuple[str, int, int]:
    """Return the last arrival of a chunk (the neighbour's data or this GPU's), its wait, and its end [fs]."""
    here, there = chunk.last_local_fs, chunk.last_remote_fs
    if here is None or there is None:
        return "", 0, 0
    return (
        "its last tile, computed here" if here > there else "the neighbour's data",
        abs(here - there),
        max(here, there),
    )


def _awaited_name(run: Timeline, span: Span) -> str:
    """Return the operator or kernel whose end a kernel waited for; empty if it was requested at the start."""
    if span.start_fs == 0:
        return ""
    ends = {name: end for name, (_, end) in phases(run, span.gpu).items()}
    node = next((node for node in run.graph if node.name == span.operator and node.iteration == span.iteration), None)
    after = [edge.node for edge in node.edges if edge.node in ends] if node is not None else []
    if after:
        return words(max(after, key=lambda name: ends[name]))
    before = [
        one for one in run.spans if one.gpu == span.gpu and one.stream == span.stream and one.end_fs <= span.start_fs
    ]
    return max(before, key=lambda one: one.end_fs).kernel if before else ""


def _spent(span: Span) -> str:
    """Return the activity in which the workgroups of a kernel spent most time."""
    whole = sum(span.waits.values())
    most = sorted(span.waits.items(), key=lambda one: -one[1])[:2]
    return ", ".join(f"{spent / whole:.0%} {looks.WAITS[why][0]}" for why, spent in most if spent) if whole else ""


def waits_table(runs: Mapping[str, Timeline], gpu: int = 0) -> Table:
    """Return the longest waits of runs on a GPU: waiter, cause, start and end."""
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
    """Waiter, cause, start and end [fs]."""
    mine = [span for span in run.spans if span.gpu == gpu]
    for span in mine:
        if awaited := _awaited_name(run, span):
            yield span.kernel, f"{awaited} to end", 0, span.start_fs
        yield span.kernel, "its launch", span.start_fs, span.first_workgroup_fs
        begun = _begun(run, span)
        holders = {one.kernel for one in mine if one.start_fs < begun and one.end_fs > span.start_fs} - {span.kernel}
        who = f" that {', '.join(sorted(holders)[:3])} held" if holders else ""
        yield span.kernel, f"compute units{who}", span.first_workgroup_fs, begun
    for chunk in (chunk for chunk in run.chunks if chunk.gpu == gpu):
        why, late, until = _last_arrival(chunk)
        yield _name(chunk), why, until - late, until
        if chunk.complete_fs is not None and chunk.first_sent_fs is not None:
            yield _name(chunk), "a DMA engine", chunk.complete_fs, chunk.first_sent_fs
