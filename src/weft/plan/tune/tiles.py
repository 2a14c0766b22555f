"""Tile search: every kernel of a template that fits the GPU, timed by the GEMM model, as a tuner sees it.

A tuner (AutoTVM, arXiv:1805.08166; Triton's) measures candidates of a template; here the closed form times them, and
resources prune those that cannot run or cannot pay, with the reason of each. Annealing and random draws look up the
times of such a search, so that the kernels that they evaluate are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import exp, inf, prod
from random import Random
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.core.answer import Answer, to_plain
from weft.core.errors import InputError, check_whole
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import gemm_kernel
from weft.estimate.gemm import RankedPlan, effective_rates, ranked_plans, time_each
from weft.estimate.target import BenchmarkProtocol, target
from weft.graph import Gemm
from weft.graph.tiling import GemmTiling
from weft.hardware import Gpu
from weft.kernels.gemm import OVERHEAD_REGISTERS
from weft.kernels.library.tiles import MOST_SLOTS

KNOBS = ("rows", "columns", "step", "stages", "threads", "splits")
_THREAD_REGISTERS = {"nvidia": 255, "amd": 512}
"""Most 32-bit registers of a thread, by vendor (CUDA programming guide; CDNA3 ISA: 256 and 256 for accumulation)."""
_LEAST_OF_WAVEFRONT = 16 * 16
"""Fewest elements of C of a wavefront: the result of one matrix instruction (16 x 16, or 16 x 8 twice)."""
_IMPOSSIBLE = 2
"""Number of leading `REASONS` that keep a kernel from running at all."""
REASONS = {
    "shared memory": "the K steps in flight do not fit the local memory of a compute unit",
    "registers": "accumulators, operands' addresses and fragments exceed the registers of a thread or a compute unit",
    "wavefronts": "a wavefront has less than one matrix instruction's elements of C",
    "padding": "three quarters of a tile's rows or columns are padding",
    "too small": "the tiles are small for their number of waves",
    "short parts": f"a part of K has fewer than {gemm_kernel.SPLIT_STEPS} steps",
    "K cut on a full GPU": f"K is cut though its parts fill the GPU more than {gemm_kernel.SPLIT_WAVES} times",
}
"""Why a candidate is pruned; the first reason that applies counts."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Template:
    """The values of each knob of a kernel; every combination is a candidate. `step` counts elements of two bytes."""

    rows: Sequence[int] = (16, 32, 64, 128, 256)
    columns: Sequence[int] = (16, 32, 64, 128, 256)
    step: Sequence[int] = (16, 32, 64, 128)
    stages: Sequence[int] = (2, 3, 4, 5, 6)
    threads: Sequence[int] = (128, 256)
    splits: Sequence[int] = (1, 2, 4, 8, 16)

    def __post_init__(self) -> None:
        for name in KNOBS:
            values = getattr(self, name)
            least = 2 if name == "stages" else 1
            if not values or not all(isinstance(value, int) and value >= least for value in values):
                raise InputError(f"{name} of a template is {values}; list whole numbers of at least {least}")
            object.__setattr__(self, name, tuple(sorted(set(values))))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each knob has."""
        return tuple(len(getattr(self, name)) for name in KNOBS)

    def candidates(self) -> Ints:
        """Return every combination, a row each, the last knob fastest."""
        return np.array(list(product(*(getattr(self, name) for name in KNOBS))), dtype=np.int64)


@dataclass(frozen=True)
class TimedTile:
    """A kernel of a template and its time, without the launch [s]."""

    tiling: GemmTiling
    seconds: float


@dataclass(frozen=True, repr=False)
class Tiles(Answer):
    """A tile search: candidates that fit, their times without the launch [s], and how many were pruned why.

    `knobs` has a row of KNOBS for each kept candidate, `places` their positions in the template, `resident` the
    workgroups that a compute unit holds. `library` is the kernel that the vendor's library would choose.
    """

    kind = "tiles"

    gemm: Gemm
    gpu: Gpu
    clock: str
    template: Template
    knobs: Ints
    places: Ints
    resident: Ints
    seconds: Floats
    pruned: Mapping[str, int]
    library: RankedPlan

    @property
    def candidates(self) -> int:
        """Number of combinations of the template."""
        return prod(self.template.sizes)

    @cached_property
    def order(self) -> Ints:
        """Positions of the kept candidates, fastest first; equal ones as the template lists them."""
        return np.argsort(self.seconds, kind="stable")

    def timed_tile(self, at: int) -> TimedTile:
        """Return the kept candidate of a position."""
        return TimedTile(_tiling(self.knobs[at], int(self.resident[at])), float(self.seconds[at]))

    @property
    def best(self) -> TimedTile:
        """The fastest candidate."""
        return self.timed_tile(int(self.order[0]))

    def fastest(self, most: int) -> list[TimedTile]:
        """Return the fastest candidates; of those that differ in threads alone and take the same time, the first."""
        found: dict[tuple[float, ...], TimedTile] = {}
        for at in self.order:
            one = self.timed_tile(int(at))
            kernel = one.tiling
            key = one.seconds, kernel.rows, kernel.columns, kernel.step, kernel.stages, kernel.splits
            found.setdefault(key, one)
            if len(found) == most:
                break
        return list(found.values())

    @property
    def over_library(self) -> float:
        """Time of the library's kernel over that of the template's best, less one: what tuning saves if above 0."""
        return self.library.seconds / self.best.seconds - 1

    def within(self, share: float) -> int:
        """Return how many candidates are at most `share` slower than the best."""
        return int(np.count_nonzero(self.seconds <= (1 + share) * self.best.seconds))

    def to_dict(self) -> dict[str, Any]:
        """Counts, reasons, the best ten, and the library's kernel, as plain data."""
        return to_plain(
            gemm={"m": self.gemm.m, "n": self.gemm.n, "k": self.gemm.k, "dtype": self.gemm.dtype}, gpu=self.gpu.name,
            clock=self.clock, candidates=self.candidates, pruned=self.pruned, timed=len(self.seconds),
            within_1_percent=self.within(0.01), best=[_record(one) for one in self.fastest(10)],
            library={"tile": str(self.library.tiling), "seconds": self.library.seconds}, over_library=self.over_library,
        )  # fmt: skip


