"""What a served load answers: throughput, latencies and goodput, queue and memory over time, and what bounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.answer import Answer
from weft.models.formats import BF16, ServedFormat
from weft.result.errors import Error, load_error

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.parallel.plan import Parallelism

FloatArray = NDArray[np.float64]
STATISTICS = ("mean", "p50", "p90", "p99")
"""What is stated of a distribution of latencies."""


class Served(NamedTuple):
    """A request that was answered: times [s] of its arrival, its start, its first and its last token, and its tokens.

    It `reached` a replica some time after its arrival. It was preempted so many times; `replica` wrote its answer.
    """

    arrival: float
    reached: float
    start: float
    first: float
    done: float
    input: int
    output: int
    preemptions: int
    replica: int

    @property
    def ttft(self) -> float:
        """Time to the first token [s]."""
        return self.first - self.arrival

    @property
    def tpot(self) -> float:
        """Mean time of each token after the first [s]; NaN for an answer of one token."""
        return (self.done - self.first) / (self.output - 1) if self.output > 1 else float("nan")


class Turn(NamedTuple):
    """`steps` equal steps of a replica from `start` to `end` [s]: `prompt` tokens of `prefills` prompts and one of each
    of `decodes` answers in each step, or more where drafts were accepted: `written` in all.

    Beside them, mean numbers of requests `running` and `waiting`, what the first of these lacks, and the memory in use
    at the end [bytes]. In the first step, sequences of next tokens hold `context` tokens, and prompts form `pairs` of a
    query and a key.
    """

    replica: int
    start: float
    end: float
    steps: int
    decodes: int
    prefills: int
    prompt: int
    running: int
    waiting: float
    lacks: str
    used: int
    context: int
    pairs: int
    written: int


class Moment(NamedTuple):
    """The load from `start` to `end` [s], over all replicas.

    Tokens of `prompt`s and `answers` [1/s], mean numbers of requests `running` and `waiting`, and the share of the
    `memory` for keys and values in use.
    """

    start: float
    end: float
    prompt: float
    answers: float
    running: float
    waiting: float
    memory: float


class Interactive(NamedTuple):
    """What so many clients see and get: tokens per second of each [1/s], and tokens per second of each GPU [1/s]."""

    clients: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float


class Objective(NamedTuple):
    """What a request must meet to count as good [s]: time to its first token, and time of each further one."""

    ttft: float = float("inf")
    tpot: float = float("inf")

    def met(self, one: Served) -> bool:
        """Whether a request meets both."""
        return one.ttft <= self.ttft and not one.tpot > self.tpot


_FEW = 20
"""Answers from which a load's middle tells its rates [assumed, 10 to 100]."""


