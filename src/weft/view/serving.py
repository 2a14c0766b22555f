"""Served loads: sentences, latencies, the mean step, and what runs, waits and is held over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.report import Part, Section, SystemReport
from weft.core.report.table import Table, number, text
from weft.serving.result import LIFETIMES, STATISTICS, WARM_UP, Objective, Pools, Serving, columns
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Words, areas, curves, stacked, step_lines, timeline_bars
from weft.view.shares import seconds
from weft.view.step import ranks, waterfall_table
from weft.view.words import percent

_SURE = (
    "how sure: steps are as sure as `weft prefill` and `weft decode`; sampling and the network to the clients are left "
    "out. Rules of schedulers are those of the frameworks' sources, not fitted to rows"
)
_TURNS_DRAWN = 160
_POINTS = 100
"""Points of a distribution that are drawn."""
_KINDS = {"next tokens": looks.BLUE, "prompts": looks.ORANGE, "both": looks.GREEN}
_TOKENS = {"prompts": looks.ORANGE, "answers": looks.BLUE}


class ServingReport(SystemReport[Serving]):
    """A served load: throughput, latencies, queue and memory, the mean step, and the steps one after the other."""

    explained = "serving"

    def title(self) -> str:
        """The model, the load and the machine on one line."""
        answer = self.answer
        where = f"{answer.system.name}, {ranks(answer.plan)}, {answer.format.words}, {answer.policy}"
        return f"{answer.model.title} on {where}: {answer.load}"

    def sentences(self) -> list[str]:
        """Throughput and latencies, or that they grow without end; goodput, memory and queue; what bounds."""
        answer = self.answer
        gpus = answer.replicas * answer.plan.tp
        where = f"{gpus} GPU{'s' * (gpus > 1)}"
        model = f"{answer.model.title} ({answer.format.words})"
        tokens = (
            f"{answer.output_tokens_per_s:,.0f} tokens/s out ({answer.output_tokens_per_s_per_gpu:,.0f} per GPU"
            f"{_between(answer.output_tokens_per_s_range, '{:,.0f}'.format)})"
        )
        if answer.overloaded:
            lead = (
                f"Offered load is above capacity: {answer.offered:.3g} requests/s arrive, and {model} answers "
                f"{answer.capacity:.3g} on {where}, {tokens}. The queue grows without end, and so do latencies: none "
                "is stated; give a lower --rate, or more GPUs."
            )
            found = [lead]
        else:
            found = [
                f"{model} answers {answer.requests_per_s:.3g} requests/s on {where}, {tokens}{_latencies(answer)}."
            ]
        if answer.good_share is not None and min(answer.objective) < float("inf"):
            good = f"{percent(answer.good_share)} meet {objective_words(answer.objective)}"
            found.append(f"{good}: {answer.goodput:.3g} good ones a second.")
        return [*found, *_too_few(answer), _memory(answer), _bound(answer), *answer.needs]

    def notes(self) -> list[str]:
        """What is assumed, and last how sure this is."""
        error = self.answer.error
        return [
            *_counted(self.answer),
            *self.answer.notes,
            *([f"Time per further token: {error.why}."] if error else []),
            _SURE,
        ]

    def tables(self) -> list[Table]:
        """Latencies, what the replicas do, and the mean step."""
        answer = self.answer
        mean = answer.mean_step["seconds"]
        step = waterfall_table(answer.step_parts, mean, "The mean step: where its time goes", "a step")
        latencies = [] if answer.overloaded else [latency_table(answer, self.title())]
        return [*latencies, load_table(answer), step]

    def on_terminal(self) -> list[Table]:
        """Latencies and the mean step; sentences say the rest."""
        *latencies, _, step = self.tables()
        return [*latencies, step]

    def rows(self) -> list[dict[str, Any]]:
        """The requests, for --csv; without times above capacity, where these only say how long the load lasted."""
        found, answer = columns(self.answer.requests), self.answer
        if answer.overloaded:
            kept = ("arrival", "input", "output", "replica")
            found = {name: found[name] for name in kept}
            found |= {"overloaded": [True] * answer.completed, "capacity_per_s": [answer.capacity] * answer.completed}
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

    def figures(self) -> Sequence[Figure]:
        """The load over time, the distribution of latencies, steps, and throughput against interactivity."""
        answer = self.answer
        curve = [curve_figure(answer)] if len(answer.curve) > 1 else []
        distributed = [] if answer.overloaded else [distribution(answer)]
        return [over_time(answer), *distributed, steps_figure(answer), *curve]

    def sections(self) -> list[Part]:
        """What happens over time, latencies, steps."""
        *latencies, replicas, step = self.tables()
        figures = list(self.figures())
        time, distributed = figures[0], figures[1 : 1 + len(latencies)]
        steps, *curve = figures[1 + len(latencies) :]
        return [
            time,
            Section("Latencies", [*distributed, *latencies]),
            Section("Throughput against interactivity", [*curve]),
            Section("Steps", [steps, step]),
            Section("Replicas", [replicas]),
        ]


def _between(range_: tuple[float, float] | None, written: Callable[[float], str]) -> str:
    """A range by the error of its class, to follow a value; nothing where none is known."""
    return f"; {written(range_[0])} to {written(range_[1])} by the error of such loads" if range_ else ""


def _latencies(answer: Serving) -> str:
    """First token, further tokens and their tails, to follow the throughput."""
    ttft, tpot = answer.ttft or {}, answer.tpot
    said = f"; the first token comes after {seconds(ttft['mean'])} (p99 {seconds(ttft['p99'])})"
    if tpot:
        sure = _between(answer.tpot_range, seconds)
        said += f", each further one after {seconds(tpot['mean'])} (p99 {seconds(tpot['p99'])}{sure})"
    return said


def _too_few(answer: Serving) -> list[str]:
    """Warn of a load that does not last long enough for a steady state."""
    window = answer.window
    if window.steady or answer.overloaded:
        return []
    least = f"a steady state takes {LIFETIMES} lifetimes"
    if window.lifetimes:
        lead = f"The load lasts {window.lifetimes:.2g} request lifetimes after warm-up; {least}"
    else:
        lead = f"Filling and draining count, too, as the load is short: {least} after warm-up"
    if answer.finite:
        return [f"{lead}, and so long a trace."]
    if answer.clients:
        return [f"{lead}: give --requests {(WARM_UP + LIFETIMES + 1) * answer.clients:,} or more, or leave it out."]
    found = answer.counted
    lifetime = sum(one.done - one.arrival for one in found) / len(found)
    count = 1.15 * answer.offered * (WARM_UP + LIFETIMES) * lifetime
    if not count < float("inf"):
        return [f"{lead}; all requests arrive at once."]
    return [f"{lead}: give about --requests {_rounded_up(max(count, 100)):,}, or leave it out."]


def _rounded_up(count: float) -> int:
    """Return a count rounded up to two digits."""
    unit: int = 10 ** max(len(str(int(count))) - 2, 0)
    return -(-int(count) // unit) * unit


def _counted(answer: Serving) -> list[str]:
    """Say which requests count."""
    window = answer.window
    if answer.overloaded or not window.lifetimes:
        return []
    what = "Rates" if answer.finite else "Rates and latencies"
    kept = " Latencies are those of all requests of the trace." if answer.finite else ""
    begin = answer.requests[0].arrival
    said = (
        f"{what} are those of the {answer.steady_requests:,} of {answer.completed:,} requests that end between "
        f"{window.start - begin:,.3g} and {window.end - begin:,.3g} s ({window.lifetimes:,.3g} request lifetimes): "
        f"warm-up and drain are excluded.{kept}"
    )
    return [said]


def objective_words(wanted: Objective) -> str:
    """What a good answer meets, in words."""
    named = {"a first token within": wanted.ttft, "each further one within": wanted.tpot}
    return " and ".join(f"{what} {seconds(limit)}" for what, limit in named.items() if limit < float("inf"))


def _memory(answer: Serving) -> str:
    """How full the memory is, and who waits, in a sentence."""
    said = (
        f"A replica holds keys and values of {answer.cache_tokens:,} tokens; {percent(answer.mean_memory)} of that is "
        f"used on average, {percent(answer.peak_memory)} at most"
    )
    if answer.preemptions:
        said += f", and requests are preempted {answer.preemptions:,} times"
    waits = "" if answer.mean_waiting is None else f" and {answer.mean_waiting:,.1f} wait"
    return f"{said}. On average {answer.mean_running:,.1f} requests run on it{waits}."


_BUSY = 0.9
"""Share of the time below which replicas are idle enough to say so [assumed, 0.8 to 0.95]."""


def _bound(answer: Serving) -> str:
    """What keeps throughput from being higher, in a sentence."""
    step, parts = answer.mean_step, answer.step_parts
    most = max(parts, key=lambda name: parts[name])
    what = {
        "gemm": "GEMMs", "grouped_gemm": "GEMMs of experts", "exposed tp": "communication of tensor parallelism",
        "exposed ep": "exchange of tokens with their experts", "draft": "the drafter",
    }  # fmt: skip
    took = step["seconds"]
    share = f"{percent(parts[most] / took)} of a mean step of {seconds(took)} is {what.get(most, most)}"
    for lack, of_time in answer.lacks.items():
        if of_time > 0.1:
            return f"For {percent(of_time)} of the time requests wait for {lack}; {share}."
    if answer.pools:
        return f"{_pools(answer, answer.pools)}; {share}."
    if answer.busy < _BUSY:
        return f"Not saturated: replicas are idle for {percent(1 - answer.busy)} of the time; {share}."
    return f"Replicas run steps for {percent(answer.busy)} of the time; {share}."


def _pools(answer: Serving, pools: Pools) -> str:
    """Say which pool of disaggregated workers bounds the server, by what one worker more adds."""
    now, more = f"{pools.capacity:.3g}", {"prefill": pools.more_prefill, "decode": pools.more_decode}
    gains = f"one prefill worker more makes it {more['prefill']:.3g}, one decode worker more {more['decode']:.3g}"
    bottleneck = pools.bottleneck
    what = "Prefill and decode workers alike" if bottleneck == "both" else f"{bottleneck.capitalize()} workers"
    if answer.overloaded:
        return f"{what} bound the capacity of {now} requests/s: {gains}"
    lead = f"Not saturated: {what[0].lower()}{what[1:]} would bound the server at about {now} requests/s"
    return f"{lead} ({gains})"


def latency_table(answer: Serving, title: str) -> Table:
    """Mean and percentiles of each latency; empty cells where they grow without end."""
    found = {
        "time to first token": answer.ttft,
        "time per further token": answer.tpot,
        "arrival to last token": answer.latency,
    }
    rows = [(name, *(None if each is None else each[one] * 1e3 for one in STATISTICS)) for name, each in found.items()]
    heads = [number(f"{one}_ms", one, "ms", ",.1f") for one in STATISTICS]
    return Table([text("latency"), *heads], rows, title)


def load_table(answer: Serving) -> Table:
    """A row for each replica: its steps, what they compute, how long it is busy, and the memory in use."""
    rows, readers = [], answer.plan.prefill_replicas
    for replica in range(answer.replicas):
        turns = [turn for turn in answer.turns if turn.replica == replica]
        what = "both" if not readers else "prompts" if replica < readers else "answers"
        busy = sum(turn.end - turn.start for turn in turns)
        rows.append(
            (
                replica, what, sum(turn.steps for turn in turns), sum(turn.prompt for turn in turns),
                sum(turn.written for turn in turns), busy / answer.span,
                max((turn.used for turn in turns), default=0) / answer.cache,
            )
        )  # fmt: skip
    heads = [
        number("replica"), text("what"), number("steps"), number("prompt_tokens", "tokens of prompts"),
        number("next_tokens", "next tokens"), number("busy", format_=".1%"),
        number("peak_memory", "most memory in use", format_=".1%"),
    ]  # fmt: skip
    return Table(heads, rows, "What each replica does")


def over_time(answer: Serving) -> Figure:
    """Tokens, requests and memory over time, one below the other."""
    moments = answer.over_time()
    until = answer.span
    tokens = Table(
        [number("start_s", "time", "s", ",.1f"), number("end_s", "until", "s", ",.1f"),
         number("prompts", "prompts", format_=",.0f"), number("answers", "answers", format_=",.0f")],
        [(one.start, one.end, one.prompt, one.answers) for one in moments],
    )  # fmt: skip
    most = max(one.prompt + one.answers for one in moments)
    first = areas(
        "Tokens per second", tokens, x=Axis("start_s", domain=[0, until]), until="end_s", looks=_TOKENS,
        limit=(most, f"{most:,.0f} tokens/s"), height=150, name="tokens",
    )  # fmt: skip
    requests = _lines(moments, "requests", [("running", lambda one: one.running), ("waiting", lambda one: one.waiting)])
    memory = _lines(moments, "share", [("memory for keys and values", lambda one: one.memory)])
    return stacked(
        "What runs, waits and is held?",
        [
            first,
            step_lines(
                "Requests",
                requests,
                x=Axis("time_s", domain=[0, until]),
                y="requests",
                series="what",
                name="requests",
            ),
            step_lines(
                "Memory in use",
                memory,
                x=Axis("time_s", domain=[0, until]),
                y=Axis("share", percent=True),
                series="what",
                name="memory",
            ),
        ],
        "Means in equal stretches of time: tokens and requests of all replicas, and the share of their memory.",
        titled=True,
    )


def _lines(moments: Sequence[Any], name: str, series: Sequence[tuple[str, Any]]) -> Table:
    format_ = ".1%" if name == "share" else ",.1f"
    rows = [(one.start, what, value(one)) for what, value in series for one in moments]
    return Table([number("time_s", "time", "s", ",.1f"), text("what"), number(name, format_=format_)], rows)


def distribution(answer: Serving) -> Figure:
    """Shares of the requests up to a latency."""
    found = {
        "first token": [one.ttft for one in answer.timed_requests],
        "further token": [one.tpot for one in answer.timed_requests if one.output > 1],
        "whole answer": [one.done - one.arrival for one in answer.timed_requests],
    }
    rows = []
    for name, values in found.items():
        ordered = sorted(values)
        count = min(len(ordered), _POINTS)
        for at in range(count):
            place = (len(ordered) - 1) * at // max(count - 1, 1)
            rows.append((max(ordered[place], 1e-6), (place + 1) / len(ordered), name))
    heads = [number("time_s", "latency", "s", ",.4g"), number("share", "share of requests", format_=".1%"), text("of")]
    figure = curves(
        "How are latencies distributed?",
        Table(heads, rows),
        x=Axis(
            "time_s",
            log=True,
            labels="datum.value < 1 ? format(datum.value * 1000, '~g') + ' ms' : format(datum.value, '~g') + ' s'",
            ticks=_decades([row[0] for row in rows]),
        ),
        y=Axis("share", percent=True),
        color=Color("of"),
    )
    return figure.captioned("The share of requests whose latency is at most that; time per token is a request's mean.")


def _decades(times: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten among times [s]."""
    found = (digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5))
    return [one for one in found if min(times) <= one <= max(times)]


