"""What an overlap is, and the problem that it is given.

An overlap is either *simulated*: `plan` is called once per run and returns kernels, buffers and address map; or
*ideal*: it names simulated runs whose isolated times `combine` puts together. Neither changes its problem.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.collectives import Ring
from weft.engine import layout as y
from weft.errors import InputError
from weft.hardware import Gpu, System
from weft.kernels import GemmTiling, RingTiling, claims, gemm_kernel, operand_sizes, tile_table
from weft.overlap.arbiters import ROUND_ROBIN, ArbiterPolicy
from weft.parallel.tensor import ShardedSubLayer
from weft.program import Buffer, ChunkRule, Kernel, Plan
from weft.program.plan import Work
from weft.units import format_bytes
from weft.workload import Gemm


@dataclass(frozen=True)
class Problem:
    """A sub-layer on a system, and how its kernels are cut; `ranks` GPUs are simulated (1: one stands for all).

    `clock` is what the compute units run at: "short" or "sustained".
    """

    layer: ShardedSubLayer
    system: System
    ranks: int = 1
    tiling: GemmTiling = field(default_factory=GemmTiling)
    ring_tiling: RingTiling = field(default_factory=RingTiling)
    clock: str = "sustained"

    def __post_init__(self) -> None:
        _check_fit(self)

    @property
    def gpu(self) -> Gpu:
        """The GPU that kernels are tuned for."""
        return self.system.gpu

    @property
    def ring(self) -> Ring:
        """The ring over the GPUs of the layer's tensor parallelism."""
        return Ring(self.layer.tp)

    @functools.cached_property
    def gemm(self) -> Kernel:
        """The producer's kernel: one object, whatever the overlap."""
        return gemm_kernel(self.layer.gemm, self.gpu, self.tiling, self.clock)

    @functools.cached_property
    def work(self) -> tuple[Work, ...]:
        """The output tiles of every simulated GPU in its staggered order."""
        chunks = self.layer.tp
        return tuple(
            tile_table(self.layer.gemm, self.tiling, chunks, self.ring.reduced_chunk(rank, 0))
            for rank in range(self.ranks)
        )

    @functools.cached_property
    def chunk_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the output chunks of every simulated GPU, in the order in which it makes them [bytes]."""
        return tuple(
            tuple(int(work[work[:, y.T_REGION] == p, y.T_BYTES].sum()) for p in range(self.layer.tp))
            for work in self.work
        )

    @property
    def gathered_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the chunks by all-gather position: a GPU's own (made last) first [bytes]."""
        return tuple((sizes[-1], *sizes[:-1]) for sizes in self.chunk_bytes)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Who receives what each simulated GPU sends; a lone GPU stands for its neighbours too."""
        return tuple(self.ring.neighbour(rank) if self.ranks > 1 else 0 for rank in range(self.ranks))

    def operands(self) -> list[Buffer]:
        """The GEMM's inputs."""
        sizes = operand_sizes(self.layer.gemm, self.tiling)
        return [Buffer(name, ((size,),) * self.ranks) for name, size in zip(("a", "b"), sizes, strict=True)]

    def output(self, rules: tuple[ChunkRule, ...]) -> Buffer:
        """The GEMM's output in chunks, under an address map."""
        return Buffer("output", self.chunk_bytes, rules)

    def gathered(self) -> Buffer:
        """Where the all-gather collects the reduced chunks of the others."""
        return Buffer("gathered", self.gathered_bytes, self.ring.gathered())


MOST_TILES = 1_000_000
"""Tiles of one GEMM's output; their tables then take some hundred megabytes."""


def _check_fit(problem: Problem) -> None:
    _check_slots(problem.ring_tiling.slots, "ring tiling")
    tiling, gemm = problem.tiling, problem.layer.gemm
    check_whole(tiling)
    tiles = check_tile(gemm, tiling, problem.gpu)
    if tiles < problem.layer.tp:
        raise InputError(
            f"the output of {gemm} has {tiles} tiles of {tiling.rows} x {tiling.columns}, fewer than the "
            f"{problem.layer.tp} GPUs that reduce it; choose a smaller tile, fewer GPUs or a larger GEMM"
        )


def check_tile(gemm: Gemm, tiling: GemmTiling, gpu: Gpu) -> int:
    """The number of output tiles of a GEMM on a GPU.

    InputError if its compute units and cache cannot hold one, or a run so many.
    """
    registers, lds = claims(gemm, gpu, tiling)
    step = (tiling.rows + tiling.columns) * tiling.step * gemm.element_bytes
    compute_unit = f"a compute unit of {gpu.name} has"
    needs = (
        ("registers", registers, gpu.compute.registers_per_cu, compute_unit),
        ("local memory", lds, gpu.compute.lds_per_cu, compute_unit),
        ("cache for one K step", step, gpu.cache.capacity, f"the last-level cache of {gpu.name} holds"),
    )
    for what, need, have, holder in needs:
        if need > have:
            raise InputError(
                f"a tile of {tiling.rows} x {tiling.columns} with K steps of {tiling.step} needs {format_bytes(need)} "
                f"of {what}, but {holder} {format_bytes(have)}; choose a smaller tile"
            )
    return check_tiles(gemm, tiling)


def check_tiles(gemm: Gemm, tiling: GemmTiling) -> int:
    """The number of tiles, one per part of K; InputError if no workgroup, on any GPU, or no run can hold so much."""
    _check_slots(tiling.slots, "GEMM tiling")
    tiling.part_steps(gemm)
    tiles = tiling.workgroups(gemm)
    if tiles > MOST_TILES:
        raise InputError(
            f"the output of {gemm} has {tiles} tiles of {tiling.rows} x {tiling.columns}, more than the "
            f"{MOST_TILES} that a run can hold; choose a larger tile or a smaller GEMM"
        )
    return tiles


def check_whole(tiling: GemmTiling) -> None:
    """Raise InputError for a K in parts where tiles are sent on as they are finished: none of them is a sum."""
    if tiling.splits > 1:
        raise InputError(
            f"GEMM tiling: splits is {tiling.splits}, but an overlap that sends finished tiles on needs K in one "
            "piece; set splits to 1, or run the GEMM beside an independent collective"
        )


def _check_slots(slots: int, where: str) -> None:
    if not 1 <= slots <= y.SLOTS:
        raise InputError(
            f"{where}: slots is {slots}; a workgroup has between 1 and {y.SLOTS} iterations in flight"
        )


@dataclass(frozen=True)
class PhaseTimes:
    """How long the parts of a sub-layer took, and the whole [s]; parts of an overlapped whole overlap."""

    gemm: float
    reduce_scatter: float
    all_gather: float
    total: float


class Overlap(ABC):
    """A way to run a GEMM and the collective of its output; `name` is what users type."""

    name: str
    title: str
    summary: str


class Simulated(Overlap):
    """An overlap that the engine runs."""

    policy: ArbiterPolicy = ROUND_ROBIN

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """The kernels, buffers and address map of a run."""


class Ideal(Overlap):
    """An overlap without contention, computed from the isolated times of simulated runs."""

    needs: tuple[Simulated, ...]

    @abstractmethod
    def combine(self, parts: Mapping[str, PhaseTimes]) -> PhaseTimes:
        """The times of the ideal from those of the runs it needs, by their names."""
