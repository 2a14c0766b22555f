"""What a plan of serving answers: the fewest GPUs that meet an objective, the front, and why others do not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.answer import Answer, attributes
from weft.fields import described
from weft.result.serving import Objective, Serving
from weft.run.step.serving_plan import ServingPlan
from weft.serving.launch import launch

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer


class Choice(NamedTuple):
    """How replicas are laid out, by fields of `weft.ServingPlan`; None is the framework's default."""

    tp: int
    replicas: int
    prefill_replicas: int = 0
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    ep: int = 1
    pp: int = 1
    two_batch_overlap: bool = False
    num_speculative_tokens: int | None = None
    speculative_method: str | None = None

    @property
    def gpus(self) -> int:
        """GPUs that serve."""
        return self.tp * self.replicas

    @property
    def options(self) -> dict[str, Any]:
        """The fields of `weft.ServingPlan` that say so."""
        neutral = {"prefill_replicas": 0, "ep": 1, "pp": 1, "two_batch_overlap": False}
        return {key: value for key, value in self._asdict().items() if value is not None and value != neutral.get(key)}

    @property
    def words(self) -> str:
        """The layout in words, pipelines as one: "12 x TP 4, 512 tokens a step", "5 readers and 7 writers of TP 4"."""
        degrees = (("TP", self.tp), ("EP", self.ep), ("PP", self.pp))
        ranks = " and ".join(f"{name} {one}" for name, one in degrees if one > 1 or name == "TP")
        count, readers = self.replicas // self.pp, self.prefill_replicas // self.pp
        said = f"{readers} readers and {count - readers} writers of {ranks}" if readers else f"{count} x {ranks}"
        if self.two_batch_overlap:
            said += ", two batches overlapped"
        if self.num_speculative_tokens:
            count = self.num_speculative_tokens
            said += f", {count} draft{'s' * (count > 1)} by {self.speculative_method}"
        if self.max_num_batched_tokens:
            said += f", {self.max_num_batched_tokens:,} tokens a step"
        if self.max_num_seqs:
            said += f", {self.max_num_seqs:,} at once"
        return said


@dataclass(frozen=True)
class Deployed:
    """A layout with the load that it served.

    `tpot` is the time per further token that the wanted share of requests gets within the limit of the first token [s];
    infinite if fewer get that in time.
    """

    choice: Choice
    serving: Serving
    tpot: float

    @property
    def gpus(self) -> int:
        """GPUs that serve."""
        return self.choice.gpus

    @property
    def plan(self) -> ServingPlan:
        """The plan that `weft.serve` takes."""
        return self.serving.plan

    @property
    def meets(self) -> bool:
        """Whether the wanted share of requests meets the objective, and the load settles."""
        return not self.serving.overloaded and self.tpot <= self.serving.objective.tpot

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens per second that the wanted share of users gets, each within the limit of the first token [1/s]."""
        return 1 / self.tpot if self.tpot else math.inf

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of answers per second and GPU [1/s]."""
        return self.serving.output_tokens_per_s_per_gpu

    def launch(self, engine: str) -> str:
        """The command lines that start the layout by an engine of `weft.serving.launch.ENGINES`."""
        return launch(engine, self.serving.plan)

    def record(self) -> dict[str, Any]:
        """The layout and what it serves as plain data."""
        names = "gpus meets tokens_per_s_per_user tokens_per_s_per_gpu"
        served = "good_share goodput_per_s=goodput ttft_s=ttft kv_peak_share=peak_memory busy_share=busy"
        share = {"tpot_s": self.tpot if self.tpot < math.inf else None}
        layout = {described(ServingPlan)[name].option: value for name, value in self.choice._asdict().items()}
        return {**layout, **attributes(self, names), **share, **attributes(self.serving, served)}


@dataclass(frozen=True, repr=False)
class ServingPlans(Answer):
    """Layouts of a model on a system for a load: the `best` has the fewest GPUs that meet the objective.

    Of those it gives the most tokens per second to each user; None if none meets it. `nearest` came nearest then, and
    `limit` says what keeps it from more. The `front` are the layouts that no other one beats in GPUs and in speed for
    each user, fewest GPUs first. `rejected` counts the others by reason; of the `searched`, `bounded` were excluded by
    bounds alone, and `simulated` served the load. `unknown` could not be tried within the time of the search.
    """

    kind = "serving plans"
    RECORD = """
        model=model.name system=system.label framework load attainment objective best=best_record launch
        front=front_records nearest=nearest_record limit rejected searched bounded simulated unknown wall_s
    """

    model: Transformer
    system: System
    framework: str
    load: str
    objective: Objective
    attainment: float
    best: Deployed | None
    front: Sequence[Deployed]
    tried: Sequence[Deployed]
    nearest: Deployed | None
    limit: str
    rejected: Mapping[str, int]
    searched: int
    bounded: int
    simulated: int
    unknown: int
    wall_s: float

    @property
    def seconds(self) -> float:
        """Mean time of a request on the best layout [s]; infinite without one."""
        return self.best.serving.seconds if self.best else math.inf

    @property
    def launch(self) -> str:
        """The command lines that start the best layout, "" without one."""
        return self.best.launch(self.framework) if self.best else ""

    @property
    def best_record(self) -> dict[str, Any] | None:
        """The best layout as plain data."""
        return self.best.record() if self.best else None

    @property
    def nearest_record(self) -> dict[str, Any] | None:
        """The nearest layout as plain data."""
        return self.nearest.record() if self.nearest else None

    @property
    def front_records(self) -> list[dict[str, Any]]:
        """The front as plain data."""
        return [one.record() for one in self.front]
