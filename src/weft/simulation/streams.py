"""Run streams that do not depend on each other: a loop of GEMMs beside a loop of collectives, or a collective alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from weft.collectives.fabric import fabric_of
from weft.collectives.library import Algorithm, choose
from weft.engine import layout as y
from weft.engine.state import Machine as State
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelRing
from weft.overlap import ROUND_ROBIN, ArbiterPolicy, PhaseTimes
from weft.overlap.library_ring import dma_collective, library_ring
from weft.overlap.machine import machine_tables
from weft.overlap.nodes import system_for
from weft.overlap.streams import Collective, CollectiveLoop, GemmLoop, Streams
from weft.overlap.tile import tiling_for
from weft.predict import collective as closed_form
from weft.program import Program, build
from weft.result import Result, RunConfig
from weft.result.collect import collect, loop_times
from weft.result.concurrent import Choice, Concurrency, LoopTimes
from weft.simulation.execution import most_resident, run_program
from weft.workload import Gemm

RING_REQUEST_BYTES = 1024
"""Requests of a ring collective on its own: as exact as finer ones, as its few workgroups leave channels idle."""
ALONE = 2
"""Iterations of a loop that runs alone: the second one's time is that of all that follow."""
DRIVERS = ("cu", "dma")
STREAMS = ("collective", "gemm")

Watch = Callable[[int, int], None]


