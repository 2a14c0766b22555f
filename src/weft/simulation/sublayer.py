"""A sub-layer on one machine under any overlap: simulated, or put together of simulated runs."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.kernels import GemmTiling
from weft.overlap import ArbiterPolicy, Ideal, Overlap, Problem, Simulated
from weft.overlap.nodes import ring_note, system_for
from weft.overlap.tile import tiling_for
from weft.parallel.tensor import ShardedSubLayer
from weft.result import Result, RunConfig
from weft.simulation.execution import Watch, run_plan

EXPLICIT_LIMIT = 16
"""The most GPUs that are simulated each."""


class SubLayerRuns:
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
        """What happens under an overlap: simulated, or put together of the runs that an ideal needs."""
        if overlap.name not in self.done:
            if isinstance(overlap, Ideal):
                self.done[overlap.name] = self._ideal(overlap)
            elif isinstance(overlap, Simulated):
                self.done[overlap.name] = self._simulated(overlap)
        return self.done[overlap.name]

    def _config(self, overlap: Overlap, policy: str) -> RunConfig:
        gemm, gpu = self.layer.gemm, self.system.gpu
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
            changed=gpu.changes,
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
        return run_plan(
            overlap.plan(self.problem),
            self.system,
            self._config(overlap, policy.name),
            ranks=self.problem.ranks,
            clock=self.clock,
            policy=policy,
            event_budget=self.event_budget,
            watch=self.watch,
        ).result


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
