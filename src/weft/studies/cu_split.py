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

from weft.errors import InputError
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.overlap.strategies import split_units
from weft.parallel import sublayer
from weft.result import Result
from weft.result.stream_run import StreamRun
from weft.simulation import DEFAULT_REQUEST_BYTES, beside
from weft.studies.claims import CaseKey
from weft.studies.headline import HeadlineRow, PaperStudy, unlike
from weft.studies.t3 import MAIN, MAIN_CASES, PAPER_MACHINE, select
from weft.sweep import Progress, Store, results
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.workload import Gemm

SPLITS = (8, 16)
"""Compute units that the paper gives the all-reduce."""
CURVE = (4, 8, 16, 32)
"""Compute units given to the all-reduce for the curves of slowdowns."""
IN_FLIGHT = 16 * 1024
"""What a workgroup of the all-reduce has on its way [bytes], half of it where it adds: 256 threads x 4 x 16 B.

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

    case: CaseKey
    gemm: Gemm
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
        model, tp, name = self.case
        return {
            "model": model,
            "tp": tp,
            "sublayer": name,
            "gemm": asdict(self.gemm),
            "gemm_us": {str(k): v * 1e6 for k, v in sorted(self.gemm_s.items())},
            "all_reduce_us": {str(k): v * 1e6 for k, v in sorted(self.ring_s.items())},
            "together_us": {str(k): [end * 1e6 for end in v] for k, v in sorted(self.both.items())},
            "ideal_speedup": self.speedup(0),
            "speedup": {str(k): self.speedup(k) for k in sorted(self.both)},
            "simulated_speedup": {str(k): self.simulated(k) for k in sorted(self.both)},
        }


@dataclass(frozen=True)
class CuSplitStudy(PaperStudy):
    """What the study found; `splits` and `curve` count the units of the all-reduce."""

    NAME = "cu-split"
    PAPER = "ASPLOS 2024, arXiv:2401.16677"

    cases: tuple[SplitCase, ...]
    splits: tuple[int, ...]
    curve: tuple[int, ...]
    units: int
    in_flight: int

    @property
    def _unlike(self) -> str | None:
        return unlike(self.gpu, PAPER_MACHINE, self.changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        why = self._unlike
        if why is not None:
            return (why,)
        all_of = len(self.cases) == len(MAIN_CASES)
        which = "all 16 of its main study" if all_of else f"{len(self.cases)} of the 16 of its main study"
        return (
            f"the paper does not state which sub-layers its figures are means of: here {which}, geometric means",
        )

    def name(self, apart: int) -> str:
        """A split as it is written: the GEMM's units, then the all-reduce's."""
        return f"{self.units - apart}-{apart}"

    def mean(self, measure: Callable[[SplitCase], float]) -> float:
        """The geometric mean of a ratio over all cases."""
        return geometric_mean([measure(case) for case in self.cases])

    def ring_slowdown(self, apart: int) -> float:
        """How much longer the all-reduce takes on `apart` units, in the mean."""
        return self.mean(lambda case: 1 + case.ring_slowdown(apart)) - 1

    def gemm_slowdown(self, apart: int) -> float:
        """How much longer the GEMM takes with `apart` units fewer, in the mean."""
        return self.mean(lambda case: 1 + case.gemm_slowdown(apart)) - 1

    def watch(self, machine: Gpu) -> tuple[str, dict[int, Result]]:
        """The sub-layer whose ideal is the largest, and its run under every split; `machine` is that of the study."""
        case = max(self.cases, key=lambda case: case.speedup(0))
        setting = Setting(machine, case.case[1], request_bytes=self.request_bytes)
        both = {apart: _both(case.gemm, apart, self.in_flight, setting) for apart in self.splits}
        runs = {apart: beside(**task.options(), gemms=1, collectives=1).run for apart, task in both.items()}
        model, tp, name = case.case
        return f"{model} {name}, TP {tp}", runs

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures of the splits that were simulated, beside the published ones on the paper's machine."""
        found: list[HeadlineRow] = []
        for apart in self.splits:
            key, name = f"cu_split.{self.units - apart}_{apart}", self.name(apart)
            found += [
                self._row(
                    f"{key}.ar_slowdown", f"{name}: all-reduce slower", self.ring_slowdown(apart), "fraction"
                ),
                self._row(
                    f"{key}.gemm_slowdown", f"{name}: GEMM slower", self.gemm_slowdown(apart), "fraction"
                ),
                self._row(f"{key}.speedup", f"{name}: potential speedup", self._speedup(apart), "ratio"),
                self._row(
                    f"{key}.simulated", f"{name}: speedup, both at once", self._simulated(apart), "ratio"
                ),
            ]
        ideal = self._row(
            "cu_split.ideal.speedup", "ideal, nothing shared: speedup", self._speedup(0), "ratio"
        )
        return [*found, ideal]

    def _speedup(self, apart: int) -> float:
        return self.mean(lambda case: case.speedup(apart))

    def _simulated(self, apart: int) -> float:
        return self.mean(lambda case: case.simulated(apart))

    def _row(self, key: str, what: str, value: float, unit: str) -> HeadlineRow:
        known = PUBLISHED.get(key) if self.comparable else None
        return HeadlineRow(key, what, known, value, unit)

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
    request_bytes: int = DEFAULT_REQUEST_BYTES,
    store: Store | None = None,
) -> CuSplitStudy:
    """Simulate the study, or its cases of some models and degrees, on `jobs` processes.

    `splits` are the units of the all-reduce (None: 8 and 16). `in_flight` is what a workgroup of the
    all-reduce has on its way, half of it where it adds [bytes]. What `store` holds is not simulated again. A script
    that asks for more than one job calls this below `if __name__ == "__main__":`.

    Raises InputError for a split that leaves either none, and what `weft.studies.t3.select` raises.
    """
    begin = time.perf_counter()
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    units = machine.compute.compute_units
    apart = _splits(splits, machine)
    curve = tuple(sorted({u for u in (*CURVE, *apart) if u < units}))
    chosen = select(list(MAIN) if models is None else models, tps)
    cases = [case for case in chosen if case in MAIN_CASES]
    if not cases:
        raise InputError(
            f"the CU-split study has the models {', '.join(MAIN)} at TP 8 and 16; choose one of these"
        )
    plans = [_Plan(case, machine, apart, curve, in_flight, request_bytes) for case in cases]
    todo = [task for plan in plans for task in plan.tasks()]
    found = results(todo, StreamRun.from_record, jobs, progress, store)
    return CuSplitStudy(
        cases=tuple(plan.case_of(found) for plan in plans),
        splits=apart,
        curve=curve,
        gpu=machine.name,
        units=units,
        changed=machine.changes,
        in_flight=in_flight,
        request_bytes=request_bytes,
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


@dataclass(frozen=True)
class _Plan:
    """The runs of one case."""

    case: CaseKey
    gpu: Gpu
    splits: tuple[int, ...]
    curve: tuple[int, ...]
    in_flight: int
    request_bytes: int

    @property
    def gemm(self) -> Gemm:
        model, tp, name = self.case
        return sublayer(model, name, tp=tp).gemm

    @property
    def setting(self) -> Setting:
        return Setting(self.gpu, ranks=self.case[1], request_bytes=self.request_bytes)

    def gemm_task(self, apart: int) -> GemmAlone:
        return GemmAlone(self.gemm, self.setting, self.gpu.compute.compute_units - apart if apart else None)

    def ring_task(self, apart: int) -> CollectiveAlone:
        size, dtype = self.gemm.output_bytes, self.gemm.dtype
        return CollectiveAlone(
            "all_reduce", size, self.setting, units=apart or None, dtype=dtype, plain_ring=self.in_flight
        )

    def split_task(self, apart: int) -> Together:
        return _both(self.gemm, apart, self.in_flight, self.setting)

    def tasks(self) -> Iterator[GemmAlone | CollectiveAlone | Together]:
        for apart in (0, *self.curve):
            yield self.gemm_task(apart)
            yield self.ring_task(apart)
        yield from map(self.split_task, self.splits)

    def case_of(self, found: Mapping[Any, StreamRun]) -> SplitCase:
        both = {apart: found[self.split_task(apart)] for apart in self.splits}
        return SplitCase(
            case=self.case,
            gemm=self.gemm,
            gemm_s={apart: found[self.gemm_task(apart)].makespan_s for apart in (0, *self.curve)},
            ring_s={apart: found[self.ring_task(apart)].makespan_s for apart in (0, *self.curve)},
            both={apart: (run.gemm_s or 0.0, run.collective_s or 0.0) for apart, run in both.items()},
        )


def _both(gemm: Gemm, apart: int, in_flight: int, setting: Setting) -> Together:
    """A GEMM beside an all-reduce of its output's size, launched first, with `apart` compute units of its own."""
    return Together(
        gemm, "all_reduce", gemm.output_bytes, setting, "partition", apart, "collective", plain_ring=in_flight
    )
