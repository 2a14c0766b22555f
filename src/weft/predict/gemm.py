"""How long C = A x B takes on a GPU, in closed form: launch, tiles in waves, cache and memory traffic, split K."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.hardware import Gpu
from weft.kernels.gemm import GemmTiling, main_loop_flops
from weft.kernels.library import Candidate, candidates
from weft.predict import gemm_kernel
from weft.predict.prediction import Bound, FloatArray, IntArray, Prediction
from weft.workload.gemm import DTYPE_BYTES, OUTPUT_DTYPES

Clock = Literal["short", "sustained"]
"""Whether a run is too short to reach the power limit, or goes on at it."""

Timed = Literal["device", "host"]
"""Whether kernels follow each other on the device, or the host issues each and waits for it."""
Shapes = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""Rows, columns, depth and batch of each case."""

ROTATION = 6.0
"""Weights that take turns in a timing loop, as the public inference harnesses do (ai-dynamo/aiconfigurator)."""
_COMPILE_FROM = 2000  # shapes: beyond them, loading or making machine code pays
_CACHE_BOUND = (
    0.05  # share of its time that a unit waits for the cache, from which that is the bound (assumed)
)
_UNHASHED = ("cdna1", "cdna2")  # memory channels follow the address bits
_TOTAL, _COLUMNS, _SPLITS, _UNITS, _MEMORY, _MATRIX, _CACHE, _LATENCY, _SPLIT = range(9)


@dataclass(frozen=True)
class GemmPlan:
    """The kernel that the model takes a library to choose for one GEMM: which, how wide, K in how many parts."""

    candidate: Candidate
    columns: int
    splits: int

    @property
    def tiling(self) -> GemmTiling:
        """The plan's tile as the engine runs it."""
        return self.candidate.tiling(self.columns, self.splits)


def gemm(
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    dtype: str,
    gpu: Gpu,
    *,
    batch: npt.ArrayLike = 1,
    clock: Clock = "short",
    timed: Timed = "device",
    rotation: float = ROTATION,
    quantize: bool = False,
) -> Prediction:
    """The time of C[m,n] = A[m,k] B[k,n], and where it goes; m, n, k and batch may be arrays that broadcast.

    The library's kernel is the one with the least estimated time. `batch` GEMMs share one launch. `timed` says whether
    kernels follow each other on the device, or the host issues each and waits for it. `rotation` is how many B matrices
    take turns (infinite: B always comes from memory); A and C are in the cache if they fit beside B. `quantize` adds
    the conversion of a 16-bit A to scaled 8-bit rows. Parts [s]: launch, convert, compute (the matrix units at their
    achieved rate), tail (units idle or computing padding), cache, latency, fill (begin and end of workgroups), memory
    (what the DRAM adds), split. Raises InputError for impossible sizes and data types that the GPU lacks.

    >>> from weft.hardware import load
    >>> float(gemm(8192, 8192, 8192, "bf16", load("h100-sxm")).seconds) < 2e-3
    True
    """
    shapes = _shapes(m, n, k, batch)
    library = _library(dtype, gpu, quantize)
    machine = effective_rates(dtype, gpu, clock, rotation)
    _, times = _run(shapes, library, machine)
    parts = _parts(shapes, times, machine)
    parts["launch"] = np.full(len(times), _launch(gpu, timed))
    if quantize:
        parts["convert"] = _conversion(shapes, gpu, machine)
    shape = np.broadcast_shapes(np.shape(m), np.shape(n), np.shape(k), np.shape(batch))
    seconds = reduce(np.add, parts.values())
    bound = _bounds(times, parts, seconds)
    return Prediction(
        seconds.reshape(shape),
        bound.reshape(shape),
        {name: part.reshape(shape) for name, part in parts.items()},
    )


def gemm_plan(
    m: int, n: int, k: int, dtype: str, gpu: Gpu, *, rotation: float = ROTATION, quantize: bool = False
) -> GemmPlan:
    """The kernel with the least estimated time for one GEMM; raises InputError as `gemm` does."""
    library = _library(dtype, gpu, quantize)
    chosen, times = _run(_shapes(m, n, k, 1), library, effective_rates(dtype, gpu, "short", rotation))
    return GemmPlan(library[int(chosen[0])], int(times[0, _COLUMNS]), int(times[0, _SPLITS]))


def gemm_options(notes: str, source: str) -> dict[str, Any]:
    """How a measured row was taken, as options of `gemm`, from its notes and source.

    vLLM's linear layers in 8 bits quantize their 16-bit input first; tuning tables of hipBLASLt, NeuSight's torch
    layers and LLMCompass's runs are timed from the host, as their least times of 30 us and more show. (Those of
    hipBLASLt for operands in the order NN are not.)
    """
    tuned = "hipBLASLt" in source and "layout NN" not in notes
    hosted = tuned or any(name in source for name in ("NeuSight", "LLMCompass"))
    return {"quantize": "LinearKernel" in notes, "timed": "host" if hosted else "device"}


def _shapes(*given: npt.ArrayLike) -> Shapes:
    """Sizes and batch as flat arrays of one length; InputError for one that is no whole number above zero."""
    sizes = []
    for name, raw in zip(("m", "n", "k", "batch"), given, strict=True):
        values = np.asarray(raw, dtype=np.float64)
        right = (values >= 1) & (values == np.floor(values)) & np.isfinite(values)
        if not right.all():
            first = float(values[~right].flat[0] if values.ndim else values)
            raise InputError(f"GEMM dimension {name} is {first:g}; it must be a whole number above zero")
        sizes.append(values)
    m, n, k, batch = (np.ravel(size) for size in np.broadcast_arrays(*sizes))
    return m, n, k, batch


