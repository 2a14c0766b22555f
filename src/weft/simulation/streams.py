"""Run streams that do not depend on each other: a loop of GEMMs beside a loop of collectives, or a collective alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.collectives.fabric import fabric_of
from weft.collectives.library import Algorithm, choose
from weft.engine.state import Machine as State
from weft.errors import InputError
from weft.kernels import GemmTiling
from weft.kernels.direct import DirectExchange
from weft.kernels.gemm import gemm_kernel
from weft.overlap import ROUND_ROBIN, ArbiterPolicy
from weft.overlap.gemms import occupancy
from weft.overlap.library_ring import library_ring
from weft.overlap.machine import default_request_bytes
from weft.overlap.strategies import STRATEGIES, Strategy, find_strategy
from weft.overlap.streams import Collective, CollectiveLoop, GemmLoop, Streams, arranged
from weft.overlap.tile import tiling_for
from weft.predict import collective as closed_form
from weft.program import Program
from weft.result import Result
from weft.result.collect import loop_times, residency
from weft.result.concurrent import Choice, Concurrency, Grid, LoopTimes, Strategies
from weft.simulation.concurrent import check_first, units_for, units_held
from weft.simulation.execution import Watch
from weft.simulation.runner import (
    Copies,
    Runner,
    Where,
    check_copies,
    collective_on,
    one_node,
    paced,
    whole,
)
from weft.workload import Gemm

RING_REQUEST_BYTES = 1024
"""Requests of a ring collective on its own: as exact as finer ones, as its few workgroups leave channels idle."""
ALONE = 2
"""Iterations of a loop that runs alone: the second one's time is that of all that follow."""


