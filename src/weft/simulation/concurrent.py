"""One GEMM and one collective, each alone or together under a strategy, as plain data for studies to compose.

Caches are cold, launches included; one GPU stands for all. Plain values describe a run, so that it can be stored.
"""

from __future__ import annotations

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, System
from weft.kernels import GemmTiling
from weft.overlap.machine import default_request_bytes
from weft.overlap.strategies import (
    DMA_UNITS,
    DRIVERS,
    LAUNCHED,
    Strategy,
    find_strategy,
    split_units,
)
from weft.overlap.streams import Collective, CollectiveLoop, GemmLoop, Streams, arranged
from weft.overlap.tile import tiling_for
from weft.result.collect import loop_times
from weft.result.loops import loop_of
from weft.result.stream_run import StreamRun
from weft.simulation.execution import Run
from weft.simulation.runner import Copies, Runner, Where, check_copies, collective_on, one_node, paced
from weft.workload import Gemm

SATURATED = 0.95
"""Share of the best bandwidth at which a collective counts as saturated."""
LARGEST_PROBE = 256 << 20
"""Collectives are probed for saturation with at most so much [bytes]: beyond it latencies no longer show."""
LARGEST_EXCHANGE = 1 << 30
"""All-to-alls with at most so much: libraries cut large ones into more rounds, which few workgroups do in turn."""


def isolated_gemm(
    gemm: Gemm,
    machine: Where,
    *,
    ranks: int = 8,
    units: int | None = None,
    tiling: GemmTiling | None = None,
    clock: str = "sustained",
    request_bytes: int | None = None,
) -> StreamRun:
    """A GEMM alone on `units` compute units of a GPU (None: all), those that a partition would leave it.

    The tile is the one that suits the whole GPU, unless given. Raises InputError for what cannot be simulated.
    """
    system = one_node(machine, ranks, moving=False)
    loop = GemmLoop(gemm, tiling or tiling_for(gemm, system.gpu, clock, split=True), 1, clock)
    left = None if units is None else _left(system.gpu, units)
    streams = Streams(loop, None, gemm_units=left)
    return _stream_run(_runner(system, None, request_bytes, clock).run(streams), None)


def isolated_collective(
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    ranks: int = 8,
    driver: str = "cu",
    units: int | None = None,
    dtype: str = "bf16",
    plain_ring: int | None = None,
    clock: str = "sustained",
    request_bytes: int | None = None,
) -> StreamRun:
    """A collective of `bytes_` (the whole buffer) alone, by `units` workgroups (None: the library's number) or copies.

    `plain_ring` is that of `together`. Raises InputError for what cannot be simulated, such as a reduction by DMA
    engines.
    """
    check_driver(driver)
    if driver == "dma" and units is not None:
        raise InputError(f"DMA engines take no compute units, but units is {units}; leave it out")
    system = one_node(machine, ranks)
    if units is not None:
        check_units(units, system.gpu)
    moved = collective_on(machine, collective, bytes_, ranks, dtype, driver, units, plain_ring=plain_ring)
    run = _runner(system, moved, request_bytes, clock).run(Streams(None, CollectiveLoop(moved, 1)))
    return _stream_run(run, moved)


def together(
    gemm: Gemm,
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    ranks: int = 8,
    strategy: str | Strategy = "streams",
    units: int | None = None,
    first: str | None = None,
    copies: Copies | None = None,
    plain_ring: int | None = None,
    tiling: GemmTiling | None = None,
    clock: str = "sustained",
    request_bytes: int | None = None,
) -> StreamRun:
    """A GEMM and a collective of `bytes_` side by side under a strategy.

    `units` are the compute units set apart by strategies that partition: for the collective, or just off the GEMM where
    DMA engines drive it (None: where its bandwidth saturates, and 8). `first` is what the host launches first,
    "collective" or "gemm" (None: as the strategy says). `copies` are options of DMA engines
    (`weft.kernels.copies.DmaGather`) where those drive the collective. `plain_ring` replaces the library's all-reduce
    by one ring kernel without slices and staging, with so many bytes of a workgroup on their way.

    Raises UnknownNameError for unknown names, InputError for what cannot be simulated.
    """
    chosen = find_strategy(strategy)
    system = one_node(machine, ranks)
    units = units_for(chosen, units, collective, bytes_, machine, ranks=ranks, clock=clock)
    check_first(first)
    check_copies(copies, chosen)
    held = units if chosen.driver == "cu" else None
    moved = collective_on(
        machine, collective, bytes_, ranks, gemm.dtype, chosen.driver, held, copies, plain_ring
    )
    loop = GemmLoop(gemm, tiling or tiling_for(gemm, system.gpu, clock, split=True), 1, clock)
    streams = arranged(chosen, system.gpu, loop, CollectiveLoop(moved, 1), units, first or chosen.first)
    return _stream_run(_runner(system, moved, request_bytes, clock).run(streams, chosen.name), moved)


