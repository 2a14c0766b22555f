"""`weft.serve`: a load of requests on the replicas of a model, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import numpy as np

from weft.catalog import Quantity
from weft.errors import InputError, check_name, check_whole, shown
from weft.estimate import estimate
from weft.graph import Collective
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.library.kits import KITS
from weft.library.serving_frameworks import resolve_framework
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, RunOptions
from weft.parallel.plan import Parallelism, overlap_text
from weft.result.serving import (
    LIFETIMES,
    WARM_UP,
    Interactive,
    Objective,
    Pools,
    Served,
    Serving,
    Turn,
    steady_window,
)  # fmt: skip
from weft.result.step import added
from weft.result.stored import plain
from weft.run.step.drafts import NONE, speculation
from weft.run.step.forward import Forward
from weft.serving.checkpoint import LEAST, WRONG, Checkpoint, Progress, Watched
from weft.serving.cluster import ROUTERS, Cluster, Watch
from weft.serving.framework import Serves, serves
from weft.serving.load import EACH_CLIENT, FIRST_REQUESTS, Arrivals, Load
from weft.serving.policies import POLICIES, Policy, Schedule, checked
from weft.serving.pool import Pool
from weft.serving.replica import Pipeline, Replica
from weft.serving.requests import HASHED_TOKENS, Asked, Request, RequestStream, with_prefix
from weft.serving.steady import steady
from weft.serving.step_times import Shape, StepTimes
from weft.units import Dimension, parse

_SECONDS = Quantity(Dimension.SECONDS, zero_allowed=True)
_LARGEST_REQUESTS = 1_000_000
_KEPT = 128
"""Kinds of replicas whose step times are kept: as many as a plan compares."""
_LONGEST_DRAIN = 2.0
"""How many times longer than a lone request a load may take to end after its last arrival; else its capacity is looked
for."""
_FULL = 4
"""Times as many requests as ever run at once, in a run that looks for the capacity."""
_MOST_REQUESTS, _MOST_ROUNDS = 60_000, 4
"""Most requests of a load at a rate, if nothing says how many, and most runs in which their number grows."""
_LENGTHS = "input", "output"
_FAR_BELOW = 0.6
"""Share of an estimated capacity below which a load needs no simulated one [assumed, 0.4 to 0.8: estimates are made at
mean lengths, and within 20 % of simulations]."""
_BEHIND = 0.02
"""Share of the arrivals, beside three standard deviations, by which answers may stay behind in a steady state."""
_EARLY, _LATE = 1.5, 1.15
"""Factors on the requests that a steady state takes, by lifetimes seen while the replicas fill, and later: batches grow
until the replicas are full, and lifetimes with them."""


def serve(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    ep: int = 1,
    pp: int = 1,
    two_batch: bool = False,
    framework: str = "vllm",
    policy: str | Schedule | None = None,
    rate: float | None = None,
    concurrency: int | None = None,
    trace: str | Path | None = None,
    requests: int | None = None,
    input: int | tuple[int, int] | None = None,
    output: int | tuple[int, int] | None = None,
    arrivals: str | None = None,
    burstiness: float | None = None,
    prefix: int = 0,
    seed: int | None = None,
    replicas: int | None = None,
    readers: int = 0,
    router: str = "least-loaded",
    ttft: str | None = None,
    tpot: str | None = None,
    step_tokens: int | None = None,
    sequences: int | None = None,
    block: int | None = None,
    memory_share: float | None = None,
    max_length: int | None = None,
    curve: bool = False,
    host: str | None = None,
    dtype: str | None = None,
    weights: str = "",
    kv_dtype: str = "bf16",
    library: str | None = None,
    speculate: int | None = None,
    accept: float | None = None,
    draft: str | None = None,
    overlap: Mapping[str, str] | str = "",
    enforce_eager: bool = False,
    options: RunOptions = SUSTAINED,
    progress: Progress | None = None,
) -> Serving:
    """Serve a load by a model's replicas of `tp` GPUs each: throughput, latencies, memory, queue, and what bounds.

    Requests arrive at a `rate` [1/s], from `concurrency` clients that wait for each answer, or as a `trace` says; with
    `rate`, a trace's gaps are scaled. Prompts have `input` tokens (1024) and answers `output` (128), or numbers drawn
    evenly between two, by the `seed`. `policy` is a name of `POLICIES` or a function of a `Replica` (default:
    the framework's). With a `curve`, fewer clients are served, too, from one a replica by doublings. `prefix` tokens of
    all prompts are the same, and computed once. Of the `replicas` (default: as many as the system holds) `readers` only
    read prompts. `ttft` and `tpot` ("2 s", "50 ms") are what a good answer meets. The others replace what the framework
    does by default: tokens of a step, sequences at once, tokens of a block, share of the memory, the longest request,
    and the host's time for each step. `ep`, `two_batch`, `speculate`, `accept`, `draft`, `dtype`, `weights`,
    `kv_dtype`, `overlap` and `library` are those of `weft.decode`; the library is the framework's own if none is
    named. With `pp`, so many replicas share a pipeline of `tp` x `pp` GPUs, each with its own queue and its share
    of the memory. With `ep` above a `tp` of 1 a replica is one GPU with a queue of its own, and `ep` of them share
    the experts. `progress` is called with the number of answered requests, their total, and what runs. A run of
    20,000 requests or more by a policy with a name keeps its state, at most once a minute, and resumes there when
    it is asked again after an interrupt.

    Raises UnknownNameError for unknown names, InputError for sizes that do not fit the model, the memory or each other.

    >>> serve("llama-3-8b", "1xh100", rate=4, requests=50, input=512, output=32).overloaded
    False
    """
    asked = dict(locals())
    del asked["progress"]
    return ready(asked.pop("model"), asked.pop("on"), **asked).answer(progress, resumes=True)


@dataclass(frozen=True)
class Ready:
    """A load and the replicas that will serve it, checked; it was `drawn` without the prefix of its prompts."""

    deploy: Deployment
    asked: RequestStream
    drawn: RequestStream
    limit: int
    policy: str
    objective: Objective
    curve: bool
    host_stated: bool
    inputs: Mapping[str, Any]
    stated: Mapping[str, Any]

    def answer(self, progress: Progress | None = None, resumes: bool = False) -> Serving:
        """Return the whole answer, of as many requests as a steady state takes where nothing says how many.

        A run that `resumes` keeps its state until then.
        """
        made = self
        for _ in range(_MOST_ROUNDS):
            answered, turns, capacity = made._run(progress, resumes)
            count = made._steady_count(answered, capacity)
            if count <= len(made.asked.asked):
                break
            made = made.of(count)
        return made.serving(answered, turns, capacity)

    def of(self, requests: int) -> Ready:
        """Return the same with another number of requests."""
        return ready(self.deploy.forward.model, self.deploy.forward.system, **{**self.stated, "requests": requests})

    def _run(self, progress: Progress | None, resumes: bool) -> tuple[list[Served], list[Turn], float | None]:
        """Serve the load: requests and iterations, and the capacity if the load may be above it."""
        checkpoint = self._checkpoint() if resumes else None
        answered, turns = self.deploy.run(self.asked, None, progress, checkpoint)
        capacity = self.deploy.capacity(self.asked, answered, turns, progress) if self.asked.rate else None
        if checkpoint:
            checkpoint.remove()
        return answered, turns, capacity

    def _steady_count(self, answered: Sequence[Served], capacity: float | None) -> int:
        """Return the requests that a steady state takes, or those of a stated load."""
        count, rate = len(answered), self.asked.stated
        window = steady_window(answered)
        is_stated = self.stated.get("requests") is not None or not rate
        if is_stated or window.steady or (capacity is not None and rate > capacity):
            return count
        more = steady_requests(answered, rate) * (_EARLY if window.lifetimes < WARM_UP else _LATE)
        return max(min(math.ceil(max(more, _LATE * count)), _MOST_REQUESTS), count)

    def serving(self, answered: Sequence[Served], turns: Sequence[Turn], capacity: float | None) -> Serving:
        """Return the answer of a load that was served."""
        deploy, asked = self.deploy, self.asked
        forward, how = deploy.forward, deploy.how
        counted = steady_window(answered, asked.clients).turns(turns)
        return Serving(
            forward.model, forward.system, replace(forward.plan, sequence=self.limit), how.name, self.policy,
            deploy.router, asked.about, deploy.replicas, deploy.readers, answered, turns, how.cache_bytes,
            forward.cache(self.limit) / self.limit, asked.rate, capacity, self.objective, deploy.step_parts(counted),
            tuple(deploy.curve(asked)) if self.curve else (), tuple(_notes(how, deploy, answered, self.host_stated)),
            forward.needs, forward.served_format, how.about, asked.clients, asked.finite,
            deploy.pools(answered, turns, capacity) if deploy.readers else None,
        )  # fmt: skip

    def _checkpoint(self) -> Checkpoint | None:
        """Where the state of a long run is kept; None for a short one, and for a policy without a name."""
        deploy = self.deploy
        if len(self.asked.asked) < LEAST or POLICIES.get(self.policy) is not deploy.policy:
            return None
        where, model = deploy.forward.system.inputs(), deploy.forward.model.model_dump(mode="json")
        inputs = {"system": where, "model": model, "policy": self.policy, "options": plain(self.inputs)}
        return Checkpoint.of(inputs, self.asked.asked)


def ready(
    model: Transformer | str | Path, on: Described, *, drawn: RequestStream | None = None, **stated: Any
) -> Ready:
    """A load on replicas, by the arguments of `serve`; raises what that raises. `drawn` is its load, if it is known."""
    asked = _DEFAULTS | stated
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    _check(*(asked[name] for name in _CHECKED))
    framework, version = resolve_framework(asked["framework"])
    library = asked["library"]
    if library is None:
        library = f"{framework}@{version}" if version in KITS[framework].versions else framework
    drafts = speculation(*(asked[name] for name in ("speculate", "accept", "draft")))
    methods = Parallelism(overlap=asked["overlap"] or {}).overlap
    how_run = {name: asked[name] for name in _FORWARD} | {"overlap": overlap_text(methods)}
    times = _times(found, where, library=library, speculation=drafts, **how_run)
    forward = times.forward
    own = {"tokens": asked["step_tokens"], "sequences": asked["sequences"], "block": asked["block"]}
    for name, value in own.items():
        if value is not None:
            check_whole(f"{name} of a step" if name == "tokens" else name, value, 1, 256)
    memory_share, host = asked["memory_share"], asked["host"]
    if memory_share is not None and not (_is_number(memory_share) and 0 < memory_share <= 1):
        raise InputError(f"memory_share is {shown(memory_share)}; give a share from 0 to 1, such as 0.9")
    took = None if host is None else _SECONDS.parse(host)
    how = serves(framework, forward, host=took, memory_share=memory_share, version=version, **own)
    times = times.launched(how.launch, how.graphed, how.pieces)
    if how.tokens < forward.queries:
        raise InputError(
            f"a step of {how.tokens} tokens does not hold the next token of a request and its {drafts.tokens} drafts; "
            f"give step_tokens {forward.queries} or more, or fewer drafts"
        )
    count = _replicas(forward, asked["replicas"], asked["readers"])
    chosen, name = _policy(asked["policy"] or how.policy)
    drawn = served = drawn or Load(**{field: asked[name] for name, field in _LOAD.items()}).draw()
    shared = HASHED_TOKENS if any(one.blocks for one in drawn.asked) else 0
    if asked["prefix"]:
        if shared:
            raise InputError(
                "the trace's hash_ids say which prompts begin alike, and prefix says it, too; leave out prefix"
            )
        shared, served = with_prefix(drawn, int(asked["prefix"]), how.block)
    limit = asked["max_length"] or found.sequence_length
    _check_lengths(served.asked, found, limit, forward, how)
    deploy = Deployment(forward, how, chosen, asked["router"], count, asked["readers"], shared, times)
    decide = {key: value for key, value in asked.items() if key not in _BESIDE}
    return Ready(
        deploy,
        served,
        drawn,
        limit,
        name,
        objective(asked["ttft"], asked["tpot"]),
        asked["curve"],
        host is not None,
        decide,
        stated,
    )


_DEFAULTS = {name: one.default for name, one in signature(serve).parameters.items()}
_BESIDE = ("model", "on", "policy", "trace", "ttft", "tpot", "curve", "progress")
"""Arguments that do not decide a run, or by what `Ready` makes of them."""
_CHECKED = ("requests", "concurrency", "rate", "prefix", "seed", "arrivals", "burstiness", "router", "curve")
_FORWARD = ("tp", "ep", "pp", "two_batch", "dtype", "weights", "kv_dtype", "enforce_eager", "options")
_LOAD = {
    **{name: name for name in ("rate", "concurrency", "trace", "requests", "arrivals", "burstiness", "seed")},
    "input": "input_tokens",
    "output": "output_tokens",
}


def objective(ttft: str | None, tpot: str | None) -> Objective:
    """What a good answer meets, from texts such as "2 s" and "50 ms"; None is no limit."""
    found = [float("inf") if one is None else parse(one, Dimension.SECONDS) for one in (ttft, tpot)]
    for name, text, value in zip(("ttft", "tpot"), (ttft, tpot), found, strict=True):
        if not value >= 0:
            raise InputError(f"{name} is {shown(text)}; give a time of 0 or more, such as 1s")
    return Objective(*found)


@lru_cache(_KEPT)
def _times(model: Transformer, where: System, **how: Any) -> StepTimes:
    """The step times of a model on a replica: the same object for equal machines, which times each size once.

    They share what they time with those of one draft, one stage and whole batches.
    """
    forward, simpler = Forward(model, where, **how), None
    if how["speculation"].tokens > 1:
        simpler = {"speculation": replace(how["speculation"], tokens=1)}
    elif forward.plan.pp > 1 or forward.two_batch:
        simpler = {"pp": 1, "two_batch": False}
    elif how["speculation"].tokens:
        simpler = {"speculation": NONE}
    elif forward.eager:
        simpler = {"enforce_eager": False}
    return StepTimes(forward, like=_times(model, where, **how | simpler) if simpler else None)


@dataclass(frozen=True)
class Deployment:
    """A model on its replicas, ready to serve loads; `sent` are times [s] of keys and values by tokens of a prompt.

    Prompts are read by the first `readers` of the replicas, or by all of those of `reads`, whose layout is their own.
    """

    forward: Forward
    how: Serves
    policy: Policy
    router: str
    replicas: int
    readers: int
    shared: int
    times: StepTimes
    sent: dict[int, float] = field(default_factory=dict)
    reads: Deployment | None = None

    def run(
        self, asked: RequestStream, watch: Watch | None = None, progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[list[Served], list[Turn]]:  # fmt: skip
        """Serve a load: its requests in the order of arrival, and the steps of all replicas in the order of time.

        `watch` sees each answered request, and may raise `GivenUp`. With a `checkpoint` the run resumes from it.
        """
        between = Watched(len(asked.asked), progress, checkpoint) if progress or checkpoint else None
        cluster = checkpoint and self._restored(asked, checkpoint)
        if cluster and between:
            between.resumed(cluster)
            found = cluster.resume(between)
        else:
            cluster = self._cluster(asked)
            found = cluster.run(asked, watch, between)
        every = [*cluster.replicas, *cluster.decoders]
        turns = sorted((turn for replica in every for turn in replica.turns), key=lambda turn: turn.start)
        return sorted(map(_served, found), key=lambda one: one.arrival), turns

    def _restored(self, asked: RequestStream, checkpoint: Checkpoint) -> Cluster | None:
        """The replicas in the state of a checkpoint; None where there is none, or it has another form."""
        cluster, state = self._cluster(asked), checkpoint.read()
        if state is None:
            return None
        try:
            cluster.restore(asked, state)
        except WRONG:
            checkpoint.forget("it has another form")
            return None
        return cluster

    def _cluster(self, asked: RequestStream) -> Cluster:
        """The replicas that the requests of a load may reach: routers take the first idle one, or each in turn."""
        if self.reads:
            beside = self.reads.replicas
            readers = [self.reads._replica(at, None) for at in range(beside)]
            writers = [self._replica(beside + at, None) for at in range(self.replicas)]
            return Cluster(readers, self.router, writers, self.transfer, self.reads.how.outside, self._again)
        stages = self.forward.plan.pp
        most = self.replicas if self.readers else min(self.replicas, -(-len(asked.asked) // stages) * stages)
        pipelines = [Pipeline(stages) for _ in range(most // stages)] if stages > 1 else []
        every = [self._replica(at, pipelines[at // stages] if pipelines else None) for at in range(most)]
        readers, others = every[: self.readers], every[self.readers :]
        both = (readers, others) if readers else (others, [])
        return Cluster(both[0], self.router, both[1], self.transfer, self.how.outside, self._again)

    @property
    def _again(self) -> Callable[[int], float] | None:
        return self.how.outside if self.how.asks_again else None

    def _replica(self, at: int, pipeline: Pipeline | None) -> Replica:
        pool = Pool(self.how.cache_bytes, self.how.block, self.forward.cache, self.shared)
        return Replica(
            at, self.times, pool, self.policy.make(), tokens=self.how.tokens, sequences=self.how.sequences,
            host=self.how.host, steady=self.policy.steady, answers=at >= self.readers,
            pipeline=pipeline,
        )  # fmt: skip

    def transfer(self, request: Request) -> float:
        """Seconds that a prompt's keys and values take from a reader: each of its GPUs sends to one of the other."""
        return self.sending(request.computed)

    def sending(self, tokens: int) -> float:
        """Seconds that keys and values of so many tokens take from a reader."""
        if tokens not in self.sent:
            where = self.forward.system
            each = where.node.gpus_per_node if where.node else where.gpus
            pair = where.with_gpus(2, 1 if where.gpus <= each else 2)
            sent = Collective("send_recv", self.forward.cache(tokens) // self.forward.plan.pp, 2)
            self.sent[tokens] = float(estimate(sent, pair).seconds)
        return self.sent[tokens]

    def capacity(
        self, asked: RequestStream, answered: Sequence[Served], turns: Sequence[Turn], progress: Progress | None = None
    ) -> float | None:
        """Answers per second while requests always wait, where a load's end suggests that it is near [1/s]."""
        last = max(answered, key=lambda one: one.done)
        lone, _ = self.run(RequestStream([Asked(0.0, last.input, last.output)], "one request"))
        is_late = last.done - answered[-1].arrival > _LONGEST_DRAIN * lone[0].done
        is_near = is_late and asked.rate > _FAR_BELOW * self._estimated_capacity(answered)
        if not is_near and not _falls_behind(answered) and asked.rate != float("inf"):
            return None
        at_once, some = _most_at_once(turns), list(asked.asked[:FIRST_REQUESTS])
        kept = some * -(-_FULL * at_once // len(some))
        found, _ = self.run(RequestStream([one._replace(arrival=0.0) for one in kept], "all at once"), None, progress)
        ends = sorted(one.done for one in found)
        early, late = len(ends) // 5, len(ends) - 1 - len(ends) // 5
        return (late - early) / (ends[late] - ends[early]) if ends[late] > ends[early] else float("inf")

    def step_parts(self, turns: Sequence[Turn]) -> Mapping[str, float]:
        """Where the time of the mean step goes [s], that of the host included.

        Steps of next tokens alone, of prompts alone and of both are each parted as their mean is.
        """
        kinds: dict[tuple[bool, bool], list[Turn]] = {}
        for turn in turns:
            kinds.setdefault((turn.decodes > 0, turn.prefills > 0), []).append(turn)
        steps = sum(turn.steps for turn in turns)
        total = {"host": self.how.host}
        for some in kinds.values():
            parts = self.times.parts(_mean(some))
            gpu = sum(turn.end - turn.start - turn.steps * self.how.host for turn in some)
            scale = gpu / sum(parts.values()) / steps
            total = added(total, {name: scale * time for name, time in parts.items()})
        return total

    def curve(self, asked: RequestStream) -> Iterator[Interactive]:
        """Throughput against interactivity, from one client for each replica by doublings to those of the load."""
        clients = self.replicas
        while clients < 2 * asked.clients:
            now = min(clients, asked.clients)
            count = EACH_CLIENT * now
            kept = (list(asked.asked) * -(-count // len(asked.asked)))[:count]
            answered, _ = self.run(RequestStream(kept, "", now))
            window = steady_window(answered, now)
            found = window.requests(answered)
            each = [one.tpot for one in found if one.output > 1]
            users = len(each) / sum(each) if each else 0.0
            tokens = sum(one.output for one in found) / (window.end - window.start)
            yield Interactive(now, users, tokens / (self.replicas * self.forward.plan.tp))
            clients *= 2

    def pools(self, answered: Sequence[Served], turns: Sequence[Turn], capacity: float | None) -> Pools:
        """Return the capacities of prefill and decode workers alone, at mean lengths, and with one worker more.

        They are scaled to the `capacity` that was simulated, if it was. A worker is an engine: replicas that share
        experts or a pipeline are one.
        """
        each = self.forward.ep if self.forward.wide else self.forward.plan.pp
        writers = self.replicas - self.readers
        read = sum(turn.prompt * turn.steps for turn in turns if turn.replica < self.readers) / len(answered)
        prefill, decode = self._prefill_rate(read), self._decode_rate(answered)
        found = Pools(
            self.readers * prefill, writers * decode,
            min((self.readers + each) * prefill, writers * decode),
            min(self.readers * prefill, (writers + each) * decode),
        )  # fmt: skip
        return found.times(capacity / found.capacity) if capacity is not None else found

    def _estimated_capacity(self, answered: Sequence[Served]) -> float:
        """Return an estimate of the capacity at mean lengths [1/s]; 0 for policies that are not a framework's."""
        if self.policy is not POLICIES.get(self.how.policy):
            return 0.0
        prompt, answer = (round(sum(getattr(one, name) for one in answered) / len(answered)) for name in _LENGTHS)
        if self.readers:
            writers = self.replicas - self.readers
            return min(self.readers * self._prefill_rate(prompt), writers * self._decode_rate(answered))
        most = min(self.how.sequences, self.how.cache_bytes // self.forward.cache(prompt + answer))
        found = steady(
            lambda shape: self._period(shape) - self.how.host, max(most, 1), prompt, answer, tokens=self.how.tokens,
            host=self.how.host, mixes=self.how.policy != "sglang",
        )  # fmt: skip
        return self.replicas * found.rate * self.forward.speculation.expected

    def _prefill_rate(self, prompt: float) -> float:
        """Return the prompts per second of a replica that only reads prompts, in full iterations [1/s]."""
        tokens = self.how.tokens
        count = max(round(tokens / prompt), 1)
        pairs = tokens * ((min(prompt, tokens / count) + 1) / 2 + max(prompt - tokens, 0.0) / 2)
        return tokens / prompt / self._period(Shape(0, 0, count, tokens, round(pairs)))

    def _decode_rate(self, answered: Sequence[Served]) -> float:
        """Return the answers per second of a replica that only writes them, its memory full [1/s]."""
        prompt, answer = (sum(getattr(one, name) for one in answered) / len(answered) for name in _LENGTHS)
        keys = round(prompt + answer / 2)
        room = self.how.cache_bytes // self.forward.cache(keys)
        running = max(min(self.how.sequences, self.how.tokens // self.forward.queries, room), 1)
        steps = max(answer - 1 + int(self.how.asks_again), 1) / self.forward.speculation.expected
        return float(running / (steps * self._period(Shape(running, running * keys))))

    def _period(self, shape: Shape) -> float:
        """Return the time from one iteration of a replica to its next, equal ones in all of its pipeline [s]."""
        stages = self.forward.plan.pp
        if stages == 1:
            return self.times.seconds(shape) + self.how.host
        each = self.times.stages(shape)
        return max(sum(each), stages * max(each)) + self.how.host


def _mean(turns: Sequence[Turn]) -> Shape:
    """The mean step of some."""
    steps = sum(turn.steps for turn in turns)
    names = ("decodes", "context", "prefills", "prompt", "pairs")
    means = (sum(getattr(turn, name) * turn.steps for turn in turns) / steps for name in names)
    decodes, context, prefills, new, pairs = means
    count, prompts = max(round(decodes), 1) if decodes else 0, max(round(prefills), 1) if prefills else 0
    tokens = round(new / prefills * prompts) if prefills else 0
    return Shape(
        count, round(context / decodes * count) if decodes else 0, prompts, tokens,
        round(pairs / prefills * prompts) if prefills else 0,
    )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _served(one: Request) -> Served:
    return Served(
        one.arrival, one.reached, one.started, one.first, one.done, one.input, one.output, one.preemptions, one.replica
    )  # fmt: skip


def _falls_behind(answered: Sequence[Served]) -> bool:
    """Whether clearly fewer requests end in the steady part of a load than arrive in it."""
    window = steady_window(answered)
    if not window.lifetimes:
        return False
    arrived = sum(window.start < one.arrival <= window.end for one in answered)
    behind = arrived - len(window.requests(answered))
    return behind > _BEHIND * arrived + 3 * math.sqrt(arrived)


def steady_requests(answered: Sequence[Served], rate: float) -> int:
    """Return how many requests at a rate [1/s] a steady state takes, by the lifetimes of some."""
    found = [one.done - one.arrival for one in answered[len(answered) // 2 :]]
    return math.ceil(rate * (WARM_UP * float(np.percentile(found, 90)) + LIFETIMES * float(np.mean(found))))


def _most_at_once(turns: Sequence[Turn]) -> int:
    """Return the most requests that ran at once, added over replicas."""
    most: dict[int, int] = {}
    for turn in turns:
        most[turn.replica] = max(most.get(turn.replica, 0), turn.running)
    return sum(most.values())


def _policy(policy: str | Schedule) -> tuple[Policy, str]:
    """A policy by name, or of a function, and its name."""
    if isinstance(policy, str):
        check_name("scheduling policy", policy, POLICIES)
        return POLICIES[policy], policy
    if not callable(policy):
        raise InputError(f"policy is {shown(policy)}; give one of {', '.join(POLICIES)}, or a function of a replica")
    name = getattr(policy, "__name__", type(policy).__name__)
    if isinstance(policy, type):
        return Policy(lambda: checked(_instance(policy)), name), name
    with suppress(ValueError):  # what is written in C may have no signature
        try:
            signature(policy).bind(None)
        except TypeError as error:
            raise InputError(f"policy {name} cannot be called with a replica ({error}); give it one argument") from None
    return Policy(lambda: checked(policy), name), name


def _instance(policy: type) -> Schedule:
    """A schedule of a class, one for each replica; InputError for a class whose objects are none."""
    try:
        made = policy()
    except TypeError as error:
        raise InputError(
            f"policy {policy.__name__} cannot be made without arguments ({error}); give an object"
        ) from None
    if not callable(made):
        raise InputError(f"an object of policy {policy.__name__} cannot be called; define __call__(self, server)")
    return made  # type: ignore[no-any-return]


def _replicas(forward: Forward, replicas: int | None, readers: int) -> int:
    check_whole("readers", readers, 0, 1)
    count = forward.replicas if replicas is None else replicas
    check_whole("replicas", count, 1, 2)
    if count > forward.replicas:
        raise InputError(
            f"{count} replicas of {forward.plan.tp} GPUs do not fit the {forward.system.gpus} GPUs of the system; "
            f"give at most {forward.replicas}"
        )
    together, why = (forward.ep, f"groups of ep {forward.ep}, which share their experts") if forward.wide else (1, "")
    if forward.plan.pp > 1:
        together, why = forward.plan.pp, f"pipelines of pp {forward.plan.pp}, each of which passes on as many"
    for what, number in (("replicas", count), ("readers", readers)):
        if number % together:
            per = "one GPU" if forward.plan.tp == 1 else f"{forward.plan.tp} GPUs"
            raise InputError(f"{number} {what} of {per} do not fill {why}; give a multiple of {together}")
    if readers >= count and readers:
        raise InputError(f"{readers} of {count} replicas only read prompts, so that none writes answers; give fewer")
    return count


def _check(
    requests: int | None, concurrency: int | None, rate: float | None, prefix: int, seed: int | None,
    arrivals: str | None, burstiness: float | None, router: str, curve: bool,
) -> None:  # fmt: skip
    """Raise InputError for a load that is none, UnknownNameError for an unknown name."""
    for name, value, least in (("requests", requests, 1), ("concurrency", concurrency, 1), ("prefix", prefix, 0)):
        if value is not None:
            check_whole(name, value, least, 64)
            if value > _LARGEST_REQUESTS:
                raise InputError(f"{name} is {value:,}; give at most {_LARGEST_REQUESTS:,}")
    if seed is not None:
        check_whole("seed", seed, 0, 1)
    for name, number in (("rate", rate), ("burstiness", burstiness)):
        if number is not None and not (_is_number(number) and 1e-6 <= number <= 1e6):
            raise InputError(f"{name} is {shown(number)}; give a number above 0, such as 4")
    if curve and concurrency is None:
        raise InputError("a curve goes over numbers of clients, which none are; give concurrency, the most of them")
    if arrivals is not None:
        check_name("kind of arrivals", arrivals, get_args(Arrivals))
    check_name("router", router, ROUTERS)


def _check_lengths(asked: Sequence[Asked], model: Transformer, limit: int, forward: Forward, how: Serves) -> None:
    """Raise InputError for a request beyond the model's context, or one whose keys and values fit nowhere."""
    check_whole("max_length", limit, 1, 8192)
    longest = max(asked, key=lambda one: one.input + one.output)
    total = longest.input + longest.output
    if total > limit:
        raise InputError(
            f"a request of {longest.input:,} tokens in and {longest.output:,} out exceeds the {limit:,} tokens of "
            f"{model.name}'s context; give shorter ones, or max_length if the model takes more"
        )
    size = forward.cache(-(-total // how.block) * how.block)
    if size > how.cache_bytes:
        raise InputError(
            f"the keys and values of a request of {total:,} tokens take {size / 1e9:.3g} GB on each GPU, and "
            f"{how.name} has {how.cache_bytes / 1e9:.3g} GB for them; give a larger tp, or shorter requests"
        )


def _notes(how: Serves, deploy: Deployment, answered: Sequence[Served], host_stated: bool) -> list[str]:
    """What is assumed."""
    low, high = how.host_range
    format = deploy.forward.served_format
    notes = [format.note] * bool(format.note)
    notes.append(
        f"Rules and host times are those of {how.about}; --framework {how.name}@VERSION takes another version's."
    )
    if not host_stated:
        notes.append(
            f"Beside its kernels, a step is taken to last {how.host * 1e3:g} ms, fitted to served loads "
            f"({low * 1e3:g} to {high * 1e3:g} ms); "
            "--host changes it."
        )
    if deploy.forward.wide:
        notes.append(
            f"Attention is data parallel: each GPU has a queue of its own, and {deploy.forward.ep} share the experts. "
            "Their batches are taken to be alike; waiting for a fuller one is left out."
        )
    stages = deploy.forward.plan.pp
    if stages > 1:
        notes.append(
            f"Pipelines of {stages} stages pass on the batches of {stages} replicas each, one after the other; every "
            f"replica has its own queue, and 1/{stages} of the memory of its pipeline."
        )
    drafts = deploy.forward.speculation
    if drafts.tokens:
        notes.append(
            f"Each step verifies {drafts.tokens} tokens drafted by {drafts.draft} beside the next one, and writes "
            f"{drafts.expected:.3g} with {drafts.accept:.0%} accepted: the mean, without its scatter."
        )
    if deploy.readers:
        said = f"{deploy.readers} of {deploy.replicas} replicas read prompts, and send keys and values"
        longest = max((one.input for one in answered if one.output > 1), default=0)
        sent = f", which takes {deploy.sending(longest) * 1e3:.3g} ms of the longest" if longest else ""
        notes.append(f"{said}{sent}.")
    notes += deploy.forward.notes
    if deploy.shared:
        notes.append("Blocks of prompts that begin alike are computed once, and kept while memory lasts.")
    return notes
