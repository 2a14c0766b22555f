"""One machine on which streams are run, and the collective that runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.collectives.fabric import fabric_of
from weft.engine import layout as y
from weft.engine.state import Machine as State
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.kernels.copies import DmaGather
from weft.kernels.ring import whole_ring
from weft.overlap import ROUND_ROBIN, ArbiterPolicy, PhaseTimes
from weft.overlap.library_ring import cu_collective, dma_collective
from weft.overlap.nodes import system_for
from weft.overlap.strategies import Strategy
from weft.overlap.streams import Collective, Streams
from weft.program import Program
from weft.result import RunConfig
from weft.result.collect import loop_times
from weft.simulation.execution import Run, Watch, config_of, run_plan
from weft.units import format_bytes

Where = Gpu | Machine | System | str
Copies = Mapping[str, int | bool]
"""Options of copies by DMA engines, as `weft.kernels.copies.DmaGather` describes them."""
COPY_OPTIONS = ("engines", "engines_per_peer", "broadcast", "swap", "prelaunched", "threads")


def one_node(machine: Where, ranks: int, moving: bool = True) -> System:
    """The system of `ranks` GPUs that a machine is; `moving` data among them, they must lie in one node.

    Raises InputError for more GPUs than a node has, or another number than that of a `System`. The paper's machine,
    of which no product exists, has as many as is said.
    """
    if moving:
        _check_node(machine, ranks)
    system = machine if isinstance(machine, System) else system_for(machine, ranks)
    if system.gpus != ranks:
        raise InputError(
            f"the system has {system.gpus} GPUs, but the collective has {ranks} ranks; make them equal"
        )
    return system


def _check_node(machine: Where, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"a collective of {ranks} ranks moves nothing; take at least 2 ranks")
    if isinstance(machine, System):
        return
    node = fabric_of(machine)
    if node.vendor != "none" and ranks > node.gpus_per_node:
        raise InputError(
            f"{ranks} ranks do not fit into a node of {node.gpus_per_node} GPUs, and streams that share GPUs are "
            f"simulated within one node; take at most {node.gpus_per_node} ranks, or a weft.hardware.System of {ranks}"
        )


def whole(machine: Where) -> Gpu | Machine | str:
    """What a collective library knows a machine by."""
    return machine.gpu if isinstance(machine, System) else machine


def collective_on(
    machine: Where,
    name: str,
    bytes_: int,
    ranks: int,
    dtype: str,
    driver: str,
    units: int | None = None,
    copies: Copies | None = None,
    plain_ring: int | None = None,
) -> Collective:
    """The collective as its driver carries it out: by `units` workgroups (None: the library's number), or by copies.

    With `plain_ring` it is an all-reduce by a ring without a library's slices and staging, with that many bytes of a
    workgroup on their way. Raises UnknownNameError for an unknown collective, InputError for one that its driver
    cannot carry out or whose buffer no GPU holds.
    """
    gpu = system_for(machine, ranks) if isinstance(machine, str) else machine
    held = (gpu if isinstance(gpu, Gpu) else gpu.gpu).memory.capacity
    if bytes_ > held:
        raise InputError(
            f"the buffer of the {name} is {format_bytes(bytes_)}, but the memory of each GPU holds "
            f"{format_bytes(held)}; give a whole buffer of no more than that"
        )
    if plain_ring is not None:
        if (name, driver) != ("all_reduce", "cu"):
            raise InputError(
                f"a plain ring is an all_reduce by compute units, not {name} by {driver}; leave plain_ring out"
            )
        return whole_ring(bytes_, ranks, units, plain_ring, 1 if dtype == "int8" else 2)
    if driver == "dma":
        return dma_collective(name, bytes_, ranks, **(copies or {}))
    return cu_collective(name, bytes_, ranks, whole(machine), dtype, units)


def check_copies(copies: Copies | None, strategy: Strategy | None = None) -> None:
    """Raise UnknownNameError for options that copies do not have, InputError where compute units move the data."""
    for name in copies or ():
        if name not in COPY_OPTIONS:
            raise UnknownNameError("option of DMA engines", name, COPY_OPTIONS)
    if copies and strategy is not None and strategy.driver != "dma":
        raise InputError(
            f"strategy '{strategy.name}' moves the data by compute units and has no use for options of DMA engines "
            f"({', '.join(copies)}); choose dma or dma-partition, or leave them out"
        )


def paced(system: System, moved: Collective | None) -> System:
    """The system with a link at the rate that the collective's stores reach."""
    share = 1.0 if moved is None or isinstance(moved, DmaGather) else moved.tiling.link
    link = system.gpu.link
    slower = link.model_copy(update={"kernel_efficiency": link.kernel_efficiency * share})
    return system.model_copy(update={"gpu": system.gpu.model_copy(update={"link": slower})})


@dataclass(frozen=True)
class Runner:
    """Runs streams on a system, one GPU standing for all; `request_bytes` is the grain of memory requests."""

    system: System
    request_bytes: int
    clock: str = "sustained"
    arbiter: ArbiterPolicy = ROUND_ROBIN
    event_budget: int | None = None
    watch: Watch | None = None

    def run(self, streams: Streams, overlap: str = "streams") -> Run:
        """Run the streams to their end; SimulationError if they cannot."""
        plan, config = streams.plan(self.system.gpu), self._config(streams, overlap)
        run = run_plan(
            plan,
            self.system,
            config,
            clock=self.clock,
            policy=self.arbiter,
            event_budget=self.event_budget,
            watch=self.watch,
        )
        times = _phase_times(run.program, run.state, streams)
        return run._replace(result=replace(run.result, times=times))

    def _config(self, streams: Streams, overlap: str) -> RunConfig:
        gemms, loop = streams.gemms, streams.collectives
        names = ("" if gemms is None else "GEMM", "" if loop is None else loop.collective.collective)
        name = " beside ".join(filter(None, names))
        config = config_of(self.system, self.request_bytes, overlap, name, self.arbiter)
        if gemms is None:
            return replace(config, dtype="bytes")
        gemm = gemms.gemm
        return replace(config, m=gemm.m, n=gemm.n, k=gemm.k, dtype=gemm.dtype)


def _phase_times(program: Program, state: State, streams: Streams) -> PhaseTimes:
    """Until when the GEMMs ran, until when the collectives, and both [s]."""
    name = "" if streams.collectives is None else streams.collectives.collective.collective
    gemm = max(loop_times(program, state, "gemm")[0], default=0.0)
    moved = max(loop_times(program, state, name)[0], default=0.0)
    gathers = name == "all_gather"
    return PhaseTimes(
        gemm, 0.0 if gathers else moved, moved if gathers else 0.0, int(state.clock[y.C_NOW]) * 1e-15
    )
