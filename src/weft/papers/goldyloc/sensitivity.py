"""Sensitivity of GOLDYLOC's gains to assumed values at either end of their ranges.

Kernels and degrees stay as chosen. The longest queue of each entry represents the entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from statistics import geometric_mean

from weft.graph import Gemm, gemm_queue
from weft.papers.goldyloc.cases import solve
from weft.papers.goldyloc.suite import Suite
from weft.papers.headline import Conditions
from weft.plan.tune.perturb import Move, Sensitivity, gemm_values, moves, option_move, perturb
from weft.plan.tune.queues import DEFAULT
from weft.sweep.bench import Bench, Runs
from weft.sweep.simulations import Simulation

FIGURES = ("over default", "over sequential", "default over sequential")
HARDWARE_QUEUES = 4
"""Number of hardware queues over which ROCm's HIP runtime spreads streams by default (GPU_MAX_HW_QUEUES)."""


def moved(at: Conditions, suite: Suite) -> Sensitivity:
    """Move the machine's assumed values, its clock and its queues; raises what the simulations raise."""
    bench = at.bench()
    cases, *_ = solve(suite.longest(), bench, at.jobs)

    def figures(runs: Runs) -> Mapping[str, float]:
        gains = zip(*(case.plans.gains(runs) for case in cases), strict=True)
        return dict(zip(FIGURES, map(geometric_mean, gains), strict=True))

    dtypes = sorted({gemm.dtype for case in cases for gemm in case.judged.queue.gemms})
    tasks = chain.from_iterable(case.plans for case in cases)
    rows = perturb(tasks, _moves(bench, dtypes), figures, at.jobs)
    return Sensitivity("goldyloc", tuple(case.title for case in cases), rows, dict.fromkeys(FIGURES, ".2f"))


def _moves(bench: Bench, dtypes: Iterable[str]) -> Iterator[Move]:
    yield from moves(bench.system, gemm_values(*dtypes), measured=True)
    yield option_move("clock", clock="short" if bench.options.clock == "sustained" else "sustained")
    yield Move("hardware queues of default concurrency", str(HARDWARE_QUEUES), change=_in_few_queues)


def _in_few_queues(task: Simulation) -> Simulation:
    """The task limited to `HARDWARE_QUEUES` hardware queues, if it is default concurrency."""
    if task.graph.labels != DEFAULT:
        return task
    nodes = task.graph.nodes
    graph = gemm_queue(
        [node.op for node in nodes if isinstance(node.op, Gemm)],
        min(HARDWARE_QUEUES, len(nodes)),
        [node.choice.tiling for node in nodes],
    )
    return replace(task, graph=graph)
