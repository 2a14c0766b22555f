"""Served loads: sentences, latencies, the mean iteration, and requests and KV cache over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.core.report import Part, Section, SystemReport
from weft.core.report.table import Table, number, text
from weft.serving.result import LIFETIMES, STATISTICS, WARM_UP, Objective, Pools, Serving, columns
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Words, areas, curves, stack_figures, step_lines, timeline_bars
from weft.view.shares import seconds
from weft.view.step import ranks, waterfall_table
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.serving.straggler import ServingDelay

_SURE = (
    "expected error: of iterations that of `weft prefill` and `weft decode`; sampling and the network to the clients "
    "are left out. Scheduler rules are those of the frameworks' sources, not fitted to measurements"
)
_TURNS_DRAWN = 160
_POINTS = 100
"""Points of a distribution that are drawn."""
_KINDS = {"decode": looks.BLUE, "prefill": looks.ORANGE, "both": looks.GREEN}
_TOKENS = {"prefill": looks.ORANGE, "decode": looks.BLUE}


class ServingReport(SystemReport[Serving]):
    """A served load: throughput, latencies, queue, KV cache, and engine iterations."""

    explained = "serving"

    def title(self) -> str:
        """Return the model, the load and the machine on one line."""
        answer = self.answer
        where = f"{answer.system.name}, {ranks(answer.plan)}, {answer.format.words}, {answer.policy}"
        return f"{answer.model.title} on {where}: {answer.load}"

    def sentences(self) -> list[str]:
        """Throughput and latencies, or that they grow without end; goodput, memory and queue; what bounds."""
        answer = self.answer
        gpus = answer.gpus
        where = f"{gpus} GPU{'s' * (gpus > 1)}"
        model = f"{answer.model.title} ({answer.format.words})"
        tokens = (
            f"{answer.output_tokens_per_s:,.0f} output tokens/s ({answer.output_tokens_per_s_per_gpu:,.0f} per GPU"
            f"{_between(answer.output_tokens_per_s_interval, '{:,.0f}'.format)})"
        )
        if answer.overloaded:
            lead = (
                f"Overloaded: {answer.offered:.3g} req/s offered, and the capacity of {model} on {where} is "
                f"{answer.capacity:.3g} req/s, {tokens}. The queue grows without bound, so no latency is stated; lower "
                "--rate or add GPUs."
            )
            found = [lead]
        else:
            found = [f"{model} on {where}: {_latencies(answer)}; {answer.requests_per_s:.3g} req/s, {tokens}."]
        if answer.slo_attainment is not None and min(answer.objective) < float("inf"):
            slo = objective_words(answer.objective)
            found.append(
                f"Goodput {answer.goodput:.3g} req/s: SLO attainment {percent(answer.slo_attainment)} ({slo})."
            )
        found += [*_most_clients(answer), *_too_few(answer), *_straggler(answer.late), *cost_sentences(answer)]
        return [*found, _memory(answer), _bound(answer), *_first_token(answer), *answer.needs]

    def notes(self) -> list[str]:
        """Return what is assumed, and last how sure this is."""
        error = self.answer.error
        return [
            *_window_note(self.answer),
            *self.answer.notes,
            *([f"TPOT: {error.why}."] if error else []),
            _SURE,
        ]

    def tables(self) -> list[Table]:
        """Latencies, what the replicas do, and the mean step."""
        answer = self.answer
        mean = answer.mean_iteration["seconds"]
        step = waterfall_table(answer.iteration_parts, mean, "The mean iteration: where its time goes", "an iteration")
        latencies = [] if answer.overloaded else [latency_table(answer, self.title())]
        return [*latencies, load_table(answer), step]

    def on_terminal(self) -> list[Table]:
        """Latencies, throughput against interactivity, and the mean step; sentences say the rest."""
        *latencies, _, step = self.tables()
        return [*latencies, *curve_table(self.answer), step]

    def rows(self) -> list[dict[str, Any]]:
        """The requests, for --csv; without times above capacity, where these only say how long the load lasted."""
        found, answer = columns(self.answer.requests), self.answer
        if answer.overloaded:
            kept = ("arrival", "input", "output", "replica")
            found = {name: found[name] for name in kept}
            found |= {"overloaded": [True] * answer.completed, "capacity_per_s": [answer.capacity] * answer.completed}
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

    def figures(self) -> Sequence[Figure]:
        """Return the load over time, the distribution of latencies, steps, and throughput against interactivity."""
        answer = self.answer
        curve = [curve_figure(answer)] if len(answer.curve) > 1 else []
        distributed = [] if answer.overloaded else [distribution(answer)]
        return [over_time(answer), *distributed, steps_figure(answer), *curve]

    def sections(self) -> list[Part]:
        """Return what happens over time, latencies, steps."""
        *latencies, replicas, step = self.tables()
        figures = list(self.figures())
        time, distributed = figures[0], figures[1 : 1 + len(latencies)]
        steps, *curve = figures[1 + len(latencies) :]
        return [
            time,
            Section("Latencies", [*distributed, *latencies]),
            Section("Throughput against interactivity", [*curve, *curve_table(self.answer)]),
            Section("Iterations", [steps, step]),
            Section("Replicas", [replicas]),
            *_power(self.answer),
        ]


def _power(answer: Serving) -> list[Section]:
    """Return what draws the power of a GPU, where it was asked for."""
    if answer.energy is None:
        return []
    from weft.view.energy import power_section

    return power_section(answer.energy)


def _straggler(late: ServingDelay | None) -> list[str]:
    """Return what a slow part costs, and who waits for it, in a sentence."""
    if late is None:
        return []
    alone = late.replicas == 1
    axes = f", whose {' and '.join(one.upper() for one in late.axes)} ranks wait for it" if late.axes else ""
    lead = (
        f"Straggler: {late.straggler.words} makes iterations of {late.replicas} replica{'s' * (not alone)} "
        f"{late.own - 1:.1%} longer{axes}"
    )
    if late.own == 1:
        lead = f"Straggler: {late.straggler.words} lengthens no iteration, as no collective of a replica waits for it"
    before, after = late.output_tokens_per_s
    said = f"output tokens/s {before:,.0f} to {after:,.0f} ({after / before - 1:+.1%})"
    if late.tpot_s:
        before, after = late.tpot_s
        reaching = f", {percent(late.reaching)} of the iterations' delay" if late.reaching is not None else ""
        said = f"mean TPOT {seconds(before)} to {seconds(after)} ({after / before - 1:+.1%}{reaching}); {said}"
    return [f"{lead}: {said}."]


def cost_sentences(answer: Serving) -> list[str]:
    """Return what a million tokens cost, and what GPUs draw, in sentences, as far as that was asked for."""
    drawn: list[str] = []
    if answer.terms:
        from weft.view.energy import energy_sentences

        drawn = energy_sentences(answer.energy, "output token")
    cost, price = answer.costs, answer.price
    if cost is None or price is None:
        return drawn
    lead = f"Cost: {price.text(cost.output)} for a million output tokens{_between(cost.interval, price.text)}"
    apart = f"of prompt and output tokens apart {price.text(cost.prompt)} and {price.text(cost.decode)}"
    return [f"{lead}; {apart}.", *drawn]


def _between(range_: tuple[float, float] | None, written: Callable[[float], str]) -> str:
    """Return the 80 % interval of its class, to follow a value; nothing where none is known."""
    return f"; 80 % interval {written(range_[0])} to {written(range_[1])}" if range_ else ""


def _latencies(answer: Serving) -> str:
    """Return mean and p99 of TTFT and TPOT in words."""
    ttft, tpot = answer.ttft or {}, answer.tpot
    words = f"TTFT {seconds(ttft['mean'])} (p99 {seconds(ttft['p99'])})"
    if tpot:
        sure = _between(answer.tpot_interval, seconds)
        words += f", TPOT {seconds(tpot['mean'])} (p99 {seconds(tpot['p99'])}{sure})"
    return words


def _most_clients(answer: Serving) -> list[str]:
    """Return which of the swept numbers of clients is the largest whose mean TPOT meets its SLO, in words."""
    limit = answer.objective.tpot
    if len(answer.curve) < 2 or limit == float("inf"):
        return []
    timed = [(one.clients, 1 / one.tokens_per_s_per_user) for one in answer.curve if one.tokens_per_s_per_user]
    met = [one for one in timed if one[1] <= limit]
    if not met:
        return [f"No number of clients of the sweep has a mean TPOT <= {seconds(limit)}."]
    clients, tpot = max(met)
    above = min((one for one in timed if one[0] > clients), default=None)
    beyond = (
        f"; {above[0]:,} clients have {seconds(above[1])}" if above else "; a larger --concurrency may meet it, too"
    )
    return [f"Most clients of the sweep with a mean TPOT <= {seconds(limit)}: {clients:,} ({seconds(tpot)}){beyond}."]


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
    found = answer.counted_requests
    lifetime = sum(one.done - one.arrival for one in found) / len(found)
    count = 1.15 * answer.offered * (WARM_UP + LIFETIMES) * lifetime
    if not count < float("inf"):
        return [f"{lead}; all requests arrive at once."]
    return [f"{lead}: give about --requests {_rounded_up(max(count, 100)):,}, or leave it out."]


def _rounded_up(count: float) -> int:
    """Return a count rounded up to two digits."""
    unit: int = 10 ** max(len(str(int(count))) - 2, 0)
    return -(-int(count) // unit) * unit


def _window_note(answer: Serving) -> list[str]:
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
    """Return the SLOs in words, such as "TTFT <= 500 ms and TPOT <= 20 ms"."""
    limits = {"TTFT": wanted.ttft, "TPOT": wanted.tpot}
    return " and ".join(f"{what} <= {seconds(limit)}" for what, limit in limits.items() if limit < float("inf"))


def _memory(answer: Serving) -> str:
    """Return capacity and use of the KV cache, and how many requests run and wait, in words."""
    words = (
        f"KV cache: {answer.cache_tokens:,} tokens per replica, {percent(answer.mean_memory)} used on average, "
        f"{percent(answer.peak_memory)} at peak"
    )
    if answer.preemptions:
        words += f", {answer.preemptions:,} preemptions"
    waiting = "" if answer.mean_waiting is None else f", {answer.mean_waiting:,.1f} waiting"
    return f"{words}. Requests per replica: {answer.mean_running:,.1f} running on average{waiting}."


_BUSY = 0.9
"""Share of the time below which replicas are idle enough to say so [assumed, 0.8 to 0.95]."""


def _bound(answer: Serving) -> str:
    """Return what limits the throughput, in a sentence."""
    step, parts = answer.mean_iteration, answer.iteration_parts
    most = max(parts, key=lambda name: parts[name])
    what = {
        "gemm": "GEMMs", "grouped_gemm": "GEMMs of experts", "exposed tp": "exposed TP communication",
        "exposed ep": "exposed MoE dispatch and combine", "draft": "the drafter",
        "scan": "scans of linear layers",
    }  # fmt: skip
    took = step["seconds"]
    share = f"the mean iteration takes {seconds(took)}, {percent(parts[most] / took)} of it {what.get(most, most)}"
    for limit, of_time in answer.blocked_on.items():
        if of_time > 0.1:
            return f"Requests wait for {limit} {percent(of_time)} of the time; {share}."
    if answer.pools:
        return f"{_pools(answer, answer.pools)}; {share}."
    if answer.busy < _BUSY:
        return f"Not saturated: replicas are idle {percent(1 - answer.busy)} of the time; {share}."
    return f"Replicas are busy {percent(answer.busy)} of the time; {share}."


def _first_token(answer: Serving) -> list[str]:
    """Return where the mean TTFT goes: client and server around the engine, its queue, prefill iterations."""
    if answer.overloaded:
        return []
    prefill, queue, outside = (seconds(answer.parts[name]) for name in ("prefill", "queue", "outside"))
    return [f"Mean TTFT: {prefill} prefill iterations, {queue} queue, {outside} server outside the engine."]


def _pools(answer: Serving, pools: Pools) -> str:
    """Return which pool of disaggregated workers is the bottleneck, and what one worker more adds, in words."""
    gains = (
        f"{pools.more_prefill:.3g} with one more prefill worker, {pools.more_decode:.3g} with one more decode worker"
    )
    bound = "prefill and decode balanced" if pools.bottleneck == "both" else f"{pools.bottleneck}-bound"
    if answer.overloaded:
        return f"{bound.capitalize()}: capacity {pools.capacity:.3g} req/s ({gains})"
    return f"Not saturated: {bound} at a capacity of about {pools.capacity:.3g} req/s ({gains})"


def latency_table(answer: Serving, title: str) -> Table:
    """Return mean and percentiles of each latency; empty cells where they grow without end."""
    found = {
        "TTFT": answer.ttft,
        "TPOT": answer.tpot,
        "end-to-end": answer.latency,
    }
    rows = [(name, *(None if each is None else each[one] * 1e3 for one in STATISTICS)) for name, each in found.items()]
    heads = [number(f"{one}_ms", one, "ms", ",.1f") for one in STATISTICS]
    return Table([text("latency"), *heads], rows, title)


def load_table(answer: Serving) -> Table:
    """Return a row for each replica: its iterations, tokens, share of time busy, and peak KV-cache use."""
    rows, prefills = [], answer.plan.prefill_replicas
    for replica in range(answer.replicas):
        iterations = [iteration for iteration in answer.iterations if iteration.replica == replica]
        what = "both" if not prefills else "prefill" if replica < prefills else "decode"
        busy = sum(iteration.end - iteration.start for iteration in iterations)
        rows.append(
            (
                replica,
                what,
                sum(iteration.steps for iteration in iterations),
                sum(iteration.prompt for iteration in iterations),
                sum(iteration.written for iteration in iterations),
                busy / answer.span,
                max((iteration.used for iteration in iterations), default=0) / answer.cache_of(replica),
            )
        )
    heads = [
        number("replica"), text("what"), number("iterations"), number("prefill_tokens", "prefill tokens"),
        number("decode_tokens", "decode tokens"), number("busy", format_=".1%"),
        number("kv_peak_share", "KV cache, peak", format_=".1%"),
    ]  # fmt: skip
    return Table(heads, rows, "Replicas")


def over_time(answer: Serving) -> Figure:
    """Return tokens, requests and memory over time, one below the other."""
    moments = answer.over_time()
    until = answer.span
    tokens = Table(
        [number("start_s", "time", "s", ",.1f"), number("end_s", "until", "s", ",.1f"),
         number("prefill", "prefill", format_=",.0f"), number("decode", "decode", format_=",.0f")],
        [(one.start, one.end, one.prompt, one.answers) for one in moments],
    )  # fmt: skip
    most = max(one.prompt + one.answers for one in moments)
    first = areas(
        "Tokens per second", tokens, x=Axis("start_s", domain=[0, until]), until="end_s", looks=_TOKENS,
        limit=(most, f"{most:,.0f} tokens/s"), height=150, name="tokens",
    )  # fmt: skip
    requests = _lines(moments, "requests", [("running", lambda one: one.running), ("waiting", lambda one: one.waiting)])
    memory = _lines(moments, "share", [("KV cache", lambda one: one.memory)])
    return stack_figures(
        "Requests and KV cache over time",
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
                "KV cache in use",
                memory,
                x=Axis("time_s", domain=[0, until]),
                y=Axis("share", percent=True),
                series="what",
                name="memory",
            ),
        ],
        "Means over equal intervals: tokens and requests of all replicas, and the share of their KV cache in use.",
        titled=True,
    )


def _lines(moments: Sequence[Any], name: str, series: Sequence[tuple[str, Any]]) -> Table:
    format_ = ".1%" if name == "share" else ",.1f"
    rows = [(one.start, what, value(one)) for what, value in series for one in moments]
    return Table([number("time_s", "time", "s", ",.1f"), text("what"), number(name, format_=format_)], rows)


def distribution(answer: Serving) -> Figure:
    """Return the shares of the requests up to a latency."""
    found = {
        "TTFT": [one.ttft for one in answer.timed_requests],
        "TPOT": [one.tpot for one in answer.timed_requests if one.output > 1],
        "end-to-end": [one.done - one.arrival for one in answer.timed_requests],
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
        "Latency distribution",
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
    return figure.with_caption("Share of requests with at most this latency; TPOT is the mean ITL of a request.")


def _decades(times: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten among times [s]."""
    found = (digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5))
    return [one for one in found if min(times) <= one <= max(times)]


