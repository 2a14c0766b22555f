"""The split of compute units: a GEMM beside a whole ring all-reduce, each on units of its own, on the T3 machine.

Published: S. Pati et al., "T3", ASPLOS 2024, arXiv:2401.16677, which motivates T3 by it. The paper does not say which
sub-layers its figures are means of; here they are all 16 of its main study, and the geometric mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

from weft import hardware
from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph
from weft.hardware import Gpu
from weft.options import SUSTAINED, RunOptions
from weft.result import Timeline
from weft.run.single import FINE_REQUEST, simulate
from weft.run.sweep import Progress, Store
from weft.run.sweep.run import Simulation, timelines
from weft.schedule.sharing import split_units
from weft.search.tasks import Bench
from weft.studies.headline import Claim, HeadlineRow, PaperStudy, rows
from weft.studies.t3 import MAIN, MAIN_CASES, PAPER_MACHINE, finely, select

SPLITS = (8, 16)
"""Compute units that the paper gives the all-reduce."""
CURVE = (4, 8, 16, 32)
"""Compute units given to the all-reduce for the curves of slowdowns."""
IN_FLIGHT = 16 * 1024
"""What a workgroup of the all-reduce has in flight [bytes], half of it where it adds: 256 threads x 4 x 16 B.

RCCL unrolls by 4, and by 2 where it adds, on MI200 (ROCm/rccl src/device/common_kernel.h, reduceCopy).
"""
PUBLISHED: Mapping[str, float] = {
    "cu_split.72_8.ar_slowdown": 0.41,
    "cu_split.72_8.speedup": 1.18,
    "cu_split.64_16.ar_slowdown": 0.07,
    "cu_split.64_16.gemm_slowdown": 0.21,
    "cu_split.64_16.speedup": 1.49,
    "cu_split.ideal.speedup": 1.67,
}
"""Every published figure by its id."""


@dataclass(frozen=True)
class SplitCase:
    """A sub-layer's GEMM and its all-reduce: times alone by the units that the all-reduce has (0: each has all) [s].

    `both` are the ends of both where they ran at once, by the same key [s].
    """

    graph: Graph
    gemm_s: Mapping[int, float]
    ring_s: Mapping[int, float]
    both: Mapping[int, tuple[float, float]]

    @property
    def serial(self) -> float:
        """One after the other, each on all units [s]."""
        return self.gemm_s[0] + self.ring_s[0]

    def gemm_slowdown(self, apart: int) -> float:
        """How much longer the GEMM takes with `apart` units fewer."""
        return self.gemm_s[apart] / self.gemm_s[0] - 1

    def ring_slowdown(self, apart: int) -> float:
        """How much longer the all-reduce takes on `apart` units."""
        return self.ring_s[apart] / self.ring_s[0] - 1

    def speedup(self, apart: int) -> float:
        """What overlap could gain over serial execution, from the times of each alone on its units (0: on all)."""
        return self.serial / max(self.gemm_s[apart], self.ring_s[apart])

    def simulated(self, apart: int) -> float:
        """What it gains where both run at once, and memory and cache are shared as well."""
        return self.serial / max(self.both[apart])

    def record(self) -> dict[str, Any]:
        """The case as plain data."""
        return {
            "model": self.graph.labels["model"],
            "tp": self.graph.ranks,
            "sublayer": self.graph.labels["sublayer"],
            "gemm": asdict(_operators(self.graph)[0]),
            "gemm_us": {str(k): v * 1e6 for k, v in sorted(self.gemm_s.items())},
            "all_reduce_us": {str(k): v * 1e6 for k, v in sorted(self.ring_s.items())},
            "together_us": {str(k): [end * 1e6 for end in v] for k, v in sorted(self.both.items())},
            "ideal_speedup": self.speedup(0),
            "speedup": {str(k): self.speedup(k) for k in sorted(self.both)},
            "simulated_speedup": {str(k): self.simulated(k) for k in sorted(self.both)},
        }


Figure = Callable[[SplitCase, int], float]
_FIGURES: tuple[tuple[str, str, str, Figure], ...] = (
    ("ar_slowdown", "all-reduce slower", "fraction", SplitCase.ring_slowdown),
    ("gemm_slowdown", "GEMM slower", "fraction", SplitCase.gemm_slowdown),
    ("speedup", "potential speedup", "ratio", SplitCase.speedup),
    ("simulated", "speedup, both at once", "ratio", SplitCase.simulated),
)
"""What is told of a split: its part of the id, words, unit, and how it is measured on a case."""


def mean(cases: Sequence[SplitCase], figure: Figure, apart: int, unit: str = "fraction") -> float:
    """The geometric mean of a figure over cases; of a "fraction", that of how many times longer it takes, less one."""
    base = 1 if unit == "fraction" else 0
    return geometric_mean([base + figure(case, apart) for case in cases]) - base


def _claim(id_: str, what: str, unit: str, figure: Figure, apart: int) -> Claim[SplitCase]:
    return Claim(id_, what, PUBLISHED.get(id_), unit, lambda cases: mean(cases, figure, apart, unit))


@dataclass(frozen=True)
class CuSplitStudy(PaperStudy):
    """What the study found; `splits` and `curve` count the units of the all-reduce."""

    NAME = "cu-split"
    PAPER = "ASPLOS 2024, arXiv:2401.16677"
    PAPER_GPU = PAPER_MACHINE

    cases: tuple[SplitCase, ...]
    splits: tuple[int, ...]
    curve: tuple[int, ...]
    in_flight: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        which = f"{len(self.cases)} of the 16" if len(self.cases) < len(MAIN_CASES) else "all 16"
        means = f"which sub-layers its figures are means of: here {which} of its main study, geometric means"
        return (self.unlike or f"the paper does not state {means}",)

    def name(self, apart: int) -> str:
        """A split as it is written: the GEMM's units, then the all-reduce's."""
        return f"{self.machine.compute.compute_units - apart}-{apart}"

    def ring_slowdown(self, apart: int) -> float:
        """How much longer the all-reduce takes on `apart` units, in the mean."""
        return mean(self.cases, SplitCase.ring_slowdown, apart)

    def gemm_slowdown(self, apart: int) -> float:
        """How much longer the GEMM takes with `apart` units fewer, in the mean."""
        return mean(self.cases, SplitCase.gemm_slowdown, apart)

    def watch(self) -> tuple[str, dict[int, Timeline]]:
        """The sub-layer whose ideal is the largest, and its run under every split with every moment."""
        graph = max(self.cases, key=lambda case: case.speedup(0)).graph
        runs = _Runs(graph, self.machine, self.in_flight, RunOptions(request_bytes=self.request_bytes))
        tasks = {apart: runs.both(apart) for apart in self.splits}
        return str(graph), {
            apart: simulate(task.graph, task.system, task.overlap, task.options) for apart, task in tasks.items()
        }

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures of the splits that were simulated, beside the published ones on the paper's machine."""
        return rows(self._claims(), dict(enumerate(self.cases)), self.comparable)

    def _claims(self) -> Iterator[Claim[SplitCase]]:
        for apart in self.splits:
            name = self.name(apart)
            for id_, what, unit, figure in _FIGURES:
                key = f"cu_split.{name.replace('-', '_')}.{id_}"
                yield _claim(key, f"{name}: {what}", unit, figure, apart)
        ideal = "ideal, nothing shared: speedup"
        yield _claim("cu_split.ideal.speedup", ideal, "ratio", SplitCase.speedup, 0)

    def own(self) -> dict[str, Any]:
        """Splits, curve and every case as plain data."""
        return {
            "splits": [self.name(apart) for apart in self.splits],
            "in_flight_bytes": self.in_flight,
            "curve": [
                {"units": u, "all_reduce_slowdown": self.ring_slowdown(u), "gemm_slowdown": self.gemm_slowdown(u)}
                for u in self.curve
            ],
            "cases": [case.record() for case in self.cases],
        }  # fmt: skip