def beside(
    gemm: Gemm,
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    ranks: int = 8,
    strategy: str | Strategy = "streams",
    units: int | None = None,
    gemms: int = 4,
    collectives: int | None = None,
    first: str | None = None,
    copies: Copies | None = None,
    plain_ring: int | None = None,
    arbiter: ArbiterPolicy = ROUND_ROBIN,
    tiling: GemmTiling | None = None,
    request_bytes: int | None = None,
    clock: str = "sustained",
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> Concurrency:
    """What a loop of GEMMs and a loop of collectives cost each other on every one of `ranks` equal GPUs of a node.

    The two streams do not depend on each other; `strategy` says how they share the GPU, and `units` how many compute
    units are set apart where it partitions (None: where the collective's bandwidth saturates, or 8 beside DMA engines).
    `collective` moves `bytes_` (the whole buffer). `gemms` and `collectives` count iterations; by default the
    loop of collectives lasts about as long as that of the GEMMs. `first` is what the host launches first:
    "collective" or "gemm" (None: as the strategy says). `copies` are options of DMA engines where those drive the
    collective, such as {"prelaunched": True} (`weft.kernels.copies.DmaGather`). `plain_ring` replaces the library's
    all-reduce by one ring kernel without slices and staging, with so many bytes of a workgroup on their way.
    `request_bytes` suits the GPU unless given. One GPU stands for all.

    Raises UnknownNameError for unknown names, InputError for what cannot be simulated, SimulationError for a run that
    cannot finish.
    """
    chosen = find_strategy(strategy)
    check_copies(copies, chosen)
    options = _Options(
        ranks, gemms, collectives, first, copies, plain_ring, arbiter, tiling, request_bytes, clock, event_budget,
        watch,
    )  # fmt: skip
    return _Bench(gemm, collective, bytes_, machine, options).answer(chosen, units)


def beside_all(
    gemm: Gemm,
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    units: int | None = None,
    **options: Any,
) -> Strategies:
    """What `beside` answers under every strategy that can carry out the collective; options are those of `beside`.

    `units` are the compute units set apart for a collective by compute units. Loops alone are run once. Raises as
    `beside` does, InputError if no strategy can carry out the collective.
    """
    bench = _Bench(gemm, collective, bytes_, machine, replace(_DEFAULTS, **options))
    answers: dict[str, Concurrency] = {}
    refused: dict[str, InputError] = {}
    for strategy in STRATEGIES.values():
        apart = units if strategy.partition and strategy.driver == "cu" else None
        try:
            bench.moved(strategy.driver)
        except InputError as error:
            refused[strategy.name] = error
        else:
            answers[strategy.name] = bench.answer(strategy, apart)
    if not answers:
        raise next(iter(refused.values()))
    return Strategies(answers, {name: str(error) for name, error in refused.items()})


@dataclass(frozen=True)
class _Options:
    """How `beside` runs its loops."""

    ranks: int = 8
    gemms: int = 4
    collectives: int | None = None
    first: str | None = None
    copies: Copies | None = None
    plain_ring: int | None = None
    arbiter: ArbiterPolicy = ROUND_ROBIN
    tiling: GemmTiling | None = None
    request_bytes: int | None = None
    clock: str = "sustained"
    event_budget: int | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        check_first(self.first)
        check_copies(self.copies)
        for what, count in (("gemms", self.gemms), ("collectives", self.collectives)):
            if count is not None and not 1 <= count <= 1000:
                raise InputError(f"{what} is {count}; a loop has between 1 and 1000 iterations")


_DEFAULTS = _Options()


class _Bench:
    """A GEMM and a collective on a machine: each loop alone once, then both under any strategy."""

    def __init__(self, gemm: Gemm, collective: str, bytes_: int, machine: Where, options: _Options) -> None:
        self.collective, self.bytes_, self.machine, self.options = collective, bytes_, machine, options
        self.system = one_node(machine, options.ranks)
        tiling = options.tiling or tiling_for(gemm, self.system.gpu, options.clock, split=True)
        self.loop = GemmLoop(gemm, tiling, options.gemms, options.clock)
        self.alone: dict[str, _Loop] = {}

    def moved(self, driver: str, units: int | None = None) -> Collective:
        """The collective as a driver carries it out."""
        o, dtype = self.options, self.loop.gemm.dtype
        return collective_on(
            self.machine,
            self.collective,
            self.bytes_,
            o.ranks,
            dtype,
            driver,
            units,
            o.copies,
            o.plain_ring,
        )

    def answer(self, strategy: Strategy, units: int | None) -> Concurrency:
        """Both loops under a strategy, beside each alone."""
        o = self.options
        whole_ = self.moved(strategy.driver)
        apart = units_for(
            strategy, units, self.collective, self.bytes_, self.machine, ranks=o.ranks, clock=o.clock
        )
        gemm, alone = self._gemm_alone(), self._moved_alone(strategy.driver)
        library = self._moved_alone(self._library_driver())
        count = o.collectives or max(1, round(o.gemms * gemm.period / library.period))
        moved = self.moved("cu", apart) if strategy.partition and strategy.driver == "cu" else whole_
        first = o.first or strategy.first
        streams = arranged(strategy, self.system.gpu, self.loop, CollectiveLoop(moved, count), apart, first)
        run = self._runner(moved).run(streams, strategy.name)
        both = _times(run.program, run.state, ("gemm", gemm), (moved.collective, alone))
        return Concurrency(
            gpu=self.system.gpu.name,
            ranks=o.ranks,
            strategy=strategy,
            units={"gemm": units_held(run, "gemm"), "collective": units_held(run, moved.collective)},
            apart=apart,
            grid=self._grid(streams.gemm_units),
            first=first,
            copies=(o.copies or {}) if strategy.driver == "dma" else {},
            gemm=both[0],
            collective=both[1],
            library_alone=library.period,
            makespan=max(times.end for times in both),
            run=replace(run.result, residency=residency(run.program, run.state)),
            gemm_alone=gemm.result,
            collective_alone=alone.result,
            choice=None if strategy.driver == "dma" else _choice(moved, self.machine, self.loop.gemm.dtype),
            direct=isinstance(moved, DirectExchange),
        )

    def _grid(self, left: tuple[int, ...] | None) -> Grid:
        """How the GEMM's tiles fill the compute units that it may use (None: all)."""
        gpu, tiling = self.system.gpu, self.loop.tiling
        tiles = tiling.workgroups(self.loop.gemm)
        resident = occupancy(gemm_kernel(self.loop.gemm, gpu, tiling, self.loop.clock), gpu)
        have = gpu.compute.compute_units
        given = have if left is None else len(left)
        return Grid(tiling.rows, tiling.columns, tiles, resident, have, given, tiling.splits)

    def _library_driver(self) -> str:
        """What a library drives the collective by: compute units, where they can."""
        try:
            self.moved("cu")
        except InputError:
            return "dma"
        return "cu"

    def _gemm_alone(self) -> _Loop:
        streams = Streams(replace(self.loop, count=min(self.loop.count, ALONE)), None)
        if "gemm" not in self.alone:
            self.alone["gemm"] = _loop(self._runner(None), streams, "gemm")
        return self.alone["gemm"]

    def _moved_alone(self, driver: str) -> _Loop:
        if driver not in self.alone:
            moved = self.moved(driver)
            streams = Streams(None, CollectiveLoop(moved, ALONE))
            self.alone[driver] = _loop(self._runner(moved), streams, moved.collective)
        return self.alone[driver]

    def _runner(self, moved: Collective | None) -> Runner:
        o, system = self.options, self.system
        grain = o.request_bytes or default_request_bytes(system.gpu)
        return Runner(paced(system, moved), grain, o.clock, o.arbiter, o.event_budget, o.watch)


def ring_collective(
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    ranks: int = 8,
    dtype: str = "bf16",
    request_bytes: int = RING_REQUEST_BYTES,
    clock: str = "short",
) -> float:
    """How long the library's ring kernel takes for a collective of `bytes_` in the engine, launch included [s].

    Raises as `beside` does.
    """
    system = one_node(machine, ranks)
    ring = library_ring(collective, bytes_, ranks, whole(machine), dtype)
    runner = Runner(paced(system, ring), min(request_bytes, system.gpu.memory.interleave), clock)
    return _loop(runner, Streams(None, CollectiveLoop(ring, 1)), ring.collective).period


def _choice(moved: Collective, machine: Where, dtype: str) -> Choice | None:
    """What the machine's library would take for a collective; None for a machine that no library is known of."""
    fabric = fabric_of(whole(machine))
    if fabric.vendor == "none":
        return None
    algorithm, _ = choose(
        moved.collective,
        moved.bytes_,
        moved.ranks,
        fabric,
        nodes=-(-moved.ranks // fabric.gpus_per_node),
        floating=dtype != "int8",
    )
    taken = closed_form(moved.collective, moved.bytes_, moved.ranks, fabric, dtype=dtype)
    return Choice(Algorithm(int(algorithm)).name.lower(), float(taken.seconds))


@dataclass(frozen=True)
class _Loop:
    """A loop on its own: the time of one iteration [s], what its workgroups waited for [s], and the run."""

    period: float
    waits: dict[str, float]
    result: Result


def _loop(runner: Runner, streams: Streams, name: str) -> _Loop:
    """A loop of kernels called `name` on its own."""
    run = runner.run(streams)
    ends, waits = loop_times(run.program, run.state, name)
    period = ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)
    return _Loop(period, waits, run.result)


def _times(
    program: Program, state: State, first: tuple[str, _Loop], second: tuple[str, _Loop]
) -> tuple[LoopTimes, LoopTimes]:
    """Both loops, each by its name and what it takes alone."""
    found = [(name, alone, *loop_times(program, state, name)) for name, alone in (first, second)]
    last = [ends[-1] for _, _, ends, _ in found]
    one, other = (
        LoopTimes(
            name=name,
            count=len(ends),
            alone=alone.period,
            concurrent=ends[-1] / len(ends),
            both=_beside(ends, until),
            end=ends[-1],
            waits=waits,
            waits_alone=alone.waits,
        )
        for (name, alone, ends, waits), until in zip(found, reversed(last), strict=True)
    )
    return one, other


def _beside(ends: list[float], until: float) -> float:
    """The mean time of the iterations that ended while the other loop ran, which was `until`; else of the first [s]."""
    beside = max(1, sum(end <= until for end in ends))
    return ends[beside - 1] / beside
