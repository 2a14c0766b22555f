"""How long C = A x B takes on a GPU, in closed form: launch, tiles in waves, cache and memory traffic, split K."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.estimate import gemm_kernel
from weft.estimate.answer import Bound, Estimate, FloatArray, Words, blend_parts, floats, from_parts
from weft.estimate.target import BenchmarkProtocol, Target, target
from weft.graph import DTYPE_BYTES, Gemm
from weft.graph.op import OUTPUT_DTYPES, width
from weft.graph.tiling import GemmTiling
from weft.hardware import Gpu
from weft.kernels.compute_units import Placement
from weft.kernels.gemm import main_loop_flops, promoted_share, running_clock
from weft.kernels.library.served import library, table_of, values_of
from weft.kernels.library.tiles import KernelCandidate, batched_candidates, candidates, most_parts

Shapes = Any
"""A `gemm_kernel.GemmShape` whose fields are arrays over the cases."""

_COMPILE_FROM = 2000  # number of shapes from which compiled code pays for its loading or compilation
_COMPILE_EACH_FROM = 50_000  # number of tiles of one shape, likewise
_CACHE_BOUND = 0.05  # share of time waiting for the cache from which the cache is called the bound (assumed)
_UNHASHED = ("cdna1", "cdna2")  # memory channels selected by plain address bits, without a hash


@dataclass(frozen=True)
class Inside:
    """What sets a product inside another operator's kernel apart from a GEMM of the library.

    `kernels` are those that it chooses from (none: the library's), `distinct` is how many elements A and B have in
    memory, as shares of the product's (see `gemm_kernel.GemmShape`). The kernel reaches `rate` of the GPU's rate of
    products, writes `stored` of C, and never cuts a `whole` K.
    """

    kernels: tuple[KernelCandidate, ...] = ()
    distinct: tuple[FloatArray | float, FloatArray | float] = (1.0, 1.0)
    rate: float = 1.0
    stored: float = 1.0
    whole: bool = False


_ALONE = Inside()


def gemm(op: Gemm, machine: Target, inside: Inside = _ALONE) -> Estimate:
    """Return the time of C = A x B, and where it goes.

    The kernel is the one of the library with the least estimated time; by itself a library may cut K into fewer parts
    than a tuner tries. The GEMMs of a batch share one launch. A and C count as cached if they fit beside B, and B if
    all `rotation` Bs fit. Parts [s]: launch, convert, compute (the matrix units at their achieved rate), tail (units
    idle or computing padding), cache, latency, fill (begin and end of workgroups), memory (what DRAM adds), split.
    The harness may name a library of inference (`_served_gemm`), or a `mask` of compute units, of which the library
    chooses its kernel unaware. Raises InputError for data types that the GPU lacks.
    """
    if machine.harness.served and inside is _ALONE:
        return _served_gemm(op, machine)
    mask = machine.mask
    given = np.broadcast_arrays(*map(floats, (op.m, op.n, op.k, op.batch, *inside.distinct)))
    flat: Any = map(np.ravel, given)
    shapes: Shapes = gemm_kernel.GemmShape(*flat)
    harness, achieved = machine.harness, machine.gpu.achieved
    library = inside.kernels or _library(op.dtype, machine)
    rates = effective_rates(op.dtype, machine)
    if op.accumulates:
        rates = rates._replace(output=2.0 * op.accumulator_bytes)
    share = inside.rate * promoted_share(op.scaled, op.dtype, machine.gpu, machine.options)
    rates = rates._replace(unit_flops=rates.unit_flops * share, output=rates.output * inside.stored)
    if inside.whole:
        rates = rates._replace(parts=1.0, own_parts=1.0)
    times = _run(shapes, library, rates, machine, mask)
    few = batched_candidates(machine.gpu.architecture, op.dtype)
    if few and inside is _ALONE and np.any(shapes.batch > 1):
        batched: Any = np.where(shapes.batch > 1, _run(shapes, few, rates, machine, mask), times)
        times = gemm_kernel.Attempt(*batched)
    parts = _parts(shapes, times, rates)
    launch = achieved.gemm_host if harness.timed == "host" else achieved.gemm_launch
    parts["launch"] = np.full(len(shapes.m), launch or machine.gpu.compute.launch_latency)
    if harness.quantize:
        parts["convert"] = _conversion(shapes, machine, rates)
    seconds = reduce(np.add, parts.values())
    shape = given[0].shape
    return Estimate(
        seconds.reshape(shape),
        _bounds(times, parts, seconds).reshape(shape),
        {name: part.reshape(shape) for name, part in parts.items()},
    )


_ADDED = 4.0
"""How sharply the longer of units and memory decides [assumed, 2 to infinity, where it alone counts]."""
_CALLED = 8.0
"""The same of the device and the host's calls [assumed, 4 to infinity]."""
_SLAB = 128
"""Elements of K in a step of a library's main loop."""
_CONVERTED = 4.0
"""Bytes that a conversion of an element of A moves: 16 bits read twice, for the scale and the value; less where rows
stay in registers."""


def _served_gemm(op: Gemm, machine: Target) -> Estimate:
    """Return a GEMM of a narrow format by a library of inference, which the harness names, with its conversion of A.

    Of the library's tiles the one with the least time is taken. A workgroup goes through K in steps of 128, each as
    long as its products or as its loads take to arrive; the longest of them counts while all run at once, else all work
    over the compute units and half a workgroup for the tail. Weights that are narrower than the products become 16 bits
    on their way. `after_others`, as in a step, no call of the host is waited for. Raises UnknownNameError for an
    unknown library, InputError for a format that it has no values of.
    """
    gpu, harness = machine.gpu, machine.harness
    if harness.mask is not None:
        raise InputError(
            f"kernels of {harness.served} are timed on all compute units, not under a mask; leave out the mask, or the "
            "library"
        )
    of = library("gemm", harness.served)
    what = f"{op.dtype}-{harness.weights}" if harness.weights else op.dtype
    own = values_of(table_of("gemm", of.name, what, gpu.architecture), harness.values)
    m, n, k, batch = map(floats, (op.m, op.n, op.k, op.batch))
    units = gpu.compute.compute_units
    rate = own["peak"] * main_loop_flops(op.dtype, gpu, machine.options)
    ways = []
    for rows, columns in of.how["tiles"]:
        workgroups = np.ceil(m / rows) * np.ceil(n / columns) * batch
        step = np.maximum(2 * rows * columns * _SLAB / rate, own["step"])
        each = own["begin"] + np.ceil(k / _SLAB) * step
        ways.append(np.where(workgroups <= units, each, (workgroups / units + 0.5) * each))
    weight = _WEIGHTS[harness.weights] if harness.weights else width(op.dtype)
    moved = batch * (n * k * weight + m * k * width(op.dtype) + m * n * DTYPE_BYTES["bf16"])
    busy = blend_parts(
        {"compute": np.min(ways, axis=0), "memory": moved / (own["memory"] * gpu.memory.bandwidth)}, _ADDED
    )
    converted = (
        batch * m * k * _CONVERTED / (own["convert"] * gpu.memory.bandwidth) if "convert" in own else 0.0 * moved
    )
    parts = {"launch": own["start"] + 0.0 * moved, **busy, "copy": converted}
    device = sum(parts.values(), np.zeros(np.shape(moved)))
    if harness.after_others:
        return from_parts(parts)
    return from_parts({**parts, "host": (device**_CALLED + own["host"] ** _CALLED) ** (1 / _CALLED) - device})


_WEIGHTS = {"int8": 1.0, "int4": 0.5}
"""Bytes of an element of weights that are narrower than the products."""


def _library(dtype: str, machine: Target) -> tuple[KernelCandidate, ...]:
    machine.gpu.matrix_rate(dtype)  # raises the InputError that lists the supported data types
    if machine.harness.quantize and DTYPE_BYTES.get(dtype) != 1:
        raise InputError(f"operands of {dtype} need no conversion; quantize goes with fp8 or int8")
    return candidates(machine.gpu.architecture, dtype, scaled=machine.harness.quantize)


def effective_rates(dtype: str, machine: Target) -> gemm_kernel.KernelMachine:
    """Return the GPU's effective rates and costs for a data type."""
    gpu, achieved = machine.gpu, machine.gpu.achieved
    unhashed = gpu.architecture in _UNHASHED
    return gemm_kernel.KernelMachine(
        units=float(gpu.compute.compute_units),
        unit_flops=main_loop_flops(dtype, gpu, machine.options),
        cache_rate=gpu.cache.bandwidth * achieved.gemm_cache,
        memory_rate=gpu.memory.bandwidth * achieved.gemm_memory,
        resident=(gpu.cache.capacity + gpu.memory_cache.capacity) * achieved.gemm_resident,
        issue=achieved.gemm_issue / gpu.compute.clock,
        latency=achieved.gemm_latency,
        fill=achieved.gemm_fill or _first_loads(dtype, gpu, machine.options),
        split=achieved.gemm_split,
        element=width(dtype),
        output=float(DTYPE_BYTES[OUTPUT_DTYPES.get(dtype, dtype)]),
        rotation=min(float(machine.harness.rotation), 1e9),
        channels=float(gpu.cache.banks) if unhashed else 0.0,
        interleave=float(gpu.memory.interleave),
        parts=float(most_parts(gpu.architecture, dtype, tuned=machine.harness.tuned)),
        own_parts=float(most_parts(gpu.architecture, dtype)),
    )


_ROUNDING = 1e-9
"""By how much more units count, so that whole rounds stay whole."""
_seen = 0


def _run(
    shapes: Shapes,
    library: tuple[KernelCandidate, ...],
    rates: gemm_kernel.KernelMachine,
    machine: Target,
    mask: tuple[int, ...] | None,
) -> gemm_kernel.Attempt:
    """Return the Attempt under the candidate that is best on the whole GPU, each field an array over the shapes."""
    global _seen  # noqa: PLW0603 - how much was asked in this process decides whether machine code pays
    count = len(shapes.m)
    _seen += count
    run: Any = gemm_kernel.compile_kernel() if _seen > _COMPILE_FROM else gemm_kernel.run
    chosen = np.empty(count, dtype=np.int64)
    times = np.empty((count, len(gemm_kernel.Attempt._fields)))
    tiles = np.array([as_tile(one) for one in library])
    scratch = np.empty((len(tiles), len(gemm_kernel.WorkgroupCosts._fields))), np.empty(len(tiles))
    run(np.stack(shapes, axis=1), tiles, rates, chosen, times, *scratch)
    if mask is not None:
        for i, shape in enumerate(np.stack(shapes, axis=1)):
            tile, found = gemm_kernel.Tile(*tiles[chosen[i]]), gemm_kernel.Attempt(*times[i])
            of = gemm_kernel.GemmShape(*shape)
            few = rates_on(rates, of, tile, found, machine.gpu, machine.options, mask)
            times[i] = gemm_kernel.time_candidate(of, tile, found.columns, found.splits, few)
    return gemm_kernel.Attempt(*times.T)


def rates_on(
    rates: gemm_kernel.KernelMachine,
    shape: gemm_kernel.GemmShape,
    tile: gemm_kernel.Tile,
    found: gemm_kernel.Attempt,
    gpu: Gpu,
    options: RunOptions,
    mask: tuple[int, ...],
) -> gemm_kernel.KernelMachine:
    """Return the rates of the compute units of a mask, for a shape whose kernel was `found` on the whole GPU.

    On a GPU of several dies the units count that work on average over the rounds of the fullest shader engine, at the
    clock that their number allows (`weft.kernels.compute_units`); elsewhere all units of the mask.
    """
    if gpu.dies == 1:
        return rates._replace(units=float(len(mask)))
    grid = np.ceil(shape.m / tile.rows) * np.ceil(shape.n / found.columns)
    work, resident = int(grid * found.splits * shape.batch), max(int(tile.resident), 1)
    placed = Placement(mask, resident)
    units = work / (placed.rounds(work, gpu) * resident) * (1 + _ROUNDING)
    clock = placed.clock_gain(work, gpu, options)
    return rates._replace(units=units, unit_flops=rates.unit_flops * clock)


def time_each(op: Gemm, tiles: FloatArray, splits: Any, rates: gemm_kernel.KernelMachine) -> FloatArray:
    """Return the time of one GEMM under each tile, without the launch [s]; `tiles` has rows of gemm_kernel.Tile.

    K is cut into the number of `splits` of each.
    """
    times = np.empty(len(tiles))
    run: Any = gemm_kernel.compile_kernel("each") if len(tiles) > _COMPILE_EACH_FROM else gemm_kernel.each
    run(gemm_kernel.GemmShape(op.m, op.n, op.k, op.batch), tiles, np.asarray(splits, dtype=float), rates, times)
    return times


def _first_loads(dtype: str, gpu: Gpu, options: RunOptions) -> float:
    """Time from a workgroup's start until it can compute [s]: latencies, and the slabs of a K step through its port."""
    tile = GemmTiling()
    slabs = (tile.rows + tile.columns) * tile.step * width(dtype)
    return (
        gpu.cache.latency
        + gpu.memory.latency
        + slabs / (gpu.compute.port_bytes_per_clock * running_clock(gpu, options))
    )


def as_tile(one: KernelCandidate) -> gemm_kernel.Tile:
    """Return a kernel of a library as numbers."""
    return gemm_kernel.Tile(*(float(getattr(one, field)) for field in gemm_kernel.Tile._fields))


def _parts(shapes: Shapes, times: Any, rates: gemm_kernel.KernelMachine) -> dict[str, FloatArray]:
    compute = 2 * shapes.m * shapes.n * shapes.k * shapes.batch / (rates.units * rates.unit_flops)
    return {
        "compute": compute,
        "tail": times.matrix_time - compute,
        "cache": times.cache_time,
        "latency": times.latency_time,
        "fill": times.units_time - times.matrix_time - times.cache_time - times.latency_time,
        "memory": times.total - times.split_time - times.units_time,
        "split": times.split_time,
    }


def _conversion(shapes: Shapes, machine: Target, rates: gemm_kernel.KernelMachine) -> FloatArray:
    """Return a kernel before the GEMM that converts A: each row is read twice (largest value, scaling) and written.

    One workgroup per row, two at a time on a compute unit, two memory round trips each.
    """
    m, k, batch = shapes.m, shapes.k, shapes.batch
    moved = batch * m * k * (2 * DTYPE_BYTES["bf16"] + rates.element)
    seconds: FloatArray = (
        machine.gpu.achieved.gemm_launch
        + rates.fill
        + moved / rates.memory_rate
        + batch * m / rates.units * rates.latency
    )
    return seconds


def _bounds(times: Any, parts: dict[str, FloatArray], seconds: FloatArray) -> Words:
    bound = np.full(len(seconds), Bound.COMPUTE)
    bound[parts["latency"] + parts["fill"] + parts["split"] > times.matrix_time] = Bound.LATENCY
    bound[parts["cache"] > np.maximum(_CACHE_BOUND * times.units_time, parts["latency"])] = Bound.CACHE
    bound[times.memory_time > times.units_time] = Bound.MEMORY
    bound[2 * parts["launch"] > seconds] = Bound.LAUNCH
    return bound


@dataclass(frozen=True)
class RankedPlan:
    """A tiling of a GEMM and its closed-form time without the launch [s].

    `overlapped` is the time if memory and compute units overlap in full, as they do in the engine [s].
    """

    tiling: GemmTiling
    seconds: float
    overlapped: float


def ranked_plans(
    gemm: Gemm, gpu: Gpu, options: RunOptions | None = None, *, split: bool = False
) -> tuple[RankedPlan, ...]:
    """Every kernel of the GPU's library, fastest first: with `split`, K in as many parts as suit it, else in one.

    The operands come from memory; without options the run is a long one. Raises InputError for a dtype that the GPU
    lacks.
    """
    rates, shape = cold_rates(gemm.dtype, gpu, options), gemm_kernel.GemmShape(gemm.m, gemm.n, gemm.k, 1)
    plans = [_rank_plan(shape, one, rates, split) for one in candidates(gpu.architecture, gemm.dtype)]
    return tuple(sorted(plans, key=lambda plan: plan.seconds))


def cold_rates(dtype: str, gpu: Gpu, options: RunOptions | None = None) -> gemm_kernel.KernelMachine:
    """The GPU's effective rates in the engine: operands in memory, and a launch for the kernel that adds split sums."""
    rates = effective_rates(dtype, target(gpu, options, BenchmarkProtocol(rotation=float("inf"))))
    # MI210's and MI100's rows hardly constrain the cost of splitting K: the fit is below the cost of a launch.
    return rates._replace(split=max(rates.split, gpu.compute.launch_latency))


def _rank_plan(
    shape: gemm_kernel.GemmShape, one: KernelCandidate, rates: gemm_kernel.KernelMachine, split: bool
) -> RankedPlan:
    tile, splits = as_tile(one), 1.0
    columns, _, _ = gemm_kernel.fit_tile(shape, tile, rates)
    if split:
        moved, cost = gemm_kernel.traffic(shape, rates), gemm_kernel.costs(tile, rates)
        _, columns, splits, _ = gemm_kernel.under(shape, moved, tile, cost, float("inf"), rates)
    found = gemm_kernel.time_candidate(shape, tile, columns, splits, rates)
    overlapped = max(found.units_time, found.memory_time) + found.split_time
    return RankedPlan(one.tiling(int(found.columns), int(found.splits)), found.total, overlapped)