def steps_figure(answer: Serving) -> Figure:
    """Steps in the middle of the load, one bar each, equal ones of next tokens together."""
    middle = len(answer.turns) // 2
    turns = answer.turns[max(middle - _TURNS_DRAWN // 2, 0) :][:_TURNS_DRAWN]
    begin = turns[0].start
    rows = []
    for turn in turns:
        kind = "both" if turn.decodes and turn.prefills else "prompts" if turn.prefills else "next tokens"
        start, end = (turn.start - begin) * 1e3, (turn.end - begin) * 1e3
        rows.append((f"replica {turn.replica}", start, end, kind, turn.steps, turn.decodes, turn.prompt, turn.waiting))
    heads = [
        text("replica"), number("start_ms", "start", "ms", ",.1f"), number("end_ms", "end", "ms", ",.1f"), text("kind"),
        number("steps"), number("decodes", "next tokens"), number("prompt", "tokens of prompts"), number("waiting"),
    ]  # fmt: skip
    table = Table(heads, sorted(rows))
    figure = timeline_bars(
        "Which steps follow each other?", table, lane="replica", start="start_ms",
        end=Axis("end_ms", title=f"time since {begin:,.1f} s [ms]", domain=True), color=Color("kind", _KINDS),
        name="steps",
    )  # fmt: skip
    return figure.captioned("Steps in the middle of the load; several equal steps of next tokens are one bar.")


def curve_figure(answer: Serving) -> Figure:
    """Throughput of a GPU over what each client sees, a dot for each number of clients."""
    heads = [
        number("user", "tokens/s of each client", format_=",.1f"),
        number("gpu", "tokens/s of each GPU", format_=",.1f"), text("what"), text("clients"), text("said", " "),
    ]  # fmt: skip
    at = [(one.tokens_per_s_per_user, one.tokens_per_s_per_gpu) for one in answer.curve]
    said = _apart(at)
    rows = [
        (*place, answer.policy, f"{one.clients:,}", f"{one.clients:,}" * shown)
        for one, place, shown in zip(answer.curve, at, said, strict=True)
    ]
    figure = curves(
        "What does throughput cost each client?", Table(heads, rows), x="user", y="gpu", color=Color("what"),
        over=[Words("said", ringed=False)],
    )  # fmt: skip
    return figure.captioned("A dot for each number of clients, each of whom waits for an answer before asking again.")


def _apart(dots: Sequence[tuple[float, float]]) -> list[bool]:
    """Which dots are named: those whose words lie apart on a narrow page, the last and the first before the others."""
    left, right, top = min(x for x, _ in dots), max(x for x, _ in dots), max(y for _, y in dots)
    at = [((x - left) / (right - left or 1) * 290, y / (top or 1) * 280) for x, y in dots]  # [px]
    named: list[int] = []
    for one in [len(dots) - 1, *range(len(dots) - 1)]:
        if all(abs(at[one][0] - at[other][0]) > 36 or abs(at[one][1] - at[other][1]) > 16 for other in named):
            named.append(one)
    return [one in named for one in range(len(dots))]
