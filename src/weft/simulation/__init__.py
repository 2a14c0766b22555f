"""Run a sub-layer on a machine under an overlap (`simulate` one, `compare` several), or streams `beside` each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.kernels import GemmTiling
from weft.overlap import OVERLAPS, ArbiterPolicy, Ideal, Overlap, Problem, Simulated
from weft.overlap.machine import machine_tables
from weft.overlap.nodes import ring_note, system_for
from weft.overlap.tile import tiling_for
from weft.parallel.tensor import ShardedSubLayer
from weft.program import Program, build
from weft.result import Comparison, Result, RunConfig
from weft.result.collect import collect
from weft.simulation.concurrent import isolated_collective, isolated_gemm, saturating_units, together
from weft.simulation.execution import most_resident, run_program
from weft.simulation.overlapped import overlapped
from weft.simulation.streams import beside, beside_all, ring_collective

DEFAULT_REQUEST_BYTES = 512
"""The default request: eight 64-B accesses that share a DRAM row; within 2 % of 64-B requests (docs: model)."""
EXPLICIT_LIMIT = 16

Watch = Callable[[int, int], None]


def simulate(
    layer: ShardedSubLayer,
    machine: Gpu | Machine | System | str,
    overlap: str | Overlap = "t3-mca",
    *,
    arbiter: ArbiterPolicy | None = None,
    tiling: GemmTiling | None = None,
    request_bytes: int = DEFAULT_REQUEST_BYTES,
    clock: str = "sustained",
    mode: str = "auto",
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> Result:
    """What happens when `layer` runs on `machine` (a GPU, a system, or a catalog name) under `overlap`.

    A GPU of the catalogue stands for the machine that it is usually sold in, with as many nodes as the layer needs.
    `arbiter` replaces the overlap's memory arbitration, `tiling` the tile that the GPU's library would choose.
    `request_bytes` is the granularity of memory requests (64 is exact, the default faster). `clock` is what the compute
    units run at: "short" (the highest clock) or "sustained" (what long runs hold at the power limit).

    `mode` is "mirrored" (one GPU stands for all), "explicit" (all are simulated), or "auto": mirrored wherever all
    GPUs are alike. `event_budget` ends a run that takes more events. `watch(events, now_fs)` is called about every
    million events.

    Raises UnknownNameError for an unknown overlap, InputError for what cannot be simulated, SimulationError
    for a run that cannot finish, saying which tile waits for what.
    """
    chosen = find_overlap(overlap)
    runner = _Runner(layer, machine, arbiter, tiling, request_bytes, clock, mode, event_budget, watch)
    return runner.result(chosen)


def compare(
    layer: ShardedSubLayer,
    machine: Gpu | Machine | System | str,
    overlaps: Iterable[str | Overlap] = tuple(OVERLAPS),
    **options: Any,
) -> Comparison:
    """`layer` on `machine` under several overlaps, beside the sequential baseline; options are those of
    `simulate`.

    Runs that ideals share are made once.
    """
    chosen = [find_overlap(overlap) for overlap in overlaps]
    runner = _Runner(layer, machine, **{**_DEFAULTS, **options})
    baseline = OVERLAPS["sequential"]
    return Comparison({o.name: runner.result(o) for o in dict.fromkeys((baseline, *chosen))})


_DEFAULTS: dict[str, Any] = {
    "arbiter": None,
    "tiling": None,
    "request_bytes": DEFAULT_REQUEST_BYTES,
    "clock": "sustained",
    "mode": "auto",
    "event_budget": None,
    "watch": None,
}


def find_overlap(overlap: str | Overlap) -> Overlap:
    """An overlap by name; UnknownNameError lists the known ones."""
    if isinstance(overlap, Overlap):
        return overlap
    if overlap not in OVERLAPS:
        raise UnknownNameError("overlap", overlap, OVERLAPS)
    return OVERLAPS[overlap]


class _Runner:
    """Simulates overlaps of one sub-layer on one machine, each run at most once."""

    def __init__(
        self,
        layer: ShardedSubLayer,
        machine: Gpu | Machine | System | str,
        arbiter: ArbiterPolicy | None,
        tiling: GemmTiling | None,
        request_bytes: int,
        clock: str,
        mode: str,
        event_budget: int | None,
        watch: Watch | None,
    ) -> None:
        self.layer = layer
        self.system = _system(machine, layer)
        self.arbiter = arbiter
        self.request_bytes = request_bytes
        self.event_budget = event_budget
        self.watch = watch
        self.clock = clock
        chosen = tiling or tiling_for(layer.gemm, self.system.gpu, clock, layer.tp)
        mirrored = Problem(layer, self.system, 1, chosen, clock=clock)
        self.mode = _mode(mode, self.system, mirrored)
        self.problem = mirrored if self.mode == "mirrored" else replace(mirrored, ranks=layer.tp)
        self.done: dict[str, Result] = {}

    def result(self, overlap: Overlap) -> Result:
        if overlap.name not in self.done:
            if isinstance(overlap, Ideal):
                self.done[overlap.name] = self._ideal(overlap)
            elif isinstance(overlap, Simulated):
                self.done[overlap.name] = self._simulated(overlap)
        return self.done[overlap.name]

    def _config(self, overlap: Overlap, policy: str) -> RunConfig:
        gemm, gpu = self.layer.gemm, self.system.gpu
        changed = tuple(f"{path} = {p.text}" for path, p in gpu.provenance.items() if p.kind == "set by user")
        return RunConfig(
            model=self.layer.model,
            sublayer=self.layer.name,
            tp=self.layer.tp,
            m=gemm.m,
            n=gemm.n,
            k=gemm.k,
            dtype=gemm.dtype,
            gpu=gpu.name,
            overlap=overlap.name,
            arbiter=policy,
            request_bytes=self.request_bytes,
            mode=self.mode,
            dram_bytes_per_s=gpu.memory.bandwidth,
            link_bytes_per_s=gpu.link.bandwidth,
            link_note=ring_note(self.system),
            changed=changed,
        )

    def _ideal(self, overlap: Ideal) -> Result:
        parts = tuple(self.result(needed) for needed in overlap.needs)
        times = overlap.combine({part.config.overlap: part.times for part in parts})
        return Result(
            config=self._config(overlap, "none"),
            times=times,
            bytes=_ideal_bytes(parts),
            events=sum(part.events for part in parts),
            requests=sum(part.requests for part in parts),
            wall_s=sum(part.wall_s for part in parts),
            parts=parts,
        )

    def _simulated(self, overlap: Simulated) -> Result:
        policy = self.arbiter or overlap.policy
        program = self._program(overlap)
        machine, wall = run_program(program, policy, self.event_budget, self.watch)
        return collect(self._config(overlap, policy.name), program, machine, wall)

    def _program(self, overlap: Simulated) -> Program:
        plan = overlap.plan(self.problem)
        gpu = self.system.gpu
        residents = most_resident(plan, gpu)
        rows, shape = machine_tables(
            self.system, self.problem.ranks, self.request_bytes, residents, self.clock
        )
        return build(plan, rows, shape)


def _system(machine: Gpu | Machine | System | str, layer: ShardedSubLayer) -> System:
    if not isinstance(machine, System):
        return system_for(machine, layer.tp)
    if machine.gpus != layer.tp:
        raise InputError(
            f"the system has {machine.gpus} GPUs, but the sub-layer is split over TP {layer.tp}; make them equal"
        )
    return machine


def _mode(mode: str, system: System, problem: Problem) -> str:
    alike = system.uniform and len(set(problem.chunk_bytes[0])) == 1
    if mode == "auto":
        mode = "mirrored" if alike else "explicit"
    if mode == "mirrored" and not alike:
        why = "their chunks differ in size" if system.uniform else "they differ"
        raise InputError(f"one GPU cannot stand for all {system.gpus}, because {why}; choose mode 'explicit'")
    if mode not in ("mirrored", "explicit"):
        raise UnknownNameError("mode", mode, ("auto", "mirrored", "explicit"))
    if mode == "explicit" and system.gpus > EXPLICIT_LIMIT:
        raise InputError(
            f"{system.gpus} GPUs are too many to simulate each (the most is {EXPLICIT_LIMIT}); "
            "choose mode 'mirrored' or a smaller TP"
        )
    return mode


def _ideal_bytes(parts: tuple[Result, ...]) -> dict[str, int]:
    """The first part's traffic, with its reduce-scatter replaced by that of a later part that has one."""
    moved = dict(parts[0].bytes)
    for part in parts[1:]:
        moved = {cause: n for cause, n in moved.items() if not cause.startswith("rs_")} | dict(part.bytes)
    return moved


__all__ = [
    "beside",
    "beside_all",
    "compare",
    "find_overlap",
    "isolated_collective",
    "isolated_gemm",
    "overlapped",
    "ring_collective",
    "saturating_units",
    "simulate",
    "together",
]
