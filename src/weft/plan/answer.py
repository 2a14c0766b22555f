"""Base of the planner's answers for every workload: deployments, their Pareto front, and infeasible plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from weft.core.answer import Answer, Record
from weft.hardware import System
from weft.models import Transformer
from weft.models.parallel.plan import TrainingPlan
from weft.step.serving_plan import ServingPlan

D = TypeVar("D", TrainingPlan, ServingPlan)
P = TypeVar("P")


class PlannedDeployment(Record, Generic[D]):
    """A deployment with its predicted performance."""

    plan: D

    @property
    @abstractmethod
    def words(self) -> str:
        """What the deployment chooses, as one phrase."""

    @property
    def gpus(self) -> int:
        """GPUs of the deployment."""
        return self.plan.gpus

    @abstractmethod
    def launch(self, launcher: str) -> str:
        """Return what starts the deployment, as `weft.plan.launch.launch` writes it."""


@dataclass(frozen=True, repr=False, kw_only=True)
class PlanAnswer(Answer, Generic[P]):
    """What a search found for a model on a system.

    `searched` counts the candidates, `rejected` those that are infeasible or dominated, by reason. `front` is the
    Pareto front of deployments, `wall_s` is how long the search took [s].
    """

    model: Transformer
    system: System
    front: Sequence[P]
    searched: int
    rejected: Mapping[str, int]
    wall_s: float
