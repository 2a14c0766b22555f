"""Runs in the words that tests ask for them: a sub-layer, a GEMM or a collective alone, both together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft import hardware
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Plan, build
from weft.estimate import estimate
from weft.graph import Collective, DmaCopies, Gemm, Graph, KernelChoice, LibraryCollective, concurrent, gemm_queue
from weft.graph.choice import kernel_with_tiling
from weft.graph.graph import loop
from weft.hardware import Gpu, System
from weft.kernels import GemmTiling
from weft.models.parallel import dependent, share_of
from weft.overlaps import STRATEGIES, CoRunStrategy, OverlapMethod, find_simulated
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.overlaps.lower.collectives import library_ring
from weft.overlaps.lower.gpus import pace_links
from weft.overlaps.lower.independent import lower_independent
from weft.overlaps.lower.machine import default_request_bytes, machine_tables
from weft.simulate import alone, balance_loops, compare
from weft.simulate.result import Comparison, CoRun, Timeline
from weft.simulate.single import run_program, simulate

Machine = Gpu | System | str


def tiled(graph: Graph, tiling: Any) -> Graph:
    """The graph with every GEMM cut by a tiling (None: as it is)."""
    return graph if tiling is None else graph.with_tiling(tiling)


def run(graph: Graph, machine: Machine, overlap: Any = "t3-mca", *, tiling: Any = None, **options: Any) -> Timeline:
    """A graph on a machine; `options` are those of RunOptions."""
    return simulate(tiled(graph, tiling), machine, overlap, RunOptions(**options))


SHARED = ("strategy", "units", "channels", "algorithm", "first", "copies", "plain_ring")
"""The parameters of `sharing`."""


def sharing(
    strategy: str = "streams",
    units: int | None = None,
    first: Any = None,
    copies: Mapping[str, int | bool] | None = None,
    plain_ring: int | None = None,
    channels: int | None = None,
    algorithm: str | None = None,
) -> CoRunStrategy:
    """A way to share a GPU with its parameters."""
    how = find_simulated(strategy)
    assert isinstance(how, CoRunStrategy)
    return replace(
        how,
        units=units,
        channels=channels,
        algorithm=algorithm,
        first=first,
        copies=DmaCopies(**(copies or {})),
        in_flight=plain_ring,
    )


def together(
    gemm: Gemm,
    collective: str,
    size: int,
    machine: Machine,
    *,
    ranks: int = 8,
    tiling: Any = None,
    **given: Any,
) -> Timeline:
    """Co-run a GEMM with a collective of `size` bytes, once each."""
    how = {name: given.pop(name) for name in list(given) if name in SHARED}
    graph = concurrent(gemm, Collective(collective, size, ranks, gemm.dtype))
    return run(graph, machine, sharing(**how), tiling=tiling, **given)


def isolated_gemm(
    gemm: Gemm,
    machine: Machine,
    *,
    units: int | None = None,
    tiling: Any = None,
    ranks: int = 8,
    **options: Any,
) -> Timeline:
    """Run a GEMM alone, on a number of compute units."""
    graph = alone(gemm, ranks)
    if units is None:
        return run(graph, machine, "streams", tiling=tiling, **options)
    system = hardware.system(machine)
    have = system.gpu.compute.compute_units
    how = "streams" if units == have else sharing("partition", have - units)
    return run(graph, system, how, tiling=tiling, **options)


def isolated_collective(
    collective: str,
    size: int,
    machine: Machine,
    *,
    ranks: int = 8,
    driver: str = "cu",
    units: int | None = None,
    dtype: str = "bf16",
    plain_ring: int | None = None,
    **options: Any,
) -> Timeline:
    """Run a collective alone, by a number of workgroups or by DMA engines."""
    graph = alone(Collective(collective, size, ranks, dtype), kernel=LibraryCollective(channels=units))
    replace(STRATEGIES["streams"], driver=driver)  # refuses a driver that there is not
    how = sharing("dma" if driver == "dma" else "streams", plain_ring=plain_ring)
    return run(graph, machine, how, **options)


def _loops(
    gemm: Gemm, collective: str, size: int, machine: Machine, given: dict[str, Any], how: CoRunStrategy
) -> tuple[Graph, RunOptions]:
    ranks, gemms, collectives = given.pop("ranks", 8), given.pop("gemms", 4), given.pop("collectives", None)
    tiling, options = given.pop("tiling", None), RunOptions(**given)
    moved = Collective(collective, size, ranks, gemm.dtype)
    if collectives is None:
        return tiled(balance_loops(gemm, moved, machine, how, options, gemms), tiling), options
    return tiled(concurrent(gemm, moved, gemms, collectives), tiling), options


def beside(gemm: Gemm, collective: str, size: int, machine: Machine, **given: Any) -> CoRun:
    """A loop of GEMMs beside a loop of collectives, and each alone."""
    how = sharing(**{n: given.pop(n) for n in list(given) if n in SHARED})
    graph, options = _loops(gemm, collective, size, machine, given, how)
    return compare(graph, machine, [how], options).corun()


def beside_all(gemm: Gemm, collective: str, size: int, machine: Machine, **given: Any) -> Comparison:
    """The same under every way to share a GPU."""
    graph, options = _loops(gemm, collective, size, machine, given, STRATEGIES["streams"])
    return compare(graph, machine, None, options)


def queued(
    gemms: Sequence[tuple[Gemm, Any]], machine: Machine, queues: int | None = None, units: int | None = None
) -> Timeline:
    """Independent GEMMs with their tilings in queues, on the first `units` compute units."""
    graph = gemm_queue([gemm for gemm, _ in gemms], queues, [tiling for _, tiling in gemms])
    if units is not None:
        mask = tuple(range(units))
        graph = graph.map(lambda node: replace(node, choice=replace(node.choice, compute_units=mask)))
    return simulate(graph, machine, Bare("bare", "", ""))


@dataclass(frozen=True)
class Bare(OverlapMethod):
    """A method that leaves a graph as it is."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        return graph

    def check(self, graph: Graph) -> None:
        pass


