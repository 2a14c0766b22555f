"""Tune a list of independent GEMMs for a GPU: how many of each to run together, with which kernels, for what gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from weft.answer import Answer
from weft.estimate.target import check_held
from weft.graph import Gemm
from weft.hardware import Described
from weft.kernels import GemmTiling
from weft.options import RunOptions
from weft.store import Store
from weft.sweep.bench import Bench, Jobs
from weft.sweep.tasks import Progress
from weft.tune.degree import Judged, Plans, Queue, Watched, judge_queues, plans, watched
from weft.tune.gemm_list import Wanted, read_gemms
from weft.tune.kernels import GoKernels, degrees_up_to
from weft.tune.library_file import KernelLibrary, library_of
from weft.tune.perturb import gemm_values, moves, perturb


@dataclass(frozen=True)
class Gain:
    """A speedup, and its range when each uncertain value of the machine goes to its ends."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Tuned:
    """One line of a list, tuned: the best degree, its kernel, and the gains over the usual ways to run it.

    `degrees` is the degree by number of queued GEMMs: powers of two, and the line's count. `plans` are the batches in
    which the whole line runs.
    """

    wanted: Wanted
    judged: Judged
    kernels: GoKernels
    degrees: Mapping[int, int]
    over_default: Gain
    over_sequential: Gain
    plans: Plans

    @property
    def degree(self) -> int:
        """How many to run together when the whole line is queued."""
        return self.judged.best_degree

    @property
    def kernel(self) -> GemmTiling:
        """The GO-kernel of that degree."""
        return self.kernels.best(self.degree)

    def record(self) -> dict[str, Any]:
        """The line as plain data, times in microseconds."""
        gemm = self.wanted.gemm
        return {
            "name": self.wanted.name,
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            "dtype": gemm.dtype,
            "count": self.wanted.count,
            "degree": self.degree,
            "kernel": asdict(self.kernel),
            "alone": asdict(self.kernels.isolated),
            "sequential_us": self.judged.sequential * 1e6,
            "default_us": self.judged.default * 1e6,
            "tuned_us": self.judged.at_degree[self.degree] * 1e6,
            "over_default": asdict(self.over_default),
            "over_sequential": asdict(self.over_sequential),
        }


@dataclass(frozen=True, repr=False)
class TunedList(Answer):
    """A tuned list and the machine that it is tuned for."""

    kind = "tuning"

    gpu: str
    clock: str
    rows: Sequence[Tuned]

    def watch(self, most: int = 4) -> list[Watched]:
        """The lines that gain most over all at once, simulated again to see which GEMM held which compute unit."""
        several = [row for row in self.rows if row.wanted.count > 1]
        best = sorted(several, key=lambda row: row.over_default.value, reverse=True)[:most]
        return [watched(f"{row.wanted.name}: {row.wanted.count} of {row.wanted.gemm}", row.plans) for row in best]

    @property
    def library(self) -> KernelLibrary:
        """The kernels in the form that a runtime loads."""
        each = ((row.wanted.name, row.kernels, row.degrees) for row in self.rows)
        return library_of(self.gpu, self.clock, each)

    def to_dict(self) -> dict[str, Any]:
        """Every line as plain data, times in microseconds."""
        return {"gpu": self.gpu, "clock": self.clock, "gemms": [row.record() for row in self.rows]}


def tune(
    gemms: str | Path | Sequence[Wanted | Gemm],
    machine: Described,
    options: RunOptions | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> TunedList:
    """The best degree and kernel of every GEMM of a list, and their gains over running all at once or one by one.

    `gemms` is a CSV file that `weft.tune.gemm_list.read_gemms` reads, its lines, or GEMMs: equal ones are queued
    together. Each line is tuned on its own; lines are assumed to be queued at different times. Raises InputError for a
    data type that the GPU lacks, and what the simulations raise.
    """
    wanted = read_gemms(gemms) if isinstance(gemms, str | Path) else _lines(gemms)
    bench, own = Bench.of(machine, options=options), Jobs(jobs, store, progress)
    for line in wanted:
        check_held(line.gemm, bench.gpu)
    # One GEMM of each line queued, two, four, ... and all of them.
    queues = {line: [Queue((line.gemm,) * count) for count in degrees_up_to(line.count)] for line in wanted}
    every, kernels, _ = judge_queues([queue for each in queues.values() for queue in each], bench, own)
    found = {one.queue: one for one in every}
    judged = {line: [found[queue] for queue in each] for line, each in queues.items()}
    chosen = {line: plans(each[-1].queue, each[-1].best_degree, kernels, bench) for line, each in judged.items()}
    gains = _gains(chosen, bench, own)
    rows = [
        Tuned(
            line,
            judged[line][-1],
            kernels[line.gemm],
            {len(one.queue.gemms): one.best_degree for one in judged[line]},
            *gains[line],
            chosen[line],
        )
        for line in wanted
    ]
    return TunedList(bench.gpu.name, bench.options.clock, rows)


def _lines(gemms: Sequence[Wanted | Gemm]) -> tuple[Wanted, ...]:
    """Lines as they are, and one line for each shape of plain GEMMs."""
    counts = Counter(gemms)
    return tuple(
        one if isinstance(one, Wanted) else Wanted(f"{one.m}x{one.n}x{one.k}", one, counts[one])
        for one in dict.fromkeys(gemms)
    )


def _gains(chosen: Mapping[Wanted, Plans], bench: Bench, jobs: Jobs) -> dict[Wanted, tuple[Gain, Gain]]:
    """What each line gains over default concurrency and one after another, kernels and degrees unchanged."""
    dtypes = sorted({line.gemm.dtype for line in chosen})
    rows = perturb(
        chain.from_iterable(chosen.values()),
        moves(bench.system, gemm_values(*dtypes), measured=True),
        lambda runs: {(line, i): g for line, plan in chosen.items() for i, g in enumerate(plan.gains(runs))},
        jobs,
    )

    def gain(line: Wanted, over: int) -> Gain:
        found = [row.figures[line, over] for row in rows]
        return Gain(found[0], min(found), max(found))

    return {line: (gain(line, 0), gain(line, 1)) for line in chosen}
