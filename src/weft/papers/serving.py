"""The study of serving: published gains of schedulers and disaggregation, and tokens a second of experts on many GPUs.

Published: Sarathi-Serve (arXiv:2403.02310), Splitwise (arXiv:2311.18677), DistServe (arXiv:2401.09670); DeepSeek's
and SGLang's figures of 2025; kvcache-ai/Mooncake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, NamedTuple

import numpy as np

from weft import hardware
from weft.core.fields import from_options
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.models import Transformer, load_model
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, read_declaration
from weft.serving.load import Load
from weft.serving.policies import first_come, running_first
from weft.serving.replica import Replica
from weft.serving.requests import Request, RequestSpec, RequestStream
from weft.serving.result import Iteration, Objective
from weft.serving.serve import Server, ready
from weft.step.exchange_overlap import EXPERTS
from weft.step.forward import Forward, Group
from weft.step.serving_plan import ServingPlan
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, bars, curves

DECLARED = read_declaration(__file__)
_SURE = 1.03
"""Ratio of a rate that is too large to one that is not, at which a search ends."""
_NINTH = 1.2816
"""Standard deviations from the median to the 90th percentile of a normal distribution."""


class Capacity(NamedTuple):
    """Largest rates [1/s] of a source's baseline and its proposal, and the number of prefill workers."""

    id: str
    base: float
    ours: float
    readers: int

    @property
    def gain(self) -> float:
        """Ratio of the rates."""
        return self.ours / self.base


class Exchanged(NamedTuple):
    """A step of experts on many GPUs: its time, what its halves compute and exchange by themselves [s], and tokens per
    second and node.
    """

    id: str
    step: float
    computes: float
    exchanges: float
    rate: float

    @property
    def step_ms(self) -> float:
        """Time of the step [ms]."""
        return self.step * 1e3

    @property
    def computes_ms(self) -> float:
        """What is computed [ms]."""
        return self.computes * 1e3

    @property
    def exchanges_ms(self) -> float:
        """What is exchanged [ms]."""
        return self.exchanges * 1e3


class FirstToken(NamedTuple):
    """A row of Mooncake's table [ms]: the first token and what is sent, as published and by Weft."""

    prompt: int
    published: float
    weft: float
    sent: float
    weft_sent: float


