"""How far the shares of the ideal move when an assumed value goes to either end of its range.

A part of the suite stands for all: of each class a compute-bound and a memory-bound GEMM, all-gathers and all-to-alls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.overlap.strategies import STRATEGIES
from weft.result.stream_run import StreamRun
from weft.studies.c3.choosing import DTYPE
from weft.studies.c3.runs import Run, Runs, as_published, collective_alone, gemm_alone, sharing
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.c3.study import PUBLISHED_GPU, RANKS, SATURATION
from weft.studies.moved import Row, Sensitivity
from weft.sweep import Progress, Store, results
from weft.sweep.streams import Setting
from weft.tuning.assumptions import Moved, moved_settings


@dataclass(frozen=True)
class _Variant:
    moved: Moved
    units: Mapping[str, int] = field(default_factory=lambda: SATURATION)


def run(
    suite: Suite | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PUBLISHED_GPU,
    ranks: int = RANKS,
    request_bytes: int | None = None,
    store: Store | None = None,
) -> Sensitivity:
    """Move the machine's assumed values, the clock and the collective's compute units; arguments as of the study.

    Raises what the simulations raise.
    """
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    chosen = representatives((suite or declared_suite()).scenarios)
    here = Setting(machine, ranks, request_bytes=request_bytes)
    variants = list(_variants(here))
    tasks = (v.moved.run(task) for v in variants for task in _tasks(chosen, here, v.units))
    runs = results(tasks, StreamRun.from_record, jobs, progress, store)
    rows = [Row(v.moved.title, v.moved.text, _shares(chosen, here, v, runs)) for v in variants]
    formats = dict.fromkeys(STRATEGIES, ".0%")
    return Sensitivity("c3", [scenario.title for scenario in chosen], rows, formats)


def representatives(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Of each class, by what bounds the GEMM, the scenario with least to move and multiply."""
    least: dict[tuple[str | None, str | None], Scenario] = {}
    for scenario in sorted(scenarios, key=lambda s: (s.size, s.product.flops)):
        least.setdefault((scenario.kind, scenario.bound), scenario)
    return list(least.values())


def _variants(here: Setting) -> Iterator[_Variant]:
    yield _Variant(Moved("as chosen", (), "", "", here))
    yield from map(_Variant, moved_settings(here, DTYPE, measured=True))
    yield _Variant(Moved("the clock", (), "short", "short", replace(here, clock="short")))
    for what, times in (("half", 0.5), ("twice", 2.0)):
        units = {name: int(count * times) for name, count in SATURATION.items()}
        yield _Variant(Moved("units set apart for the collective", (), what, what, here), units)


def _tasks(scenarios: Sequence[Scenario], here: Setting, units: Mapping[str, int]) -> Iterator[Run]:
    for scenario in scenarios:
        yield gemm_alone(scenario, here)
        yield collective_alone(scenario, here)
        for strategy in STRATEGIES:
            yield as_published(scenario, here, strategy, units)


def _shares(scenarios: Sequence[Scenario], here: Setting, variant: _Variant, done: Runs) -> dict[str, float]:
    runs = {task: done[variant.moved.run(task)] for task in _tasks(scenarios, here, variant.units)}
    found = [sharing(scenario, here, runs, variant.units) for scenario in scenarios]
    return {strategy: fmean(one.share(strategy) for one in found) for strategy in STRATEGIES}
