"""`weft.plan_serving`: the fewest GPUs that answer a load within limits of time, and the front of speed over GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.core.errors import InputError, OutputError, check_name, check_type
from weft.core.fields import stated_fields
from weft.core.options import SUSTAINED, RunOptions
from weft.core.store.records import say
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.kernels.library.kits import resolve_framework
from weft.models import Transformer, load_model
from weft.plan.launch_serving import TWO_BATCH
from weft.plan.search import Group, Groups, Search, Workload, pareto_front
from weft.plan.serving_bounds import Bounds, Work
from weft.plan.serving_plans import Deployed, ServingPlans, chosen_fields, words
from weft.serving.checkpoint import WRONG, Checkpoint, Progress, State
from weft.serving.cluster import GivenUp, columns, rows
from weft.serving.load import OUTPUT_TOKENS, Load
from weft.serving.requests import Request, RequestStream
from weft.serving.result import LIFETIMES, WARM_UP, Iteration, Limits, Objective, ServedRequest, Serving
from weft.serving.serve import Ready, ready
from weft.simulate.result.stored import plain
from weft.step.drafts import Speculation, drafter
from weft.step.serving_plan import FRAMEWORK, OWN_PREFILL, ServingPlan

ATTAINMENT = 0.9
"""Share of the requests that must meet the objective [assumed, 0.9 to 0.99; DistServe, arXiv:2401.09670, takes 0.9]."""
BUDGET_S = 60.0
_FIRST, _LATER = "TTFT above its SLO", "TPOT above its SLO"
_MORE = "load above capacity"
_DOMINATED = "dominated by a plan on the Pareto front"
_LEAST_S = 300.0
"""Time for which requests arrive at least, so that queues of busy layouts grow [s; assumed, 120 to 900 s]."""
_MOST_OF_TIME, _MOST_OF_LIFETIMES = 15_000, 30_000
"""Most requests that this time takes, and most that a steady state takes."""
_PROBED, _PROBED_SHARE = 1000, 1.5
"""First requests, and the multiple of the allowed SLO-miss share above which they end a layout's simulation."""
_STEP_LIMITS = "max_num_batched_tokens", "max_num_seqs"
_DEGREES = (1, 2, 4, 8)
_WIDE = (8, 16, 32, 64, 128)
"""GPUs that share experts where attention is data parallel."""
_DRAFTS = (1, 3, 7)
"""Tokens drafted for a step that are tried, where their acceptance is given."""
EVERY = 64
"""Replicas up to which every number is tried; above, numbers are 3 % apart."""
_SMALLER_STEPS = (4, 16)
"""The framework's tokens of a step are also tried divided by these."""
_ALIKE = 0.02
"""Share by which a layout must be faster than one of no more GPUs to stand on the front."""
_APART = 1.2
"""Ratio of the most to the fewest GPUs of a range; the front is searched for the fastest users in each range."""


