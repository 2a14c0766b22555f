"""Run a graph on a system: apply an overlap, lower, run the engine, collect the timeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from weft import hardware
from weft.core.errors import InputError, SimulationError, check_type
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.core.units import to_fs
from weft.engine import layout as y
from weft.engine.program import Program, build
from weft.engine.state import Machine as State
from weft.estimate import estimate
from weft.graph import (
    Collective,
    DmaCopies,
    FusedChunks,
    FusedTiles,
    Gemm,
    Graph,
    KernelChoice,
    Node,
    TrackedArrivals,
)
from weft.graph.choice import Kernel
from weft.graph.moe import routing_of
from weft.hardware import Described, System
from weft.models.parallel import work_of
from weft.overlaps import BUILT_IN, OverlapMethod, find_simulated, lower_under
from weft.overlaps.arbiters import ArbiterPolicy, find_policy
from weft.overlaps.corun import STREAMS
from weft.overlaps.lower import Lowered, check_operators, is_joined, is_program
from weft.overlaps.lower.fit import check_state, most_resident, occupancy
from weft.overlaps.lower.machine import default_request_bytes, machine_tables
from weft.overlaps.lower.masks import unequal_workgroups
from weft.simulate.kept import RunInputs, kept_or_made
from weft.simulate.result import Timeline

_FIRST_BIN_FS = 100_000_000
"""Initial width of the bins of a series [fs]; bins merge as a run gets longer."""
_FINE_REQUEST = 512
"""Request size where operators depend on each other [bytes]: eight 64-B accesses in one row, within 2 % of 64 B."""


def simulate(
    work: Graph | str,
    system: Described,
    overlap: str | OverlapMethod | None = None,
    options: RunOptions | None = None,
    *,
    tp: int | None = None,
    dtype: str | None = None,
    store: Store | None = None,
) -> Timeline:
    """Simulate `work` on `system` (a system, a GPU, or a name) under `overlap`, request by request.

    `work` is a graph, or a sub-layer's name, like "t-nlg/fc2", with its `tp` (and `dtype`). `overlap` is a name from
    `weft.overlaps()`, "file.py:Class" or a method of your own. None takes the baseline of the graph: "sequential" where
    a GEMM and its collective depend on each other, else "streams". With a `store` a run that it holds is read, and a
    new one is kept.

    Raises UnknownNameError for an unknown overlap, InputError for what cannot be simulated, SimulationError for a run
    that cannot finish; its message says which tile waits for what.
    """
    graph = work_of(work, tp, dtype)
    runner = Runner(graph, system, options, store)
    return runner.timeline(baseline(graph) if overlap is None else overlap)


def baseline(graph: Graph) -> OverlapMethod:
    """The method with which others are compared: the first one that accepts the graph; InputError if none does."""
    for method in BUILT_IN:
        if method.simulated and method.accepts(graph):
            return method
    check_operators(graph)
    raise InputError(
        f"no overlap applies to {graph}; give a GEMM with the collective before or after it, streams that do "
        "not wait for each other, or a method of your own"
    )


def request_bytes(graph: Graph, gpu: hardware.Gpu, fine: bool = False) -> int:
    """Return the size of memory requests, if the options do not set it [bytes].

    Fine where operators depend on each other, since tiles and chunks then decide when the next begins, and in programs,
    since what one operator leaves in the cache serves the next; otherwise the GPU's coarse default. `fine`: also fine,
    as where single channels are held or watched.
    """
    if not fine and routing_of(graph) is not None:
        return default_request_bytes(gpu)
    dependent = fine or any(node.edges for node in graph) or is_joined(graph) or is_program(graph)
    return _FINE_REQUEST if dependent else default_request_bytes(gpu)


@dataclass
class Runner:
    """Runs one graph on one system under any overlap, each at most once; names mean the methods of `own` first."""

    graph: Graph
    machine: Described
    given: RunOptions | None = None
    store: Store | None = None
    done: dict[OverlapMethod, Timeline] = field(default_factory=dict)
    own: dict[str, OverlapMethod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("the work", self.graph, Graph, "give a graph, like weft.sublayer('t-nlg', 'fc2', tp=8)")
        if self.given is not None:
            check_type("the options", self.given, RunOptions, "give weft.RunOptions(...)")
        self.system = _system(self.machine, self.graph)
        chosen = self.given or RunOptions()
        if chosen.request_bytes is None:
            size = request_bytes(self.graph, self.system.gpu, fine=bool(chosen.memory_work or chosen.heatmap))
            chosen = replace(chosen, request_bytes=size)
        self.options = chosen

    def timeline(self, overlap: str | OverlapMethod) -> Timeline:
        """The timeline under an overlap: simulated, or assembled from the runs that an ideal takes its times from."""
        chosen = find_simulated(overlap if isinstance(overlap, OverlapMethod) else self.own.get(overlap, overlap))
        if chosen in self.done:
            return self.done[chosen]
        chosen.check(self.graph)
        if chosen.parts:
            made = assemble_ideal(chosen, self.graph, {name: self.timeline(name) for name in chosen.parts})
        else:
            make = partial(self._simulate_overlap, chosen)
            inputs = RunInputs(self.graph, self.system, chosen, self.options, whole=True)
            store = self.store if self.options.memory_work is None else None
            made = make() if store is None else kept_or_made(store, inputs, make)
        self.done[chosen] = made
        return made

    def _simulate_overlap(self, overlap: OverlapMethod) -> Timeline:
        options = replace(self.options, arbiter=find_policy(self.options.arbiter or overlap.arbiter))
        lowered = lower_under(overlap, self.graph, self.system, options)
        return execute(lowered, self.system, options, overlap.name)


def assemble_ideal(overlap: OverlapMethod, graph: Graph, parts: Mapping[str, Timeline]) -> Timeline:
    """Return the timeline of an ideal, assembled from runs of `graph` by overlap."""
    first = next(iter(parts.values()))
    ran = overlap.apply(graph, first.gpu)
    times = {node.name: parts[overlap.source(node.name)].duration(node.name) for node in ran}
    return Timeline(
        graph=ran,
        system=first.system,
        options=first.options,
        overlap=overlap.name,
        arbiter="none",
        seconds=max(end for _, end in ran.critical_path(times).values()),
        durations=times,
        traffic=_ideal_traffic(overlap, parts),
        events=sum(part.events for part in parts.values()),
        requests=sum(part.requests for part in parts.values()),
        cpu_s=sum(part.cpu_s for part in parts.values()),
        parts=tuple(parts.values()),
    )


def _ideal_traffic(overlap: OverlapMethod, parts: Mapping[str, Timeline]) -> dict[Any, int]:
    """Traffic of an ideal: each operator's from the run that its time is from, other traffic from the usual run."""
    return {
        cause: amount
        for name, part in parts.items()
        for cause, amount in part.traffic.items()
        if overlap.source(cause[0]) == name
    }


