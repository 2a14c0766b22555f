"""`weft.plan_serving`: the fewest GPUs that answer a load within limits of time, and the front of speed over GPUs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.errors import InputError, OutputError, check_name, check_type
from weft.fields import stated
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.library.serving_frameworks import resolve_framework
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, RunOptions
from weft.result.serving import LIFETIMES, WARM_UP, Limits, Objective, Served, Serving, Turn
from weft.result.stored import plain
from weft.run.step.drafts import Speculation, drafter
from weft.run.step.serving_plan import FRAMEWORK, ServingPlan
from weft.serving.bounds import Bounds, Work
from weft.serving.checkpoint import WRONG, Checkpoint, Progress, State
from weft.serving.cluster import GivenUp, columns, rows
from weft.serving.launch import TWO_BATCH
from weft.serving.load import OUTPUT_TOKENS, Load
from weft.serving.plans import Choice, Deployed, ServingPlans
from weft.serving.requests import Request, RequestStream
from weft.serving.serve import Ready, ready
from weft.store.records import say

ATTAINMENT = 0.9
"""Share of the requests that must meet the objective [assumed, 0.9 to 0.99; DistServe, arXiv:2401.09670, takes 0.9]."""
BUDGET_S = 60.0
_SAVED_S = 10.0
"""Least time after which what was simulated is kept again [s]."""
_FIRST, _LATER = "the first token comes too late", "further tokens come too late"
_MORE = "more arrives than is answered"
_LEAST_S = 300.0
"""Time for which requests arrive at least, so that queues of busy layouts grow [s; assumed, 120 to 900 s]."""
_MOST_OF_TIME, _MOST_OF_LIFETIMES = 15_000, 30_000
"""Most requests that this time takes, and most that a steady state takes."""
_PROBED, _PROBED_SHARE = 1000, 1.5
"""First requests, of which a layout may miss so many times the share that all may miss; else it is given up."""
_STEP_LIMITS = {"max_num_batched_tokens", "max_num_seqs"}
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
"""Ratio of the most GPUs to the fewest of a range, in each of which the front is searched for the fastest users."""


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
    >>> load = Load(rate=4, requests=50, input_tokens=512, output_tokens=32)
    >>> plan_serving("llama-3-8b", "2xh100", load, Limits(ttft="1 s", tpot="50 ms")).best.gpus
    1
    """
    began = time.monotonic()
    where, found = on if isinstance(on, System) else system(on), load_model(model)
    _check(load, limits, fix)
    if load.requests is None and load.trace is None:
        load = replace(load, requests=_requests(limits.objective, load))
    if fix.get("acceptance_rate") is not None:
        drafts = {name: fix[name] for name in _SPECULATION if fix.get(name)}
        drafter(found, ServingPlan(**{"num_speculative_tokens": 1, **drafts}).speculation.draft)
    search = _Search(found, where, load, limits, dict(fix), options, budget_s, progress)
    search.run()
    return search.answer(time.monotonic() - began)


def _check(load: Load, limits: Limits, fix: Mapping[str, Any]) -> None:
    """Raise InputError for a load, limits or fixed fields that cannot be planned."""
    check_type("the load", load, Load, "give weft.Load(...)")
    check_type("limits", limits, Limits, "give weft.Limits(...)")
    for name in fix:
        check_name("field of a serving plan", name, list(ServingPlan.__dataclass_fields__), listed=True)
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
                f"the overlap names a method of {axis}, of which a plan also tries layouts without any ranks; give tp"
                + (" and ep" if axis == "ep" else "")
            )


_SPECULATION = "num_speculative_tokens", "acceptance_rate", "speculative_method"
_Tried = tuple[Choice, float]
"""A layout, and the limit of time per token up to which it was simulated [s]."""


def _requests(wanted: Objective, load: Load) -> int:
    """Return the requests of a steady state whose lifetimes are as long as the limits allow."""
    output = load.output_tokens or OUTPUT_TOKENS
    mean = sum(output) / 2 if isinstance(output, tuple) else output
    lifetime, rate = wanted.ttft + wanted.tpot * max(mean - 1, 0), load.rate or 0.0
    of_lifetimes = min(rate * (WARM_UP + LIFETIMES) * lifetime, _MOST_OF_LIFETIMES)
    return math.ceil(max(_PROBED, min(rate * _LEAST_S, _MOST_OF_TIME), of_lifetimes))