def run(
    models: Iterable[str] | None = None,
    tps: Iterable[int] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PAPER_MACHINE,
    splits: Sequence[int] | None = None,
    in_flight: int = IN_FLIGHT,
    options: RunOptions = SUSTAINED,
    store: Store | None = None,
) -> CuSplitStudy:
    """Simulate the study, or its cases of some models and degrees, on `jobs` processes.

    `splits` are the units of the all-reduce (None: 8 and 16). `in_flight` is what a workgroup of the
    all-reduce has in flight, half of it where it adds [bytes]. What `store` holds is not simulated again. A script
    that asks for more than one job calls this below `if __name__ == "__main__":`.

    Raises InputError for a split that leaves either none, and what `weft.studies.t3.select` raises.
    """
    begin = time.perf_counter()
    machine, options = hardware.gpu(gpu), finely(options)
    apart = _splits(splits, machine)
    curve = tuple(sorted({u for u in (*CURVE, *apart) if u < machine.compute.compute_units}))
    chosen = select(list(MAIN) if models is None else models, tps)
    cases = [_Runs(graph, machine, in_flight, options) for graph in chosen if graph in MAIN_CASES]
    if not cases:
        raise InputError(f"the CU-split study has the models {', '.join(MAIN)} at TP 8 and 16; choose one of these")
    found = timelines((task for case in cases for task in case.tasks(apart, curve)), jobs, progress, store)
    return CuSplitStudy(
        cases=tuple(case.read(found, apart, curve) for case in cases),
        splits=apart,
        curve=curve,
        machine=machine,
        in_flight=in_flight,
        request_bytes=options.request_bytes or FINE_REQUEST,
        wall_s=time.perf_counter() - begin,
    )


