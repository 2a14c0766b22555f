"""The GOLDYLOC study: a suite of independent GEMMs on MI100, with published figures beside Weft's.

Published: S. Pati, S. Aga, N. Jayasena, M. D. Sinclair, "Global Optimizations & Lightweight Dynamic Logic for
Concurrency", ACM TACO 2025, arXiv:2409.02227.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from statistics import fmean, geometric_mean
from typing import Any

from weft import hardware
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.lower.machine import default_request_bytes
from weft.options import SUSTAINED, RunOptions
from weft.result import Timeline
from weft.run.sweep import Progress, Store
from weft.search.degree import Judged, Plans, asked_degrees, judge, needed, plans
from weft.search.kernels import DEGREES, GoKernels, tune
from weft.search.predictor import Example, Predictor, example, features, train, train_without
from weft.search.tasks import Bench, Jobs, Runs, drained
from weft.search.watched import Watched, watched
from weft.studies.goldyloc.shares import ShareLosses, share_losses, share_runs
from weft.studies.goldyloc.suite import Entry, Mixed, Suite, declared_suite
from weft.studies.headline import Claim, HeadlineRow, PaperStudy, rows

Measure = Callable[[Sequence["Case"]], float]
PUBLISHED_GPU = "mi100"
"""The GPU that the published figures hold for."""


@dataclass(frozen=True)
class Case:
    """A queue of a network, judged, and the `degree` that a predictor chooses which has never seen the network.

    `plans` are the batches in which it runs.
    """

    network: str
    layer: str
    judged: Judged
    degree: int
    plans: Plans

    @property
    def mixed(self) -> bool:
        """Whether GEMMs of several shapes are queued."""
        return not self.judged.queue.alike

    @property
    def goldyloc(self) -> float:
        """GO-kernels at the chosen degree [s]."""
        return self.judged.at_degree[self.degree]

    @property
    def over_default(self) -> float:
        """How many times faster than default concurrency."""
        return self.judged.default / self.goldyloc

    @property
    def over_sequential(self) -> float:
        """How many times faster than one after another."""
        return self.judged.sequential / self.goldyloc

    @property
    def of_oracle(self) -> float:
        """Share of the oracle's performance."""
        return self.judged.oracle / self.goldyloc

    @property
    def title(self) -> str:
        """The queue in a few words."""
        gemms = self.judged.queue.gemms
        shape = "mixed shapes" if self.mixed else f"{gemms[0].m}x{gemms[0].n}x{gemms[0].k}"
        return f"{self.network} {self.layer}: {len(gemms)} of {shape}"

    def as_json(self) -> dict[str, Any]:
        """The case as plain data, times in microseconds."""
        judged = self.judged
        return {
            "network": self.network,
            "layer": self.layer,
            "gemms": [[one.m, one.n, one.k] for one in judged.queue.gemms],
            "sequential_us": judged.sequential * 1e6,
            "default_us": judged.default * 1e6,
            "go_kernels_us": {str(degree): s * 1e6 for degree, s in judged.at_degree.items()},
            "oracle_us": judged.oracle * 1e6,
            "best_degree": judged.best_degree,
            "degree": self.degree,
            "goldyloc_us": self.goldyloc * 1e6,
            "over_default": self.over_default,
            "over_sequential": self.over_sequential,
            "of_oracle": self.of_oracle,
        }


def _largest(name: str) -> Measure:
    return lambda cases: max(getattr(case, name) for case in cases)


def _mean(of: Callable[[Case], float]) -> Measure:
    return lambda cases: geometric_mean(of(case) for case in cases)


CLAIMS: tuple[Claim[Case], ...] = (
    *(
        Claim(f"goldyloc.over_{name}.{id_}", f"GOLDYLOC over {what}, {how}", published, "ratio", measure)
        for name, what, geomean, largest in (
            ("default", "default concurrency", 1.18, 2.0),
            ("sequential", "one after another", 1.43, 2.5),
        )
        for id_, how, published, measure in (
            ("geomean", "geomean", geomean, _mean(attrgetter(f"over_{name}"))),
            ("max", "largest", largest, _largest(f"over_{name}")),
        )
    ),
    Claim(
        "goldyloc.default_over_sequential.geomean",
        "default concurrency over one after another, geomean",
        1.43 / 1.18,
        "ratio",
        _mean(lambda case: case.judged.sequential / case.judged.default),
    ),
    Claim(
        "goldyloc.of_oracle",
        "share of the oracle's performance, unseen networks",
        None,
        "share",
        _mean(attrgetter("of_oracle")),
    ),
)
"""The abstract's figures, and what else is taken over all queues."""


