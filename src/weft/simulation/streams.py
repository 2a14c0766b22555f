"""Run streams that do not depend on each other: a loop of GEMMs beside a loop of collectives, or a collective alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.collectives.fabric import fabric_of
from weft.collectives.library import Algorithm, choose
from weft.engine.state import Machine as State
from weft.errors import InputError
from weft.kernels import GemmTiling
from weft.overlap import ROUND_ROBIN, ArbiterPolicy
from weft.overlap.strategies import Strategy, find_strategy
from weft.overlap.streams import Collective, CollectiveLoop, GemmLoop, Streams, arranged
from weft.overlap.tile import tiling_for
from weft.predict import collective as closed_form
from weft.program import Program
from weft.result import Result
from weft.result.collect import loop_times
from weft.result.concurrent import Choice, Concurrency, LoopTimes
from weft.simulation.concurrent import check_first, units_for, units_held
from weft.simulation.runner import Runner, Watch, Where, collective_on, one_node, paced, whole
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
    "collective" (unless given) or "gemm". `request_bytes` is the channel interleave unless given. One GPU
    stands for all. The loops alone, with which both are compared, have the whole GPU and the library's own collective
    by compute units, or copies where that is what the strategy takes.

    Raises UnknownNameError for unknown names, InputError for what cannot be simulated, SimulationError for a run that
    cannot finish.
    """
    chosen = find_strategy(strategy)
    check_first(first)
    _check_counts(gemms, collectives)
    system = one_node(machine, ranks)
    moved = collective_on(machine, collective, bytes_, ranks, gemm.dtype, chosen.driver)
    units = units_for(chosen, units, collective, bytes_, machine, ranks=ranks, clock=clock)
    loop = GemmLoop(gemm, tiling or tiling_for(gemm, system.gpu, clock), gemms, clock)
    grain = request_bytes or system.gpu.memory.interleave
    runner = Runner(paced(system, moved), grain, clock, arbiter, event_budget, watch)
    gemm_alone = _loop(runner, Streams(replace(loop, count=min(gemms, ALONE)), None), "gemm")
    moved_alone = _loop(runner, Streams(None, CollectiveLoop(moved, ALONE)), moved.collective)
    count = collectives or max(1, round(gemms * gemm_alone.period / moved_alone.period))
    if chosen.partition and chosen.driver == "cu":
        moved = collective_on(machine, collective, bytes_, ranks, gemm.dtype, "cu", units)
    first = first or "collective"
    streams = arranged(chosen, system.gpu, loop, CollectiveLoop(moved, count), units, first)
    run = runner.run(streams, chosen.name)
    both = _times(run.program, run.state, ("gemm", gemm_alone), (moved.collective, moved_alone))
    return Concurrency(
        gpu=system.gpu.name,
        ranks=ranks,
        strategy=chosen,
        units={"gemm": units_held(run, "gemm"), "collective": units_held(run, moved.collective)},
        apart=units,
        first=first,
        gemm=both[0],
        collective=both[1],
        makespan=max(times.end for times in both),
        run=run.result,
        gemm_alone=gemm_alone.result,
        collective_alone=moved_alone.result,
        choice=None if chosen.driver == "dma" else _choice(moved, machine, gemm.dtype),
    )


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
    ring = collective_on(machine, collective, bytes_, ranks, dtype, "cu")
    runner = Runner(paced(system, ring), min(request_bytes, system.gpu.memory.interleave), clock)
    return _loop(runner, Streams(None, CollectiveLoop(ring, 1)), ring.collective).period


def _check_counts(gemms: int, collectives: int | None) -> None:
    for what, count in (("gemms", gemms), ("collectives", collectives)):
        if count is not None and not 1 <= count <= 1000:
            raise InputError(f"{what} is {count}; a loop has between 1 and 1000 iterations")


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