@dataclass(frozen=True, repr=False)
class Serving(Answer):
    """A load served by the replicas of a model, `readers` of which only read prompts (0: each does both).

    `requests` are in the order of arrival, `turns` in the order of time. Each GPU has `cache` bytes for keys and
    values, of `cache_per_token` bytes a token. `offered` is the load [requests/s] (0: clients, who wait for answers),
    `capacity` what the replicas answer with requests always waiting [requests/s] (None: the load is well below).
    `step_parts` say where the time of the mean step goes [s]. The `curve` has a point for each number of clients.
    `needs` says which hardware methods of overlap take that GPUs on sale, or the system, lack. `format` is that of
    products and weights; `engine` says which version of the framework has these rules and host times.
    """

    kind = "serving"
    timed = "a mean request"
    RECORD = """
        model=model.name system=system.label tp=plan.tp dtype=format.dtype weights=format.weights overlap=plan.overlap
        replicas readers framework engine policy router load completed span_s=span seconds parts requests_per_s
        output_tokens_per_s input_tokens_per_s
        output_tokens_per_s_per_gpu output_tokens_per_s_range ttft_s=ttft tpot_s=tpot
        tpot_range_s=tpot_range latency_s=latency goodput offered_per_s=offered
        capacity_per_s=capacity overloaded
        kv_capacity_tokens=cache_tokens kv_peak_share=peak_memory kv_mean_share=mean_memory preemptions mean_running
        mean_waiting busy_share=busy lacks mean_step steps step_parts curve needs notes
    """

    model: Transformer
    system: System
    plan: Parallelism
    framework: str
    policy: str
    router: str
    load: str
    replicas: int
    readers: int
    requests: Sequence[Served]
    turns: Sequence[Turn]
    cache: int
    cache_per_token: float
    offered: float
    capacity: float | None
    objective: Objective
    step_parts: Mapping[str, float]
    curve: Sequence[Interactive] = ()
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    format: ServedFormat = BF16
    engine: str = ""

    @property
    def completed(self) -> int:
        """Requests that were answered."""
        return len(self.requests)

    @cached_property
    def span(self) -> float:
        """From the first arrival to the last token [s]."""
        return max(one.done for one in self.requests) - self.requests[0].arrival

    @property
    def seconds(self) -> float:
        """Mean time of a request from its arrival to its last token [s], under any load."""
        return sum(self.parts.values())

    @cached_property
    def parts(self) -> Mapping[str, float]:
        """Where the mean time of a request goes [s]: outside of replicas, the queue, its prompt, its further tokens."""
        marks = np.array([(one.arrival, one.reached, one.start, one.first, one.done) for one in self.requests])
        return dict(
            zip(("outside", "queue", "prompt", "answer"), np.diff(marks, axis=1).mean(axis=0).tolist(), strict=True)
        )

    @property
    def measures(self) -> Mapping[str, float]:
        """What a change of the servers is judged by, with its units."""
        latencies = {"first token": self.ttft or {}, "further token": self.tpot or {}}
        return {
            "requests/s": self.requests_per_s,
            "tokens/s of each GPU": self.output_tokens_per_s_per_gpu,
            **{
                f"{what}, {at} [ms]": of[at] * 1e3
                for what, of in latencies.items()
                for at in ("mean", "p50", "p99")
                if at in of
            },
            **({"good answers [%]": 100 * self.good_share} if self.objective != Objective() else {}),
            "most memory in use [%]": 100 * self.peak_memory,
        }

    @property
    def overloaded(self) -> bool:
        """Whether more arrives than can be answered, so that latencies grow without end."""
        return self.capacity is not None and self.offered > self.capacity

    @cached_property
    def _steady(self) -> tuple[Sequence[Served], float]:
        """Requests whose answers count for rates, and the time in which they ended [s].

        Where requests arrive by themselves, those that end between the first answer and the last arrival: what comes
        before and after fills and empties the replicas. All where these are few, and of clients who wait for answers.
        """
        first, last = min(one.done for one in self.requests), self.requests[-1].arrival
        some = [one for one in self.requests if first < one.done <= last] if self.offered else []
        return (some, last - first) if len(some) >= _FEW else (self.requests, self.span)

    @property
    def requests_per_s(self) -> float:
        """Answers per second."""
        some, seconds = self._steady
        return len(some) / seconds

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers per second."""
        some, seconds = self._steady
        return sum(one.output for one in some) / seconds

    @property
    def input_tokens_per_s(self) -> float:
        """Tokens of prompts per second."""
        some, seconds = self._steady
        return sum(one.input for one in some) / seconds

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """Tokens of answers per second and GPU that serves."""
        return self.output_tokens_per_s / (self.replicas * self.plan.tp)

    @cached_property
    def ttft(self) -> Mapping[str, float] | None:
        """Time to the first token [s]: mean and percentiles; None for a load that no time suffices for."""
        return None if self.overloaded else statistics([one.ttft for one in self.requests])

    @cached_property
    def tpot(self) -> Mapping[str, float] | None:
        """Time of each further token of a request [s]: mean and percentiles over requests; None as `ttft`."""
        found = [one.tpot for one in self.requests if one.output > 1]
        return None if self.overloaded or not found else statistics(found)

    @property
    def error(self) -> Error | None:
        """The mean error of its class of served loads; None where no row is public."""
        return load_error(self.framework, bool(self.model.experts), self.system.gpu)

    @property
    def tpot_range(self) -> tuple[float, float] | None:
        """The mean time of each further token less and plus its error [s]; None where either is missing."""
        return self.error.around(self.tpot["mean"]) if self.error and self.tpot else None

    @property
    def output_tokens_per_s_range(self) -> tuple[float, float] | None:
        """Tokens of answers per second if steps are longer or shorter by the error; None where arrivals decide it."""
        if not self.error or (self.offered and not self.overloaded):
            return None
        return self.output_tokens_per_s / (1 + self.error.value), self.output_tokens_per_s / (1 - self.error.value)

    @cached_property
    def latency(self) -> Mapping[str, float] | None:
        """Time from arrival to the last token [s]: mean and percentiles; None as `ttft`."""
        return None if self.overloaded else statistics([one.done - one.arrival for one in self.requests])

    @property
    def goodput(self) -> float:
        """Answers per second that meet the objective."""
        return self.good_share * self.requests_per_s

    @property
    def good_share(self) -> float:
        """Share of the answers that meet the objective."""
        return sum(map(self.objective.met, self.requests)) / self.completed

    @property
    def preemptions(self) -> int:
        """How often a request's memory was taken from it."""
        return sum(one.preemptions for one in self.requests)

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values a replica holds."""
        return int(self.cache // self.cache_per_token)

    @property
    def peak_memory(self) -> float:
        """Largest share of a replica's memory for keys and values in use."""
        return max(turn.used for turn in self.turns) / self.cache

    @property
    def mean_memory(self) -> float:
        """Mean share of the memory for keys and values in use while steps run."""
        return self._weighted([turn.used for turn in self.turns]) / self.cache

    @property
    def mean_running(self) -> float:
        """Mean number of requests that run on a replica while its steps do."""
        return self._weighted([turn.running for turn in self.turns])

    @property
    def mean_waiting(self) -> float:
        """Mean number of requests that wait while steps run, of a replica."""
        return self._weighted([turn.waiting for turn in self.turns])

    @property
    def busy(self) -> float:
        """Share of the time in which a replica runs a step."""
        return self._busy(range(self.replicas))

    @property
    def busy_by_role(self) -> Mapping[str, float]:
        """The same of those that only read prompts and of those that write answers; empty where each does both."""
        roles = {"readers": range(self.readers), "writers": range(self.readers, self.replicas)}
        return {role: self._busy(some) for role, some in roles.items()} if self.readers else {}

    def _busy(self, some: range) -> float:
        return sum(turn.end - turn.start for turn in self.turns if turn.replica in some) / (self.span * len(some))

    @property
    def lacks(self) -> Mapping[str, float]:
        """Share of the steps' time in which requests wait, by what the first of them lacks."""
        found: defaultdict[str, float] = defaultdict(float)
        for turn in self.turns:
            if turn.lacks:
                found[turn.lacks] += turn.end - turn.start
        whole = sum(turn.end - turn.start for turn in self.turns)
        return {name: time / whole for name, time in sorted(found.items(), key=lambda one: -one[1])}

    @property
    def steps(self) -> int:
        """Steps of all replicas."""
        return sum(turn.steps for turn in self.turns)

    @property
    def mean_step(self) -> Mapping[str, float]:
        """The mean step: seconds, next tokens, and tokens of prompts."""
        steps = self.steps
        return {
            "seconds": sum(turn.end - turn.start for turn in self.turns) / steps,
            "decodes": sum(turn.decodes * turn.steps for turn in self.turns) / steps,
            "prompt_tokens": sum(turn.prompt * turn.steps for turn in self.turns) / steps,
        }

    def over_time(self, count: int = 120) -> list[Moment]:
        """The load in `count` equal stretches of time, over all replicas."""
        edges = np.linspace(0.0, self.span, count + 1)
        begin = self.requests[0].arrival
        rates: Mapping[str, Callable[[Turn], float]] = {
            "prompt": lambda turn: turn.prompt * turn.steps, "answers": lambda turn: turn.written,
            "running": lambda turn: turn.running * (turn.end - turn.start),
            "waiting": lambda turn: turn.waiting * (turn.end - turn.start),
            "memory": lambda turn: turn.used / self.cache * (turn.end - turn.start) / self.replicas,
        }  # fmt: skip
        found = {name: np.zeros(count) for name in rates}
        by_replica: defaultdict[int, list[Turn]] = defaultdict(list)
        for turn in self.turns:
            by_replica[turn.replica].append(turn)
        for _, turns in sorted(by_replica.items()):
            if turns:
                times = np.array([(turn.start, turn.end) for turn in turns]).ravel() - begin
                for name, amount in rates.items():
                    whole = np.cumsum([amount(turn) for turn in turns])
                    reached = np.column_stack([np.concatenate([[0.0], whole[:-1]]), whole]).ravel()
                    found[name] += np.diff(np.interp(edges, times, reached)) / np.diff(edges)
        return [
            Moment(float(start), float(end), *(float(found[name][at]) for name in rates))
            for at, (start, end) in enumerate(pairwise(edges))
        ]

    def _weighted(self, values: Sequence[float]) -> float:
        times = [turn.end - turn.start for turn in self.turns]
        return float(np.average(values, weights=times))


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles by name."""
    ends = np.percentile(values, (50, 90, 99))
    return {"mean": float(np.mean(values)), **{f"p{q}": float(at) for q, at in zip((50, 90, 99), ends, strict=True)}}


def columns(requests: Sequence[Served]) -> dict[str, list[Any]]:
    """Requests as columns."""
    return {name: [getattr(one, name) for one in requests] for name in (*Served._fields, "ttft", "tpot")}
