"""Plans of serving: the fewest GPUs that meet an objective, the front of throughput over speed, and what is out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.report import Part, Section
from weft.core.report.table import Table, number, text
from weft.plan.serving import EVERY
from weft.plan.serving_plans import Deployed, ServingPlans
from weft.view.figure import Figure
from weft.view.planner import PlanReport, front_figure
from weft.view.serving import cost_sentences, distribution, objective_words, over_time
from weft.view.shares import seconds
from weft.view.words import percent

_THIN = f"Above {EVERY} replicas, numbers are tried in steps of 3 %; --replicas asks about any other."
_SURE = (
    "expected error: as `weft serve` with the same options, whose figures these are; iteration times carry the errors "
    "of closed forms, so benchmark the first few plans under your own load"
)


class ServingPlansReport(PlanReport[ServingPlans]):
    """A plan of serving: the best layout and how to start it, the front, and why others fall."""

    explained = "serving"

    def title(self) -> str:
        """Return the model, the load and the machine on one line."""
        answer = self.answer
        return f"{answer.model.title} on {answer.system.name}, {answer.framework}: plan of {answer.load}"

    def sentences(self) -> list[str]:
        """Return the layout, what it gives, what the front offers, and how the search went."""
        answer = self.answer
        wanted = f"{percent(answer.attainment)} SLO attainment ({objective_words(answer.objective)})"
        counts = (
            f"{answer.searched:,} plans searched: {answer.bounded:,} excluded by bounds from iteration times, "
            f"{answer.simulated:,} simulated."
        )
        if answer.unknown:
            counts += f" The search ran out of time before {answer.unknown:,} of them: a better plan may exist."
        if not answer.best:
            return [*_none(answer, wanted), counts]
        best = answer.best
        model = f"{answer.model.title} ({best.serving.format.words})"
        return [
            f"Serve {model} on {best.gpus} of {answer.system.gpus} GPUs: {best.words}.",
            _best_words(answer, best),
            *_sure_words(answer, best),
            *_more(answer, best),
            *cost_sentences(best.serving),
            counts,
        ]

    def notes(self) -> list[str]:
        """Return what is assumed, and last how sure this is."""
        shown = self.answer.best or self.answer.nearest
        thin = [_THIN] if shown and (shown.plan.replicas or 1) > EVERY else []
        return [*(shown.serving.notes if shown else ()), *thin, _SURE]

    def table(self) -> Table:
        """Return the layouts that no other one beats in GPUs and in speed for each user."""
        answer = self.answer
        shown = answer.front or ((answer.nearest,) if answer.nearest else ())
        title = "Pareto front of GPUs and tokens/s per user" if answer.front else "The nearest plan"
        return layout_table(answer, shown, title)

    def rows(self) -> list[dict[str, Any]]:
        """Return the layouts that served the whole load, for --csv."""
        return layout_table(self.answer, self.answer.tried).records()

    def front(self) -> Figure:
        """Return tokens per second of each GPU over those of each user, a dot for each layout."""
        answer = self.answer

        def table(layouts: Sequence[Deployed]) -> Table:
            whole = layout_table(answer, sorted(layouts, key=lambda one: one.tokens_per_s_per_user))
            rows = [(*row[:-1], "best" * (row[-1] == "best"), "front") for row in whole.rows]
            return Table([*whole.columns, text("series", " ")], rows)

        return front_figure(
            "Pareto front of throughput and interactivity",
            table(answer.front),
            table(answer.tried),
            "A dot for each plan that served the whole load; plans on the line are not dominated in GPUs and "
            "tokens/s per user. Point at a dot for its options.",
            x="user",
            y="gpu",
            series="series",
        )

    def own_figures(self) -> list[Figure]:
        """Return the load of the best plan, or of the nearest, over time."""
        shown = self.answer.best or self.answer.nearest
        own = [over_time(shown.serving)] if shown else []
        return [*own, *([distribution(shown.serving)] if shown and not shown.serving.overloaded else [])]

    def figures(self) -> list[Figure]:
        """Return the front, and the load of the best plan over time."""
        return [*super().figures(), *self.own_figures()]

    def own_sections(self) -> list[Part]:
        """Return the load on the plan."""
        return [Section("The load on it" if self.answer.best else "The load on the nearest", self.own_figures())]


def _best_words(answer: ServingPlans, best: Deployed) -> str:
    return (
        f"SLO attainment {percent(best.serving.slo_attainment or 0.0)} of {objective_words(answer.objective)} (target "
        f"{percent(answer.attainment)}); {best.tokens_per_s_per_user:,.0f} tokens/s per user, "
        f"{best.tokens_per_s_per_gpu:,.0f} output tokens/s per GPU."
    )


def _sure_words(answer: ServingPlans, best: Deployed) -> list[str]:
    """Return whether the TPOT meets its limit at the upper end of its 80 % interval, or which plan does, in words."""
    limit = answer.objective.tpot
    if not best.tpot_interval_s or limit == float("inf"):
        return []
    low, high = map(seconds, best.tpot_interval_s)
    said = f"TPOT {seconds(best.tpot)} (80 % interval {low} to {high})"
    if best.meets_at_upper_end:
        return [f"{said} meets its SLO at the upper end, too."]
    safest = answer.safest
    then = f"{safest.gpus} GPUs meet it ({safest.words})" if safest else "no plan on the Pareto front meets it"
    return [f"{said} may miss its SLO of {seconds(limit)}: at the upper end {then}."]


def _none(answer: ServingPlans, wanted: str) -> list[str]:
    found = answer.nearest
    lead = f"No plan on {answer.system.gpus} GPUs of {answer.system.name} reaches {wanted}."
    if not found:
        return [lead]
    serving = found.serving
    close = (
        f"Nearest: {found.words}, SLO attainment {percent(serving.slo_attainment or 0.0)}: {answer.limit}; add GPUs, "
        "lower the rate, or relax the SLOs."
    )
    return [lead, close]


def _more(answer: ServingPlans, best: Deployed) -> list[str]:
    """Return what the fastest layout of the front buys, in a sentence."""
    fastest = max(answer.front, key=lambda one: one.tokens_per_s_per_user, default=best)
    if fastest.gpus <= best.gpus:
        return []
    return [f"With {fastest.gpus} GPUs: {fastest.tokens_per_s_per_user:,.0f} tokens/s per user ({fastest.words})."]


def layout_table(answer: ServingPlans, layouts: Sequence[Deployed], title: str = "") -> Table:
    """Layouts with what they serve."""
    rows = []
    for one in layouts:
        serving, ttft = one.serving, one.serving.ttft or {}
        mark = "best" if answer.best and one.plan == answer.best.plan else "meets" if one.meets else "misses"
        rows.append(
            (
                one.gpus, one.words, one.tokens_per_s_per_user, one.tokens_per_s_per_gpu, serving.slo_attainment,
                _ms(ttft.get("p90")), _ms(one.tpot), serving.peak_memory, mark,
            )
        )  # fmt: skip
    heads = [
        number("gpus", "GPUs"), text("plan"), number("user", "tokens/s per user", format_=",.1f"),
        number("gpu", "tokens/s per GPU", format_=",.1f"), number("slo_attainment", "SLO attainment", format_=".1%"),
        number("ttft_ms", "TTFT, p90", "ms", ",.0f"), number("tpot_ms", "TPOT", "ms", ",.1f"),
        number("kv_peak_share", "KV cache, peak", format_=".1%"), text("mark", "SLOs"),
    ]  # fmt: skip
    return Table(heads, rows, title)


def _ms(seconds_: float | None) -> float | None:
    """Milliseconds; None for none, and for a time without end."""
    return None if seconds_ is None or seconds_ == float("inf") else seconds_ * 1e3
