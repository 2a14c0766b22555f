"""A simulated sub-layer on the terminal: times, where they went, traffic by cause, what blocks counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from weft.cli.tables import print_table
from weft.result import Comparison, KernelSpan, Result
from weft.units import format_rate

_CAUSES = {
    "gemm_read": "GEMM, reads",
    "gemm_write": "GEMM, writes",
    "rs_read": "RS, reads",
    "rs_write": "RS, writes",
    "rs_update": "RS, updates near memory",
    "ag_read": "AG, reads",
    "ag_write": "AG, writes",
    "tracker_spill": "tracker, spilled entries",
    "earlier_write": "earlier work, writes",
}
_WAITS = {
    "compute": "computed",
    "memory": "loads",
    "matrix_unit": "matrix",
    "store": "stores",
    "chunk": "chunks",
}
# Counter: how it is called, its unit, and what to multiply it with.
_COUNTERS = {
    "cache_hits": ("cache hits", "", 1.0),
    "cache_misses": ("cache misses", "", 1.0),
    "dram_bus_utilization": ("DRAM bus in use", " %", 100.0),
    "dram_queue_mean_accesses": ("DRAM queue, mean", " x 64 B", 1.0),
    "dram_activations": ("DRAM rows opened", "", 1.0),
    "dram_turnarounds": ("DRAM read/write turnarounds", "", 1.0),
    "link_utilization": ("link in use", " %", 100.0),
    "tracker_most_live": ("tracker entries, most in use", "", 1.0),
    "tracker_spills": ("tracker entries spilled", "", 1.0),
    "arbiter_intensity": ("memory intensity of the first stage", " %", 100.0),
    "arbiter_threshold_accesses": ("arbiter threshold", " x 64 B", 1.0),
    "arbiter_starved": ("communication let in for starving", "", 1.0),
}


def print_answer(answer: Result | Comparison) -> None:
    """Print the tables of one run, or of several side by side."""
    results = [answer] if isinstance(answer, Result) else list(answer)
    baseline = None if isinstance(answer, Result) else answer.baseline
    _print_times(results, baseline)
    simulated = [result for result in results if not result.parts]
    if simulated:
        _print_waits(simulated)
    print_traffic(results)
    if simulated:
        _print_counters(simulated)
    _print_effort(results)


def _print_times(results: Sequence[Result], baseline: Result | None) -> None:
    c = results[0].config
    changed = "".join(f", {change}" for change in c.changed)
    shape = f"{c.m} x {c.n} x {c.k} {c.dtype}"
    title = f"{c.model} {c.sublayer}, TP {c.tp}: {shape} on each {c.gpu}{changed}"
    columns = ["overlap", "GEMM us", "RS us", "AG us", "total us"]
    rows = [[result.config.overlap, *_times(result)] for result in results]
    if baseline is not None:
        columns.append("speedup")
        for row, result in zip(rows, results, strict=True):
            row.append(f"{result.speedup_over(baseline):.3f}")
    print_table(title, columns, rows, numbers=columns[1:])


def _times(result: Result) -> list[str]:
    t = result.times
    return [f"{seconds * 1e6:.1f}" for seconds in (t.gemm, t.reduce_scatter, t.all_gather, t.total)]


def _print_waits(results: Sequence[Result]) -> None:
    """Shares of the time that a kernel's workgroups spent on a compute unit, the mean of all GPUs."""
    columns = ["overlap", "kernel", "us", *_WAITS.values()]
    rows = [
        [result.config.overlap, name, *_wait_shares([k for k in result.kernels if k.name == name])]
        for result in results
        for name in dict.fromkeys(kernel.name for kernel in result.kernels)
    ]
    print_table("What workgroups spent their time on, or waited for [%]", columns, rows, numbers=columns[2:])


def _wait_shares(spans: Sequence[KernelSpan]) -> list[str]:
    spent = {what: sum(span.waits.get(what, 0) for span in spans) for what in _WAITS}
    whole = max(sum(spent.values()), 1)
    duration = max(span.end_fs - span.start_fs for span in spans)
    return [f"{duration / 1e9:.1f}", *(f"{time / whole:.1%}".rstrip("%") for time in spent.values())]


def print_traffic(results: Sequence[Result]) -> None:
    """Print what DRAM moved, by cause, a column per run."""
    found = _in_order((cause for result in results for cause in result.bytes), _CAUSES)
    columns = ["cause", *(result.config.overlap for result in results)]
    rows = [
        [_cause(cause, results), *(_megabytes(result.bytes.get(cause, 0)) for result in results)]
        for cause in found
    ]
    rows.append(["all", *(_megabytes(result.total_bytes) for result in results)])
    print_table("DRAM traffic of a GPU by cause [MB = 10^6 bytes]", columns, rows, numbers=columns[1:])


def _cause(cause: str, results: Sequence[Result]) -> str:
    """A cause in words; RS and AG stand for another collective where that is what runs."""
    words = _CAUSES.get(cause, cause)
    others = {result.config.lone_collective for result in results}
    name = others.pop() if len(others) == 1 else ""
    return f"{name}{words[2:]}" if name and cause.startswith(("rs_", "ag_")) else words


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}" if count else "-"


def _print_counters(results: Sequence[Result]) -> None:
    columns = ["counter", *(result.config.overlap for result in results)]
    rows = [
        [label, *(_counter(result.counters.get(name), unit, factor) for result in results)]
        for name, (label, unit, factor) in _COUNTERS.items()
        if any(result.counters.get(name) for result in results)
    ]
    print_table("What the blocks counted", columns, rows, numbers=columns[1:])


def _counter(value: float | None, unit: str, factor: float) -> str:
    if value is None:
        return "-"
    # Whole counts stay whole; shares and means get a decimal.
    return f"{value * factor:,.{0 if float(value).is_integer() and factor == 1 else 1}f}{unit}"


def _print_effort(results: Iterable[Result]) -> None:
    """How long the runs took: each once, also where an ideal is made of one that stands beside it."""
    runs = {id(run): run for result in results for run in (result.parts or (result,))}.values()
    events, wall_s = sum(run.events for run in runs), sum(run.wall_s for run in runs)
    mode, size = next(iter(runs)).config.mode, next(iter(runs)).config.request_bytes
    if note := next(iter(runs)).config.link_note:
        click.echo(f"link: {format_rate(next(iter(runs)).config.link_bytes_per_s, 4)}, {note}")
    click.echo(f"{events / 1e6:.1f} million events in {wall_s:.1f} s; mode {mode}, requests of {size} B")


def _in_order(found: Iterable[str], order: Iterable[str]) -> list[str]:
    """Each name once: the known ones in their order, then the others."""
    names = dict.fromkeys(found)
    return [*(name for name in order if name in names), *(name for name in names if name not in set(order))]