def plan_serving(
    model: Transformer | str | Path,
    on: Described,
    load: Load,
    limits: Limits,
    fix: Mapping[str, Any] = MappingProxyType({}),
    *,
    options: RunOptions = SUSTAINED,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> ServingPlans:
    """Find the fewest GPUs of a system on which a model answers a load within limits, and what more GPUs buy.

    `limits.attainment` of the requests (90 %) must get their first token within `limits.ttft` and each further one
    within `limits.tpot`. `fix` gives fields of the plan (`weft.ServingPlan`) a value. `tp`, `ep`, `pp`,
    `two_batch_overlap`, `replicas`, `prefill_replicas` and `max_num_batched_tokens` are searched unless they are fixed,
    and `num_speculative_tokens` where `acceptance_rate` is: stages that divide the layers evenly, two batches where the
    framework has them, drafts without stages. Bounds from step times exclude what cannot meet the limits, simulations
    decide among the rest; what is said of a layout is what `weft.serve` says. No new simulation starts after `budget_s`
    of CPU; a search that was interrupted does not repeat those that it made. `progress` is called with the number of
    simulated layouts, the most that remain, and the layout that is next. Raises InputError for a load without a rate or
    limits, and what `weft.serve` raises.

    >>> from weft import Limits, Load
    >>> load = Load(rate=4, requests=50, input_len=512, output_len=32)
    >>> plan_serving("llama-3-8b", "2xh100", load, Limits(ttft="1 s", tpot="50 ms")).best.gpus
    1
    """
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    _check(load, limits, fix)
    if load.requests is None and load.trace is None:
        load = replace(load, requests=_requests(limits.objective, load))
    if fix.get("acceptance_rate") is not None:
        drafts = {name: fix[name] for name in _SPECULATION if fix.get(name)}
        drafter(found, ServingPlan(**{"num_speculative_tokens": 1, **drafts}).speculation.draft)
    serving = ServingSearch(found, where, load, limits, dict(fix), options)
    return Search(serving, budget_s, progress).run()


def _check(load: Load, limits: Limits, fix: Mapping[str, Any]) -> None:
    """Raise InputError for a load, limits or fixed fields that cannot be planned."""
    check_type("the load", load, Load, "give weft.Load(...)")
    check_type("limits", limits, Limits, "give weft.Limits(...)")
    for name in fix:
        check_name("field of a serving plan", name, list(ServingPlan.__dataclass_fields__), listed=True)
    if own := next((name for name in OWN_PREFILL if fix.get(name) is not None), None):
        raise InputError(
            f"{own} is {fix[own]}, and the search gives prefill replicas the layout of the others; leave it out, or "
            "serve one plan"
        )
    wanted = limits.objective
    for name, value, example in (("ttft", wanted.ttft, "1s"), ("tpot", wanted.tpot, "40ms")):
        if not 0 < value < math.inf:
            said = "is not given" if value else "is 0 s, which no answer meets"
            raise InputError(f"a plan needs limits of time, and {name} {said}; give {name}, such as {example}")
    if load.concurrency is not None:
        raise InputError(
            "clients who wait for answers never ask too much, so that one GPU suffices; give rate or trace"
        )
    for axis in ServingPlan(overlap=fix.get("overlap") or {}).overlap:
        if axis not in fix or "tp" not in fix:
            raise InputError(
                f"the overlap names a method of {axis}, but a plan also tries layouts without {axis} ranks; give tp"
                + (" and ep" if axis == "ep" else "")
            )


_SPECULATION = "num_speculative_tokens", "acceptance_rate", "speculative_method"


def _requests(wanted: Objective, load: Load) -> int:
    """Return the requests of a steady state whose lifetimes are as long as the limits allow."""
    output = load.output_len or OUTPUT_TOKENS
    mean = sum(output) / 2 if isinstance(output, tuple) else output
    lifetime, rate = wanted.ttft + wanted.tpot * max(mean - 1, 0), load.rate or 0.0
    of_lifetimes = min(rate * (WARM_UP + LIFETIMES) * lifetime, _MOST_OF_LIFETIMES)
    return math.ceil(max(_PROBED, min(rate * _LEAST_S, _MOST_OF_TIME), of_lifetimes))


@dataclass
class _Kind:
    """Plans that differ in their number of replicas alone, and the bounds of one of these."""

    plan: ServingPlan
    bounds: Bounds
    load: RequestStream


@dataclass(eq=False)
class Candidate:
    """A plan with a lower bound of its time per token [s], and `why` it cannot meet the limits, as far as is known."""

    plan: ServingPlan
    kind: _Kind
    least: float = math.inf
    why: str = ""

    @cached_property
    def chosen_values(self) -> dict[str, Any]:
        """What the search chose, without what is as usual."""
        usual = {"prefill_replicas": 0, "ep": 1, "pp": 1, "two_batch_overlap": False}
        return {name: value for name, value in chosen_fields(self.plan).items() if value not in (None, usual.get(name))}

    @cached_property
    def expected_tpot(self) -> float:
        """About what a token takes [s]."""
        return self.kind.bounds.expected_tpot(self.kind.load, self.plan.replicas or 1, self.plan.prefill_replicas)

    @property
    def order(self) -> tuple[float, int]:
        """The sort key among plans with the same number of GPUs."""
        return self.least, len(self.chosen_values)


_Outcome = Deployed | tuple[str, float]
"""A plan that served the load, or why it was given up and the share of the requests that it had answered."""


@dataclass
class ServingSearch(Workload[Candidate, Deployed, ServingPlans]):
    """The search of serving plans: the fewest GPUs that meet the limits, then the front of speed over GPUs."""

    model: Transformer
    system: System
    load: Load
    limits: Limits
    fix: dict[str, Any]
    options: RunOptions
    tried: dict[Candidate, Deployed] = field(default_factory=dict)
    near: list[tuple[float, Candidate]] = field(default_factory=list)
    simulated: int = 0
    limit: float = math.inf
    outcomes: dict[tuple[Candidate, float], _Outcome] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    _drawn: RequestStream | None = None

    def __post_init__(self) -> None:
        self.wanted = self.limits.objective
        self.attainment = self.limits.attainment or ATTAINMENT

    def groups(self, search: Search[Candidate, Deployed, ServingPlans]) -> Groups[Deployed, ServingPlans]:
        """Yield the plans of more and more GPUs until one meets the limits, then those of the front."""
        self.search = search
        every = [one for kind in self._kinds() for one in self._candidates(kind)]
        for one in every:
            self._bound(one)
        self.candidates = sorted(every, key=lambda one: (one.plan.gpus, *one.order))
        self.bounded = sum(bool(one.why) for one in every)
        self._checkpoint = self._where_kept()
        self._resume()
        by_gpus = {gpus: list(some) for gpus, some in groupby(self.candidates, key=lambda one: one.plan.gpus)}
        best = None
        for some in by_gpus.values():
            best = yield from self._fastest(some, self.wanted.tpot)
            if best:
                break
        if best:
            yield from self._front(best, by_gpus)
        return self._answer(best, None if best else self._come_near())

    def objectives(self, planned: Deployed) -> tuple[float, ...]:
        """Return what is least in a good plan: GPUs, and the time per token."""
        return planned.gpus, planned.tpot

    def excludes(self, candidate: Candidate) -> bool:
        """Return whether a plan's bound exceeds the limit of the time per token, up to which plans are searched now."""
        return candidate.least > self.limit

    def is_kept(self, candidate: Candidate) -> bool:
        """Return whether an interrupted search simulated a plan."""
        return (candidate, self.limit) in self.outcomes and candidate not in self.tried

    def _fastest(self, candidates: Sequence[Candidate], limit: float) -> Groups[Deployed, Deployed | None]:
        """Return the plan with the least time per token up to a limit [s], if one has it.

        Bounds say which to simulate, and what a steady state takes which first, so that those that follow are given up
        early.
        """
        self.limit = limit
        able = sorted(
            (one for one in candidates if one.least <= limit), key=lambda one: (one.expected_tpot, *one.order)
        )

        def says(at: int) -> tuple[int, int, str]:
            left = len(self.candidates) - self.bounded
            return self.simulated, max(left, self.simulated), words(able[at].plan)

        found = yield Group(able, self._faster, says, simulates=True)
        return found[-1] if found else None

    def _where_kept(self) -> Checkpoint | None:
        """Return where simulated plans are kept; None for a policy without a name."""
        if callable(self.fix.get("scheduler")):
            return None
        decide = plain([self.fix, stated_fields(self.load, "trace"), stated_fields(self.limits), self.options])
        inputs = {"plan": decide, "model": self.model.model_dump(mode="json"), "system": self.system.inputs()}
        return Checkpoint.of(inputs, self._load.asked)

    def _resume(self) -> None:
        """Read the plans that an interrupted search simulated, of the state that `keep` writes."""
        state = self._checkpoint.read() if self._checkpoint else None
        if self._checkpoint is None or state is None:
            return
        by_choice = {repr(one.chosen_values): one for one in self.candidates}
        try:
            for at, (choice, limit, outcome) in enumerate(state["tried"]):
                one = by_choice[repr(choice)]
                self.outcomes[one, float(limit)] = self._outcome(one, state, at, outcome)
        except (*WRONG, InputError):
            self._checkpoint.forget("it has another form")
            self.outcomes.clear()
            return
        say(f"resumes after {len(self.outcomes):,} simulated layouts")

    def _outcome(self, one: Candidate, state: State, at: int, outcome: Any) -> _Outcome:
        if isinstance(outcome, list):
            why, seen = outcome
            return str(why), float(seen)
        answered, iterations = rows(f"served {at}", state, ServedRequest), rows(f"turns {at}", state, Iteration)
        serving = self._ready(one.plan).serving(answered, iterations, outcome["capacity"])
        return Deployed(serving.plan, serving, float(outcome["tpot"]))

    def keep(self) -> None:
        """Keep what was simulated; no more from where it cannot be written."""
        if not (self.outcomes and self._checkpoint):
            return
        tried: list[Any] = []
        state: dict[str, Any] = {"tried": tried}
        for at, ((one, limit), outcome) in enumerate(self.outcomes.items()):
            said: Any = outcome
            if isinstance(outcome, Deployed):
                serving = outcome.serving
                said = {"capacity": serving.capacity, "tpot": outcome.tpot}
                state |= columns(f"served {at}", serving.requests) | columns(f"turns {at}", serving.iterations)
            tried.append((one.chosen_values, limit, said))
        try:
            self._checkpoint.write(state)
        except OutputError as error:
            say(f"the plan is not kept from here on: {error}")
            self._checkpoint = None

    def forget(self) -> None:
        """Remove what was kept."""
        if self._checkpoint:
            self._checkpoint.remove()

    def _kinds(self) -> Iterator[_Kind]:
        """Yield the kinds of replicas; those without memory for the requests count as infeasible."""
        first: InputError | None = None
        found = 0
        for options in self._options():
            try:
                made = self._ready(ServingPlan(**{**self.fix, **options}))
            except InputError as error:
                first = first or error
                replicas = self.system.gpus // (int(options["tp"]) * int(options.get("pp", 1)))
                self.search.infeasible["memory"] += len([*_numbers(1, replicas, 1)])
                continue
            found += 1
            yield _Kind(made.plan, self._bounds_of(made), made.asked)
        if not found and first:
            raise first

    def _options(self) -> Iterator[dict[str, Any]]:
        """Options of each kind of replica: degrees, then limits of a step."""
        each = self.system.gpus_per_node if self.system.node else self.system.gpus
        for tp in _fixed_or(self.fix, "tp", [one for one in _DEGREES if one <= each and self.system.gpus % one == 0]):
            eps = [1, tp] if tp > 1 else [1, *(one for one in _WIDE if self.system.gpus % one == 0)]
            eps = [one for one in eps if one <= max(self.model.experts, 1)]
            for ep in _fixed_or(self.fix, "ep", eps):
                for more in self._ways(tp, ep):
                    degrees = {"tp": tp, **({"ep": ep} if ep > 1 else {}), **more}
                    for limits in self._limits(degrees):
                        yield degrees | limits

    def _ways(self, tp: int, ep: int) -> Iterator[dict[str, Any]]:
        """Stages, halves of a batch and drafts of replicas, as far as they differ from none."""
        wide, fix = ep > tp, self.fix
        even = [one for one in _DEGREES if self.model.layers % one == 0 and self.system.gpus % (tp * one) == 0]
        stages = _fixed_or(fix, "pp", [1] if wide else even)
        halves = _fixed_or(fix, "two_batch_overlap", [False, True] if wide and self._overlaps else [False])
        drafts = _fixed_or(
            fix, "num_speculative_tokens", [None] if fix.get("acceptance_rate") is None else [0, *_DRAFTS]
        )
        for pp, two_batch, count in product(stages, halves, drafts):
            if pp > 1 and count and not (fix.get("pp") and fix.get("num_speculative_tokens")):
                continue  # which vLLM and SGLang refuse
            more = {"pp": pp} if pp > 1 else {}
            more |= {"two_batch_overlap": True} if two_batch else {}
            more |= {} if count is None else {"num_speculative_tokens": count}
            yield more | ({"speculative_method": fix.get("speculative_method") or Speculation().draft} if count else {})

    @property
    def _overlaps(self) -> bool:
        """Whether the framework overlaps two batches."""
        return resolve_framework(self.fix.get("framework") or FRAMEWORK)[0] in TWO_BATCH

    def _limits(self, degrees: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            how = self._ready(ServingPlan(**{**self.fix, **degrees})).server.how
        except InputError:
            yield {}
            return
        smaller = [how.tokens // one for one in _SMALLER_STEPS if how.tokens // one >= 256]
        for tokens in _fixed_or(self.fix, "max_num_batched_tokens", [None, *smaller]):
            limits = {"max_num_batched_tokens": tokens, "max_num_seqs": self.fix.get("max_num_seqs")}
            yield {name: value for name, value in limits.items() if value is not None}

    def _ready(self, plan: ServingPlan) -> Ready:
        """Return replicas with the load, which is drawn once."""
        made = ready(self.model, self.system, plan, self.load, self.limits, options=self.options, drawn=self._drawn)
        self._drawn = made.drawn
        return made

    def _candidates(self, kind: _Kind) -> Iterator[Candidate]:
        """Yield the numbers of replicas of a kind, and of prefill workers where a step has the framework's limits."""
        plan, together = kind.plan, kind.plan.together
        most = self.system.gpus // plan.tp
        limited = [name for name in _STEP_LIMITS if getattr(plan, name) is not None and name not in self.fix]
        for replicas in _fixed_or(self.fix, "replicas", _numbers(together, most, together)):
            apart = [0] if limited else [0, *_numbers(together, replicas - together, together)]
            for readers in _fixed_or(self.fix, "prefill_replicas", apart):
                yield Candidate(plan.alter(replicas=replicas, prefill_replicas=readers), kind)

    def _bounds_of(self, made: Ready) -> Bounds:
        self._load, self._framework = made.asked, made.server.how.name
        self.good = math.ceil(self.attainment * len(made.asked.asked))
        shared = made.server.shared
        if shared not in self.works:
            self.works[shared] = Work.of(made.asked.asked, self.wanted, self.good, shared)
        return Bounds(made.server.times, made.server.how, self.works[shared])

    def _bound(self, one: Candidate) -> None:
        """Set the least time per token of a plan, and the violated limit if it cannot meet the limits."""
        bounds, count, readers = one.kind.bounds, one.plan.replicas or 1, one.plan.prefill_replicas
        if bounds.ttft > self.wanted.ttft:
            one.why = _FIRST
            return
        one.least = bounds.time_per_token(count, readers)
        if one.least > self.wanted.tpot:
            slow = bounds.lone > self.wanted.tpot or bounds.settles(count, readers, self.wanted.tpot)
            one.why = _LATER if slow else _MORE

    def _faster(self, some: Sequence[Candidate]) -> Iterator[Deployed]:
        """Simulate a plan, and yield it if its load settles with a time per token up to the limit, which it lowers."""
        (one,) = some
        if one not in self.tried:
            found = self.outcomes.get((one, self.limit)) or self._simulate(one)
            self.simulated += 1
            if isinstance(found, Deployed):
                self.tried[one] = found
            else:
                why, seen = found
                if why == _MORE:
                    one.why = why
                elif self.limit >= self.wanted.tpot:
                    one.why = one.why or why
                    self.near.append((seen, one))
        if one in self.tried and self.tried[one].tpot <= self.limit:
            self.limit = self.tried[one].tpot * (1 - _ALIKE)
            yield self.tried[one]

    def _simulate(self, one: Candidate) -> _Outcome:
        """Simulate a plan's load up to the limit."""
        made = self._ready(one.plan)
        watch = _Watch(self.wanted.ttft, self.limit, self.attainment, len(made.asked.asked))
        found: _Outcome
        try:
            answered, iterations = made.server.run(made.asked, watch)
        except GivenUp:
            found = watch.why, watch.seen / len(made.asked.asked)
        else:
            serving = made.serving(answered, iterations, made.server.capacity(made.asked, answered, iterations))
            found = (_MORE, 1.0) if serving.overloaded else self._make_deployed(serving)
        self.outcomes[one, self.limit] = found
        return found

    def _make_deployed(self, serving: Serving) -> Deployed:
        """Return the plan of a load that was served."""
        some = serving.timed_requests
        good = math.ceil(self.attainment * len(some))
        return Deployed(serving.plan, serving, time_per_token(some, self.wanted.ttft, good))

    def _front(self, best: Deployed, by_gpus: dict[int, list[Candidate]]) -> Groups[Deployed, None]:
        """Yield plans with more GPUs while users get faster, and with fewer than the best while loads settle."""
        limit = best.tpot
        more, fewer = (
            _ranges({gpus: some for gpus, some in by_gpus.items() if gpus * sign > best.gpus * sign})
            for sign in (1, -1)
        )
        for some in more:
            found = yield from self._fastest(some, limit * (1 - _ALIKE))
            limit = found.tpot if found else limit
        for some in reversed(fewer):
            found = yield from self._fastest(some, math.inf)
            if not found and self.search.time_left:
                break

    def _come_near(self) -> Deployed | None:
        """Return the plan with the largest SLO attainment: of those that failed late, or with the lowest bound."""
        most = [one for one in self.candidates if one.plan.gpus == self.candidates[-1].plan.gpus]
        late = [one for _, one in sorted(self.near, key=lambda pair: -pair[0])[:2]]
        able = [one for one in most if one.least < math.inf][:2]
        found = [self._make_deployed(self._ready(one.plan).answer()) for one in [*late, *able] or most[:1]]
        return max(found, key=lambda one: one.serving.slo_attainment or 0.0, default=None)

    def _answer(self, best: Deployed | None, nearest: Deployed | None) -> ServingPlans:
        """Return what was found."""
        rejected, tried = self.search.infeasible, self.tried
        untried = {one for one in self.search.untried if one.least < math.inf and one not in tried}
        searched = len(self.candidates) + rejected["memory"]
        for one in self.candidates:
            if one in tried:
                late = tried[one].tpot > self.wanted.tpot
                rejected[_late(tried[one].serving, self.wanted) if late else ""] += late
            else:
                rejected["not tried" if one in untried else one.why or _DOMINATED] += 1
        return ServingPlans(
            model=self.model,
            system=self.system,
            framework=self._framework,
            load=self._load.about,
            objective=self.wanted,
            attainment=self.attainment,
            best=best,
            front=pareto_front((one for one in tried.values() if one.tpot < math.inf), self.objectives, _ALIKE),
            tried=tuple(sorted(tried.values(), key=self.objectives)),
            nearest=nearest,
            limit=_late(nearest.serving, self.wanted) if nearest else "",
            rejected={why: count for why, count in rejected.most_common() if count},
            searched=searched,
            bounded=self.bounded,
            simulated=self.simulated,
            unknown=len(untried),
            wall_s=self.search.wall_s,
        )


def _numbers(first: int, most: int, step: int) -> Iterator[int]:
    """Numbers of replicas up to `most`, multiples of `step`: each up to `EVERY` steps, then 3 % apart, and the last."""
    count = first
    while count <= most:
        yield count
        following = count + max(2 * count // step // EVERY, 1) * step
        count = following if following <= most or count == most else max(most // step * step, count + step)


def _ranges(by_gpus: Mapping[int, list[Candidate]]) -> list[list[Candidate]]:
    """Return plans by ranges of their numbers of GPUs, which are the same whatever is searched."""
    each = groupby(by_gpus, key=lambda gpus: math.floor(math.log(gpus) / math.log(_APART) + 1e-9))
    return [[one for gpus in some for one in by_gpus[gpus]] for _, some in each]


def _fixed_or(fix: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """The value of an option that was given, alone, or the values that are tried."""
    return otherwise if fix.get(name) is None else [fix[name]]


def time_per_token(answered: Sequence[ServedRequest], ttft: float, good: int) -> float:
    """Return the TPOT that `good` requests get at least, those whose first token is in time [s]."""
    times = sorted((0.0 if one.output == 1 else one.tpot) if one.ttft <= ttft else math.inf for one in answered)
    return times[good - 1]


def _late(serving: Serving, wanted: Objective) -> str:
    """Return what keeps a layout from the limits."""
    if serving.overloaded:
        return _MORE
    first = sum(one.ttft > wanted.ttft for one in serving.timed_requests)
    later = sum(one.tpot > wanted.tpot for one in serving.timed_requests)
    return _FIRST if first > later else _LATER


class _Watch:
    """Counts requests that are too late, and gives the load up when they are too many."""

    def __init__(self, ttft: float, tpot: float, attainment: float, requests: int) -> None:
        self._limits, self._may_miss = Objective(ttft, tpot), requests - math.ceil(attainment * requests)
        self._early = min(math.ceil((1 - attainment) * _PROBED * _PROBED_SHARE), self._may_miss)
        self.first = self.later = self.seen = 0

    def __call__(self, request: Request) -> None:
        """See an answered request."""
        self.seen += 1
        self.first += request.first - request.arrival > self._limits.ttft
        more = request.output - 1
        self.later += more > 0 and (request.done - request.first) / more > self._limits.tpot
        if max(self.first, self.later) > (self._early if self.seen <= _PROBED else self._may_miss):
            raise GivenUp

    @property
    def why(self) -> str:
        """What came too late more often."""
        return _FIRST if self.first >= self.later else _LATER