def ring_collective(
    name: str, size: int, machine: Machine, ranks: int = 8, dtype: str = "bf16", protocol: str | None = None
) -> float:
    """How long the library's ring kernel takes for a collective, whatever the library would choose [s]."""
    system, options = hardware.system(machine, gpus=ranks), RunOptions(clock="short", request_bytes=1024)
    kernel = library_ring(name, size, ranks, system, dtype, protocol=protocol)
    plan = Streams(None, CollectiveLoop(kernel, 1)).plan(system.gpu)
    built = build(plan, machine_tables(pace_links(system, [kernel]), 1, options, 1))
    state, _ = run_program(built, ROUND_ROBIN)
    return int(state.kernel_run[0, 0, y.RUN_END]) * 1e-15


@dataclass(frozen=True)
class Overlapped:
    """A GEMM and a collective in sequence, in closed form, and overlapped [s]."""

    gemm: float
    collective: float
    overlapped: float

    @property
    def sequential(self) -> float:
        return self.gemm + self.collective


def overlapped(
    form: Any, m: int, n: int, k: int, machine: Machine, method: str = "flux", dtype: str = "bf16"
) -> Overlapped:
    """A GEMM of eight GPUs, given unsplit, and its collective."""
    graph = dependent(form, share_of(form, Gemm(m, n, k, dtype), 8), 8)
    system, options = hardware.system(machine, gpus=8), RunOptions(clock="short")
    gpu = system.gpu
    grain = default_request_bytes(gpu) if gpu.dies > 1 else gpu.memory.interleave
    found = run(graph, system, method, clock="short", request_bytes=grain)
    gemm, moved = graph.gemms[0].op, graph.collectives[0].op
    parts = [float(estimate(op, system, options).seconds) for op in (gemm, moved)]
    return Overlapped(*parts, found.makespan)


def link_bytes(kernel: Any, gpu: Gpu) -> int:
    """What a GPU sends for a collective by compute units, by the kernel's scripts and its address map [bytes]."""
    made = kernel.kernel(gpu)
    remote = {(b.name, p) for b in kernel.buffers() for p, rule in enumerate(b.rules) if rule.remote}
    sent = 0
    for script in made.script_of or (0,) * made.workgroups:
        for phase in made.phases[script * made.script_length : (script + 1) * made.script_length]:
            stores = [store for store in phase.stores if (store.buffer, store.position) in remote]
            sent += sum((phase.iterations - 1) * store.unit_bytes + store.last_unit_bytes for store in stores)
    return sent


@dataclass(frozen=True)
class GemmLoop:
    """The same GEMM in a row."""

    gemm: Gemm
    tiling: GemmTiling
    count: int


@dataclass(frozen=True)
class CollectiveLoop:
    """The same kernel of a collective in a row."""

    collective: Any
    count: int


@dataclass(frozen=True)
class Streams:
    """A loop of GEMMs, a loop of a collective's kernel, or both, lowered without choosing anything."""

    gemms: GemmLoop | None
    collectives: CollectiveLoop | None
    first: str = "collective"
    priority: bool = False
    gemm_units: tuple[int, ...] | None = None
    collective_units: tuple[int, ...] | None = None

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        gemms: tuple[Any, ...] = ()
        moved: tuple[Any, ...] = ()
        kernels = {}
        if self.gemms is not None:
            choice = KernelChoice(kernel_with_tiling(self.gemms.tiling), compute_units=self.gemm_units)
            gemms = loop(self.gemms.gemm, "gemm", self.gemms.count, "compute", choice)
        if self.collectives is not None:
            kernel = self.collectives.collective
            kernels[kernel.collective] = kernel
            choice = KernelChoice(compute_units=self.collective_units, priority=int(self.priority))
            op = Collective(kernel.collective, kernel.bytes_, kernel.ranks)
            moved = loop(op, kernel.collective, self.collectives.count, "communication", choice)
        nodes = (*gemms, *moved) if self.first == "gemm" else (*moved, *gemms)
        return lower_independent(Graph(nodes, ranks=gpus), gpu, RunOptions(), kernels)