@dataclass(frozen=True, repr=False)
class ServingStudy(PaperStudy):
    """Results of the study: largest rates, steps of experts on many GPUs, gains of two batches, first tokens."""

    DECLARED = DECLARED

    capacities: tuple[Capacity, ...]
    experts: tuple[Exchanged, ...]
    gains: Mapping[str, float]
    first_tokens: tuple[FirstToken, ...]

    @classmethod
    def simulated(cls, at: Conditions) -> dict[str, Any]:
        """Search the largest rates, time steps, and serve Mooncake's prompts one by one."""
        cases = DECLARED.cases
        steps = [*cases["capacity"], *cases["experts"], *cases["gains"], "first tokens"]
        report = at.jobs.progress or (lambda *_: None)

        def tell(found: Callable[[Any], Any], case: Any, done: int) -> Any:
            report(done, len(steps), case["id"] if isinstance(case, Mapping) else case)
            return found(case)

        counts = iter(range(len(steps)))
        capacities = tuple(tell(_capacity, case, next(counts)) for case in cases["capacity"])
        experts = tuple(tell(_time_exchange, case, next(counts)) for case in cases["experts"])
        gains = {case["id"]: tell(_gain, case, next(counts)) for case in cases["gains"]}
        first = tell(lambda _: _first_tokens(cases["mooncake"]), "first tokens", next(counts))
        return {"capacities": capacities, "experts": experts, "gains": gains, "first_tokens": tuple(first)}

    def figures(self) -> Iterator[StudyFigure]:
        """Gains, tokens per second and errors, each on the GPUs of its source."""
        for one in self.capacities:
            yield StudyFigure(one.id, one.gain, {"readers": one.readers}, always=True)
        for step in self.experts:
            yield StudyFigure(step.id, step.rate, always=True)
        for name, gain in self.gains.items():
            yield StudyFigure(name, gain, always=True)
        rows = self.first_tokens
        yield StudyFigure("mooncake.ttft", _mean(abs(one.weft / one.published - 1) for one in rows), always=True)
        yield StudyFigure("mooncake.sent", _mean(abs(one.weft_sent / one.sent - 1) for one in rows), always=True)

    @property
    def gains_shown(self) -> Iterator[tuple[str, float, str]]:
        """Each gain, published and Weft's."""
        for one in self.capacities:
            published = DECLARED.claims[one.id].published
            yield one.id, max(published) if isinstance(published, tuple | list) else float(published or 0), "published"
            yield one.id, one.gain, "Weft"

    @property
    def first_token_curves(self) -> Iterator[tuple[int, float, str]]:
        """Time of the first token over the length of the prompt."""
        for one in self.first_tokens:
            yield one.prompt, one.published, "published"
            yield one.prompt, one.weft, "Weft"

    def own(self) -> dict[str, Any]:
        """Rates, steps, gains and first tokens as plain data."""
        return {
            "capacities": [{**one._asdict(), "gain": one.gain} for one in self.capacities],
            "experts": [one._asdict() for one in self.experts],
            "two_batch": dict(self.gains),
            "first_tokens": [one._asdict() for one in self.first_tokens],
        }

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._capacities_table(), self._experts_table(), self._first_tokens_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("Schedulers and separate prompts", drop_empty(self._capacities_figure(), self._capacities_table())),
            Section("Experts on many GPUs", drop_empty(self._experts_table())),
            Section("The first token", drop_empty(self._first_tokens_figure(), self._first_tokens_table())),
        ]

    def _capacities_table(self) -> Table:
        columns = [
            text("id", "source"), number("base", "at first", "1/s", ".3g"),
            number("ours", "as published", "1/s", ".3g"), number("gain", format_=".2f"),
        ]  # fmt: skip
        rows = [(one.id, one.base, one.ours, one.gain) for one in self.capacities]
        return Table(columns, rows, "Largest rates within the limits")

    def _experts_table(self) -> Table:
        columns = [
            text("id", "source"), number("step", unit="ms", format_=",.4g"),
            number("computes", unit="ms", format_=",.4g"), number("exchanges", "exchanges, alone", "ms", ",.4g"),
            number("rate", "tokens/s a node", format_=",.0f"),
        ]  # fmt: skip
        rows = [(one.id, one.step_ms, one.computes_ms, one.exchanges_ms, one.rate) for one in self.experts]
        return Table(columns, rows, "Tokens per second and node")

    def _first_tokens_table(self) -> Table:
        columns = [
            number("prompt", unit="tokens", format_=",d"), number("published", "first token", "ms", ",.1f"),
            number("weft", "Weft", "ms", ",.1f"), number("sent", "sent", "ms", ",.2f"),
            number("weft_sent", "Weft, sent", "ms", ",.2f"),
        ]  # fmt: skip
        rows = [(one.prompt, one.published, one.weft, one.sent, one.weft_sent) for one in self.first_tokens]
        return Table(
            columns, rows, "Mooncake's table: Qwen3 8B, prompts read on one node of H800, answers written on another"
        )

    def _capacities_figure(self) -> Figure:
        columns = [text("id", " "), number("gain", "largest rate, over that at first", format_=".2f"), text("which")]
        table = Table(columns, list(self.gains_shown))
        return bars(
            "What does the other way of serving gain?", table, lane="id", end="gain",
            color=Color("which", looks.spread(table.distinct("which"))),
        ).with_caption("Published: the largest of each source.")  # fmt: skip

    def _first_tokens_figure(self) -> Figure:
        columns = [
            number("prompt", "tokens of the prompt", format_=",.0f"), number("first", "first token", "ms", ",.1f"),
            text("which", " "),
        ]  # fmt: skip
        table = Table(columns, list(self.first_token_curves))
        return curves(
            "When does the first token come?", table, x=Axis("prompt", log=True), y="first", color=Color("which"),
        )  # fmt: skip


