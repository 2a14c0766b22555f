"""Serving plans: the fewest GPUs that meet the SLOs, the Pareto front, and why other plans are infeasible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.core.answer import to_plain
from weft.plan.answer import PlanAnswer, PlannedDeployment
from weft.plan.launch import ENGINES, launch
from weft.serving.result import Objective, Serving
from weft.step.serving_plan import ServingPlan

CHOSEN = (
    *("tp", "replicas", "prefill_replicas", "max_num_batched_tokens", "max_num_seqs", "ep", "pp", "two_batch_overlap"),
    *("num_speculative_tokens", "speculative_method"),
)
"""Fields of a serving plan that the search chooses."""


def chosen_fields(plan: ServingPlan) -> dict[str, Any]:
    """Return the fields that the search chooses; the method is None where nothing is drafted."""
    drafts = plan.speculation.draft if plan.num_speculative_tokens else None
    return {name: getattr(plan, name) for name in CHOSEN} | {"speculative_method": drafts}


def words(plan: ServingPlan) -> str:
    """Return a serving plan in words, pipelines as one.

    >>> words(ServingPlan(tp=4, replicas=12, max_num_batched_tokens=512))
    '12 x TP 4, 512 batched tokens'
    >>> words(ServingPlan(tp=4, replicas=12, prefill_replicas=5))
    '5 prefill + 7 decode workers of TP 4'
    >>> words(ServingPlan(tp=4, replicas=3, prefill_replicas=2, prefill_tp=2))
    '2 prefill workers of TP 2 + 1 decode workers of TP 4'
    """
    count, prefills = (plan.replicas or 1) // plan.pp, plan.prefill_replicas // plan.pp
    ranks = plan.ranks.replace(", ", " and ")
    said = f"{prefills} prefill + {count - prefills} decode workers of {ranks}" if prefills else f"{count} x {ranks}"
    if plan.own_prefill:
        before = plan.of_prefill.ranks.replace(", ", " and ")
        said = f"{prefills} prefill workers of {before} + {count - prefills} decode workers of {ranks}"
    if plan.two_batch_overlap:
        said += ", two-batch overlap"
    if plan.num_speculative_tokens:
        drafts = plan.num_speculative_tokens
        said += f", {drafts} draft token{'s' * (drafts > 1)} by {plan.speculation.draft}"
    if plan.max_num_batched_tokens:
        said += f", {plan.max_num_batched_tokens:,} batched tokens"
    if plan.max_num_seqs:
        said += f", {plan.max_num_seqs:,} sequences"
    return said


@dataclass(frozen=True)
class Deployed(PlannedDeployment[ServingPlan]):
    """A serving plan with the load that it served.

    `tpot` is the time per output token that the wanted share of requests gets within the limit of the TTFT [s];
    infinite if fewer get that in time.
    """

    plan: ServingPlan
    serving: Serving
    tpot: float

    @property
    def words(self) -> str:
        """The plan in words."""
        return words(self.plan)

    @property
    def meets(self) -> bool:
        """Return whether the SLO attainment reaches its target, and the load is below capacity."""
        return not self.serving.overloaded and self.tpot <= self.serving.objective.tpot

    @property
    def tpot_interval_s(self) -> tuple[float, float] | None:
        """Both ends of the 80 % interval of `tpot` [s]; None where no load like it is public."""
        error = self.serving.error
        return error.around(self.tpot) if error and math.isfinite(self.tpot) else None

    @property
    def meets_at_upper_end(self) -> bool:
        """Return whether it meets the limit of the TPOT at the upper end of its interval, too."""
        upper = self.tpot_interval_s[1] if self.tpot_interval_s else self.tpot
        return self.meets and upper <= self.serving.objective.tpot

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens per second that the wanted share of users gets, each within the limit of the first token [1/s]."""
        return 1 / self.tpot if self.tpot else math.inf

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of answers per second and GPU [1/s]."""
        return self.serving.output_tokens_per_s_per_gpu

    def launch(self, launcher: str) -> str:
        """Return the command lines that start the plan by an engine of `weft.plan.launch.ENGINES`."""
        return launch(launcher, self.serving.model, self.serving.system, self.plan)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the search chooses, and what the plan serves, as plain data."""
        served = self.serving
        return to_plain(
            **chosen_fields(self.plan),
            gpus=self.gpus,
            meets=self.meets,
            tokens_per_s_per_user=self.tokens_per_s_per_user,
            tokens_per_s_per_gpu=self.tokens_per_s_per_gpu,
            tpot_s=self.tpot,
            tpot_interval_80_s=self.tpot_interval_s,
            slo_attainment=served.slo_attainment,
            goodput_per_s=served.goodput,
            ttft_s=served.ttft,
            kv_peak_share=served.peak_memory,
            busy_share=served.busy,
            costs=served.costs,
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class ServingPlans(PlanAnswer[Deployed]):
    """Serving plans of a model on a system for a load: the `best` has the fewest GPUs that meet the objective.

    Of those it gives the most tokens per second to each user; None if none meets it. `nearest` came nearest then, and
    `limit` says what keeps it from more. `front` is the Pareto front of GPUs and speed per user, fewest GPUs first. Of
    the `searched`, `bounded` were excluded by bounds alone, and `simulated` served the load. `unknown` could not be
    tried within the time of the search.
    """

    kind = "serving plans"

    framework: str
    load: str
    objective: Objective
    attainment: float
    best: Deployed | None
    tried: Sequence[Deployed]
    nearest: Deployed | None
    limit: str
    bounded: int
    simulated: int
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """Return the best plan, the front and the search as plain data."""
        return to_plain(
            model=self.model.name, system=self.system.label, framework=self.framework, load=self.load,
            attainment=self.attainment, objective=self.objective, best=self.best, launch=self.launch, front=self.front,
            safest=self.safest,
            nearest=self.nearest, limit=self.limit, rejected=self.rejected, searched=self.searched,
            bounded=self.bounded, simulated=self.simulated, unknown=self.unknown, wall_s=self.wall_s,
        )  # fmt: skip

    @property
    def safest(self) -> Deployed | None:
        """The plan on the front with the fewest GPUs whose TPOT meets its limit at the upper end of its interval."""
        return next((one for one in self.front if one.meets_at_upper_end), None)

    @property
    def seconds(self) -> float:
        """Mean time of a request on the best layout [s]; infinite without one."""
        return self.best.serving.seconds if self.best else math.inf

    def priced(self, price: str) -> ServingPlans:
        """Return the plans with what a GPU costs, like "3.5 USD/GPU/h" (`Price.of`); InputError for another text."""
        return self._with_loads(lambda one: one.priced(price))

    def powered(self, terms: str) -> ServingPlans:
        """Return the plans with their power and energy, as of `Serving.powered`."""
        return self._with_loads(lambda one: one.powered(terms))

    def _with_loads(self, change: Callable[[Serving], Serving]) -> ServingPlans:
        """Return the plans with changed answers on their loads."""

        def changed(one: Deployed) -> Deployed:
            return replace(one, serving=change(one.serving))

        best, nearest = self.best and changed(self.best), self.nearest and changed(self.nearest)
        return replace(self, best=best, nearest=nearest, front=tuple(map(changed, self.front)))

    @property
    def launch(self) -> str:
        """The command lines that start the best plan, "" without one."""
        return self.best.launch(self.framework) if self.best else ""

    @property
    def launch_files(self) -> Mapping[str, str]:
        """The file of these lines by its name."""
        return {ENGINES[self.framework].file: self.launch} if self.best else {}
