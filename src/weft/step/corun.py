"""Slowdowns of a GEMM and a collective that co-run on a GPU, by the engine or by whole waves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any

from weft.core.options import RunOptions
from weft.graph import Collective, Gemm, Graph, KernelChoice, Node, TiledGemm
from weft.graph.graph import loop
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.overlaps import CoRunStrategy, find_strategy
from weft.overlaps.corun import compare_alone
from weft.overlaps.lower.fit import tiling_for
from weft.simulate.result.stored import plain
from weft.simulate.several import ALONE
from weft.simulate.single import simulate

MOST_WAVES = 16
"""Waves of tiles to which a window cuts a GEMM, whose rows repeat the same work."""
MOST_DEPTH = 4096
"""Depth K to which a window cuts a GEMM: its tiles take K in equal steps."""
MOST_REPEATS = 64
"""Most times that the shorter one of both is repeated, or prolonged, to cover the longer one."""
COVER = 1.3
"""How much longer than the GEMMs alone a collective must last, since it slows them down."""


@dataclass(frozen=True)
class CoRunWindow:
    """A GEMM and a collective that run on every GPU of a system at once, as a task whose record is both slowdowns.

    Either is compared with a loop of itself alone, by the same driver. Raises what `simulate` raises.
    """

    gemm: Gemm
    collective: Collective
    system: System
    sharing: str
    options: RunOptions
    waves: int = MOST_WAVES

    @property
    def title(self) -> str:
        """What meets what."""
        return f"GEMM {self.gemm} beside {self.collective}, {self.sharing}"

    @property
    def weight(self) -> float:
        """Rough relative duration of the run: floating-point operations in billions, traffic in MB."""
        return self.gemm.flops / 1e9 + self.collective.bytes / 1e6

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine both slowdowns."""
        named = {name: getattr(self, name) for name in ("gemm", "collective", "options", "sharing", "waves")}
        return {**plain(named), "system": self.system.inputs()}

    def run(self) -> Mapping[str, float]:
        """Return both slowdowns; 1 for a kernel that the engine finds faster in the co-run.

        The collective is as long as it takes to cover two GEMMs: on each of several short ones, workgroups of the GEMM
        would take the compute units between two launches.
        """
        kernel = self._gemm()
        gemm_s = self._alone(loop(kernel.op, "gemm", ALONE, "compute", kernel.choice))
        alone = self._alone(loop(self.collective, "moved", ALONE, "communication"))
        times = min(ceil(ALONE * COVER * gemm_s / alone), MOST_REPEATS)
        gemms = max(ALONE, min(ceil(alone / gemm_s), MOST_REPEATS))
        moved = loop(replace(self.collective, bytes=self.collective.bytes * times), "moved", 1, "communication")
        both = Graph((*moved, *loop(kernel.op, "gemm", gemms, "compute", kernel.choice)), self.collective.ranks)
        ran = simulate(both, self.system, self.strategy, self.options)
        ends, (moved_end,) = ran.ends("gemm"), ran.ends("moved")
        shared = min(ends[-1], moved_end)
        beside = shared / max(self._alone(moved) - (moved_end - shared), 1e-3 * shared)
        return {"kernel": max(_until(ends, moved_end) / gemm_s, 1.0), "collective": max(beside, 1.0)}

    @property
    def strategy(self) -> CoRunStrategy:
        """How both share a GPU."""
        found = find_strategy(self.sharing)
        assert found is not None
        return found

    def _alone(self, nodes: tuple[Node, ...]) -> float:
        """Time of an operator in a loop of its own [s]: of the collective by the same driver, on any compute units."""
        _, driver = compare_alone(self.strategy)
        return _period(Graph(nodes, self.collective.ranks), self.system, driver, self.options)

    @cached_property
    def growth(self) -> float:
        """The factor by which the GEMM's waves of tiles grow when it co-runs with the collective."""
        return self._growth(ceil(self.gemm.m / self.tiling.rows))

    def _growth(self, rows: int) -> float:
        return _growth(rows * self._columns, self._slots, self.system, self.taken_units)

    def _gemm(self) -> Node:
        """Return the GEMM cut to a few waves and to less depth, with the tile of the whole one.

        Of the numbers of rows within the limit, it takes the one whose waves grow by nearly the same factor as those
        of the whole GEMM when the collective takes compute units.
        """
        tiling = self.tiling
        rows = ceil(self.gemm.m / tiling.rows)
        most = self.waves * self.system.gpu.compute.compute_units * self._slots // self._columns
        if rows > most > 0:
            few = range(max(most // 2, 1), most + 1)
            rows = min(few, key=lambda rows: (abs(self._growth(rows) / self.growth - 1), -rows))
        m, k = min(rows * tiling.rows, self.gemm.m), min(self.gemm.k, MOST_DEPTH * tiling.splits)
        return Node(replace(self.gemm, m=m, k=k), "gemm", stream="compute", choice=KernelChoice(TiledGemm(tiling)))

    @cached_property
    def tiling(self) -> GemmTiling:
        """The tile with which the library runs the GEMM."""
        return tiling_for(self.gemm, self.system.gpu, self.options, split=True)

    @property
    def _columns(self) -> int:
        return _columns(self.gemm, self.tiling)

    @property
    def _slots(self) -> int:
        return max(self.tiling.resident, 1)

    @cached_property
    def taken_units(self) -> int:
        """Compute units that the collective takes off the GEMM: none by DMA engines, unless masks set some apart."""
        return self.strategy.held_units(self.collective, self.system)


def _columns(gemm: Gemm, tiling: GemmTiling) -> int:
    """Workgroups of a row of tiles."""
    return ceil(gemm.n / tiling.columns) * tiling.splits


def _growth(tiles: int, slots: int, system: System, held: int) -> float:
    """Return the factor by which the waves of `tiles` workgroups grow on the compute units that are left."""
    units = system.gpu.compute.compute_units
    return ceil(tiles / (max(units - held, 1) * slots)) / ceil(tiles / (units * slots))


class WaveGrowths:
    """Wave growths of GEMMs co-run with collectives on a machine; tilings and kernels are cached."""

    def __init__(self) -> None:
        self._tilings: dict[Gemm, GemmTiling] = {}
        self._held: dict[tuple[Collective, str, int], tuple[System, int]] = {}
        self._rings: dict[tuple[int, int], tuple[System, System]] = {}

    def ring(self, system: System, ranks: int, ring_of: Callable[[System, int], System]) -> System:
        """Return what `ring_of` answers, the same object each time."""
        key = id(system), ranks
        if key not in self._rings:
            self._rings[key] = system, ring_of(system, ranks)
        return self._rings[key][1]

    def growth(self, meeting: CoRunWindow) -> float:
        """`CoRunWindow.growth`, for meetings on systems of the same GPU and with the same options."""
        gemm, system = meeting.gemm, meeting.system
        tiling = self._tilings.get(gemm)
        if tiling is None:
            tiling = self._tilings[gemm] = meeting.tiling
        key = meeting.collective, meeting.sharing, id(system)
        if key not in self._held:
            self._held[key] = system, meeting.taken_units  # the system is kept, so that no other gets its id
        tiles = ceil(gemm.m / tiling.rows) * _columns(gemm, tiling)
        return _growth(tiles, max(tiling.resident, 1), system, self._held[key][1])


@lru_cache(maxsize=256)
def _period(graph: Graph, system: System, sharing: CoRunStrategy, options: RunOptions) -> float:
    """Return the time of an iteration of a loop alone [s]."""
    return simulate(graph, system, sharing, options).period(graph.nodes[0].name)


def _until(ends: tuple[float, ...], other: float) -> float:
    """Return the mean time of the iterations that ended while the other loop ran [s]; of the first if none did."""
    both = max(1, sum(end <= other for end in ends))
    return ends[both - 1] / both
