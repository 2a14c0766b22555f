"""`weft.serve`: a load of requests on the replicas of a model, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from inspect import signature
from pathlib import Path

import numpy as np

from weft.core.errors import InputError, check_type
from weft.core.fields import stated_fields
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import estimate
from weft.estimate.power import Activity
from weft.graph import Collective
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.serving.checkpoint import LEAST, WRONG, Checkpoint, Progress, Watched
from weft.serving.cluster import Cluster, Watch
from weft.serving.framework import ServingDefaults, serves
from weft.serving.load import EACH_CLIENT, FIRST_REQUESTS, Load
from weft.serving.policies import POLICIES, Policy, Schedule, check_schedule
from weft.serving.pool import Pool
from weft.serving.replica import Pipeline, Replica
from weft.serving.requests import HASHED_TOKENS, Request, RequestSpec, RequestStream, with_prefix
from weft.serving.result import (  # fmt: skip
    LIFETIMES,
    WARM_UP,
    Interactive,
    Iteration,
    Limits,
    Pools,
    ServedRequest,
    Serving,
    Window,
    steady_window,
)
from weft.serving.steady import steady
from weft.serving.step_times import Shape, StepTimes
from weft.simulate.result.stored import plain
from weft.step.forward import Forward
from weft.step.result.step import add_parts, exposed_axis
from weft.step.serving_plan import FRAMEWORK, ServingPlan

_KEPT = 128
"""Kinds of replicas whose step times are cached: the number that a plan compares."""
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
"""Share of the arrivals, plus three standard deviations, by which answers may stay behind in a steady state."""
_EARLY, _LATE = 1.5, 1.15
"""Factors on the requests that a steady state takes, by lifetimes seen while the replicas fill, and later: batches grow
until the replicas are full, and lifetimes with them."""


def serve(
    model: Transformer | str | Path,
    on: Described,
    plan: ServingPlan,
    load: Load,
    limits: Limits = Limits(),
    *,
    sweep_concurrency: bool = False,
    options: RunOptions = SUSTAINED,
    progress: Progress | None = None,
) -> Serving:
    """Serve a `load` by a model's replicas under a `plan`: throughput, latencies, memory, queue, and what bounds.

    `limits` are what a good answer meets. With `sweep_concurrency`, fewer clients are served, too, from one for each
    replica by doublings. `progress` is called with the number of answered requests, their total, and what runs. A run
    of 20,000 requests or more by a scheduler with a name keeps its state, at most once a minute, and resumes there when
    it is asked again after an interrupt.

    Raises UnknownNameError for unknown names, InputError for sizes that do not fit the model, the memory or each other.

    >>> from weft import Load, ServingPlan
    >>> serve("llama-3-8b", "1xh100", ServingPlan(), Load(rate=4, requests=50, output_len=32)).overloaded
    False
    """
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    check_type("limits", limits, Limits, "give weft.Limits(...)")
    if limits.attainment is not None:
        raise InputError(
            "attainment is the SLO attainment that a plan must reach; ask for a plan (weft.plan_serving, --plan), or "
            "leave it out"
        )
    asked = ready(found, where, plan, load, limits, sweep_concurrency=sweep_concurrency, options=options)
    return asked.answer(progress, resumes=True)


_DECIDE_LENGTHS = ("trace", "input_len", "output_len", "shared_prefix")
"""Fields of a load that decide the lengths of its prompts and answers."""


@dataclass(frozen=True)
class Ready:
    """A checked load and the replicas that will serve it; the load was `drawn` without the shared prefix."""

    server: Server
    plan: ServingPlan
    load: Load
    limits: Limits
    policy: str
    sweep_concurrency: bool
    options: RunOptions
    asked: RequestStream
    drawn: RequestStream

    def answer(self, progress: Progress | None = None, resumes: bool = False) -> Serving:
        """Return the whole answer, of as many requests as a steady state takes where nothing says how many.

        A run that `resumes` keeps its state until then.
        """
        made = self
        for _ in range(_MOST_ROUNDS):
            answered, iterations, capacity = made.run(progress, resumes)
            count = made._steady_count(answered, capacity)
            if count <= len(made.asked.asked):
                break
            made = made.of(count)
        return replace(made.serving(answered, iterations, capacity), again=made)

    def slowed(self, system: System, late: Sequence[int]) -> Ready:
        """Return the same load on replicas of which those that are `late` run on the other, slower system."""
        server = self.server.slowed(system, late, self.plan.of_pass, self.options)
        if server.reads:
            reads = server.reads.slowed(system, late, self.plan.of_prefill.of_pass, self.options)
            server = replace(server, reads=reads)
        return replace(self, server=server)

    def of(self, requests: int) -> Ready:
        """Return the same with another number of requests."""
        forward, load = self.server.forward, replace(self.load, requests=requests)
        return ready(
            forward.model, self.server.machine, self.plan, load, self.limits, sweep_concurrency=self.sweep_concurrency,
            options=self.options,
        )  # fmt: skip

    def run(
        self, progress: Progress | None = None, resumes: bool = False
    ) -> tuple[list[ServedRequest], list[Iteration], float | None]:
        """Serve the load: requests and iterations, and the capacity if the load may be above it."""
        checkpoint = self._checkpoint() if resumes else None
        answered, iterations = self.server.run(self.asked, None, progress, checkpoint)
        capacity = self.server.capacity(self.asked, answered, iterations, progress) if self.asked.rate else None
        if checkpoint:
            checkpoint.remove()
        return answered, iterations, capacity

    def _steady_count(self, answered: Sequence[ServedRequest], capacity: float | None) -> int:
        """Return the requests that a steady state takes, or those of a stated load."""
        count, rate = len(answered), self.asked.stated
        window = steady_window(answered)
        is_stated = self.load.requests is not None or not rate
        if is_stated or window.steady or (capacity is not None and rate > capacity):
            return count
        more = steady_requests(answered, rate) * (_EARLY if window.lifetimes < WARM_UP else _LATE)
        return max(min(math.ceil(max(more, _LATE * count)), _MOST_REQUESTS), count)

    def serving(
        self, answered: Sequence[ServedRequest], iterations: Sequence[Iteration], capacity: float | None
    ) -> Serving:
        """Return the answer of a load that was served."""
        server, asked = self.server, self.asked
        forward, how = server.forward, server.how
        window = steady_window(answered, asked.clients)
        counted = window.iterations(iterations)
        parts = server.iteration_parts(counted)
        limit = self.plan.max_model_len or forward.model.context_limit
        return Serving(
            model=forward.model,
            system=server.machine,
            plan=replace(self.plan, replicas=server.every),
            framework=how.name,
            policy=self.policy,
            load=asked.about,
            requests=answered,
            iterations=iterations,
            cache=how.cache_bytes,
            prefill_cache=server.reads.how.cache_bytes if server.reads else None,
            cache_per_token=forward.cache(limit) / limit,
            offered=asked.rate,
            capacity=capacity,
            objective=self.limits.objective,
            iteration_parts=parts,
            activity=server.activity(counted, parts, window),
            curve=tuple(server.curve(asked)) if self.sweep_concurrency else (),
            notes=(
                *_notes(how, server, answered, self.plan.cpu_overhead is not None),
                *self._uncached,
                *_longest_notes(self.plan.max_model_len, forward, how),
            ),
            needs=forward.needs,
            format=forward.served_format,
            engine=how.about,
            clients=asked.clients,
            finite=asked.finite,
            pools=server.pools(answered, iterations, capacity) if server.prefills else None,
            lengths="/".join(str(getattr(self.load, name)) for name in _DECIDE_LENGTHS),
        )

    @property
    def _uncached(self) -> tuple[str, ...]:
        """A sentence on prompts that begin alike, where states of linear layers are not cached."""
        alike = self.server.forward.states and any(one.blocks for one in self.asked.asked)
        return (_UNCACHED,) if alike else ()

    def _checkpoint(self) -> Checkpoint | None:
        """Return where the state of a long run is kept; None for a short one, and for a scheduler without a name."""
        server = self.server
        if len(self.asked.asked) < LEAST or POLICIES.get(self.policy) is not server.policy:
            return None
        where, model = server.machine.inputs(), server.forward.model.model_dump(mode="json")
        decide = plain([stated_fields(self.plan, "scheduler"), stated_fields(self.load, "trace"), self.options])
        inputs = {"system": where, "model": model, "policy": self.policy, "decide": decide}
        return Checkpoint.of(inputs, self.asked.asked)


_UNCACHED = (
    "Prefix caching is not modelled for states of linear layers: prompts of the trace that begin alike are computed in "
    "full."
)


def ready(
    model: Transformer,
    where: System,
    plan: ServingPlan,
    load: Load,
    limits: Limits = Limits(),
    *,
    sweep_concurrency: bool = False,
    options: RunOptions = SUSTAINED,
    drawn: RequestStream | None = None,
) -> Ready:
    """Return a load on the replicas of a plan; raises what `serve` raises. `drawn` are its requests, if known."""
    for name, value, kind in (("plan", plan, ServingPlan), ("load", load, Load), ("limits", limits, Limits)):
        check_type(f"the {name}" if name != "limits" else "limits", value, kind, f"give weft.{kind.__name__}(...)")
    if sweep_concurrency and load.concurrency is None:
        raise InputError("a curve goes over numbers of clients, which none are; give concurrency, the most of them")
    plan = plan if plan.framework else replace(plan, framework=FRAMEWORK)
    readers, own = plan.prefill_replicas, bool(plan.own_prefill)
    times = step_times(model, _part_of(where, plan) if own else where, plan.of_pass, options)
    forward = times.forward
    how = serves(forward, plan)
    times = times.with_launches(how.launch, how.graphed, how.pieces)
    count = _replicas(where, plan)
    policy, name = _policy(plan.scheduler or how.policy)
    drawn = asked = drawn or load.draw()
    shared = HASHED_TOKENS if any(one.blocks for one in drawn.asked) and not forward.states else 0
    if load.shared_prefix:
        if forward.states:
            raise InputError(
                f"shared_prefix is {load.shared_prefix}, and prefix caching is not modelled for the states of "
                f"{model.name}'s {model.linear} layers, which blocks of the KV cache do not hold; leave it out"
            )
        if shared:
            raise InputError(
                "the trace's hash_ids say which prompts begin alike, and shared_prefix says it, too; leave out "
                "shared_prefix"
            )
        shared, asked = with_prefix(drawn, load.shared_prefix, how.block)
    _check_lengths(asked.asked, model, plan.max_model_len or model.context_limit, forward, how)
    server = Server(times, how, policy, plan.router, count, readers, shared)
    if own:
        server = replace(server, where=where)
        reads = _prefill_pool(server, plan.of_prefill, options)
        longest = [one._replace(output=1) for one in asked.asked]
        _check_lengths(longest, model, plan.max_model_len or model.context_limit, reads.forward, reads.how)
        server = replace(server, replicas=count - readers, readers=0, reads=reads)
    return Ready(
        server=server,
        plan=plan,
        load=load,
        limits=limits,
        policy=name,
        sweep_concurrency=sweep_concurrency,
        options=options,
        asked=asked,
        drawn=drawn,
    )


def _prefill_pool(server: Server, plan: ServingPlan, options: RunOptions) -> Server:
    """Return prefill replicas in a layout of their own, beside a server's others."""
    times = step_times(server.forward.model, _part_of(server.machine, plan), plan.of_pass, options)
    how, count = serves(times.forward, plan), plan.replicas or 1
    times = times.with_launches(how.launch, how.graphed, how.pieces)
    return replace(server, times=times, how=how, replicas=count, readers=count)