def prompts_first(server: Replica) -> None:
    """Schedule as vLLM's first engine: whole prompts before decode tokens, and the last to start is preempted."""
    if server.waiting:
        first_come(server, whole=True)
    if not server.batch:
        running_first(server)


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def _model(name: str) -> Transformer:
    own = DECLARED.cases["models"]
    return Transformer(name=name, **own[name]) if name in own else load_model(name)


def _load(case: Mapping[str, Any]) -> list[RequestSpec]:
    """Requests of lengths drawn from log-normal distributions, at a mean rate of 1/s (Poisson)."""
    random = np.random.default_rng(DECLARED.cases["seed"])
    count = case["requests"]
    drawn = []
    for name in ("input", "output"):
        median, ninth = case[name]
        drawn.append(np.exp(random.normal(log(median), log(ninth / median) / _NINTH, 4 * count)).round().clip(4))
    fits = drawn[0] + drawn[1] <= case["most"]
    lengths = [one[fits][:count].astype(int).tolist() for one in drawn]
    times = np.cumsum(random.exponential(1.0, count)).tolist()
    return [RequestSpec(at, *each) for at, *each in zip(times, *lengths, strict=True)]


def _capacity(case: Mapping[str, Any]) -> Capacity:
    """Return the largest rates of a case, as it was at first and as its source proposes."""
    asked = _load(DECLARED.cases["loads"][case["load"]])
    base, _ = _largest(case, case["base"], asked)
    return Capacity(case["id"], base, *_largest(case, case["ours"], asked))


def _largest(case: Mapping[str, Any], how: Mapping[str, Any], asked: Sequence[RequestSpec]) -> tuple[float, int]:
    """Return the largest rate within the limits [1/s], and the readers with which it is reached."""
    most = DECLARED.cases["loads"][case["load"]]["most"]
    own = from_options(
        ServingPlan, {name: value for name, value in how.items() if name not in ("scheduler", "prefill_replicas")}
    )
    if how["scheduler"] == "prompts_first":
        own = replace(own, scheduler=prompts_first, max_num_batched_tokens=most)
    found = []
    for readers in how.get("prefill_replicas", [0]):
        plan = replace(
            own, tp=case.get("tp", 1), pp=case.get("pp", 1), max_model_len=most, prefill_replicas=readers
        )  # fmt: skip
        load = Load(concurrency=1, requests=1, input_len=1, output_len=1)
        server = ready(_model(case["model"]), hardware.system(case["system"]), plan, load).server
        # the papers' own engines pass the first token on, and ask no second server for it
        server = replace(server, how=replace(server.how, asks_again=False))
        limits = _LimitCheck(case, server, asked)
        found.append((limits.largest(), readers))
    return max(found)


class _LimitCheck:
    """Whether a deployment keeps the limits of a case at a rate."""

    def __init__(self, case: Mapping[str, Any], server: Server, asked: Sequence[RequestSpec]) -> None:
        self._server, self._asked, self._case = server, asked, case
        alone = _alone(server, asked) if "relative" in case else []
        self._alone = {one[:2]: (first, later) for one, first, later in alone}

    def largest(self) -> float:
        """Return the largest rate [1/s], to `_SURE`."""
        low, high = 0.02, 0.04
        while self.kept(high):
            low, high = high, 2 * high
        while high > _SURE * low:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.kept(middle) else (low, middle)
        return low

    def kept(self, rate: float) -> bool:
        """Return whether all limits are kept."""
        load = RequestStream([_at_rate(one, rate) for one in self._asked], "")
        answered, iterations = self._server.run(load)
        case = self._case
        kept = []
        if "relative" in case:
            alone = [self._alone[one.input, one.output] for one in answered]
            both = list(zip(answered, alone, strict=True))
            slower = {
                "first": [one.ttft / first for one, (first, _) in both],
                "mean": [one.tpot / each for one, (_, each) in both if one.output > 1],
            }
            for name, limits in case["relative"].items():
                kept += [np.percentile(slower[name], at) <= limit for at, limit in limits]
        if "gap" in case:
            kept += [_gap(iterations, case["gap"][0]) <= case["gap"][1]]
        if "queue" in case:
            kept += [np.median([one.start - one.arrival for one in answered]) <= case["queue"]]
        if "both" in case:
            share, *limits = case["both"]
            kept += [np.mean([Objective(*limits).met(one) for one in answered]) >= share]
        return all(kept)