def _splits(wanted: Sequence[int] | None, gpu: Gpu) -> tuple[int, ...]:
    if wanted is not None:
        for apart in wanted:
            split_units(gpu, apart)
        return tuple(dict.fromkeys(wanted))
    fitting = tuple(apart for apart in SPLITS if apart < gpu.compute.compute_units)
    if not fitting:
        raise InputError(f"{gpu.name} has {gpu.compute.compute_units} compute units; give splits of your own")
    return fitting


def _operators(graph: Graph) -> tuple[Gemm, Collective]:
    """The GEMM of a sub-layer and the all-reduce of its output."""
    gemm, moved = graph["gemm"].op, graph["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return gemm, moved


class _Runs:
    """The runs of one sub-layer, by the compute units of the all-reduce (0: each alone on all)."""

    def __init__(self, graph: Graph, gpu: Gpu, in_flight: int, options: RunOptions) -> None:
        self.graph, self.in_flight = graph, in_flight
        self.gemm_op, self.op = _operators(graph)
        self.bench = Bench.of(gpu, graph.ranks, options)

    def gemm(self, apart: int) -> Simulation:
        return self.bench.gemm(self.gemm_op, apart)

    def ring(self, apart: int) -> Simulation:
        return self.bench.collective(self.op, apart or None, self.in_flight)

    def both(self, apart: int) -> Simulation:
        """Both at once, the all-reduce launched first."""
        more = {"first": "collective", "in_flight": self.in_flight}
        return self.bench.together(self.gemm_op, self.op, "partition", apart, **more)

    def tasks(self, splits: Sequence[int], curve: Sequence[int]) -> Iterator[Simulation]:
        for apart in (0, *curve):
            yield self.gemm(apart)
            yield self.ring(apart)
        yield from map(self.both, splits)

    def read(self, found: Mapping[Simulation, Timeline], splits: Sequence[int], curve: Sequence[int]) -> SplitCase:
        both = {apart: found[self.both(apart)] for apart in splits}
        return SplitCase(
            self.graph,
            gemm_s={apart: found[self.gemm(apart)].makespan for apart in (0, *curve)},
            ring_s={apart: found[self.ring(apart)].makespan for apart in (0, *curve)},
            both={apart: (run.end("gemm"), run.end("all_reduce")) for apart, run in both.items()},
        )