def _loss_claims(other: str) -> tuple[Claim[ShareLosses], ...]:
    """An independent measurement of nine GEMMs in bf16 on a GPU of 188 multiprocessors: medians, tiles that change."""
    kept = "the whole GPU's best kernel on"
    return (
        Claim("goldyloc.loss_on_half", f"{kept} half of the CUs, median loss{other}", 0.091, "fraction",
              lambda found: found[0].median(2)),
        Claim("goldyloc.loss_on_quarter", f"{kept} a quarter of the CUs, median loss{other}", 0.123, "fraction",
              lambda found: found[0].median(4)),
        Claim("goldyloc.changed_tiles", f"GEMMs whose best tile changes there{other}", 8 / 9, "share",
              lambda found: found[0].changed),
    )  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What a GO-kernel changes: copies of one GEMM that run together, with the isolated and with the GO-kernel."""

    network: str
    layer: str
    gemm: Gemm
    degree: int
    isolated: GemmTiling
    go: GemmTiling
    before: Timeline
    after: Timeline

    @property
    def faster(self) -> float:
        """How many times faster the GO-kernel is."""
        return drained(self.before) / drained(self.after)

    def as_json(self) -> dict[str, Any]:
        """The change as plain data."""
        return {
            "network": self.network,
            "layer": self.layer,
            "gemm": [self.gemm.m, self.gemm.n, self.gemm.k],
            "degree": self.degree,
            "isolated": {"tiling": asdict(self.isolated), "run": _record(self.before)},
            "go_kernel": {"tiling": asdict(self.go), "run": _record(self.after)},
            "faster": self.faster,
        }


def _record(run: Timeline) -> dict[str, Any]:
    """What telling the two kernels apart takes: times, where workgroups spent theirs, what caches and memory moved."""
    spent = Counter[str]()
    for span in run.spans:
        spent.update(span.waits)
    whole = max(sum(spent.values()), 1)
    return {
        "makespan_s": drained(run),
        "ends_s": [run.end(node.name) for node in run.graph],
        "waits": {name: value / whole for name, value in spent.items()},
        "bytes": {" ".join(cause): amount for cause, amount in run.traffic.items()},
        "counters": dict(run.counters),
        "workgroups": [span.workgroups for span in run.spans],
        "resident": [span.resident for span in run.spans],
        "events": run.events,
    }


@dataclass(frozen=True)
class GoldylocStudy(PaperStudy):
    """What the study simulated: every queue, what GO-kernels change, the loss on parts of the GPU, the predictor.

    `predictor` has seen the whole suite; cases were judged by ones that had not seen their network.
    """

    NAME = "goldyloc"
    PAPER = "ACM TACO 2025, arXiv:2409.02227"
    PAPER_GPU = PUBLISHED_GPU

    suite: Suite
    cases: Sequence[Case]
    changes: Sequence[Change]
    losses: ShareLosses
    predictor: Predictor
    clock: str
    runs: int
    events: int

    def _other_than_published(self) -> str:
        return "" if self.suite == declared_suite() else "the suite is not the declared one"

    @property
    def units(self) -> int:
        """Compute units of the GPU."""
        return self.machine.compute.compute_units

    @property
    def accuracy(self) -> float:
        """How often the degree that a predictor chose was the best one."""
        return fmean(case.degree == case.judged.best_degree for case in self.cases)

    def at_degree(self, degree: int) -> float:
        """GO-kernels at a fixed degree over default concurrency, geometric mean."""
        return geometric_mean(case.judged.default / case.judged.at(degree) for case in self.cases)

    def watch(self) -> Watched:
        """The queue that gains most over default concurrency, one of mixed shapes if there is any, run once more."""
        mixed = [case for case in self.cases if case.mixed]
        case = max(mixed or self.cases, key=lambda case: case.over_default)
        return watched(case.title, case.plans)

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""
        losses = _loss_claims("; published for another GPU" if self.comparable else "")
        return [
            *rows(CLAIMS, dict(enumerate(self.cases)), self.comparable),
            *rows(losses, {0: self.losses}, self.comparable),
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        blind = (
            "the degree was chosen by predictors that had not seen the network; "
            f"{self.accuracy:.0%} of them name the best degree"
        )
        told = (
            "sequential and default concurrency use the kernel that is fastest alone; caches are cold, launches count",
            blind,
        )
        return told if self.unlike is None else (*told, self.unlike)

    def own(self) -> dict[str, Any]:
        """Suite, predictor and every case as plain data."""
        return {
            "suite": self.suite.title,
            "clock": self.clock,
            "fixed_degrees": {str(degree): self.at_degree(degree) for degree in DEGREES},
            "accuracy": self.accuracy,
            "predictor": self.predictor.record(),
            "cases": [case.as_json() for case in self.cases],
            "changes": [change.as_json() for change in self.changes],
            "losses": [
                {"gemm": [row.gemm.m, row.gemm.n, row.gemm.k], "share": row.share, "loss": row.loss}
                for row in self.losses.rows
            ],
            "runs": self.runs,
            "events": self.events,
        }


def run(
    suite: Suite | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    gpu: Gpu | None = None,
    options: RunOptions = SUSTAINED,
    store: Store | None = None,
) -> GoldylocStudy:
    """Simulate a suite (None: the declared one) on a GPU (None: the published one) in `jobs` processes.

    Raises InputError for what cannot be simulated, such as a data type that the GPU lacks.
    """
    begin = time.perf_counter()
    suite, gpu = suite or declared_suite(), hardware.gpu(gpu or PUBLISHED_GPU)
    bench, own = Bench.of(gpu, options=options), Jobs(jobs, store, progress)
    # The parts of the GPU first: their runs share candidates with the kernels that are tuned next.
    parts = own.run(share_runs(suite.shapes, bench))
    cases, predictor, kernels, runs = solve(suite, bench, own)
    tuned = [one for each in kernels.values() for tried in each.runs.values() for one in tried.values()]
    everything = [*parts.values(), *tuned, *runs.values()]
    return GoldylocStudy(
        suite=suite,
        cases=cases,
        changes=[_change(entry, kernels) for entry in suite.entries if isinstance(entry, Entry)],
        losses=share_losses(suite.shapes, bench, parts),
        predictor=predictor,
        machine=gpu,
        clock=options.clock,
        request_bytes=default_request_bytes(gpu),
        runs=len(everything),
        events=sum(one.events for one in everything),
        wall_s=time.perf_counter() - begin,
    )


def solve(suite: Suite, bench: Bench, own: Jobs) -> tuple[list[Case], Predictor, Mapping[Gemm, GoKernels], Runs]:
    """Every queue of a suite judged, the predictor that has seen them all, the kernels, and what was simulated."""
    queues = [(entry, queue) for entry in suite.entries for queue in entry.queues()]
    kernels = tune(asked_degrees([queue for _, queue in queues]), bench, own)
    runs = own.run(batch for _, queue in queues for batch in needed(queue, kernels, bench))
    judged = [(entry, judge(queue, kernels, bench, runs)) for entry, queue in queues]
    return *_choose(judged, kernels, bench), kernels, runs


def _choose(
    judged: Sequence[tuple[Entry | Mixed, Judged]], kernels: Mapping[Gemm, GoKernels], bench: Bench
) -> tuple[list[Case], Predictor]:
    """Every queue with the degree that a predictor chooses which has seen all networks but the queue's."""
    seen: dict[str, list[Example]] = {}
    for entry, one in judged:
        seen.setdefault(entry.network, []).append(example(one, kernels, bench.gpu))
    several = len(seen) > 1
    blind = {name: train_without(seen, name) if several else train(seen[name]) for name in seen}
    cases = []
    for entry, one in judged:
        known = features(one.queue, kernels, bench.gpu)
        degree = blind[entry.network].choose(known, one.queue.degrees)
        chosen = plans(one.queue, degree, kernels, bench)
        cases.append(Case(entry.network, entry.layer, one, degree, chosen))
    return cases, train([one for group in seen.values() for one in group])


def _change(entry: Entry, kernels: Mapping[Gemm, GoKernels]) -> Change:
    """What the GO-kernel changes where the most copies of an entry run together."""
    gemm = Gemm(*entry.gemm, entry.dtype)
    tuned, degree = kernels[gemm], max(entry.queued)
    runs = tuned.runs[degree]
    isolated, go = tuned.isolated, tuned.best(degree)
    return Change(entry.network, entry.layer, gemm, degree, isolated, go, runs[isolated], runs[go])