def alone(
    op: Gemm | Collective, ranks: int = 8, kernel: Kernel | None = None, compute_units: tuple[int, ...] | None = None
) -> Graph:
    """A graph of one operator on its own, run by a kernel (None: the library's choice) on compute units (None: all)."""
    chosen = KernelChoice(kernel, compute_units)
    if isinstance(op, Collective):
        return Graph((Node(op, op.name, stream="communication", choice=chosen),), op.ranks, str(op))
    return Graph((Node(op, "gemm", stream="compute", choice=chosen),), ranks, f"GEMM {op}")


def execute(lowered: Lowered, system: System, options: RunOptions, overlap: str) -> Timeline:
    """Run a lowered graph; `options` has a request size and an arbiter. Raises as `simulate` does."""
    from weft.simulate.result.collect import carried_out, collect  # imported to run, not where a kept run is read

    policy = options.arbiter
    assert isinstance(policy, ArbiterPolicy)
    plan, gpu, work = lowered.plan, lowered.system.gpu, options.memory_work
    if options.workgroup_spread:
        plan = unequal_workgroups(plan, lowered.gpus, options)
    tables = machine_tables(lowered.system, lowered.gpus, options, most_resident(plan, gpu), lowered.group)
    if work is None:
        program = build(plan, tables)
    else:
        from weft.overlaps.lower.pim import take_commands

        program = build(plan, tables, take_commands(tables, gpu, work, options))
    check_state(program.tables, gpu)
    recorded = {"interference": options.interference, "heat": options.heatmap, "updates": options.updates}
    state, wall = run_program(program, policy, options.event_budget, _watch(lowered.graph, system, options), **recorded)
    kernels = [placed.kernel for placed in plan.kernels]
    explicit = options.mode == "explicit" or (options.mode == "auto" and lowered.gpus > 1)
    resident = {kernel.name: occupancy(kernel, gpu) for kernel in kernels if kernel.workgroups}
    return Timeline(
        graph=lowered.graph,
        system=system,
        options=replace(
            options, mode="explicit" if explicit else "mirrored", arbiter=None, progress=None, memory_work=None
        ),
        overlap=overlap,
        arbiter=policy.name,
        cpu_s=wall,
        **collect(program, state, resident),
        commands=None if work is None else carried_out(work, state),
    )