def _record(one: TimedTile) -> dict[str, Any]:
    knobs = {name: getattr(one.tiling, name) for name in KNOBS}
    return {**knobs, "resident": one.tiling.resident, "seconds": one.seconds}


def _tiling(knobs: Ints, resident: int) -> GemmTiling:
    rows, columns, step, stages, threads, splits = map(int, knobs)
    slots = min(stages, MOST_SLOTS)
    return GemmTiling(rows, columns, step, threads, slots, stages=stages, resident=resident, splits=splits)


def tiles(
    gemm: Gemm,
    gpu: Gpu | str,
    template: Template | None = None,
    options: RunOptions | None = None,
    harness: BenchmarkProtocol | None = None,
) -> Tiles:
    """Time every kernel of a template that fits a GPU: the best, what was pruned why, and the library's own choice.

    Without options the run is a long one, without a `harness` B takes turns in the cache as in a timing loop. Times
    are without the launch. Raises InputError for a dtype that the GPU lacks, and if no candidate fits.

    >>> found = tiles(Gemm(4096, 4096, 4096, "bf16"), "h100-sxm")
    >>> found.candidates, len(found.seconds) < 0.2 * found.candidates
    (5000, True)
    """
    where, used = hardware.gpu(gpu), template or Template()
    rates = effective_rates(gemm.dtype, target(where, options, harness or BenchmarkProtocol()))
    knobs = used.candidates()
    knobs[:, 2] = np.maximum(knobs[:, 2] * 2 // max(int(rates.element), 1), 1)
    resident, causes = _limits(gemm, where, knobs, rates)
    kept = np.flatnonzero(causes == len(REASONS))
    pruned = {name: int(np.count_nonzero(causes == at)) for at, name in enumerate(REASONS)}
    if not len(kept):
        raise InputError(
            f"no kernel of the template fits {where.name} for {gemm}: {_most(pruned)}; give smaller tiles, fewer "
            "stages or fewer parts of K"
        )
    seconds = time_each(gemm, _as_tiles(knobs[kept], resident[kept]), knobs[kept, 5], rates)
    library = min(ranked_plans(gemm, where, options, split=True), key=lambda plan: plan.seconds)
    library = replace(library, seconds=_library_seconds(gemm, library, rates))
    clock = (options or SUSTAINED).clock
    return Tiles(gemm, where, clock, used, knobs[kept], kept, resident[kept], seconds, pruned, library)


def _most(pruned: Mapping[str, int]) -> str:
    name = max(pruned, key=lambda one: pruned[one])
    return f"of most, {REASONS[name]}"


def _library_seconds(gemm: Gemm, plan: RankedPlan, rates: gemm_kernel.KernelMachine) -> float:
    """Return the time of the library's kernel under the same benchmark protocol as the template's [s]."""
    one = plan.tiling
    cluster = max(one.share_rows, one.share_columns)
    tile = np.array([[one.rows, one.columns, one.step, one.stages, one.resident, 0, cluster]], dtype=float)
    return float(time_each(gemm, tile, np.array([one.splits]), rates)[0])


def _as_tiles(knobs: Ints, resident: Ints) -> Floats:
    """Return rows of `gemm_kernel.Tile`: no narrower versions, no clusters."""
    ones = np.ones(len(knobs))
    return np.column_stack([*knobs[:, :4].T, resident, 0 * ones, ones]).astype(float)


def _limits(gemm: Gemm, gpu: Gpu, knobs: Ints, rates: gemm_kernel.KernelMachine) -> tuple[Ints, Ints]:
    """Workgroups that a compute unit holds of each candidate, and the place of the reason that prunes it in REASONS."""
    rows, columns, step, stages, threads, splits = knobs.T
    local = np.ceil(stages * (rows + columns) * step * rates.element).astype(np.int64)
    registers = rows * columns * max(4, int(rates.element)) + OVERHEAD_REGISTERS * threads * 4
    compute = gpu.compute
    most = _THREAD_REGISTERS.get(gpu.vendor, 255) * 4
    wavefronts = -(-threads // compute.wavefront_size)
    held = np.minimum.reduce(
        [
            np.full(len(knobs), compute.max_workgroups_per_cu),
            compute.threads_per_cu // threads,
            compute.registers_per_cu // registers,
            compute.lds_per_cu // local,
        ]
    )
    tiles_across = -(-gemm.m // rows) * -(-gemm.n // columns) * gemm.batch
    slots, steps = compute.compute_units * np.maximum(held, 1), -(-gemm.k // step)
    small, waves = rows * columns < gemm_kernel.LARGE, gemm_kernel.MANY_WAVES
    tests = (
        local > compute.lds_per_cu,
        (registers > compute.registers_per_cu) | (registers > most * threads),
        rows * columns < _LEAST_OF_WAVEFRONT * wavefronts,
        _pad_sides(rows, gemm.m) | _pad_sides(columns, gemm.n),
        small & (gemm.m * gemm.n * gemm.batch > waves * rows * columns * slots),
        (splits > 1) & (steps < splits * gemm_kernel.SPLIT_STEPS),
        (splits > 1) & (tiles_across * splits > gemm_kernel.SPLIT_WAVES * slots),
    )
    causes = np.select(tests, range(len(tests)), len(tests))
    return held, causes


def _pad_sides(sides: Ints, size: int) -> Any:
    return (sides > gemm_kernel.SMALL) & (sides >= 4 * size)


@dataclass(frozen=True)
class Regret:
    """What a choice by the model costs on a machine where several tiles were measured.

    `seconds` is the measured time of the chosen tile, or, if it is not `listed`, that of the slowest listed one: a
    lower bound where the list leaves out slower ones. `least` is the shortest measured time.
    """

    chosen: GemmTiling
    seconds: float
    least: float
    listed: bool

    @property
    def value(self) -> float:
        """How much longer the chosen tile takes than the best, as a share of the best's time."""
        return self.seconds / self.least - 1


def measured_regret(
    gemm: Gemm,
    gpu: Gpu | str,
    measured: Mapping[GemmTiling, float],
    among: Iterable[GemmTiling] = (),
    options: RunOptions | None = None,
    harness: BenchmarkProtocol | None = None,
) -> Regret:
    """Choose a tile by the model among those `measured` [s] and further ones, and look up what was measured for it.

    A tiling that does not say how many of its workgroups are resident gets as many as fit. Raises InputError if
    nothing was measured or nothing fits.
    """
    if not measured:
        raise InputError("no tile was measured; give at least one with its time")
    where = hardware.gpu(gpu)
    rates = effective_rates(gemm.dtype, target(where, options, harness or BenchmarkProtocol()))
    every = list(dict.fromkeys((*measured, *among)))
    knobs = np.array([[getattr(one, name) for name in KNOBS] for one in every], dtype=np.int64)
    resident, causes = _limits(gemm, where, knobs, rates)
    runs = np.flatnonzero((causes >= _IMPOSSIBLE) & (resident > 0))
    if not len(runs):
        raise InputError(f"no tile fits {where.name}; check rows, columns, step and stages")
    knobs[:, 3] = np.maximum(knobs[:, 3], 2)
    seconds = time_each(gemm, _as_tiles(knobs[runs], resident[runs]), knobs[runs, 5], rates)
    chosen = every[int(runs[int(np.argmin(seconds))])]
    listed = chosen in measured
    return Regret(chosen, measured[chosen] if listed else max(measured.values()), min(measured.values()), listed)


_HOT = 0.3
"""Temperature at which a walk begins: a candidate slower by this share is taken with probability 1/e [assumed]."""
_COOLING = 0.97
"""Factor of the temperature after each evaluation [assumed]."""
_STALL = 100
"""Moves in a row without a new best of the walk after which it begins elsewhere [assumed]."""


@dataclass(frozen=True)
class Searched:
    """Evaluations until a candidate within `within` of the best is found.

    `exhaustive` times all; `random` is the mean of draws without replacement; `annealed` the median of many walks.
    """

    within: float
    exhaustive: int
    random: float
    annealed: float


def search_tiles(answer: Tiles, within: float = 0.01, starts: int = 20, seed: int = 0) -> Searched:
    """Compare random draws and annealing on the candidates of a tile search; the same seed gives the same walks.

    Of n candidates, s of them good enough, the first good one is drawn after (n + 1) / (s + 1) draws on average. Raises
    InputError for a negative share, and fewer than one start.
    """
    check_whole("starts", starts, 1, 20)
    if not 0 <= within < inf:
        raise InputError(f"within is {within:g}; it must be a share of at least 0, such as 0.01")
    count = len(answer.seconds)
    known = dict(zip(answer.places.tolist(), answer.seconds.tolist(), strict=True))
    goal = (1 + within) * answer.best.seconds
    walks = [_until(goal, known, answer.template.sizes, Random(f"{seed}, {start}")) for start in range(starts)]
    return Searched(within, count, (count + 1) / (answer.within(within) + 1), float(median(walks)))


def _until(goal: float, known: Mapping[int, float], sizes: tuple[int, ...], random: Random) -> int:
    """Candidates that walks from one start after the other evaluate until one takes at most `goal` [s]."""
    starts, seen = list(known), set[int]()
    while True:
        for at in _walk(random.choice(starts), known, sizes, random):
            seen.add(at)
            if known[at] <= goal:
                return len(seen)


def _walk(at: int, known: Mapping[int, float], sizes: tuple[int, ...], random: Random) -> Iterator[int]:
    """Yield the candidates that one walk evaluates: its start, and each neighbour that it considers, taken or not."""
    yield at
    temperature, best, idle = _HOT, known[at], 0
    while idle < _STALL:
        near, idle = _neighbour(at, sizes, random), idle + 1
        if near not in known:
            continue
        yield near
        if known[near] < best:
            best, idle = known[near], 0
        slower = known[near] / known[at] - 1
        if slower <= 0 or random.random() < exp(-slower / temperature):
            at = near
        temperature *= _COOLING


def _neighbour(place: int, sizes: tuple[int, ...], random: Random) -> int:
    """Return the position one value up or down on one knob; -1 beyond its values."""
    knob = random.randrange(len(sizes))
    turn, stride = random.choice((-1, 1)), prod(sizes[knob + 1 :])
    return place + turn * stride if 0 <= place // stride % sizes[knob] + turn < sizes[knob] else -1
