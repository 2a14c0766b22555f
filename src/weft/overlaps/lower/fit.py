"""Choose a GEMM's tiling on a GPU, and check that the GPU, the engine and this computer can hold the run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.core.errors import InputError
from weft.core.options import SUSTAINED, RunOptions
from weft.core.units import format_bytes
from weft.engine import layout as y
from weft.engine.program import Kernel, Plan
from weft.engine.state import (
    EARLIER_COLUMNS,
    LINE_COLUMNS,
    WAITER_COLUMNS,
    Tables,
    margin_events,
    margin_requests,
)
from weft.estimate.gemm import ranked_plans
from weft.estimate.gemm_kernel import SPLIT_STEPS, SPLIT_WAVES
from weft.estimate.target import check_held
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling, claims, gemm_kernel, running_clock, tile_table
from weft.kernels.gemm import step_cycles

MOST_TILES = 1_000_000
"""Most tiles of the GEMMs of a run; their tables then occupy some hundred megabytes."""


def tiling_for(
    gemm: Gemm, gpu: Gpu, options: RunOptions = SUSTAINED, chunks: int = 1, *, split: bool = False
) -> GemmTiling:
    """Return the tile that is fastest in closed form, among those that cut the output into `chunks` equal chunks.

    If none does, the fastest of all; the paper's machine has one tile. With `split`, for GEMMs whose tiles no other
    operator waits for, K is cut into parts only if that is faster even with memory and compute fully overlapped, since
    splitting does not speed up the memory. Raises InputError for a dtype that the GPU lacks.
    """
    if gpu.vendor == "none":
        return GemmTiling()
    plans = ranked_plans(gemm, gpu, options)
    if split:
        cut = ranked_plans(gemm, gpu, options, split=True)[0]
        return min(cut, plans[0], key=lambda plan: plan.overlapped).tiling
    even = (plan.tiling for plan in plans if chunks == 1 or _even(gemm, plan.tiling, chunks))
    return next(even, plans[0].tiling)


def parts_of_k(gemm: Gemm, tiling: GemmTiling, gpu: Gpu, options: RunOptions = SUSTAINED) -> int:
    """Into how many parts to cut K where memory adds them up: those with which products and updates end soonest.

    More parts leave fewer compute units idle, but each part updates the whole output. The number of parts is limited as
    in a library (`SPLIT_STEPS`, `SPLIT_WAVES`).
    """
    memory, units = gpu.memory, gpu.compute.compute_units
    steps, tiles = -(-gemm.k // tiling.step), tiling.workgroups(gemm)
    held = occupancy(gemm_kernel(gemm, gpu, tiling, options), gpu)
    alone = steps * step_cycles(gemm, gpu, tiling, options) / running_clock(gpu, options)  # a tile on a compute unit
    share = min(1.0, memory.bank_groups * memory.burst_clocks / memory.ccd_update)
    updates = gemm.output_bytes / (memory.bandwidth * share)
    most = max(1, min(steps // SPLIT_STEPS, SPLIT_WAVES * held * units // tiles))
    return min(range(1, most + 1), key=lambda parts: -(-tiles * parts // units) / parts * alone + parts * updates)


def _even(gemm: Gemm, tiling: GemmTiling, chunks: int) -> bool:
    """Return whether every chunk of the output has the same size."""
    rows, columns = tiling.grid(gemm)
    if rows * columns % chunks:
        return False
    work = tile_table(gemm, tiling, chunks)
    sizes = np.bincount(work[:, y.WORK_REGION], weights=work[:, y.WORK_BYTES])
    return bool((sizes == sizes[0]).all())


def check_state(tables: Tables, gpu: Gpu) -> None:
    """Raise InputError if the simulation's state does not fit into this computer's memory."""
    size = tables.shape
    gpus, lines = int(size[y.SIZE_GPUS]), int(size[y.SIZE_PARTITIONS] * size[y.SIZE_SETS] * size[y.SIZE_WAYS])
    side = int(size[y.SIZE_CHANNELS] * size[y.SIZE_SIDE_SETS] * size[y.SIZE_SIDE_WAYS])
    places = int(size[y.SIZE_CUS] * size[y.SIZE_RESIDENT])
    entries = (
        2 * margin_events(size) * 2
        + 2 * margin_requests(size) * (y.REQ_COLUMNS + WAITER_COLUMNS)
        + gpus * (lines + side) * (3 + LINE_COLUMNS + EARLIER_COLUMNS)
        + gpus * places * (y.WG_COLUMNS + y.SLOTS * y.SLOT_COLUMNS)
    )
    import psutil

    free = psutil.virtual_memory().available
    if 8 * entries > free:
        raise InputError(
            f"the state of {gpus} x {gpu.name} takes {format_bytes(8 * entries, 3)}, but this computer has "
            f"{format_bytes(free, 3)} free; give larger requests, fewer GPUs, or less cache and fewer compute units"
        )


def check_tile(gemm: Gemm, tiling: GemmTiling, gpu: Gpu) -> int:
    """Return the number of tiles of a GEMM on a GPU, one per part of K of each output tile.

    InputError if the GEMM exceeds the GPU's memory, a tile its compute units or cache, or the tiles the engine's limit.
    """
    check_held(gemm, gpu)
    registers, lds = claims(gemm, gpu, tiling)
    step = (tiling.rows + tiling.columns) * tiling.step * gemm.element_bytes
    compute_unit = f"a compute unit of {gpu.name} has"
    needs = (
        ("registers", registers, gpu.compute.registers_per_cu, compute_unit),
        ("local memory", lds, gpu.compute.lds_per_cu, compute_unit),
        ("cache for one K step", step, gpu.cache.capacity, f"the last-level cache of {gpu.name} holds"),
    )
    _check_needs(f"a tile of {tiling.rows} x {tiling.columns} with K steps of {tiling.step}", needs)
    tiling.part_steps(gemm)
    tiles = tiling.workgroups(gemm)
    if tiles > MOST_TILES:
        raise InputError(
            f"the output of {gemm} has {tiles} tiles of {tiling.rows} x {tiling.columns}, more than the "
            f"{MOST_TILES} that a run can hold; choose a larger tile or a smaller GEMM"
        )
    return tiles


def _check_needs(what: str, needs: Iterable[tuple[str, int, int, str]]) -> None:
    """Raise InputError if more of a resource is needed than there is [bytes]."""
    for resource, need, have, holder in needs:
        if need > have:
            raise InputError(
                f"{what} needs {format_bytes(need)} of {resource}, but {holder} {format_bytes(have)}; "
                "choose a smaller tile"
            )


def check_whole(tiling: GemmTiling) -> None:
    """Raise InputError for split K under methods that send finished tiles: one split of a tile is a partial sum."""
    if tiling.splits > 1:
        raise InputError(
            f"GEMM tiling: splits is {tiling.splits}, but an overlap that sends finished tiles on needs K in one "
            "piece; set splits to 1, choose 't3-split-k', whose memory adds up the parts, or run the GEMM beside an "
            "independent collective"
        )


def most_resident(plan: Plan, gpu: Gpu) -> int:
    """Return the most workgroups of a plan that a compute unit can hold at once; kernels of a loop count once.

    InputError for a kernel if no workgroup of it fits.
    """
    compute, compute_unit, held = gpu.compute, f"a compute unit of {gpu.name} has", {}
    for kernel in (placed.kernel for placed in plan.kernels if placed.kernel.workgroups > 0):
        needs = (
            ("registers", kernel.registers, compute.registers_per_cu, compute_unit),
            ("local memory", kernel.lds, compute.lds_per_cu, compute_unit),
        )
        _check_needs(f"a workgroup of {kernel.name}", needs)
        held[kernel.threads, kernel.registers, kernel.lds] = occupancy(kernel, gpu)
    return min(compute.max_workgroups_per_cu, max(sum(held.values()), 1))


def occupancy(kernel: Kernel, gpu: Gpu) -> int:
    """Return the workgroups of a kernel that fit a compute unit, by threads, registers and local memory."""
    return gpu.compute.resident_workgroups(kernel.threads, kernel.registers, kernel.lds)
