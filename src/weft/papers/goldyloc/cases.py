"""GOLDYLOC's queues of GEMMs, each judged in every way to run it, with the degree that a predictor chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.graph import Gemm
from weft.papers.goldyloc.predictor import Example, Predictor, example, features, train, train_without
from weft.papers.goldyloc.suite import QueueSuite
from weft.plan.tune.queues import GoKernels, Judged, QueuePlans, judge_queues, plans
from weft.sweep.simulations import Bench, Jobs, Runs


@dataclass(frozen=True)
class JudgedQueue:
    """A judged queue of a network, and the `degree` chosen by a predictor that was trained without the network.

    `plans` are the batches in which it runs.
    """

    network: str
    layer: str
    judged: Judged
    degree: int
    plans: QueuePlans

    @property
    def is_mixed(self) -> bool:
        """Whether the queue holds GEMMs of several shapes."""
        return not self.judged.queue.alike

    @property
    def goldyloc(self) -> float:
        """Time with GO-kernels at the chosen degree [s]."""
        return self.judged.at_degree[self.degree]

    @property
    def over_default(self) -> float:
        """Speedup over default concurrency."""
        return self.judged.default / self.goldyloc

    @property
    def over_sequential(self) -> float:
        """Speedup over one after another."""
        return self.judged.sequential / self.goldyloc

    @property
    def default_over_sequential(self) -> float:
        """Speedup of default concurrency over one after another."""
        return self.judged.sequential / self.judged.default

    @property
    def of_oracle(self) -> float:
        """Performance as a share of the oracle's."""
        return self.judged.oracle / self.goldyloc

    @property
    def title(self) -> str:
        """The queue in a few words."""
        gemms = self.judged.queue.gemms
        shape = "mixed shapes" if self.is_mixed else f"{gemms[0].m}x{gemms[0].n}x{gemms[0].k}"
        return f"{self.network} {self.layer}: {len(gemms)} of {shape}"

    def as_json(self) -> dict[str, Any]:
        """Return the case as plain data, times in microseconds."""
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


def solve(
    suite: QueueSuite, bench: Bench, jobs: Jobs
) -> tuple[list[JudgedQueue], Predictor, Mapping[Gemm, GoKernels], Runs]:
    """Judge every queue of a suite; returns cases, the predictor trained on all, kernels, and the simulated runs.

    The degree of a queue is chosen by a predictor trained on all other networks.
    """
    queues = [(entry, queue) for entry in suite.entries for queue in entry.queues()]
    judged, kernels, runs = judge_queues([queue for _, queue in queues], bench, jobs)
    seen: dict[str, list[Example]] = {}
    for (entry, _), one in zip(queues, judged, strict=True):
        seen.setdefault(entry.network, []).append(example(one, kernels, bench.gpu))
    blind = {name: train_without(seen, name) if len(seen) > 1 else train(seen[name]) for name in seen}
    cases = []
    for (entry, queue), one in zip(queues, judged, strict=True):
        degree = blind[entry.network].choose(features(queue, kernels, bench.gpu), queue.degrees)
        cases.append(JudgedQueue(entry.network, entry.layer, one, degree, plans(queue, degree, kernels, bench)))
    return cases, train([one for group in seen.values() for one in group]), kernels, runs
