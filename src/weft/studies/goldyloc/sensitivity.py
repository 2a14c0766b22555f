"""How far GOLDYLOC's gains move when an assumed value goes to either end of its range.

Kernels and degrees stay as they were chosen. The longest queue of each entry of the suite stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import geometric_mean

from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.studies.goldyloc.study import PUBLISHED_GPU, solve
from weft.studies.goldyloc.suite import Suite, declared_suite
from weft.studies.moved import Row, Sensitivity
from weft.sweep import Progress, Store
from weft.tuning.assumptions import variants
from weft.tuning.batches import Batch, Bench, Runs, Workshop
from weft.tuning.degree import Plans

FIGURES = ("over default", "over sequential", "default over sequential")
HARDWARE_QUEUES = 4
"""Hardware queues that ROCm's HIP runtime spreads streams over unless told otherwise (GPU_MAX_HW_QUEUES)."""


def _on(plans: Plans, bench: Bench, queues: int | None) -> Plans:
    """The same kernels on another machine; default concurrency in so many hardware queues (None: enough)."""
    alone, default, goldyloc = (
        tuple(bench.batch(batch.gemms) for batch in part)
        for part in (plans.sequential, plans.default, plans.goldyloc)
    )
    return Plans(alone, tuple(replace(batch, queues=queues) for batch in default), goldyloc)


def run(
    suite: Suite | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    gpu: Gpu | None = None,
    clock: str = "sustained",
    store: Store | None = None,
) -> Sensitivity:
    """Move the machine's assumed values, its clock and its queues; arguments as of the study.

    Raises what the simulations raise.
    """
    gpu = gpu or load_gpu(PUBLISHED_GPU)
    workshop = Workshop(jobs, store, progress)
    cases, *_ = solve((suite or declared_suite()).longest(), Bench(gpu, clock), workshop)
    settings = list(_settings(gpu, clock, cases[0].judged.queue.gemms[0].dtype))
    moved = [
        (what, text, [_on(case.plans, bench, queues) for case in cases])
        for what, text, bench, queues in settings
    ]
    batches = (batch for _, _, each in moved for plan in each for batch in plan.batches())
    runs = workshop.simulate(batches)
    rows = tuple(Row(what, text, _figures(each, runs)) for what, text, each in moved)
    return Sensitivity("goldyloc", tuple(case.title for case in cases), rows, dict.fromkeys(FIGURES, ".2f"))


def _settings(gpu: Gpu, clock: str, dtype: str) -> Iterator[tuple[str, str, Bench, int | None]]:
    """What is moved, to where, the bench then, and the hardware queues of default concurrency (None: enough)."""
    bench = Bench(gpu, clock)
    yield "as chosen", "", bench, None
    for moved in variants(gpu, dtype):
        yield moved.path, moved.setting, Bench(moved.gpu, clock), None
    other = "short" if clock == "sustained" else "sustained"
    yield "clock", other, Bench(gpu, other), None
    yield "hardware queues of default concurrency", str(HARDWARE_QUEUES), bench, HARDWARE_QUEUES


def _figures(plans: Sequence[Plans], runs: Runs) -> dict[str, float]:
    took = [[_seconds(part, runs) for part in (p.default, p.sequential, p.goldyloc)] for p in plans]
    ratios = (
        [default / goldyloc for default, _, goldyloc in took],
        [sequential / goldyloc for _, sequential, goldyloc in took],
        [sequential / default for default, sequential, _ in took],
    )
    return {name: geometric_mean(values) for name, values in zip(FIGURES, ratios, strict=True)}


def _seconds(batches: Sequence[Batch], runs: Runs) -> float:
    return sum(runs[batch].makespan_s for batch in batches)
