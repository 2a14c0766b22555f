"""What a served load answers: throughput, latencies and goodput, queue and memory over time, and what bounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.answer import Answer, Record, to_plain
from weft.core.energy import EnergyTerms
from weft.core.errors import InputError, show_value
from weft.core.fields import Options, check_fields, declare
from weft.core.price import Price
from weft.core.units import Dimension, parse
from weft.estimate.errors import Error, load_error, with_scans
from weft.estimate.load_ratios import ServedLoad, load_ratio_error
from weft.estimate.power import Activity, Energy, watts
from weft.estimate.step_errors import relative_change
from weft.models.formats import BF16, ServedFormat

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.serving.serve import Ready
    from weft.serving.straggler import ServingDelay
    from weft.step.serving_plan import ServingPlan

STATISTICS = ("mean", "p50", "p90", "p99")
"""What is stated of a distribution of latencies."""


class ServedRequest(NamedTuple):
    """A request that was answered: times [s] of its arrival, its start, its first and its last token, and its tokens.

    `reached` is when a replica received the request. `replica` wrote its answer.
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


class Iteration(NamedTuple):
    """`steps` consecutive iterations of a replica with the same batch, from `start` to `end` [s].

    Each iteration computes `prompt` tokens of `prefills` prompts and one token of each of `decodes` requests, or more
    where draft tokens are accepted; all of them write `written` output tokens. `running` and `waiting` are mean numbers
    of requests, `blocked_on` is the limit that blocks the first waiting one, and `used` is the KV cache in use at the
    end [bytes]. In the first iteration, decoding requests have `context` tokens in the KV cache, and prompts form
    `pairs` of a query and a key.
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
    blocked_on: str
    used: int
    context: int
    pairs: int
    written: int


class TokenCosts(NamedTuple):
    """What a million tokens cost, in a `currency`.

    `output` has all costs on the output tokens, `interval` both ends of its 80 % interval. `prompt` and `decode` are
    those of prompt and of output tokens apart, by the time of iterations: output tokens take as long as in iterations
    without prompts, prompts the rest.
    """

    currency: str
    output: float
    prompt: float
    decode: float
    interval: tuple[float, float] | None


class Moment(NamedTuple):
    """The load from `start` to `end` [s], over all replicas.

    Tokens of `prompt`s and `answers` [1/s], mean numbers of requests `running` and `waiting`, and the share of the
    KV cache in use (`memory`).
    """

    start: float
    end: float
    prompt: float
    answers: float
    running: float
    waiting: float
    memory: float


class Pools(NamedTuple):
    """Capacities of disaggregated workers [requests/s]: of the `prefill` pool alone, of the `decode` pool alone.

    The server has the smaller of them. `more_prefill` and `more_decode` are its capacities with one worker more.
    """

    prefill: float
    decode: float
    more_prefill: float
    more_decode: float

    @property
    def capacity(self) -> float:
        """Capacity of both pools in a row [requests/s]."""
        return min(self.prefill, self.decode)

    @property
    def bottleneck(self) -> str:
        """The pool to which one more worker adds capacity: "prefill" or "decode"; "both" if neither alone does."""
        gains = {"prefill": self.more_prefill, "decode": self.more_decode}
        best = max(gains, key=lambda name: gains[name])
        return best if gains[best] > self.capacity * (1 + _ALIKE) else "both"

    def times(self, scale: float) -> Pools:
        """Return the capacities scaled, such as to a simulated one."""
        return Pools(*(scale * rate for rate in self))


_ALIKE = 0.03
"""Share of a capacity that one worker more must add for its pool to be the bottleneck [assumed, 0.01 to 0.1: pools are
estimated at mean lengths]."""


class Interactive(NamedTuple):
    """Throughput at a number of concurrent clients: tokens per second per user and per GPU [1/s]."""

    clients: int
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float


class Objective(NamedTuple):
    """SLOs of a request [s]: its TTFT, and its TPOT (the mean ITL)."""

    ttft: float = float("inf")
    tpot: float = float("inf")

    def met(self, one: ServedRequest) -> bool:
        """Return whether a request meets both."""
        return one.ttft <= self.ttft and not one.tpot > self.tpot


@dataclass(frozen=True)
class Limits(Options, Record):
    """Service-level objectives (SLOs) of a request, and the SLO attainment that a plan must reach.

    `ttft` limits the time to first token, `tpot` the mean time per output token after the first ("2 s", "50 ms"); None
    is no limit. `attainment` is the share of requests that must meet both; None is the default of
    `weft.plan_serving`.

    Raises UnknownNameError for an unknown field, InputError for what is no time, or a share out of 0 to 1.

    >>> Limits(ttft="1 s", tpot="50 ms").objective.tpot
    0.05
    """

    ttft: str | None = declare(None, "SLO of the time to first token (TTFT) of a request, like 2s.")
    tpot: str | None = declare(None, "SLO of the time per output token (TPOT: the mean ITL of a request), like 50ms.")
    attainment: float | None = declare(
        None,
        "SLO attainment of a plan: share of requests that must meet --ttft and --tpot.",
        bounds=(0.01, 1),
        example=0.9,
        default="0.9",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("ttft", "tpot"):
            text = getattr(self, name)
            if text is not None and not parse(text, Dimension.SECONDS) >= 0:
                raise InputError(f"{name} is {show_value(text)}; give a time of 0 or more, such as 1s")

    @property
    def objective(self) -> Objective:
        """The limits in seconds."""
        return Objective(
            *(math.inf if one is None else parse(one, Dimension.SECONDS) for one in (self.ttft, self.tpot))
        )


_FEW = 20
"""Answers from which a window tells rates [assumed, 10 to 100]."""
WARM_UP, LIFETIMES = 2, 10
"""Request lifetimes that fill the replicas, and lifetimes from which rates and latencies are of a steady state."""


class Window(NamedTuple):
    """The steady part of a load, from `start` to `end` [s], `lifetimes` mean request lifetimes long.

    Before it, replicas fill (warm-up); after it, no request arrives and they drain. A load without a steady part counts
    as a whole, with no lifetimes.
    """

    start: float
    end: float
    lifetimes: float

    @property
    def steady(self) -> bool:
        """Whether the window is long enough for the rates and latencies of a steady state."""
        return self.lifetimes >= LIFETIMES

    def requests(self, served: Sequence[ServedRequest]) -> Sequence[ServedRequest]:
        """Return the requests that end in the window; all of a load without a steady part."""
        if not self.lifetimes:
            return served
        return [one for one in served if self.start < one.done <= self.end]

    def iterations(self, iterations: Sequence[Iteration]) -> Sequence[Iteration]:
        """Return the iterations that begin and end in the window, or all where there are none."""
        some = (
            [iteration for iteration in iterations if iteration.start >= self.start and iteration.end <= self.end]
            if self.lifetimes
            else []
        )
        return some or iterations


def steady_window(served: Sequence[ServedRequest], clients: int = 0) -> Window:
    """Return the steady part of a load, in the order of arrival, which `clients` ask for (0: requests arrive).

    Warm-up lasts two lifetimes of the 90th percentile, or two answers of each client; the window ends with the last
    arrival.
    """
    begin, last, ends = served[0].arrival, served[-1].arrival, sorted(one.done for one in served)
    whole = Window(begin, ends[-1], 0.0)
    if clients:
        first, count = WARM_UP * clients, len(ends) - (WARM_UP + 1) * clients
        if count < max(_FEW, clients):
            return whole
        return Window(ends[first - 1], ends[first + count - 1], count / clients)
    lifetimes = np.array([one.done - one.arrival for one in served[len(served) // 2 :]])
    start = begin + WARM_UP * float(np.percentile(lifetimes, 90))
    some = [one for one in served if start < one.done <= last]
    long = (last - start) / float(lifetimes.mean())
    return Window(start, last, long) if len(some) >= _FEW and long >= 1 else whole


_APART = ("dtype", "weights", "kv_dtype", "framework", "library")
"""Fields of plans that loads are compared by apart from the others."""


@dataclass(frozen=True, repr=False)
class Serving(Answer):
    """A load served by the replicas of a model under a plan.

    `requests` are in the order of arrival, `iterations` in the order of time. Each GPU has `cache` bytes of KV cache,
    `cache_per_token` bytes per token; prefill replicas in a layout of their own have `prefill_cache`.
    `offered` is the load [requests/s] (0: clients, who wait for answers), `capacity` what the replicas answer with
    requests always waiting [requests/s] (None: the load is well below).
    `iteration_parts` say where the time of the mean step goes [s]. The `curve` has a point for each number of clients.
    Rates, latencies and means are those of the `window`, the steady part of the load, which `clients` ask for (0:
    requests arrive); under overload the rates are the capacity, and no latency is stated. Latencies of a
    `finite` load, a trace, are those of all its requests. `pools` are the capacities of
    disaggregated workers alone. `lengths` are those of prompts and answers as asked for.
    `activity` is what the mean GPU does in the window, `terms` what counts beside its power, `late` what a slow part
    costs, `again` serves the load again. `needs` says which hardware methods of overlap take that GPUs on sale, or the
    system, lack. `format` is that of products and weights; `engine` says which version of the framework has these rules
    and host times.
    """

    kind = "serving"
    timed = "a mean request"

    model: Transformer
    system: System
    plan: ServingPlan
    framework: str
    policy: str
    load: str
    requests: Sequence[ServedRequest]
    iterations: Sequence[Iteration]
    cache: int
    cache_per_token: float
    offered: float
    capacity: float | None
    objective: Objective
    iteration_parts: Mapping[str, float]
    curve: Sequence[Interactive] = ()
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    format: ServedFormat = BF16
    engine: str = ""
    prefill_cache: int | None = None
    clients: int = 0
    finite: bool = False
    pools: Pools | None = None
    lengths: str = ""
    price: Price | None = None
    activity: Activity = field(default_factory=Activity)
    terms: EnergyTerms | None = None
    late: ServingDelay | None = None
    again: Ready | None = field(default=None, repr=False, compare=False)

    def delayed(self, straggler: str) -> Serving:
        """Return the load with what a slow part costs it (`late`): the same requests are served with it.

        The part is "gpu:5%" (a clock 5 % lower), "node:network=0.5" (half the rate of a node's network) or "nic" (one
        adapter at half its rate). Raises InputError for another text, for a network in one node, and for an answer that
        `weft.serve` did not return.
        """
        from weft.serving.straggler import delay
        from weft.step.straggler import Straggler

        part = Straggler.of(straggler)
        if self.again is None:
            raise InputError("this load cannot be served again; ask weft.serve for it")
        return replace(self, late=delay(self.again, self, part))

    def powered(self, terms: str) -> Serving:
        """Return the load with its power and energy, of "gpus" alone or with more terms (`EnergyTerms.of`).

        Raises InputError for other terms, and where the power of the GPU is not known.
        """
        self.system.gpu.check_power()
        return replace(self, terms=EnergyTerms.of(terms))

    @cached_property
    def energy(self) -> Energy | None:
        """Power of the GPUs, and energy of each output token; None where it was not asked for."""
        if self.terms is None:
            return None
        ends = (self.error.low, self.error.high) if self.error and self.output_tokens_per_s_interval else (1.0, 1.0)
        return Energy(watts(self.system.gpu, self.activity), self.gpus, self.output_tokens_per_s, self.terms, ends)

    def priced(self, price: str) -> Serving:
        """Return the load with what a GPU costs, like "3.5 USD/GPU/h" (`Price.of`); InputError for another text."""
        return replace(self, price=Price.of(price, self.system.gpu.name))

    def judged(self, *measured: str) -> Serving:
        """Return the load with sentences on measured figures, like "TPOT 31.4 ms" or "2008 output tokens/s".

        They say whether each was to be expected, and where to look. InputError for another text.
        """
        from weft.serving.measured import judge_served

        return judge_served(self, measured)

    @property
    def costs(self) -> TokenCosts | None:
        """What a million tokens cost; None without a price."""
        if self.price is None:
            return None
        gpus, turns = self.gpus, self._counted_turns
        output = self.price.of_tokens(gpus, self.output_tokens_per_s)
        alone = [one for one in turns if not one.prompt]
        seconds, decodes = self._gpu_seconds(alone), sum(one.decodes * one.steps for one in alone)
        whole = self._gpu_seconds(turns)
        decoding = seconds / decodes * sum(one.decodes * one.steps for one in turns) if alone and decodes else whole
        share = min(decoding / whole, 1.0)
        prompt = output * self.output_tokens_per_s / self.input_tokens_per_s * (1 - share)
        ends = self.output_tokens_per_s_interval
        return TokenCosts(
            self.price.currency,
            output,
            prompt,
            output * share,
            ends and (self.price.of_tokens(gpus, ends[1]), self.price.of_tokens(gpus, ends[0])),
        )

    def _gpu_seconds(self, turns: Sequence[Iteration]) -> float:
        """Return the time of iterations, of prefill replicas by how many times the GPUs of the others they have [s]."""
        prefills, more = self.plan.prefill_replicas, self.plan.of_prefill.tp / self.plan.tp
        return sum((one.end - one.start) * (more if one.replica < prefills else 1.0) for one in turns)

    def to_dict(self) -> dict[str, Any]:
        """Return rates, latencies [s], KV cache and bottleneck as plain data."""
        return to_plain(
            model=self.model.name,
            system=self.system.label,
            tp=self.plan.tp,
            dtype=self.format.dtype,
            weights=self.format.weights,
            overlap=self.plan.overlap,
            replicas=self.replicas,
            prefill_replicas=self.plan.prefill_replicas,
            **self.plan.own_prefill,
            gpus=self.gpus,
            framework=self.framework,
            engine=self.engine,
            scheduler=self.policy,
            router=self.plan.router,
            load=self.load,
            completed=self.completed,
            span_s=self.span,
            window=self.window,
            steady=self.steady,
            steady_requests=self.steady_requests,
            seconds=self.stated_seconds,
            parts=self.parts,
            requests_per_s=self.requests_per_s,
            output_tokens_per_s=self.output_tokens_per_s,
            input_tokens_per_s=self.input_tokens_per_s,
            output_tokens_per_s_per_gpu=self.output_tokens_per_s_per_gpu,
            output_tokens_per_s_interval_80=self.output_tokens_per_s_interval,
            ttft_s=self.ttft,
            tpot_s=self.tpot,
            tpot_interval_80_s=self.tpot_interval,
            latency_s=self.latency,
            goodput=self.goodput,
            slo_attainment=self.slo_attainment,
            offered_per_s=self.offered,
            capacity_per_s=self.capacity,
            overloaded=self.overloaded,
            kv_capacity_tokens=self.cache_tokens,
            kv_peak_share=self.peak_memory,
            kv_mean_share=self.mean_memory,
            preemptions=self.preemptions,
            mean_running=self.mean_running,
            mean_waiting=self.mean_waiting,
            busy_share=self.busy,
            bottleneck=self.bottleneck,
            pools=self.pools,
            blocked_on=self.blocked_on,
            mean_iteration=self.mean_iteration,
            iterations=self.num_iterations,
            iteration_parts=self.iteration_parts,
            costs=self.costs,
            energy=self.energy,
            straggler=self.late,
            curve=self.curve,
            needs=self.needs,
            notes=self.notes,
        )

    @property
    def replicas(self) -> int:
        """Replicas that serve."""
        return self.plan.replicas or self.system.gpus // self.plan.tp

    @property
    def gpus(self) -> int:
        """GPUs that serve."""
        return replace(self.plan, replicas=self.replicas).gpus

    @property
    def completed(self) -> int:
        """Requests that were answered."""
        return len(self.requests)

    @cached_property
    def span(self) -> float:
        """From the first arrival to the last token [s]."""
        return max(one.done for one in self.requests) - self.requests[0].arrival

    @cached_property
    def window(self) -> Window:
        """The steady part of the load."""
        return steady_window(self.requests, self.clients)

    @property
    def steady(self) -> bool:
        """Whether rates and latencies are those of a steady state, which a load above capacity does not reach."""
        return self.window.steady and not self.overloaded

    @cached_property
    def counted_requests(self) -> Sequence[ServedRequest]:
        """Requests whose answers count."""
        return self.window.requests(self.requests)

    @property
    def timed_requests(self) -> Sequence[ServedRequest]:
        """Requests whose latencies count: for a trace, all."""
        return self.requests if self.finite else self.counted_requests

    @property
    def steady_requests(self) -> int:
        """Requests whose answers count."""
        return len(self.counted_requests)

    @property
    def seconds(self) -> float:
        """Mean time of a request from its arrival to its last token [s]; infinite above capacity."""
        return float("inf") if self.overloaded else sum(self.parts.values())

    @property
    def stated_seconds(self) -> float | None:
        """The mean time of a request [s]; None above capacity."""
        return None if self.overloaded else self.seconds

    @cached_property
    def parts(self) -> Mapping[str, float]:
        """Where the mean time of a request goes [s]: outside of replicas, queue, prefill, decode.

        Empty above capacity.
        """
        if self.overloaded:
            return {}
        marks = np.array([(one.arrival, one.reached, one.start, one.first, one.done) for one in self.timed_requests])
        return dict(
            zip(("outside", "queue", "prefill", "decode"), np.diff(marks, axis=1).mean(axis=0).tolist(), strict=True)
        )

    @property
    def measures(self) -> Mapping[str, float]:
        """What a change of the servers is judged by, with its units."""
        latencies = {"TTFT": self.ttft or {}, "TPOT": self.tpot or {}}
        return {
            "req/s": self.requests_per_s,
            "output tokens/s per GPU": self.output_tokens_per_s_per_gpu,
            **{
                f"{what}, {at} [ms]": of[at] * 1e3
                for what, of in latencies.items()
                for at in ("mean", "p50", "p99")
                if at in of
            },
            **(
                {"SLO attainment [%]": 100 * self.slo_attainment}
                if self.objective != Objective() and self.slo_attainment is not None
                else {}
            ),
            "KV cache, peak [%]": 100 * self.peak_memory,
        }

    @property
    def overloaded(self) -> bool:
        """Whether more arrives than can be answered, so that latencies grow without end."""
        return self.capacity is not None and self.offered > self.capacity

    @property
    def requests_per_s(self) -> float:
        """Answers per second: the capacity, if more arrive."""
        if self.overloaded and self.capacity is not None:
            return self.capacity
        return len(self.counted_requests) / (self.window.end - self.window.start)

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers per second."""
        return self._mean_of("output") * self.requests_per_s

    @property
    def input_tokens_per_s(self) -> float:
        """Tokens of prompts per second."""
        return self._mean_of("input") * self.requests_per_s

    def _mean_of(self, name: str) -> float:
        """Return the mean tokens of the answers that count; of all above capacity."""
        some = self.requests if self.overloaded else self.counted_requests
        return float(np.mean([getattr(one, name) for one in some]))

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """Tokens of answers per second and GPU that serves."""
        return self.output_tokens_per_s / self.gpus

    @cached_property
    def ttft(self) -> Mapping[str, float] | None:
        """Time to the first token [s]: mean and percentiles; None for a load that no time suffices for."""
        return None if self.overloaded else statistics([one.ttft for one in self.timed_requests])

    @cached_property
    def tpot(self) -> Mapping[str, float] | None:
        """TPOT, the mean ITL of a request [s]: mean and percentiles over requests; None as `ttft`."""
        found = [one.tpot for one in self.timed_requests if one.output > 1]
        return None if self.overloaded or not found else statistics(found)

    @property
    def error(self) -> Error | None:
        """The 80 % interval of its class of served loads; None where no row is public."""
        known, parts = load_error(self.framework, bool(self.model.experts), self.system.gpu), self.iteration_parts
        share = parts.get("scan", 0.0) / max(sum(parts.values()), 1e-12)
        return with_scans(known, share) if known else None

    def ratio_error(self, other: Serving) -> Error | None:
        """Return the 80 % interval of the ratio of the times of two loads of clients, relative to the predicted.

        None where requests arrive at a rate of their own, as their queue grows by more than errors of iterations, and
        where no load was measured.
        """
        if self.offered or other.offered:
            return None
        return load_ratio_error(
            self.compared, other.compared, relative_change(self.iteration_parts, other.iteration_parts)
        )

    @property
    def compared(self) -> ServedLoad:
        """What decides how much the error of this load has in common with that of another."""
        gpu, node = self.system.gpu, self.system.node
        plan = tuple(getattr(self.plan, one.name) for one in fields(self.plan) if one.name not in _APART)
        return ServedLoad(
            gpu=f"{gpu.name}, {node.name if node else ''}",
            framework=self.framework,
            model=self.model.name,
            precision=self.format,
            plan=(self.system.gpus, *map(str, plan)),
            clients=self.clients,
            lengths=self.lengths,
            machine=(gpu, node, self.system.library),
            vendor=gpu.vendor,
        )

    @property
    def tpot_interval(self) -> tuple[float, float] | None:
        """Both ends of the 80 % interval of the mean TPOT [s]; None where no row is public, or no token follows."""
        return self.error.around(self.tpot["mean"]) if self.error and self.tpot else None

    @property
    def output_tokens_per_s_interval(self) -> tuple[float, float] | None:
        """Tokens of answers per second if steps are longer or shorter by the error; None where arrivals decide it."""
        if not self.error or (self.offered and not self.overloaded):
            return None
        return self.output_tokens_per_s / self.error.high, self.output_tokens_per_s / self.error.low

    @cached_property
    def latency(self) -> Mapping[str, float] | None:
        """Time from arrival to the last token [s]: mean and percentiles; None as `ttft`."""
        return None if self.overloaded else statistics([one.done - one.arrival for one in self.timed_requests])

    @property
    def goodput(self) -> float | None:
        """Requests per second that meet their SLOs [1/s]; None as `ttft`."""
        return None if self.slo_attainment is None else self.slo_attainment * self.requests_per_s

    @cached_property
    def slo_attainment(self) -> float | None:
        """Share of the requests that meet their SLOs; None as `ttft`."""
        return None if self.overloaded else sum(map(self.objective.met, self.timed_requests)) / len(self.timed_requests)

    @property
    def bottleneck(self) -> str | None:
        """Which pool of disaggregated workers has the least capacity: "prefill", "decode" or "both"; None without."""
        return self.pools.bottleneck if self.pools else None

    @property
    def preemptions(self) -> int:
        """Number of preemptions."""
        return sum(one.preemptions for one in self.requests)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the KV cache of a replica holds."""
        return int(self.cache // self.cache_per_token)

    @property
    def peak_memory(self) -> float:
        """Peak share of a replica's KV cache in use."""
        return max(iteration.used / self.cache_of(iteration.replica) for iteration in self.iterations)

    def cache_of(self, replica: int) -> float:
        """Return the KV cache of each GPU of a replica [bytes]."""
        if self.prefill_cache is None or replica >= self.plan.prefill_replicas:
            return self.cache
        return self.prefill_cache

    @property
    def mean_memory(self) -> float:
        """Mean share of the KV cache in use while iterations run."""
        return self._weighted_mean([one.used / self.cache_of(one.replica) for one in self._counted_turns])

    @property
    def mean_running(self) -> float:
        """Mean number of requests that run on a replica while its steps do."""
        return self._weighted_mean([iteration.running for iteration in self._counted_turns])

    @property
    def mean_waiting(self) -> float | None:
        """Mean number of requests that wait while steps run, of a replica; None as `ttft`, since the queue grows."""
        return (
            None if self.overloaded else self._weighted_mean([iteration.waiting for iteration in self._counted_turns])
        )

    @cached_property
    def busy(self) -> float:
        """Share of the time in which a replica runs a step."""
        begin, end = self.window.start, self.window.end
        times = (min(iteration.end, end) - max(iteration.start, begin) for iteration in self.iterations)
        return sum(max(time, 0.0) for time in times) / ((end - begin) * self.replicas)

    @cached_property
    def blocked_on(self) -> Mapping[str, float]:
        """Share of the iterations' time in which requests wait, by the limit that blocks the first of them."""
        found: defaultdict[str, float] = defaultdict(float)
        for iteration in self._counted_turns:
            if iteration.blocked_on:
                found[iteration.blocked_on] += iteration.end - iteration.start
        whole = sum(iteration.end - iteration.start for iteration in self._counted_turns)
        return {name: time / whole for name, time in sorted(found.items(), key=lambda one: -one[1])}

    @property
    def num_iterations(self) -> int:
        """Engine iterations of all replicas."""
        return sum(iteration.steps for iteration in self.iterations)

    @property
    def mean_iteration(self) -> Mapping[str, float]:
        """The mean iteration: seconds, decode requests, and prefill tokens."""
        iterations = self._counted_turns
        steps = sum(iteration.steps for iteration in iterations)
        return {
            "seconds": sum(iteration.end - iteration.start for iteration in iterations) / steps,
            "decodes": sum(iteration.decodes * iteration.steps for iteration in iterations) / steps,
            "prompt_tokens": sum(iteration.prompt * iteration.steps for iteration in iterations) / steps,
        }

    def over_time(self, count: int = 120) -> list[Moment]:
        """Return the load in `count` equal stretches of time, over all replicas."""
        edges = np.linspace(0.0, self.span, count + 1)
        begin = self.requests[0].arrival
        rates: Mapping[str, Callable[[Iteration], float]] = {
            "prompt": lambda iteration: iteration.prompt * iteration.steps,
            "answers": lambda iteration: iteration.written,
            "running": lambda iteration: iteration.running * (iteration.end - iteration.start),
            "waiting": lambda iteration: iteration.waiting * (iteration.end - iteration.start),
            "memory": lambda one: one.used / self.cache_of(one.replica) * (one.end - one.start) / self.replicas,
        }
        found = {name: np.zeros(count) for name in rates}
        by_replica: defaultdict[int, list[Iteration]] = defaultdict(list)
        for iteration in self.iterations:
            by_replica[iteration.replica].append(iteration)
        for _, iterations in sorted(by_replica.items()):
            if iterations:
                times = np.array([(iteration.start, iteration.end) for iteration in iterations]).ravel() - begin
                for name, amount in rates.items():
                    whole = np.cumsum([amount(iteration) for iteration in iterations])
                    reached = np.column_stack([np.concatenate([[0.0], whole[:-1]]), whole]).ravel()
                    found[name] += np.diff(np.interp(edges, times, reached)) / np.diff(edges)
        return [
            Moment(float(start), float(end), *(float(found[name][at]) for name in rates))
            for at, (start, end) in enumerate(pairwise(edges))
        ]

    def _weighted_mean(self, values: Sequence[float]) -> float:
        times = [iteration.end - iteration.start for iteration in self._counted_turns]
        return float(np.average(values, weights=times))

    @cached_property
    def _counted_turns(self) -> Sequence[Iteration]:
        return self.window.iterations(self.iterations)


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles by name."""
    ends = np.percentile(values, (50, 90, 99))
    return {"mean": float(np.mean(values)), **{f"p{q}": float(at) for q, at in zip((50, 90, 99), ends, strict=True)}}


def columns(requests: Sequence[ServedRequest]) -> dict[str, list[Any]]:
    """Requests as columns."""
    return {name: [getattr(one, name) for one in requests] for name in (*ServedRequest._fields, "ttft", "tpot")}