def _launch(gpu: Gpu, timed: Timed) -> float:
    if timed not in get_args(Timed):
        raise InputError(f"timed is '{timed}'; it must be 'device' or 'host'")
    return gpu.achieved.gemm_host if timed == "host" else gpu.achieved.gemm_launch


def _library(dtype: str, gpu: Gpu, quantize: bool) -> tuple[Candidate, ...]:
    gpu.matrix_rate(dtype)  # an InputError that names the data types, where there is none
    if quantize and DTYPE_BYTES[dtype] != 1:
        raise InputError(f"operands of {dtype} are not converted; quantize goes with fp8 or int8")
    return candidates(gpu.architecture, dtype, scaled=quantize)


def effective_rates(dtype: str, gpu: Gpu, clock: Clock, rotation: float) -> gemm_kernel.Machine:
    """The GPU's effective rates and costs for a data type."""
    achieved = gpu.achieved
    if not rotation >= 1:
        raise InputError(f"rotation is {rotation:g}; at least one B takes part, so it must be 1 or more")
    unhashed = gpu.architecture in _UNHASHED
    return gemm_kernel.Machine(
        units=float(gpu.compute.compute_units),
        unit_flops=main_loop_flops(dtype, gpu, clock),
        cache_rate=gpu.cache.bandwidth * achieved.gemm_cache,
        memory_rate=gpu.memory.bandwidth * achieved.gemm_memory,
        resident=(gpu.cache.capacity + gpu.memory_cache.capacity) * achieved.gemm_resident,
        issue=achieved.gemm_issue / gpu.compute.clock,
        latency=achieved.gemm_latency,
        fill=achieved.gemm_fill,
        split=achieved.gemm_split,
        element=float(DTYPE_BYTES[dtype]),
        output=float(DTYPE_BYTES[OUTPUT_DTYPES.get(dtype, dtype)]),
        rotation=min(float(rotation), 1e9),
        channels=float(gpu.cache.banks) if unhashed else 0.0,
        interleave=float(gpu.memory.interleave),
    )


_seen = 0


def _run(
    shapes: Shapes, library: tuple[Candidate, ...], machine: gemm_kernel.Machine
) -> tuple[IntArray, FloatArray]:
    """The chosen candidate of every shape, and the fields of its Attempt."""
    global _seen  # noqa: PLW0603 - how much was asked in this process decides whether machine code pays
    count = len(shapes[0])
    _seen += count
    run: Any = gemm_kernel.run
    if _seen > _COMPILE_FROM:
        from weft.predict import gemm_compiled

        run = gemm_compiled.run
    chosen = np.empty(count, dtype=np.int64)
    times = np.empty((count, len(gemm_kernel.Attempt._fields)))
    run(*shapes, _table(library), machine, chosen, times)
    return chosen, times


def _table(library: tuple[Candidate, ...]) -> FloatArray:
    return np.array(
        [[float(getattr(one, field)) for field in gemm_kernel.Tile._fields] for one in library],
        dtype=np.float64,
    )


def _parts(shapes: Shapes, times: FloatArray, machine: gemm_kernel.Machine) -> dict[str, FloatArray]:
    m, n, k, batch = shapes
    units, matrix = times[:, _UNITS], times[:, _MATRIX]
    compute = 2 * m * n * k * batch / (machine.units * machine.unit_flops)
    return {
        "compute": compute,
        "tail": matrix - compute,
        "cache": times[:, _CACHE],
        "latency": times[:, _LATENCY],
        "fill": units - matrix - times[:, _CACHE] - times[:, _LATENCY],
        "memory": times[:, _TOTAL] - times[:, _SPLIT] - units,
        "split": times[:, _SPLIT],
    }


def _conversion(shapes: Shapes, gpu: Gpu, machine: gemm_kernel.Machine) -> FloatArray:
    """A kernel before the GEMM: each row of A is read twice, for its largest value and to be scaled, and written.

    A workgroup per row, two at a time on a compute unit, with two trips to memory each.
    """
    m, _, k, batch = shapes
    moved = batch * m * k * (2 * DTYPE_BYTES["bf16"] + machine.element)
    seconds: FloatArray = (
        gpu.achieved.gemm_launch
        + machine.fill
        + moved / machine.memory_rate
        + batch * m / machine.units * machine.latency
    )
    return seconds


def _bounds(times: FloatArray, parts: dict[str, FloatArray], seconds: FloatArray) -> IntArray:
    units = times[:, _UNITS]
    bound = np.full(len(times), int(Bound.COMPUTE), dtype=np.int64)
    bound[parts["latency"] + parts["fill"] + parts["split"] > times[:, _MATRIX]] = int(Bound.LATENCY)
    bound[parts["cache"] > np.maximum(_CACHE_BOUND * units, parts["latency"])] = int(Bound.CACHE)
    bound[times[:, _MEMORY] > units] = int(Bound.MEMORY)
    bound[2 * parts["launch"] > seconds] = int(Bound.LAUNCH)
    return bound