def beside(
    gemm: Gemm,
    collective: str,
    bytes_: int,
    machine: Gpu | Machine | System | str,
    *,
    ranks: int = 8,
    gemms: int = 4,
    collectives: int | None = None,
    driver: str = "cu",
    first: str = "collective",
    arbiter: ArbiterPolicy = ROUND_ROBIN,
    tiling: GemmTiling | None = None,
    request_bytes: int | None = None,
    clock: str = "sustained",
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> Concurrency:
    """What a loop of GEMMs and a loop of collectives cost each other on every one of `ranks` equal GPUs of a node.

    The two streams do not depend on each other. `collective` moves `bytes_` (the whole buffer) by compute units
    (`driver` "cu": the library's ring kernel) or by DMA engines ("dma"). `gemms` and `collectives` count iterations; by
    default the loop of collectives lasts about as long as that of the GEMMs. `first` is what the host launches first:
    "collective" or "gemm". `request_bytes` is the channel interleave unless given. One GPU stands for all.

    Raises UnknownNameError for unknown names, InputError for what cannot be simulated, SimulationError for a run that
    cannot finish.
    """
    _check(driver, first, gemms, collectives)
    system = _one_node(machine, ranks)
    moved = _collective(collective, bytes_, machine, ranks, gemm.dtype, driver)
    loop = GemmLoop(gemm, tiling or tiling_for(gemm, system.gpu, clock), gemms, clock)
    grain = request_bytes or system.gpu.memory.interleave
    runner = _Runner(_paced(system, moved), arbiter, grain, clock, event_budget, watch)
    answer = runner.concurrency(loop, moved, collectives, first, driver)
    return answer if driver == "dma" else replace(answer, choice=_choice(moved, machine, gemm.dtype))


def ring_collective(
    collective: str,
    bytes_: int,
    machine: Gpu | Machine | System | str,
    *,
    ranks: int = 8,
    dtype: str = "bf16",
    request_bytes: int = RING_REQUEST_BYTES,
    clock: str = "short",
) -> float:
    """How long the library's ring kernel takes for a collective of `bytes_` in the engine, launch included [s].

    Raises as `beside` does.
    """
    system = _one_node(machine, ranks)
    ring = _collective(collective, bytes_, machine, ranks, dtype, "cu")
    grain = min(request_bytes, system.gpu.memory.interleave)
    runner = _Runner(_paced(system, ring), ROUND_ROBIN, grain, clock, None, None)
    return runner.loop(Streams(None, CollectiveLoop(ring, 1)), ring.collective).period


def _check(driver: str, first: str, gemms: int, collectives: int | None) -> None:
    if driver not in DRIVERS:
        raise UnknownNameError("driver of a collective", driver, DRIVERS)
    if first not in STREAMS:
        raise UnknownNameError("first stream", first, STREAMS)
    for what, count in (("gemms", gemms), ("collectives", collectives)):
        if count is not None and not 1 <= count <= 1000:
            raise InputError(f"{what} is {count}; a loop has between 1 and 1000 iterations")


def _one_node(machine: Gpu | Machine | System | str, ranks: int) -> System:
    system = machine if isinstance(machine, System) else system_for(machine, ranks)
    if system.gpus != ranks:
        raise InputError(
            f"the system has {system.gpus} GPUs, but the collective has {ranks} ranks; make them equal"
        )
    return system


def _collective(
    name: str, bytes_: int, machine: Gpu | Machine | System | str, ranks: int, dtype: str, driver: str
) -> Collective:
    if driver == "dma":
        return dma_collective(name, bytes_, ranks)
    whole = machine.gpu if isinstance(machine, System) else machine
    return library_ring(name, bytes_, ranks, whole, dtype)


def _choice(moved: Collective, machine: Gpu | Machine | System | str, dtype: str) -> Choice | None:
    """What the machine's library would take for a collective; None for a machine that no library is known of."""
    fabric = fabric_of(machine.gpu if isinstance(machine, System) else machine)
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


def _paced(system: System, moved: Collective) -> System:
    """The system with a link at the rate that the collective's stores reach."""
    share = moved.tiling.link if isinstance(moved, ChannelRing) else 1.0
    link = system.gpu.link
    slower = link.model_copy(update={"kernel_efficiency": link.kernel_efficiency * share})
    return system.model_copy(update={"gpu": system.gpu.model_copy(update={"link": slower})})


@dataclass(frozen=True)
class _Loop:
    """A loop on its own: the time of one iteration [s], what its workgroups waited for [s], and the run."""

    period: float
    waits: dict[str, float]
    result: Result


class _Runner:
    """Simulates streams on one machine, one GPU standing for all."""

    def __init__(
        self,
        system: System,
        arbiter: ArbiterPolicy,
        request_bytes: int,
        clock: str,
        event_budget: int | None,
        watch: Watch | None,
    ) -> None:
        self.system, self.arbiter = system, arbiter
        self.request_bytes, self.clock = request_bytes, clock
        self.event_budget, self.watch = event_budget, watch

    def concurrency(
        self, gemms: GemmLoop, moved: Collective, collectives: int | None, first: str, driver: str
    ) -> Concurrency:
        """Each loop alone, then both side by side."""
        name = moved.collective
        gemm = self.loop(Streams(replace(gemms, count=min(gemms.count, ALONE)), None), "gemm")
        alone = self.loop(Streams(None, CollectiveLoop(moved, ALONE)), name)
        if collectives is None:
            collectives = max(1, round(gemms.count * gemm.period / alone.period))
        result, program, state = self._run(Streams(gemms, CollectiveLoop(moved, collectives), first))
        loops = _times(program, state, ("gemm", gemm), (name, alone))
        return Concurrency(
            gpu=self.system.gpu.name,
            ranks=self.system.gpus,
            driver=driver,
            first=first,
            gemm=loops[0],
            collective=loops[1],
            makespan=max(loop.end for loop in loops),
            run=result,
            gemm_alone=gemm.result,
            collective_alone=alone.result,
        )

    def loop(self, streams: Streams, name: str) -> _Loop:
        """A loop of kernels called `name` on its own."""
        result, program, state = self._run(streams)
        ends, waits = loop_times(program, state, name)
        period = ends[0] if len(ends) == 1 else (ends[-1] - ends[0]) / (len(ends) - 1)
        return _Loop(period, waits, result)

    def _run(self, streams: Streams) -> tuple[Result, Program, State]:
        gpu = self.system.gpu
        plan = streams.plan(gpu)
        rows, shape = machine_tables(self.system, 1, self.request_bytes, most_resident(plan, gpu), self.clock)
        program = build(plan, rows, shape)
        state, wall = run_program(program, self.arbiter, self.event_budget, self.watch)
        result = collect(self._config(streams), program, state, wall)
        return replace(result, times=_phase_times(program, state, streams)), program, state

    def _config(self, streams: Streams) -> RunConfig:
        gpu, gemms, loop = self.system.gpu, streams.gemms, streams.collectives
        names = ("" if gemms is None else "GEMM", "" if loop is None else loop.collective.collective)
        changed = tuple(f"{path} = {p.text}" for path, p in gpu.provenance.items() if p.kind == "set by user")
        return RunConfig(
            model="",
            sublayer=" beside ".join(filter(None, names)),
            tp=self.system.gpus,
            m=0 if gemms is None else gemms.gemm.m,
            n=0 if gemms is None else gemms.gemm.n,
            k=0 if gemms is None else gemms.gemm.k,
            dtype="bytes" if gemms is None else gemms.gemm.dtype,
            gpu=gpu.name,
            overlap="streams",
            arbiter=self.arbiter.name,
            request_bytes=self.request_bytes,
            mode="mirrored",
            dram_bytes_per_s=gpu.memory.bandwidth,
            link_bytes_per_s=gpu.link.bandwidth,
            changed=changed,
        )


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


def _phase_times(program: Program, state: State, streams: Streams) -> PhaseTimes:
    """Until when the GEMMs ran, until when the collectives, and both [s]."""
    name = "" if streams.collectives is None else streams.collectives.collective.collective
    gemm = max(loop_times(program, state, "gemm")[0], default=0.0)
    moved = max(loop_times(program, state, name)[0], default=0.0)
    gathers = name == "all_gather"
    return PhaseTimes(
        gemm, 0.0 if gathers else moved, moved if gathers else 0.0, int(state.clock[y.C_NOW]) * 1e-15
    )