def units_for(
    strategy: Strategy,
    units: int | None,
    collective: str,
    bytes_: int,
    machine: Where,
    *,
    ranks: int = 8,
    clock: str = "sustained",
) -> int | None:
    """The compute units that a strategy sets apart: those given, else its default; None where it does not partition.

    Raises InputError for units that the strategy cannot set apart.
    """
    if not strategy.partition:
        if units is not None:
            raise InputError(
                f"strategy '{strategy.name}' sets no compute units apart, but units is {units}; "
                f"choose partition, priority-partition or dma-partition"
            )
        return None
    gpu = one_node(machine, ranks).gpu
    if units is None:
        units = DMA_UNITS
        if strategy.driver == "cu":
            units = saturating_units(collective, bytes_, machine, ranks=ranks, clock=clock)
        units = min(units, gpu.compute.compute_units - 1)
    split_units(gpu, units)
    return units


def saturating_units(
    collective: str, bytes_: int, machine: Where, *, ranks: int = 8, clock: str = "sustained"
) -> int:
    """The least power of two of compute units that gives a collective 95 % of the bandwidth of its best power of two.

    At most half of the GPU's units, and 128, are tried; large collectives are probed with less. Raises as
    `isolated_collective` does.
    """
    gpu = one_node(machine, ranks).gpu
    most = min(max(gpu.compute.compute_units // 2, 1), 128)
    tried = [1 << power for power in range(most.bit_length())]
    probe = min(bytes_, LARGEST_EXCHANGE if collective == "all_to_all" else LARGEST_PROBE)
    times = [
        isolated_collective(
            collective,
            probe,
            machine,
            ranks=ranks,
            units=units,
            clock=clock,
            request_bytes=default_request_bytes(gpu),
        ).makespan_s
        for units in tried
    ]
    return next(u for u, time in zip(tried, times, strict=True) if SATURATED * time <= min(times))


def check_driver(driver: str) -> None:
    """Raise UnknownNameError for a driver that there is not."""
    if driver not in DRIVERS:
        raise UnknownNameError("driver of a collective", driver, DRIVERS)


def check_first(first: str | None) -> None:
    """Raise UnknownNameError for a stream that there is not."""
    if first is not None and first not in LAUNCHED:
        raise UnknownNameError("first stream", first, LAUNCHED)


def check_units(units: int, gpu: Gpu) -> None:
    """Raise InputError for more compute units than a GPU has, or none."""
    have = gpu.compute.compute_units
    if not 1 <= units <= have:
        raise InputError(f"units is {units}, but {gpu.name} has {have} compute units; choose 1 to {have}")


def _left(gpu: Gpu, units: int) -> tuple[int, ...] | None:
    check_units(units, gpu)
    have = gpu.compute.compute_units
    return None if units == have else split_units(gpu, have - units).gemm


def _runner(system: System, moved: Collective | None, request_bytes: int | None, clock: str) -> Runner:
    return Runner(paced(system, moved), request_bytes or default_request_bytes(system.gpu), clock)


def _stream_run(run: Run, moved: Collective | None) -> StreamRun:
    """What a study needs of a run."""
    loops = {"gemm": "gemm", **({} if moved is None else {"collective": moved.collective})}
    found = {role: loop_times(run.program, run.state, name) for role, name in loops.items()}
    ends = {role: max(times) for role, (times, _) in found.items() if times}
    return StreamRun(
        gemm_s=ends.get("gemm"),
        collective_s=ends.get("collective"),
        makespan_s=max(ends.values()),
        waits={role: waits for role, (_, waits) in found.items() if waits},
        bytes=dict(run.result.bytes),
        counters=dict(run.result.counters),
        levels=dict(run.result.levels),
        units={role: held for role, name in loops.items() if (held := units_held(run, name))},
        events=run.result.events,
        wall_s=run.result.wall_s,
    )


def units_held(run: Run, name: str) -> int:
    """On how many compute units of GPU 0 the workgroups of a loop ran."""
    held: set[int] = set()
    for k, kernel in enumerate(run.program.kernel_names):
        if loop_of(kernel) == name:
            row = run.state.kernel[0, k]
            first = int(row[y.K_FIRST_WORK])
            log = run.state.work_log[0, first : first + int(row[y.K_WORKGROUPS])]
            held.update(np.unique(log[:, y.WL_UNIT]).tolist())
    return len(held)