@lru_cache(_KEPT)
def step_times(model: Transformer, where: System, plan: ServingPlan, options: RunOptions) -> StepTimes:
    """Return the step times of a model on a replica: the same object for equal machines, which times each size once.

    Step times are shared with those of one draft, one stage and whole batches, and attention with those of a
    replica that holds all experts.
    """
    undrafted = replace(plan, num_speculative_tokens=None, acceptance_rate=None, speculative_method=None)
    whole = replace(
        undrafted, pp=1, two_batch_overlap=False, enforce_eager=False, ep=1, expert_load=None, dispatcher="", overlap={}
    )
    simpler = attention = None
    if plan.speculation.tokens > 1:
        simpler = replace(plan, num_speculative_tokens=1)
    elif plan.pp > 1 or plan.two_batch_overlap:
        simpler = replace(plan, pp=1, two_batch_overlap=False)
    elif plan.speculation.tokens:
        simpler = undrafted
    elif plan.enforce_eager:
        simpler = replace(plan, enforce_eager=False)
    elif plan != whole:
        attention = whole
    like, same = (step_times(model, where, one, options) if one else None for one in (simpler, attention))
    return StepTimes(Forward(model, where, plan, options), like=like, attention=same)


@dataclass(frozen=True)
class Server:
    """A model's replicas, ready to serve loads; `sent` are times [s] of KV-cache transfers by tokens of a prompt.

    Replicas that are `late` are those of `slow`, whose machine is slower. Prompts are read by the first `readers` of
    the replicas, or by all of those of `reads`, whose layout is their own.
    """

    times: StepTimes
    how: ServingDefaults
    policy: Policy
    router: str
    replicas: int
    readers: int = 0
    shared: int = 0
    sent: dict[int, float] = field(default_factory=dict)
    reads: Server | None = None
    where: System | None = None
    slow: Server | None = None
    late: frozenset[int] = frozenset()

    @property
    def forward(self) -> Forward:
        """The forward passes of a replica."""
        return self.times.forward

    @property
    def machine(self) -> System:
        """The machine, of which replicas in different layouts know as much as they take."""
        return self.where or self.forward.system

    @property
    def prefills(self) -> int:
        """The replicas that only prefill: the first ones."""
        return self.reads.replicas if self.reads else self.readers

    @property
    def every(self) -> int:
        """All replicas, `reads` included."""
        return self.replicas + (self.reads.replicas if self.reads else 0)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.forward.plan.tp + (self.reads.gpus if self.reads else 0)

    def _by_kind(self, iterations: Sequence[Iteration]) -> Iterator[tuple[Server, Sequence[Iteration]]]:
        """Yield iterations of one kind with the server that ran them."""
        read = [one for one in iterations if one.replica < self.prefills]
        yield from ((self.reads or self, some) for some in by_kind(read))
        yield from ((self, some) for some in by_kind([one for one in iterations if one.replica >= self.prefills]))

    def run(
        self, asked: RequestStream, watch: Watch | None = None, progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> tuple[list[ServedRequest], list[Iteration]]:  # fmt: skip
        """Serve a load: its requests in the order of arrival, and the steps of all replicas in the order of time.

        `watch` sees each answered request, and may raise `GivenUp`. With a `checkpoint` the run resumes from it.
        """
        between = Watched(len(asked.asked), progress, checkpoint) if progress or checkpoint else None
        cluster = checkpoint and self._restore_cluster(asked, checkpoint)
        if cluster and between:
            between.note_resume(cluster)
            found = cluster.resume(between)
        else:
            cluster = self._cluster(asked)
            found = cluster.run(asked, watch, between)
        every = [*cluster.replicas, *cluster.decoders]
        iterations = sorted(
            (iteration for replica in every for iteration in replica.iterations), key=lambda iteration: iteration.start
        )
        return sorted(map(_served_request, found), key=lambda one: one.arrival), iterations

    def _restore_cluster(self, asked: RequestStream, checkpoint: Checkpoint) -> Cluster | None:
        """Return the replicas in the state of a checkpoint; None where there is none, or it has another form."""
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
            before, after = self.reads._engines(0, self.prefills), self._engines(self.prefills, self.replicas)
            return Cluster(before, self.router, after, self.transfer, self.reads.how.outside, self._again)
        stages = self.forward.plan.pp
        most = self.replicas if self.readers else min(self.replicas, -(-len(asked.asked) // stages) * stages)
        every = self._engines(0, most)
        readers, others = every[: self.readers], every[self.readers :]
        both = (readers, others) if readers else (others, [])
        return Cluster(both[0], self.router, both[1], self.transfer, self.how.outside, self._again)

    def _engines(self, first: int, count: int) -> list[Replica]:
        """Return replicas numbered from `first` on, each pipeline's together."""
        stages = self.forward.plan.pp
        pipelines = [Pipeline(stages) for _ in range(count // stages)] if stages > 1 else []
        return [self._replica(first + at, pipelines[at // stages] if pipelines else None) for at in range(count)]

    @property
    def _again(self) -> Callable[[int], float] | None:
        return self.how.outside if self.how.asks_again else None

    def slowed(self, system: System, late: Sequence[int], plan: ServingPlan, options: RunOptions) -> Server:
        """Return the same replicas, those that are `late` on a slower system; `plan` is that of their passes."""
        how, where = self.how, _part_of(system, plan) if self.where else system
        times = step_times(self.forward.model, where, plan, options).with_launches(how.launch, how.graphed, how.pieces)
        return replace(
            self, slow=replace(self, times=times, where=self.where and system, sent={}), late=frozenset(late), sent={}
        )

    def slowness(self, iterations: Sequence[Iteration]) -> float:
        """Return how many times as long a token waits for its iteration on a replica that is late, in the mean.

        Iterations count by the requests that decode in them; without any, all alike.
        """
        if self.slow is None:
            return 1.0
        decode = [one for one in iterations if one.decodes]
        usual = slow = 0.0
        for some in by_kind(decode or iterations):
            count, shape = sum(one.steps * max(one.decodes, not decode) for one in some), mean_shape(some)
            usual += count * self._period(shape)
            slow += count * self.slow._period(shape)
        return max(slow / usual, 1.0)

    def _replica(self, at: int, pipeline: Pipeline | None) -> Replica:
        if self.slow and at in self.late:
            return self.slow._replica(at, pipeline)
        pool = Pool(self.how.cache_bytes, self.how.block, self.forward.cache, self.shared)
        return Replica(
            at, self.times, pool, self.policy.make(), tokens=self.how.tokens, sequences=self.how.sequences,
            host=self.how.host, steady=self.policy.steady, answers=at >= self.readers,
            pipeline=pipeline,
        )  # fmt: skip

    def transfer(self, request: Request) -> float:
        """Return the time to transfer a prompt's KV cache [s]: each prefill GPU sends to a decode GPU."""
        sender = self.slow if self.slow and request.replica in self.late else self
        return sender.sending(request.computed)

    def sending(self, tokens: int) -> float:
        """Return the time to transfer the KV cache of `tokens` tokens from a prefill worker [s]."""
        if tokens not in self.sent:
            where = self.machine
            each = where.node.gpus_per_node if where.node else where.gpus
            pair = where.with_gpus(2, 1 if where.gpus <= each else 2)
            pools = [self.forward, *([self.reads.forward] if self.reads else [])]
            size = max(forward.cache(tokens) // forward.plan.pp for forward in pools)  # of the GPU with the most of it
            sent = Collective("send_recv", size, 2)
            self.sent[tokens] = float(estimate(sent, pair).seconds)
        return self.sent[tokens]

    def capacity(
        self,
        asked: RequestStream,
        answered: Sequence[ServedRequest],
        iterations: Sequence[Iteration],
        progress: Progress | None = None,
    ) -> float | None:
        """Answers per second while requests always wait, where a load's end suggests that it is near [1/s]."""
        last = max(answered, key=lambda one: one.done)
        lone, _ = self.run(RequestStream([RequestSpec(0.0, last.input, last.output)], "one request"))
        is_late = last.done - answered[-1].arrival > _LONGEST_DRAIN * lone[0].done
        is_near = is_late and asked.rate > _FAR_BELOW * self._estimated_capacity(answered)
        if not is_near and not _falls_behind(answered) and asked.rate != float("inf"):
            return None
        at_once, some = _most_at_once(iterations), list(asked.asked[:FIRST_REQUESTS])
        kept = some * -(-_FULL * at_once // len(some))
        found, _ = self.run(RequestStream([one._replace(arrival=0.0) for one in kept], "all at once"), None, progress)
        ends = sorted(one.done for one in found)
        early, late = len(ends) // 5, len(ends) - 1 - len(ends) // 5
        return (late - early) / (ends[late] - ends[early]) if ends[late] > ends[early] else float("inf")

    def iteration_parts(self, iterations: Sequence[Iteration]) -> Mapping[str, float]:
        """Return where the time of the mean step goes [s], that of the host included.

        Steps of decode tokens alone, of prompts alone and of both are each parted as their mean is.
        """
        steps = sum(iteration.steps for iteration in iterations)
        total = {"host": self.how.host}
        for server, some in self._by_kind(iterations):
            parts = server.times.parts(mean_shape(some))
            gpu = sum(iteration.end - iteration.start - iteration.steps * server.how.host for iteration in some)
            scale = gpu / sum(parts.values()) / steps
            total = add_parts(total, {name: scale * time for name, time in parts.items()})
        return total

    def activity(self, iterations: Sequence[Iteration], parts: Mapping[str, float], window: Window) -> Activity:
        """Return what the mean GPU does in a part of a load: the work of its mean iterations, and the time between.

        `parts` say where the time of the mean iteration goes.
        """
        done = Activity()
        for server, some in self._by_kind(iterations):
            steps = sum(one.steps for one in some)
            taken = sum(one.end - one.start for one in some)
            own = server.times.work(mean_shape(some)) * steps + Activity(0.0, taken - steps * server.how.host)
            done += own * (server.forward.plan.tp / self.forward.plan.tp)
        sends = sum(seconds for name, seconds in parts.items() if exposed_axis(name)) / sum(parts.values())
        alike = self.gpus / self.forward.plan.tp  # replicas that decode would be as many GPUs
        done += Activity((window.end - window.start) * alike, links=sends * done.busy)
        return done * (1 / alike)

    def curve(self, asked: RequestStream) -> Iterator[Interactive]:
        """Throughput against interactivity, from one client for each replica by doublings to those of the load."""
        clients = self.every
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
            yield Interactive(now, users, tokens / self.gpus)
            clients *= 2

    def pools(
        self, answered: Sequence[ServedRequest], iterations: Sequence[Iteration], capacity: float | None
    ) -> Pools:
        """Return the capacities of prefill and decode workers alone, at mean lengths, and with one worker more.

        The rates are scaled to the `capacity` that was simulated, if it was. A worker is an engine: replicas that share
        experts or a pipeline are one.
        """
        reads, readers = self.reads or self, self.prefills
        more, each = reads.forward.plan.together, self.forward.plan.together
        writers = self.every - readers
        read = sum(iteration.prompt * iteration.steps for iteration in iterations if iteration.replica < readers)
        prefill, decode = reads._prefill_rate(read / len(answered)), self._decode_rate(answered)
        found = Pools(
            readers * prefill, writers * decode,
            min((readers + more) * prefill, writers * decode),
            min(readers * prefill, (writers + each) * decode),
        )  # fmt: skip
        return found.times(capacity / found.capacity) if capacity is not None else found

    def _estimated_capacity(self, answered: Sequence[ServedRequest]) -> float:
        """Return an estimate of the capacity at mean lengths [1/s]; 0 for policies that are not a framework's."""
        if self.policy is not POLICIES.get(self.how.policy):
            return 0.0
        prompt, answer = (round(sum(getattr(one, name) for one in answered) / len(answered)) for name in _LENGTHS)
        if self.prefills:
            prefill, writers = (self.reads or self)._prefill_rate(prompt), self.every - self.prefills
            return min(self.prefills * prefill, writers * self._decode_rate(answered))
        most = min(self.how.sequences, self.how.cache_bytes // self.forward.cache(prompt + answer))
        found = steady(
            lambda shape: self._period(shape) - self.how.host, max(most, 1), prompt, answer, tokens=self.how.tokens,
            host=self.how.host, mixes=self.how.policy != "sglang",
        )  # fmt: skip
        return self.replicas * found.rate * self.forward.speculation.expected_tokens

    def _prefill_rate(self, prompt: float) -> float:
        """Return the prompts per second of a replica that only reads prompts, in full iterations [1/s]."""
        tokens = self.how.tokens
        count = max(round(tokens / prompt), 1)
        pairs = tokens * ((min(prompt, tokens / count) + 1) / 2 + max(prompt - tokens, 0.0) / 2)
        return tokens / prompt / self._period(Shape(0, 0, count, tokens, round(pairs)))

    def _decode_rate(self, answered: Sequence[ServedRequest]) -> float:
        """Return the answers per second of a replica that only writes them, its memory full [1/s]."""
        prompt, answer = (sum(getattr(one, name) for one in answered) / len(answered) for name in _LENGTHS)
        keys = round(prompt + answer / 2)
        room = self.how.cache_bytes // self.forward.cache(keys)
        running = max(min(self.how.sequences, self.how.tokens // self.forward.queries, room), 1)
        steps = max(answer - 1 + int(self.how.asks_again), 1) / self.forward.speculation.expected_tokens
        return float(running / (steps * self._period(Shape(running, running * keys))))

    def _period(self, shape: Shape) -> float:
        """Return the time from one iteration of a replica to its next, equal ones in all of its pipeline [s]."""
        stages = self.forward.plan.pp
        if stages == 1:
            return self.times.seconds(shape) + self.how.host
        each = self.times.stages(shape)
        return max(sum(each), stages * max(each)) + self.how.host


def by_kind(iterations: Sequence[Iteration]) -> Sequence[Sequence[Iteration]]:
    """Return the iterations of decode tokens alone, of prompts alone, and of both, as far as there are any."""
    kinds: dict[tuple[bool, bool], list[Iteration]] = {}
    for iteration in iterations:
        kinds.setdefault((iteration.decodes > 0, iteration.prefills > 0), []).append(iteration)
    return list(kinds.values())


def mean_shape(iterations: Sequence[Iteration]) -> Shape:
    """Return the mean step of some iterations."""
    steps = sum(iteration.steps for iteration in iterations)
    names = ("decodes", "context", "prefills", "prompt", "pairs")
    means = (sum(getattr(iteration, name) * iteration.steps for iteration in iterations) / steps for name in names)
    decodes, context, prefills, new, pairs = means
    count, prompts = max(round(decodes), 1) if decodes else 0, max(round(prefills), 1) if prefills else 0
    tokens = round(new / prefills * prompts) if prefills else 0
    return Shape(
        count, round(context / decodes * count) if decodes else 0, prompts, tokens,
        round(pairs / prefills * prompts) if prefills else 0,
    )  # fmt: skip


def _served_request(one: Request) -> ServedRequest:
    return ServedRequest(
        arrival=one.arrival,
        reached=one.reached,
        start=one.started,
        first=one.first,
        done=one.done,
        input=one.input,
        output=one.output,
        preemptions=one.preemptions,
        replica=one.replica,
    )


def _falls_behind(answered: Sequence[ServedRequest]) -> bool:
    """Return whether clearly fewer requests end in the steady part of a load than arrive in it."""
    window = steady_window(answered)
    if not window.lifetimes:
        return False
    arrived = sum(window.start < one.arrival <= window.end for one in answered)
    behind = arrived - len(window.requests(answered))
    return behind > _BEHIND * arrived + 3 * math.sqrt(arrived)


def steady_requests(answered: Sequence[ServedRequest], rate: float) -> int:
    """Return how many requests at a rate [1/s] a steady state takes, by the lifetimes of some."""
    found = [one.done - one.arrival for one in answered[len(answered) // 2 :]]
    return math.ceil(rate * (WARM_UP * float(np.percentile(found, 90)) + LIFETIMES * float(np.mean(found))))


def _most_at_once(iterations: Sequence[Iteration]) -> int:
    """Return the most requests that ran at once, added over replicas."""
    most: dict[int, int] = {}
    for iteration in iterations:
        most[iteration.replica] = max(most.get(iteration.replica, 0), iteration.running)
    return sum(most.values())


def _policy(policy: str | Schedule) -> tuple[Policy, str]:
    """Return a policy by name, or of a function, and its name."""
    if isinstance(policy, str):
        return POLICIES[policy], policy
    name = getattr(policy, "__name__", type(policy).__name__)
    if isinstance(policy, type):
        return Policy(lambda: check_schedule(_instance(policy)), name), name
    with suppress(ValueError):  # what is written in C may have no signature
        try:
            signature(policy).bind(None)
        except TypeError as error:
            raise InputError(f"policy {name} cannot be called with a replica ({error}); give it one argument") from None
    return Policy(lambda: check_schedule(policy), name), name


def _instance(policy: type) -> Schedule:
    """Return a schedule of a class, one for each replica; InputError for a class whose objects are none."""
    try:
        made = policy()
    except TypeError as error:
        raise InputError(
            f"policy {policy.__name__} cannot be made without arguments ({error}); give an object"
        ) from None
    if not callable(made):
        raise InputError(f"an object of policy {policy.__name__} cannot be called; define __call__(self, server)")
    return made  # type: ignore[no-any-return]


def _part_of(where: System, plan: ServingPlan) -> System:
    """Return the largest part of a machine that engines of a plan fill."""
    engine = plan.tp * plan.together
    filled = range(where.gpus // engine * engine, 0, -engine)
    return where.with_gpus(next((gpus for gpus in filled if gpus == where.gpus or where.can_have(gpus)), where.gpus))


def _replicas(where: System, plan: ServingPlan) -> int:
    """Return the number of replicas; InputError for more than the system holds, or that do not fill groups."""
    readers, before = (plan.prefill_replicas, plan.of_prefill.tp) if plan.own_prefill else (0, 0)
    if readers * before >= where.gpus:
        raise InputError(
            f"{readers} prefill replicas of {before} GPUs leave none of the {where.gpus} GPUs of the system to those "
            "that decode; give fewer, or a larger system"
        )
    most = (where.gpus - readers * before) // plan.tp + readers
    count = most if plan.replicas is None else plan.replicas
    if count > most:
        sizes = f"{plan.tp} GPUs" + f", {readers} of them of {before}," * bool(readers)
        raise InputError(
            f"{count} replicas of {sizes} do not fit the {where.gpus} GPUs of the system; give at most {most}"
        )
    plan.check_replicas(count)
    return count


def _check_lengths(
    asked: Sequence[RequestSpec], model: Transformer, limit: int, forward: Forward, how: ServingDefaults
) -> None:
    """Raise InputError for a request beyond the model's context, or whose KV cache fits on no replica."""
    longest = max(asked, key=lambda one: one.input + one.output)
    total = longest.input + longest.output
    if total > limit:
        raise InputError(
            f"a request of {longest.input:,} tokens in and {longest.output:,} out exceeds the {limit:,} tokens of "
            f"{model.name}'s context; give shorter ones, or max_model_len if the model takes more"
        )
    size = forward.cache(-(-total // how.block) * how.block)
    if size > how.cache_bytes:
        raise InputError(
            f"the KV cache of a request of {total:,} tokens takes {size / 1e9:.3g} GB on each GPU, and "
            f"{how.name} has {how.cache_bytes / 1e9:.3g} GB for it; give a larger tp, or shorter requests"
        )


def _longest_notes(stated: int | None, forward: Forward, how: ServingDefaults) -> Iterator[str]:
    """Yield why an engine does not start with a stated length of requests: the KV cache, or the model's positions."""
    if stated is None:
        return
    model, starts = forward.model, "vLLM refuses to start so" if how.name == "vllm" else "no such request is served"
    if forward.cache(-(-stated // how.block) * how.block) > how.cache_bytes:
        fits, beyond = 0, -(-stated // how.block)
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if forward.cache(middle * how.block) <= how.cache_bytes else (fits, middle)
        yield (
            f"max_model_len {stated:,} is more than the {fits * how.block:,} tokens that the KV cache of a replica "
            f"holds: {starts}; state at most as many, a larger tp or gpu_memory_utilization."
        )
    known = model.provenance.get("sequence_length")
    if stated > model.context_limit and known is not None and known.source.endswith(_POSITIONS):
        yield (
            f"max_model_len {stated:,} is more than the {model.context_limit:,} of max_position_embeddings in "
            f"{model.name}'s config.json: "
            + (
                "vLLM refuses to start so without rope scaling (--hf-overrides)."
                if how.name == "vllm"
                else f"{starts}."
            )
        )


_POSITIONS = ": max_position_embeddings"
"""The end of the source of a length that a config.json states."""


def _notes(how: ServingDefaults, server: Server, answered: Sequence[ServedRequest], host_stated: bool) -> list[str]:
    """Return what is assumed."""
    low, high = how.host_range
    format = server.forward.served_format
    notes = [format.note] * bool(format.note)
    notes.append(
        f"Scheduler rules and CPU overheads are those of {how.about}; --framework {how.name}@VERSION takes another "
        "version's."
    )
    if not host_stated:
        notes.append(
            f"CPU overhead of an iteration: {how.host * 1e3:g} ms, fitted to served loads ({low * 1e3:g} to "
            f"{high * 1e3:g} ms); --cpu-overhead changes it."
        )
    if server.forward.plan.wide:
        notes.append(
            f"Attention is data parallel: each GPU has a queue of its own, and {server.forward.plan.ep} share the "
            "experts. Their batches are taken to be alike; waiting for a fuller one is left out."
        )
    stages = server.forward.plan.pp
    if stages > 1:
        notes.append(
            f"Pipelines of {stages} stages pass on the batches of {stages} replicas each, one after the other; every "
            f"replica has its own queue, and 1/{stages} of the memory of its pipeline."
        )
    drafts = server.forward.speculation
    if drafts.tokens:
        notes.append(
            f"Speculative decoding: each iteration verifies {drafts.tokens} draft tokens by {drafts.draft} and writes "
            f"{drafts.expected_tokens:.3g} tokens per request at an acceptance rate of {drafts.accept:.0%} (the mean)."
        )
    if server.prefills:
        pools = f"Disaggregated prefill: {server.prefills} of {server.every} replicas prefill"
        if server.reads:
            pools += f", {server.reads.forward.plan.ranks} each, and the others, {server.forward.plan.ranks}, decode"
        longest = max((one.input for one in answered if one.output > 1), default=0)
        sent = (
            f"; the longest prompt's KV cache takes {server.sending(longest) * 1e3:.3g} ms to send" if longest else ""
        )
        notes.append(f"{pools}{sent}.")
    notes += server.forward.notes
    if server.shared:
        notes.append(
            "Prefix caching: KV-cache blocks of a shared prefix are computed once, and cached while memory lasts."
        )
    return notes