def _at_rate(one: RequestSpec, rate: float) -> RequestSpec:
    """Return a request that arrives as at a rate, where it does at 1/s."""
    return one._replace(arrival=one.arrival / rate)


def _alone(server: Server, asked: Sequence[RequestSpec]) -> list[tuple[tuple[int, int], float, float]]:
    """Return what each request takes with no other: first token and further ones [s]."""
    lone = replace(server, replicas=1, readers=0)
    apart = [one._replace(arrival=at * 1e4) for at, one in enumerate(asked)]
    answered, _ = lone.run(RequestStream(apart, ""))
    return [((one.input, one.output), one.ttft, one.tpot) for one in answered]


def _gap(iterations: Sequence[Iteration], percentile: float) -> float:
    """Return a percentile of the gaps between a request's tokens [s]: decode tokens wait for the prompts in between."""
    gaps: list[float] = []
    counts: list[int] = []
    last: dict[int, float] = {}
    fresh: dict[int, list[tuple[int, float]]] = {}
    for iteration in iterations:
        each = (iteration.end - iteration.start) / iteration.steps
        if iteration.decodes:
            began = fresh.pop(iteration.replica, [])
            new = min(sum(count for count, _ in began), iteration.decodes)
            for count, at in began:
                gaps.append(iteration.start + each - at)
                counts.append(count)
            gaps += [iteration.start + each - last.get(iteration.replica, iteration.start), each]
            counts += [iteration.decodes - new, iteration.decodes * (iteration.steps - 1)]
            last[iteration.replica] = iteration.end
        if iteration.prefills:
            fresh.setdefault(iteration.replica, []).append((iteration.prefills, iteration.end))
    order = np.argsort(gaps)
    reached = np.cumsum(np.array(counts)[order])
    return float(np.array(gaps)[order][np.searchsorted(reached, percentile / 100 * reached[-1])])


def _forward(case: Mapping[str, Any], two_batch: bool) -> Forward:
    plan = ServingPlan(ep=case["ep"], dtype="fp8-block", library="sglang", two_batch_overlap=two_batch)
    return Forward(load_model("deepseek-v3"), hardware.system(case["system"]), plan)


def _group(case: Mapping[str, Any]) -> Group:
    if "new" in case:
        return Group(case["sequences"], case["new"])
    return Group(case["sequences"], 1, case["context"] - 1, writes=True)


def _time_exchange(case: Mapping[str, Any]) -> Exchanged:
    """Return a step with two batches in turn, and its parts with one."""
    group = _group(case)
    step, alone = (_forward(case, two).batch([group]) for two in (case["two_batch"], False))
    exchanges = alone.parts[EXPERTS]
    tokens = group.sequences * group.new
    return Exchanged(
        case["id"], float(step.seconds), float(alone.seconds - exchanges), float(exchanges), 8 * tokens / step.seconds
    )


def _gain(case: Mapping[str, Any]) -> float:
    """Return what two batches in turn gain, as a fraction of the throughput."""
    one, two = (_forward(case, two_batch).batch([_group(case)]).seconds for two_batch in (False, True))
    return float(one / two - 1)


def _first_tokens(case: Mapping[str, Any]) -> Iterator[FirstToken]:
    """Mooncake's prompts one by one, with their KV cache sent to the other node."""
    where = hardware.system(case["system"]).replace(case["changes"])
    model, rows = _model(case["model"]), zip(case["prompts"], case["first_ms"], case["sent_ms"], strict=True)
    for prompt, first, sent in rows:
        plan = ServingPlan(tp=case["tp"], replicas=2, prefill_replicas=1)
        made = ready(model, where, plan, Load(concurrency=1, requests=1, input_len=prompt, output_len=128))
        answered, _ = made.server.run(made.asked)
        read = Request(0, made.asked.asked[0])
        read.computed = prompt
        moved = made.server.transfer(read)
        yield FirstToken(prompt, first, answered[0].ttft * 1e3, sent, moved * 1e3)


STUDY = ServingStudy
run = ServingStudy.run
