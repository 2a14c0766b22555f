"""Several overlaps of one graph side by side, and co-running loops against each loop alone."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from weft.core.errors import InputError, check_type, check_whole
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.graph import Collective, Driver, Gemm, Graph, KernelChoice, concurrent
from weft.hardware import Described, Stragglers, slowest
from weft.models.parallel import work_of
from weft.overlaps import CoRunStrategy, OverlapMethod, find_simulated, simulated_methods
from weft.overlaps.corun import STREAMS, alone_key, compare_alone
from weft.simulate.result import Comparison, Timeline
from weft.simulate.result.comparison import Drawn
from weft.simulate.single import Runner, baseline, simulate

ALONE = 2
"""Iterations of an isolated loop: the second one's time is that of all later ones."""


def compare(
    work: Graph | str,
    system: Described,
    overlaps: str | OverlapMethod | Iterable[str | OverlapMethod] | None = None,
    options: RunOptions | None = None,
    *,
    tp: int | None = None,
    dtype: str | None = None,
    store: Store | None = None,
    stragglers: Stragglers | str | None = None,
) -> Comparison:
    """Simulate `work` on `system` under one or several overlaps (None: every overlap that accepts the graph).

    `work` is a graph, or a sub-layer's name, like "t-nlg/fc2", with its `tp` (and `dtype`). For a GEMM with the
    collective of its own output the baseline "sequential" is added; a pass of that name, such as one with another
    algorithm, takes its place, also where an ideal takes its times from. For independent streams a short loop of each
    operator alone is added. Runs that several overlaps need are made once. Of every overlap, those that the machine
    cannot run are listed with the reason; so are ways to share a GPU that cannot run a collective, as long as another
    one can. `store` as in `simulate`.

    `stragglers`, like "one:5%", "one:1/2/5/10%", "gpus:8%,draws=5" or "workgroups:2%" (`weft.hardware.Stragglers`),
    differ in their clocks; a GEMM with the collective of its own output then also runs on equal GPUs, to say what they
    cost (`Comparison.drawn`, `Comparison.late_rows`).

    Raises what `simulate` raises.
    """
    graph = work_of(work, tp, dtype)
    runner = Runner(graph, system, options, store)
    first = baseline(graph)
    chosen = _accepting(graph) if overlaps is None else _find_methods(overlaps)
    first = next((one for one in chosen if one.name == first.name), first)
    runner.own[first.name] = first
    if first.applies_to("corun"):
        if stragglers is not None:
            raise InputError(
                "stragglers make GPUs wait for each other in a sub-layer, but these streams are independent; leave "
                "stragglers out, or give a GEMM with the collective of its own output"
            )
        return _compare_streams(runner, chosen)
    late = None if stragglers is None else Stragglers.of(stragglers)
    runners = [runner] if late is None else _draw_runners(runner, late)
    runs: dict[str, list[Timeline]] = {}
    refused: dict[str, str] = {}
    for one in dict.fromkeys((first, *chosen)):
        try:
            runs[one.name] = [each.timeline(one) for each in runners]
        except InputError as error:  # of every overlap, those that the machine cannot run are left out
            if overlaps is not None or one is first:
                raise
            refused[one.name] = str(error)
    if late is None:
        return Comparison({name: each[0] for name, each in runs.items()}, refused=refused)
    return Comparison(
        {name: each[1] for name, each in runs.items()},
        refused=refused,
        drawn={name: Drawn(first.seconds, tuple(run.seconds for run in rest)) for name, (first, *rest) in runs.items()},
        stragglers=late,
        slowest=tuple(slowest(each.system) for each in runners[1:]),
    )


def _draw_runners(equal: Runner, stragglers: Stragglers) -> list[Runner]:
    """Runners of equal GPUs and of the stragglers of every draw, all simulated GPU by GPU."""
    machines = [(equal.system, replace(equal.options, mode="explicit")), *stragglers.runs(equal.system, equal.options)]
    return [Runner(equal.graph, system, options, equal.store, own=equal.own) for system, options in machines]


def _find_methods(overlaps: str | OverlapMethod | Iterable[str | OverlapMethod]) -> list[OverlapMethod]:
    """Return the methods that `overlap` names: one, or several."""
    several = (overlaps,) if isinstance(overlaps, str | OverlapMethod) else overlaps
    check_type("the overlaps", several, Iterable, "give a name like 't3', or a list of names")
    chosen = [find_simulated(one) for one in several]
    if not chosen:
        raise InputError("there is no overlap to compare; name some, or leave them out for every one")
    return chosen


def _accepting(graph: Graph) -> list[OverlapMethod]:
    return [method for method in simulated_methods().values() if method.compared and method.accepts(graph)]


def _compare_streams(runner: Runner, chosen: list[OverlapMethod]) -> Comparison:
    """Co-running streams under each overlap, each operator alone, and the reasons of overlaps that cannot run."""
    lone = _Alone(runner)
    timelines: dict[str, Timeline] = {}
    refused: dict[str, InputError] = {}
    for one in chosen:
        try:
            lone.add(one)
        except InputError as error:
            refused[one.name] = error
        else:
            timelines[one.name] = runner.timeline(one)
    if not timelines:
        raise next(iter(refused.values()))
    return Comparison(timelines, lone.found, {name: str(error) for name, error in refused.items()})


class _Alone:
    """Short loops of each stream on its own, each simulated once."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.found: dict[str, Timeline] = {}

    def add(self, overlap: OverlapMethod) -> None:
        """Run each stream of an overlap alone; InputError if the overlap cannot run one of its collectives.

        A collective is compared with the library's kernel on compute units or, if there is none, with its own driver.
        """
        on_units, driven = compare_alone(overlap)
        for node in self.runner.graph.collectives:
            lone = self._run(alone_key(node.name, overlap.moved_by, driven.channels), node.stream, driven)
            with suppress(InputError):
                lone = self._run(alone_key(node.name, Driver.CU, on_units.channels), node.stream, on_units)
            self.found[node.name] = lone
        for node in self.runner.graph.gemms:
            self._run(node.name, node.stream, STREAMS)

    def _run(self, name: str, stream: str, overlap: CoRunStrategy) -> Timeline:
        if name not in self.found:
            graph = self.runner.graph.only(stream, iterations=ALONE)
            self.found[name] = simulate(
                graph, self.runner.system, overlap, self.runner.options, store=self.runner.store
            )
        return self.found[name]


def balance_loops(
    gemm: Gemm,
    collective: Collective,
    system: Described,
    overlap: str | OverlapMethod = "streams",
    options: RunOptions | None = None,
    gemms: int = 4,
    store: Store | None = None,
    choice: KernelChoice | None = None,
) -> Graph:
    """Loops of GEMMs and collectives that take about equally long when each runs alone.

    `choice` says what is known of the collective's kernel. `store` as in `simulate`. Raises as `simulate` does.
    """
    check_whole("gemms", gemms, 1, 4)
    graph = concurrent(gemm, collective, min(gemms, ALONE), ALONE, choice)
    lone = _Alone(Runner(graph, system, options, store))
    lone.add(find_simulated(overlap))
    ratio = lone.found["gemm"].period("gemm") / lone.found[collective.name].period(collective.name)
    return concurrent(gemm, collective, gemms, max(1, round(gemms * ratio)), choice)