def steps_figure(answer: Serving) -> Figure:
    """Steps in the middle of the load, one bar each, equal ones of decode tokens together."""
    middle = len(answer.iterations) // 2
    iterations = answer.iterations[max(middle - _TURNS_DRAWN // 2, 0) :][:_TURNS_DRAWN]
    begin = iterations[0].start
    rows = []
    for iteration in iterations:
        kind = "both" if iteration.decodes and iteration.prefills else "prefill" if iteration.prefills else "decode"
        start, end = (iteration.start - begin) * 1e3, (iteration.end - begin) * 1e3
        rows.append(
            (
                f"replica {iteration.replica}",
                start,
                end,
                kind,
                iteration.steps,
                iteration.decodes,
                iteration.prompt,
                iteration.waiting,
            )
        )
    heads = [
        text("replica"),
        number("start_ms", "start", "ms", ",.1f"),
        number("end_ms", "end", "ms", ",.1f"),
        text("kind"),
        number("iterations"),
        number("decodes", "decode requests"),
        number("prompt", "prefill tokens"),
        number("waiting"),
    ]
    table = Table(heads, sorted(rows))
    figure = timeline_bars(
        "Engine iterations", table, lane="replica", start="start_ms",
        end=Axis("end_ms", title=f"time since {begin:,.1f} s [ms]", domain=True), color=Color("kind", _KINDS),
        name="steps",
    )  # fmt: skip
    return figure.with_caption(
        "Iterations in the middle of the load; consecutive decode iterations of the same batch are one bar."
    )


def curve_figure(answer: Serving) -> Figure:
    """Throughput of a GPU over what each client sees, a dot for each number of clients."""
    heads = [
        number("user", "tokens/s per user", format_=",.1f"),
        number("gpu", "tokens/s per GPU", format_=",.1f"), text("what"), text("clients"), text("said", " "),
    ]  # fmt: skip
    at = [(one.tokens_per_s_per_user, one.tokens_per_s_per_gpu) for one in answer.curve]
    said = _apart(at)
    rows = [
        (*place, answer.policy, f"{one.clients:,}", f"{one.clients:,}" * shown)
        for one, place, shown in zip(answer.curve, at, said, strict=True)
    ]
    figure = curves(
        "Throughput per GPU against interactivity", Table(heads, rows), x="user", y="gpu", color=Color("what"),
        over=[Words("said", ringed=False)],
    )  # fmt: skip
    return figure.with_caption("A dot for each number of concurrent clients (closed loop).")


def curve_table(answer: Serving) -> list[Table]:
    """Return a table of TPOT and throughput for each number of clients of a sweep; nothing without one."""
    if len(answer.curve) < 2:
        return []
    heads = [
        number("clients", "clients"), number("tpot_ms", "TPOT, mean", "ms", ",.1f"),
        number("user", "tokens/s per user", format_=",.1f"), number("gpu", "tokens/s per GPU", format_=",.1f"),
    ]  # fmt: skip
    rows = [
        (one.clients, 1e3 / one.tokens_per_s_per_user if one.tokens_per_s_per_user else None, *one[1:])
        for one in answer.curve
    ]
    return [Table(heads, rows, "Throughput against interactivity: concurrent clients (closed loop)")]


def _apart(dots: Sequence[tuple[float, float]]) -> list[bool]:
    """Return which dots are named: those whose words lie apart on a narrow page, the last and the first before the
    others.
    """
    left, right, top = min(x for x, _ in dots), max(x for x, _ in dots), max(y for _, y in dots)
    at = [((x - left) / (right - left or 1) * 290, y / (top or 1) * 280) for x, y in dots]  # [px]
    named: list[int] = []
    for one in [len(dots) - 1, *range(len(dots) - 1)]:
        if all(abs(at[one][0] - at[other][0]) > 36 or abs(at[one][1] - at[other][1]) > 16 for other in named):
            named.append(one)
    return [one in named for one in range(len(dots))]
