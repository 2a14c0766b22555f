"""From a plan to what happened: lower it onto a machine, compile the engine once, run, say why a run did not finish."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from weft.engine import layout as y
from weft.engine.state import Machine as State
from weft.errors import InputError, SimulationError
from weft.hardware import Gpu, System
from weft.overlap import ROUND_ROBIN, ArbiterPolicy
from weft.overlap.machine import machine_tables
from weft.program import Kernel, Plan, Program, build
from weft.result import Result, RunConfig
from weft.result.collect import collect
from weft.result.unfinished import explain
from weft.units import format_bytes

FIRST_BIN_FS = 100_000_000
"""Width of the first bins of the series [fs]; they merge as time goes on."""
Watch = Callable[[int, int], None]
"""Called with events and time [fs] about every million events."""


class Run(NamedTuple):
    """A finished run: its result, and what it is computed from."""

    result: Result
    program: Program
    state: State


def run_plan(
    plan: Plan,
    system: System,
    config: RunConfig,
    *,
    ranks: int = 1,
    clock: str = "sustained",
    policy: ArbiterPolicy = ROUND_ROBIN,
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> Run:
    """Run a plan on the first `ranks` GPUs of a system to its end; `config` says what it is, and the request size.

    Raises InputError for a kernel that no compute unit can hold and for requests that do not fit the machine,
    SimulationError for a run that cannot finish.
    """
    check_fit(plan, system.gpu)
    residents = most_resident(plan, system.gpu)
    rows, shape = machine_tables(system, ranks, config.request_bytes, residents, clock)
    program = build(plan, rows, shape)
    state, wall = run_program(program, policy, event_budget, watch)
    return Run(collect(config, program, state, wall), program, state)


def config_of(
    system: System, request_bytes: int, overlap: str, sublayer: str, policy: ArbiterPolicy = ROUND_ROBIN
) -> RunConfig:
    """What is run where one GPU stands for all and no sub-layer is split; `sublayer` is a name for all kernels."""
    gpu = system.gpu
    return RunConfig(
        model="",
        sublayer=sublayer,
        tp=system.gpus,
        m=0,
        n=0,
        k=0,
        dtype="",
        gpu=gpu.name,
        overlap=overlap,
        arbiter=policy.name,
        request_bytes=request_bytes,
        mode="mirrored",
        dram_bytes_per_s=gpu.memory.bandwidth,
        link_bytes_per_s=gpu.link.bandwidth,
        changed=gpu.changes,
        partitions=gpu.dies,
    )


def run_program(
    program: Program,
    policy: ArbiterPolicy,
    event_budget: int | None = None,
    watch: Watch | None = None,
) -> tuple[State, float]:
    """The final state of a run, and how long it took [s]; SimulationError if it did not finish."""
    from weft.engine.run import execute

    begin = time.perf_counter()
    announce_compilation()
    status, machine = execute(program.tables, policy.compiled, FIRST_BIN_FS, event_budget, watch)
    if status != y.FINISHED:
        raise SimulationError(explain(status, program, machine, policy.name))
    return machine, time.perf_counter() - begin


def most_resident(plan: Plan, gpu: Gpu) -> int:
    """The most workgroups of a plan's kernels that a compute unit can hold at once; kernels of a loop count once."""
    needs = {(k.threads, k.registers, k.lds): _held(k, gpu) for k in _kernels(plan)}
    return min(gpu.compute.max_workgroups_per_cu, max(sum(needs.values()), 1))


def check_fit(plan: Plan, gpu: Gpu) -> None:
    """Raise InputError for a kernel of which a compute unit cannot hold a single workgroup."""
    compute = gpu.compute
    for kernel in _kernels(plan):
        for what, need, have in (
            ("registers", kernel.registers, compute.registers_per_cu),
            ("local memory", kernel.lds, compute.lds_per_cu),
        ):
            if need > have:
                raise InputError(
                    f"a workgroup of {kernel.name} needs {format_bytes(need)} of {what}, but a compute unit of "
                    f"{gpu.name} has {format_bytes(have)}; choose a smaller tile"
                )


def _kernels(plan: Plan) -> list[Kernel]:
    return [placed.kernel for placed in plan.kernels if placed.kernel.workgroups > 0]


def _held(kernel: Kernel, gpu: Gpu) -> int:
    compute = gpu.compute
    return min(
        compute.threads_per_cu // kernel.threads,
        compute.registers_per_cu // kernel.registers,
        compute.lds_per_cu // max(kernel.lds, 1),
    )


def announce_compilation() -> None:
    """Say on stderr that the engine is being compiled, if its machine code is not there yet."""
    from weft.engine.jit import cache_root, is_compiled, keeps_code
    from weft.engine.loop import run

    if not is_compiled() and not getattr(run, "signatures", None):
        alone = f" for this process alone, as the cache '{cache_root()}' cannot be written"
        how = ", once" if keeps_code() else alone
        sys.stderr.write(f"weft: compiling the engine{how}, under a minute ...\n")
        sys.stderr.flush()