def _usual(node: Node) -> KernelChoice:
    """Return the library's own choice, on DMA engines if they move the node's data."""
    kernel = node.choice.kernel
    gathers = isinstance(node.op, Collective) and not node.op.reduces
    fused = isinstance(kernel, FusedTiles | FusedChunks | TrackedArrivals) and gathers
    return KernelChoice(DmaCopies() if fused or isinstance(kernel, DmaCopies) else None)


def _watch(graph: Graph, system: System, options: RunOptions) -> Callable[[int, int], None] | None:
    """Return the options' progress callback, extended by the end of this run that closed forms expect."""
    progress = options.progress
    if progress is None:
        return None

    @cache
    def end_fs() -> int:
        try:
            usual = graph.map(lambda node: replace(node, choice=_usual(node)))
            return to_fs(float(estimate(usual, system, RunOptions(clock=options.clock)).seconds))
        except InputError:
            return 0

    return lambda events, now_fs: progress(events, now_fs, end_fs)


def run_program(
    program: Program,
    policy: ArbiterPolicy,
    event_budget: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **recorded: Any,
) -> tuple[State, float]:
    """Run a program; returns the final state and the processor time without compilation [s]. Raises SimulationError.

    `recorded` says what the run records, as `weft.engine.run.execute` takes it.
    """
    from weft.engine.run import execute as run

    _prepare_engine()
    compiled = policy.compiled
    begin = time.process_time()
    try:
        status, machine = run(program.tables, compiled, _FIRST_BIN_FS, event_budget, progress, **recorded)
    except ArithmeticError as error:
        raise SimulationError(f"arbiter policy '{policy.name}' failed: {error}") from error
    if status != y.FINISHED:
        from weft.simulate.result.unfinished import explain  # only of a run that does not end

        raise SimulationError(explain(status, program, machine, policy.name))
    return machine, time.process_time() - begin


def _prepare_engine() -> None:
    """Load the engine's machine code; if there is none, print a notice on stderr and compile it.

    Raises InputError if other users could have written machine code there.
    """
    from weft.core.cache import cache_root
    from weft.core.store.records import checked_cache, say
    from weft.engine.code import is_compiled, keeps_code
    from weft.engine.loop import run

    checked_cache()
    if not run.is_ready and not is_compiled():
        alone = f" for this process alone, as the cache '{cache_root()}' cannot be written"
        how = ", once" if keeps_code() else alone
        say(f"compiling the engine{how}, about half a minute ...")
    run.prepare()


def _system(what: Described, graph: Graph) -> System:
    """Return the system that the graph runs on.

    Raises InputError for GPUs that cannot be spread evenly, and for a `System` of unlike GPUs with another number of
    them.
    """
    if not graph.collectives:
        return hardware.system(what)
    if isinstance(what, System) and _is_of_groups(what, graph):
        return what
    return hardware.system(what, gpus=graph.ranks)


def _is_of_groups(system: System, graph: Graph) -> bool:
    """Return whether GPUs that differ or that a fabric joins form several whole groups that each share the graph."""
    unlike = system.fabric is not None or (system.node is None and (system.variants or system.start))
    whole = system.gpus > graph.ranks and system.gpus % graph.ranks == 0
    return bool(unlike) and whole and not STREAMS.accepts(graph)
