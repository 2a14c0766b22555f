"""Training plans: a verdict, the best plans, the front of time and memory, maps of choices, and how to start them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

from weft.core.report import Part, Section
from weft.core.report.table import Table, number, text
from weft.models.parallel.plan_text import changes, words
from weft.plan.plans import signed_seconds
from weft.view import looks
from weft.view.figure import Color, Figure, Label, choice_map, stacked_bars, timeline_bars
from weft.view.pipeline import schedule_with_memory
from weft.view.planner import PlanReport, front_figure
from weft.view.shares import colors, label, order_parts, seconds
from weft.view.words import sentence

if TYPE_CHECKING:
    from weft.plan.plans import Planned, Plans

_CHOICES = {"tp": "TP", "pp": "PP", "cp": "CP", "ep": "EP", "dp": "DP", "micro_batch": "micro-batch",
            "schedule": "schedule", "zero": "ZeRO", "sp": "SP", "recompute": "recomputation",
            "dispatcher": "dispatcher"}  # fmt: skip
"""Choices that tables and maps compare, with their heads."""
_LABELS = {**_CHOICES, "recompute": "recompute"}
_MOST_DOTS = 1500
_LEAST_CHANGE = 1e-3
"""Share of the step below which the difference of a part is added to the others."""


def verdict(answer: Plans) -> list[str]:
    """The answer in five sentences: the plan, its time, its memory and what binds, the runner-up, and what is tied."""
    best = answer.best
    low, high = best.interval_s
    room = f"{best.peak_bytes / 1e9:.1f} GB of {best.capacity / 1e9:.0f} GB"
    where = f"{best.gpus:,} GPUs of {answer.system.name}"
    run = f"Run {answer.model.title} on {where} with {words(best.plan)}, as {best.setting.framework.name} does."
    rate = f"{best.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU {best.mfu:.1%} of the {best.plan.dtype} peak"
    return [
        run,
        f"Step time {seconds(best.step_time_s)} (80 % interval {seconds(low)} to {seconds(high)}), {rate}.",
        f"Peak memory {room} per GPU: {best.why}.",
        f"{answer.runner_up}." if answer.runner_up else "No other plan fits.",
        _ties(answer),
        *_launcher_sentence(answer),
    ]


def _launcher_sentence(answer: Plans) -> list[str]:
    """Whose launch file it is, and what the same plan takes under the other launchers, in a sentence."""
    if not answer.launcher:
        return []
    others = (
        f"{name} cannot run it ({one})"
        if isinstance(one, str)
        else f"with {one.setting.framework.name}'s defaults it takes {seconds(one.step_time_s)} and "
        f"{one.peak_bytes / 1e9:.1f} GB{' and does not fit' * (not one.feasible)}"
        for name, one in answer.elsewhere.items()
    )
    timed = " in closed forms" * (answer.best.fidelity != "estimate")
    took = f"{seconds(answer.best.estimated_s)}{timed}"
    return [f"The launch file is for {answer.launcher}, where the plan takes {took}; {'; '.join(others)}."]


def cost(answer: Plans) -> list[str]:
    """Return what a million tokens cost under the best plan, and what it draws, as far as that was asked for."""
    drawn: list[str] = []
    if answer.terms:
        from weft.view.energy import energy_sentences

        drawn = energy_sentences(answer.energy)
    if answer.price is None:
        return drawn
    price, best = answer.price, answer.best
    value = answer.million_tokens(best)
    low, high = (price.text(value * end / best.step_time_s) for end in best.interval_s)
    least = "" if answer.objective == "cost" else "; --objective cost finds the plan and number of GPUs with the least"
    return [f"Cost: {price.text(value)} for a million tokens (80 % interval {low} to {high}){least}.", *drawn]


def between(answer: Plans) -> Iterator[str]:
    """Yield the fastest plan with each of several values that were stated for a field, a sentence for each field."""
    for name in answer.between:
        fastest = _fastest((str(_choice(one, name)), one) for one in answer.timed if name in _CHOICES)
        if len(fastest) > 1:
            said = (f"{value}: {seconds(took)}" for value, took in fastest)
            yield f"The fastest plan by {_CHOICES[name]}: {', '.join(said)}."


def by_framework(answer: Plans) -> list[str]:
    """The fastest of the plans that were timed under each framework, in a sentence; nothing for one of them."""
    fastest = _fastest((one.setting.framework.name, one) for one in answer.timed)
    said = (f"{name} {seconds(took)}" for name, took in fastest)
    return [f"The fastest of the plans timed by framework: {', '.join(said)}."] if len(fastest) > 1 else []


def _fastest(named: Iterable[tuple[str, Planned]]) -> list[tuple[str, float]]:
    """Return the least step time of each name, fastest first [s]."""
    found: dict[str, float] = {}
    for name, one in named:
        found[name] = min(one.step_time_s, found.get(name, one.step_time_s))
    return sorted(found.items(), key=lambda pair: pair[1])


def _ties(answer: Plans) -> str:
    tied, known = _count_tied(answer), f"step times: {answer.evidence}"
    if not tied:
        return f"No other plan is so near that it could be faster; {known}."
    others = f"{tied} other plan{'s' * (tied > 1)} of the {len(answer.plans)} best"
    last = next(one for one in reversed(answer.plans) if one.tied)
    return f"Weft cannot resolve whether {others} are faster ({last.ratio_error(answer.best).why}); {known}."


def _count_tied(answer: Plans) -> int:
    return sum(one.tied for one in answer.plans[1:])


def warnings(answer: Plans) -> list[str]:
    """Return what to do about plans that are tied; nothing if none is."""
    if not _count_tied(answer):
        return []
    return ["warning: the best plans are tied; time the first few for some steps on your machine before a long run"]


def counts(answer: Plans) -> str:
    """Return how many plans were searched, are out and were timed again, in a sentence."""
    out = sum(answer.rejected.values())
    again = (
        f"; the best {answer.refined} were timed again with the engine's windows, which moved {answer.moved} of them"
        if answer.refined
        else ", all in closed forms"
    )
    return f"{answer.searched:,} plans in {answer.wall_s:.1f} s, {out:,} of them infeasible{again}."


def plan_table(answer: Plans) -> Table:
    """The best plans, best first; columns in which all are alike are left out, but for the first degrees, of a mixture
    also the experts' and the library that exchanges tokens.
    """
    rows = [
        (
            rank, *(_choice(one, name) for name in _CHOICES), one.setting.framework.name, one.gpus, one.fidelity,
            one.step_time_s, one.tokens_per_s_per_gpu, one.mfu, one.peak_bytes / 1e9, _against(rank, one),
        )
        for rank, one in enumerate(answer.plans, 1)
    ]  # fmt: skip
    columns = [
        number("rank", "#"),
        *(number(key, head) if key in ("tp", "pp", "cp", "ep", "dp", "micro_batch", "zero") else text(key, head)
          for key, head in _CHOICES.items()),
        text("framework"), number("gpus", "GPUs"), text("fidelity", "timed by"),
        number("step_s", "step", "s", ".4g"),
        number("tokens_per_s_per_gpu", "tokens/s per GPU", spare=True, format_=",.0f"),
        number("mfu", "MFU", format_=".1%"), number("peak_gb", "memory", "GB", ".1f"), text("tied", "against the best"),
    ]  # fmt: skip
    whole = Table(columns, rows, f"The best {len(rows)} plans by {answer.objective}")
    mixed = ["ep", "dispatcher"] if answer.model.experts else []
    kept = ["rank", "tp", "pp", "dp", "step_s", "peak_gb", "tied", "mfu", "tokens_per_s_per_gpu", *mixed]
    alike = [key for key in whole.keys if key not in kept and len(whole.distinct(key)) == 1]
    return whole.without(alike) if len(rows) > 1 else whole


def _against(rank: int, one: Planned) -> str:
    return "" if rank == 1 else "tied" if one.tied else "slower"


def _choice(one: Planned, name: str) -> str | int:
    plan = one.plan
    if name == "schedule":
        return plan.schedule if plan.pp > 1 else "none"
    if name == "recompute":
        return plan.recompute_words
    if name == "sp":
        return "yes" if plan.sp else "no"
    if name == "dispatcher":
        return (plan.dispatcher or one.setting.framework.dispatcher) if plan.ep > 1 else "none"
    value: int = getattr(plan, name)
    return value


def front(answer: Plans) -> Figure:
    """Step time and memory of all plans that fit, and the front of those that no other one beats in both, by GPUs."""
    columns = [
        number("step_s", "step time", "s", ".4g"), number("peak_gb", "memory of the fullest GPU", "GB", ".1f"),
        text("gpus", "GPUs"), text("plan"), text("mark", " "),
    ]  # fmt: skip

    def table(plans: Sequence[Planned]) -> Table:
        rows = [
            (
                one.step_time_s,
                one.peak_bytes / 1e9,
                f"{one.gpus:,} GPUs",
                _plan_name(one, answer),
                "best" * (one.plan == answer.best.plan),
            )
            for one in sorted(plans, key=lambda one: (one.gpus, one.step_time_s))
        ]
        return Table(columns, rows)

    near = [one for one in answer.fitting if one.step_time_s <= 3 * answer.best.step_time_s]
    line = table([one for one in answer.front if one.step_time_s <= 3 * answer.best.step_time_s] or answer.plans[:1])
    return front_figure(
        "What does less memory cost in time?",
        line,
        table(near[:: -(-len(near) // _MOST_DOTS) or 1]),
        "Each dot is a plan that fits, up to three times the best time; no plan is below and left of the line.",
        x="step_s",
        y="peak_gb",
        series="gpus",
        steps=True,
    )


def _plan_name(one: Planned, answer: Plans) -> str:
    mixed = len({each.setting.framework.name for each in answer.plans}) > 1
    return words(one.plan) + (f" ({one.setting.framework.name})" if mixed else "")


def choices_map(answer: Plans, columns: str = "tp", rows: str = "pp") -> Figure:
    """The least step time for every two choices, `columns` across and `rows` down; a page lets one change both."""
    said = {name: {str(_choice(one, name)) for one in answer.fitting} for name in _CHOICES}
    varied = [name for name in _CHOICES if len(said[name]) > 1]
    wanted = [name for name in (columns, rows) if name in varied]
    pairs = sorted(permutations(varied if len(varied) > 1 else [columns, rows], 2), key=lambda two: list(two) != wanted)
    cells = [
        (_CHOICES[across], _CHOICES[down], *cell, best.step_time_s, best.peak_bytes / 1e9, words(best.plan))
        for across, down in pairs
        for cell, best in _best_of(answer, across, down)
    ]
    heads = [
        text("columns"), text("rows"), text("across", "column"), text("down", "row"),
        number("step_s", "step", "s", ".4g"), number("peak_gb", "memory", "GB", ".1f"), text("plan"),
    ]  # fmt: skip
    return choice_map(
        "Which choices matter? Step time [s] of the best plan with both",
        Table(heads, cells),
        pair=("columns", "rows"),
        cell=("across", "down"),
        value="step_s",
    ).with_caption("Dark is fast; white takes twice the best time or more; without a cell, no plan can run.")


def _best_of(answer: Plans, across: str, down: str) -> Iterator[tuple[tuple[str, str], Planned]]:
    """Return the fastest plan for each two choices."""
    found: dict[tuple[str, str], Planned] = {}
    for one in answer.fitting:
        cell = _choice_label(one, across), _choice_label(one, down)
        if cell not in found or one.step_time_s < found[cell].step_time_s:
            found[cell] = one
    return iter(found.items())


def difference(answer: Plans) -> Figure:
    """The runner-up's step against the best one's, part by part [s]: each bar begins where the one before it ends."""
    best, second = (one.step().parts for one in answer.plans[:2])
    second_is_faster = answer.plans[1].step_time_s < answer.best.step_time_s
    grown = {name: second.get(name, 0.0) - best.get(name, 0.0) for name in order_parts({**best, **second})}
    least = _LEAST_CHANGE * answer.best.step_time_s
    shown = {label(name): change for name, change in grown.items() if abs(change) >= least}
    rest = sum(grown.values()) - sum(shown.values())
    rows, at = [], 0.0
    for name, change in {**shown, **({"all else": rest} if rest else {})}.items():
        ends = sorted((at, at := at + change))
        rows.append((name, "longer" if change > 0 else "shorter", *ends, signed_seconds(change)))
    rows.append(("the step", "in all", 0.0, at, signed_seconds(at)))
    columns = [text("lane", "part"), text("kind", " "), number("from_s", " "),
               number("until_s", "runner-up minus best", "s", "+.3g"), text("said", " ")]  # fmt: skip
    return timeline_bars(
        "What does the faster runner-up do?" if second_is_faster else "Why is the runner-up not the best?",
        Table(columns, rows), lane="lane", start="from_s", end="until_s",
        color=Color("kind", {"longer": looks.RED, "shorter": looks.GREEN, "in all": looks.GREY}), over=[Label("said")],
    ).with_caption(
        f"Seconds of a step that the runner-up spends more or less, of {seconds(answer.best.step_time_s)}."
    )  # fmt: skip


def waterfalls(answer: Plans) -> Figure:
    """Return where the steps of the best plans go."""
    rows = [
        (f"{rank}: {_short(one)}", label(name), one.step().parts[name], _plan_name(one, answer))
        for rank, one in enumerate(answer.plans, 1)
        for name in order_parts(one.step().parts)
    ]
    columns = [text("lane", "plan"), text("part"), number("time_s", "time", "s", ",.3f"), text("words", "is")]
    table = Table(columns, rows)
    return stacked_bars(
        "Where do the steps go?", table, lane="lane", value="time_s", color=Color("part", colors(table)),
    )  # fmt: skip


def _short(one: Planned) -> str:
    """Return the degrees of a plan but for its replicas."""
    degrees = (f"{axis.upper()} {one.plan.degree(axis)}" for axis in ("tp", "pp", "cp", "ep"))
    return ", ".join(said for said in degrees if not said.endswith(" 1")) or f"DP {one.plan.dp}"


def _choice_label(one: Planned, name: str) -> str:
    """Return a choice with its name: "TP 8", "micro-batch 2", "1f1b", "full recomputation" as "recompute full"."""
    return f"{'' if name == 'schedule' else _LABELS[name]} {_choice(one, name)}".strip()


class PlansReport(PlanReport["Plans"]):
    """The best plans of a model on a system, and why others are not."""

    explained = "plans"

    def title(self) -> str:
        """Return the question on one line."""
        answer = self.answer
        plan = answer.best.plan
        on = f"{answer.system.gpus:,} GPUs of {answer.system.name}"
        return f"Plans for {answer.model.title} on {on}, batch {plan.batch} x {plan.sequence:,}"

    def sentences(self) -> list[str]:
        """Return the plan, its time, its memory, the runner-up, what is tied, and what stated choices take at best."""
        answer = self.answer
        return [
            *verdict(answer), *cost(answer), *between(answer), *by_framework(answer), *warnings(answer)
        ]  # fmt: skip

    def notes(self) -> list[str]:
        """Return how many plans were searched, the notes of the search, and what shows more of the best plan."""
        command = self.answer.best.command
        shown = [f"What is exposed, and why: {command}"] if command else []
        return [counts(self.answer), *map(sentence, self.answer.notes), *shown]

    def table(self) -> Table:
        """Return the best plans."""
        return plan_table(self.answer)

    def front(self) -> Figure:
        """Return the front of time and memory."""
        return front(self.answer)

    def beside_plans(self) -> list[Part]:
        """Return where the steps of the best plans go."""
        return [waterfalls(self.answer)]

    def own_sections(self) -> list[Part]:
        """Return the rivals of the best plan, choices, and its schedule."""
        best, *others = self.answer.plans
        against: list[Part] = []
        if others:
            against = [[*map(sentence, changes(others[0].plan, best.plan))], difference(self.answer)]
        return [
            Section("The runner-up", against),
            Section("Choices", [choices_map(self.answer)]),
            Section("The schedule of the best plan", [schedule_with_memory(best.step())]),
        ]