@dataclass
class _Kind:
    """Layouts that differ in their number of replicas alone, so many `together`: options, and bounds of a replica."""

    options: dict[str, Any]
    bounds: Bounds
    together: int


@dataclass
class _Search:
    model: Transformer
    system: System
    load: Load
    limits: Limits
    fix: dict[str, Any]
    options: RunOptions
    budget_s: float
    progress: Progress | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    tried: dict[Choice, Deployed] = field(default_factory=dict)
    failed: dict[Choice, str] = field(default_factory=dict)
    near: list[tuple[float, Choice]] = field(default_factory=list)
    untried: set[Choice] = field(default_factory=set)
    simulated: int = 0
    best: Deployed | None = None
    kept: dict[_Tried, Deployed | tuple[str, float]] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    _drawn: RequestStream | None = None
    _about: dict[Choice, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wanted = self.limits.objective
        self.attainment = self.limits.attainment or ATTAINMENT

    def run(self) -> None:
        """Look for the best layout, then for the front; what was simulated is kept where that is interrupted."""
        self._began = time.process_time()
        self._kind_of = {choice: kind for kind in self._kinds() for choice in self._choices(kind)}
        self._layouts = sorted(
            ((self._least(kind, choice), choice) for choice, kind in self._kind_of.items()),
            key=lambda one: (one[1].gpus, one[0], len(one[1].options)),
        )
        self._bounded = len(self.failed)
        self._checkpoint = checkpoint = self._where_kept()
        self.kept = self._simulated_before(checkpoint)
        if self.kept:
            say(f"resumes after {len(self.kept):,} simulated layouts")
        self._saved = time.monotonic()
        try:
            self._look()
        except BaseException:
            self._save()
            raise
        if checkpoint:
            checkpoint.remove()

    def _where_kept(self) -> Checkpoint | None:
        """Where simulated layouts are kept; None for a policy without a name."""
        if callable(self.fix.get("scheduler")):
            return None
        decide = plain([self.fix, stated(self.load, "trace"), stated(self.limits), self.options])
        inputs = {"plan": decide, "model": self.model.model_dump(mode="json"), "system": self.system.inputs()}
        return Checkpoint.of(inputs, self._load.asked)

    def _simulated_before(self, checkpoint: Checkpoint | None) -> dict[_Tried, Deployed | tuple[str, float]]:
        """The layouts that an interrupted search simulated, of the state that `_save` writes."""
        found: dict[_Tried, Deployed | tuple[str, float]] = {}
        state = checkpoint.read() if checkpoint else None
        if checkpoint is None or state is None:
            return found
        try:
            for at, (options, limit, outcome) in enumerate(state["tried"]):
                choice = Choice(**options)
                found[choice, float(limit)] = self._outcome(choice, state, at, outcome)
        except (*WRONG, InputError):
            checkpoint.forget("it has another form")
            return {}
        return found

    def _outcome(self, choice: Choice, state: State, at: int, outcome: Any) -> Deployed | tuple[str, float]:
        if isinstance(outcome, list):
            why, seen = outcome
            return str(why), float(seen)
        answered, turns = rows(f"served {at}", state, Served), rows(f"turns {at}", state, Turn)
        made = self._ready(choice.options)
        return Deployed(choice, made.serving(answered, turns, outcome["capacity"]), float(outcome["tpot"]))

    def _as_state(self) -> dict[str, Any]:
        """The layouts that were simulated, as plain data and arrays."""
        tried: list[Any] = []
        found: dict[str, Any] = {"tried": tried}
        for at, ((choice, limit), outcome) in enumerate(self.kept.items()):
            said: Any = outcome
            if isinstance(outcome, Deployed):
                serving = outcome.serving
                said = {"capacity": serving.capacity, "tpot": outcome.tpot}
                found |= columns(f"served {at}", serving.requests) | columns(f"turns {at}", serving.turns)
            tried.append((choice._asdict(), limit, said))
        return found

    def _save(self) -> None:
        """Keep what was simulated; no more from where it cannot be written."""
        try:
            if self._checkpoint and self.kept:
                self._checkpoint.write(self._as_state())
        except OutputError as error:
            say(f"the plan is not kept from here on: {error}")
            self._checkpoint = None
        self._saved = time.monotonic()

    def _look(self) -> None:
        by_gpus = {gpus: list(some) for gpus, some in groupby(self._layouts, key=lambda one: one[1].gpus)}
        for some in by_gpus.values():
            self.best = self._fastest(some, self.wanted.tpot)
            if self.best:
                break
        self._front(by_gpus)
        if not self.best:
            self._nearest = self._come_near()

    def _kinds(self) -> Iterator[_Kind]:
        """The kinds of replicas; those without memory for the requests are counted as rejected."""
        first: InputError | None = None
        found = 0
        for options in self._options():
            try:
                made = self._ready(options)
            except InputError as error:
                first = first or error
                self.rejected["memory"] += self._counts(options)
                continue
            found += 1
            yield _Kind(options, self._bounds_of(made), made.plan.together)
        if not found and first:
            raise first

    def _options(self) -> Iterator[dict[str, Any]]:
        """Options of each kind of replica: degrees, then limits of a step."""
        each = self.system.gpus_per_node if self.system.node else self.system.gpus
        for tp in _given(self.fix, "tp", [one for one in _DEGREES if one <= each and self.system.gpus % one == 0]):
            eps = [1, tp] if tp > 1 else [1, *(one for one in _WIDE if self.system.gpus % one == 0)]
            eps = [one for one in eps if one <= max(self.model.experts, 1)]
            for ep in _given(self.fix, "ep", eps):
                for more in self._ways(tp, ep):
                    degrees = {"tp": tp, **({"ep": ep} if ep > 1 else {}), **more}
                    for limits in self._limits(degrees):
                        yield degrees | limits

    def _ways(self, tp: int, ep: int) -> Iterator[dict[str, Any]]:
        """Stages, halves of a batch and drafts of replicas, as far as they differ from none."""
        wide, fix = ep > tp, self.fix
        even = [one for one in _DEGREES if self.model.layers % one == 0 and self.system.gpus % (tp * one) == 0]
        stages = _given(fix, "pp", [1] if wide else even)
        halves = _given(fix, "two_batch_overlap", [False, True] if wide and self._overlaps else [False])
        drafts = _given(fix, "num_speculative_tokens", [None] if fix.get("acceptance_rate") is None else [0, *_DRAFTS])
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
            how = self._ready(degrees).server.how
        except InputError:
            yield {}
            return
        smaller = [how.tokens // one for one in _SMALLER_STEPS if how.tokens // one >= 256]
        for tokens in _given(self.fix, "max_num_batched_tokens", [None, *smaller]):
            limits = {"max_num_batched_tokens": tokens, "max_num_seqs": self.fix.get("max_num_seqs")}
            yield {name: value for name, value in limits.items() if value is not None}

    def _counts(self, options: dict[str, Any]) -> int:
        return len([*_numbers(1, self.system.gpus // (int(options["tp"]) * int(options.get("pp", 1))), 1)])

    def _ready(self, options: Mapping[str, Any]) -> Ready:
        """Return replicas with the load, which is drawn once."""
        plan = ServingPlan(**{**self.fix, **options})
        made = ready(self.model, self.system, plan, self.load, self.limits, options=self.options, drawn=self._drawn)
        self._drawn = made.drawn
        return made

    def _choices(self, kind: _Kind) -> Iterator[Choice]:
        """Numbers of replicas of a kind, and of readers among them where a step has the framework's limits."""
        most = self.system.gpus // kind.options["tp"]
        limited = kind.options.keys() & _STEP_LIMITS - self.fix.keys()
        for replicas in _given(self.fix, "replicas", _numbers(kind.together, most, kind.together)):
            apart = [0] if limited else [0, *_numbers(kind.together, replicas - kind.together, kind.together)]
            for readers in _given(self.fix, "prefill_replicas", apart):
                yield Choice(**kind.options, replicas=replicas, prefill_replicas=readers)

    def _bounds_of(self, made: Ready) -> Bounds:
        self._load, self._framework = made.asked, made.server.how.name
        self.good = math.ceil(self.attainment * len(made.asked.asked))
        shared = made.server.shared
        if shared not in self.works:
            self.works[shared] = Work.of(made.asked.asked, self.wanted, self.good, shared)
        return Bounds(made.server.times, made.server.how, self.works[shared])

    def _least(self, kind: _Kind, choice: Choice) -> float:
        """The least time per token of a layout; what it lacks is noted where it cannot meet the limits."""
        bounds = kind.bounds
        if bounds.ttft > self.wanted.ttft:
            self.failed[choice] = _FIRST
            return math.inf
        least = bounds.time_per_token(choice.replicas, choice.prefill_replicas)
        if least > self.wanted.tpot:
            slow = bounds.lone > self.wanted.tpot or bounds.settles(
                choice.replicas, choice.prefill_replicas, self.wanted.tpot
            )
            self.failed[choice] = _LATER if slow else _MORE
        return least

    def _fastest(self, layouts: Sequence[tuple[float, Choice]], limit: float) -> Deployed | None:
        """The layout with the least time per token up to a limit [s], if one has it.

        Bounds say which to simulate, and what a steady state takes which first, so that those that follow are given up
        early.
        """
        best = None
        able = [one for one in layouts if one[0] <= limit]
        for least, choice in sorted(able, key=lambda one: (self._expected(one[1]), one[0], len(one[1].options))):
            if least > limit:
                continue
            if not self.time_left:
                self.untried |= {choice} if least < math.inf else set()
                continue
            found = self._serve(choice, limit)
            if found:
                best, limit = found, found.tpot * (1 - _ALIKE)
        return best

    def _expected(self, choice: Choice) -> float:
        """About what a token takes in a layout [s]."""
        if choice not in self._about:
            self._about[choice] = self._kind_of[choice].bounds.expected(
                self._load, choice.replicas, choice.prefill_replicas
            )
        return self._about[choice]

    @property
    def time_left(self) -> bool:
        """Whether another simulation may start."""
        return time.process_time() - self._began < self.budget_s

    def _serve(self, choice: Choice, limit: float) -> Deployed | None:
        """Simulate a layout; None if its time per token exceeds a limit, or the load does not settle."""
        if choice in self.tried:
            return self.tried[choice] if self.tried[choice].tpot <= limit else None
        found = self.kept.get((choice, limit))
        if found is None:
            if self.progress:
                self.progress(self.simulated, max(len(self._layouts) - self._bounded, self.simulated), choice.words)
            found = self.kept[choice, limit] = self._simulated(choice, limit)
            if time.monotonic() - self._saved > _SAVED_S:
                self._save()
        self.simulated += 1
        if isinstance(found, Deployed):
            self.tried[choice] = found
            return found if found.tpot <= limit else None
        why, seen = found
        if why == _MORE:
            self.failed[choice] = why
        elif limit >= self.wanted.tpot:
            self.failed.setdefault(choice, why)
            self.near.append((seen, choice))
        return None

    def _simulated(self, choice: Choice, limit: float) -> Deployed | tuple[str, float]:
        """A layout with its load; or why it was given up, and the share of the requests that had been answered."""
        made = self._ready(choice.options)
        watch = _Watch(self.wanted.ttft, limit, self.attainment, len(made.asked.asked))
        try:
            answered, turns = made.server.run(made.asked, watch)
        except GivenUp:
            return watch.why, watch.seen / len(made.asked.asked)
        serving = made.serving(answered, turns, made.server.capacity(made.asked, answered, turns))
        return (_MORE, 1.0) if serving.overloaded else self._deployed(choice, serving)

    def _deployed(self, choice: Choice, serving: Serving) -> Deployed:
        """Return a layout with the load that it served."""
        some = serving.timed_requests
        good = math.ceil(self.attainment * len(some))
        return Deployed(choice, serving, time_per_token(some, self.wanted.ttft, good))

    def _front(self, by_gpus: dict[int, list[tuple[float, Choice]]]) -> None:
        """Simulate layouts with more GPUs while users get faster, and with fewer than the best while loads settle."""
        if not self.best:
            return
        limit, best = self.best.tpot, self.best.gpus
        more, fewer = ({key: by_gpus[key] for key in by_gpus if (key > best) is above} for above in (True, False))
        del fewer[best]
        for some in _ranges(more):
            found = self._fastest(some, limit * (1 - _ALIKE))
            limit = found.tpot if found else limit
        for some in reversed(_ranges(fewer)):
            if not self._fastest(some, math.inf) and self.time_left:
                break

    def _come_near(self) -> Deployed | None:
        """The layout with the largest share of good answers: of those that failed late, or with the lowest bound."""
        most = max(choice.gpus for _, choice in self._layouts)
        able = [choice for least, choice in self._layouts if choice.gpus == most and least < math.inf]
        late = [choice for _, choice in sorted(self.near, key=lambda one: -one[0])[:2]]
        found = []
        for choice in [*late, *able[:2]] or [choice for _, choice in self._layouts if choice.gpus == most][:1]:
            serving = self._ready(choice.options).answer()
            found.append(self._deployed(choice, serving))
        return max(found, key=lambda one: one.serving.good_share or 0.0, default=None)

    def answer(self, wall_s: float) -> ServingPlans:
        """What was found."""
        tried = sorted(self.tried.values(), key=lambda one: (one.gpus, one.tpot))
        front: list[Deployed] = []
        for one in tried:
            if one.tpot < math.inf and all(one.tpot < (1 - _ALIKE) * other.tpot for other in front):
                front.append(one)
        for choice, why in self.failed.items():
            self.rejected[why] += choice not in self.tried and choice not in self.untried
        for one in tried:
            if one.tpot > self.wanted.tpot:
                self.rejected[_late(one.serving, self.wanted)] += 1
        unknown = len(self.untried.difference(self.tried))
        self.rejected["not tried"] += unknown
        known = self.failed.keys() | self.tried.keys() | self.untried
        others = sum(one not in known for _, one in self._layouts)
        self.rejected["no fewer GPUs and no faster users than another"] += others
        nearest = None if self.best else self._nearest
        return ServingPlans(
            model=self.model,
            system=self.system,
            framework=self._framework,
            load=self._load.about,
            objective=self.wanted,
            attainment=self.attainment,
            best=self.best,
            front=tuple(front),
            tried=tuple(tried),
            nearest=nearest,
            limit=_late(nearest.serving, self.wanted) if nearest else "",
            rejected={why: count for why, count in self.rejected.most_common() if count},
            searched=len(self._layouts) + self.rejected["memory"],
            bounded=self._bounded,
            simulated=self.simulated,
            unknown=unknown,
            wall_s=wall_s,
        )


def _numbers(first: int, most: int, step: int) -> Iterator[int]:
    """Numbers of replicas up to `most`, multiples of `step`: each up to `EVERY` steps, then 3 % apart, and the last."""
    count = first
    while count <= most:
        yield count
        following = count + max(2 * count // step // EVERY, 1) * step
        count = following if following <= most or count == most else max(most // step * step, count + step)


def _ranges(by_gpus: dict[int, list[tuple[float, Choice]]]) -> list[list[tuple[float, Choice]]]:
    """Layouts by ranges of their numbers of GPUs, which are the same whatever is searched."""
    each = groupby(by_gpus, key=lambda gpus: math.floor(math.log(gpus) / math.log(_APART) + 1e-9))
    return [[one for gpus in some for one in by_gpus[gpus]] for _, some in each]


def _given(fix: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """The value of an option that was given, alone, or the values that are tried."""
    return otherwise if fix.get(name) is None else [fix[name]]


def time_per_token(answered: Sequence[Served], ttft: float, good: int) -> float:
    """The time per further token that `good` requests get at least, those whose first token is in time [s]."""
    times = sorted((0.0 if one.output == 1 else one.tpot) if one.ttft <= ttft else math.inf for one in answered)
    return times[good - 1]


def _late(serving: Serving, wanted: Objective) -> str:
    """What keeps a layout from the limits."""
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
