"""Answers to one question side by side: before and after a change, or every overlap method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.contrast import UNRESOLVED, Contrast
from weft.core.report import Figure, Report, Table
from weft.core.report.table import number, text
from weft.step.result.memory import Memory
from weft.step.result.step import RESIDUAL, Step
from weft.view.memory import fitting
from weft.view.plans import AXES, framework_words
from weft.view.shares import label, order_parts, seconds, waterfall
from weft.view.words import percent

_ALIKE = 0.005
"""Share of a time within which two of them count as equal."""
_SMALL = 0.001
"""Share of the first answer below which a part is not shown."""
_APART = 0.05
"""Relative difference of two gains from which both are said."""
_BUSY = 0.9
"""Share of a step from which an axis whose communication is under way for so long bounds it.

Of the step without its calibration residual: this grows with what is hidden, whether or not it bounds the step."""


class ContrastReport(Report[Contrast]):
    """What a change does to a time and to its parts."""

    explained = ""

    def title(self) -> str:
        """Return the title of the first answer."""
        return str(self._first_report().title())

    def sentences(self) -> list[str]:
        """Return how much faster or slower the best change makes it, what keeps it from more, and what it needs."""
        answer, best = self.answer, self.answer.best
        if answer.has_overload:
            return self._by_capacity(best)
        was, now, gain = float(answer.first.seconds), float(answer.answers[best].seconds), answer.speedup(best)
        what = getattr(answer.first, "timed", "it")
        takes = "would take" if self._misfits() else "takes"
        lead = f"With {best} {what} {takes} {seconds(now)} instead of {seconds(was)}: "
        if abs(gain - 1) < _ALIKE:
            lead = f"With {best} {what} {takes} as long, {seconds(now)}: "
            gained = f"{UNRESOLVED}."
        else:
            gained = f"{gain:.3g} times as fast{self._resolved(best)}."
            if gain < 1:
                gained = f"{1 / gain:.3g} times as long{self._resolved(best)}."
        if len(answer.other_answers) > 1:
            lead = f"Of {len(answer.other_answers)} ways {best} is fastest, {seconds(now)} instead of {seconds(was)}: "
        needs = getattr(answer.answers[best], "needs", ()) if len(answer.other_answers) == 1 else ()
        return [*self._misfits(), lead + gained, *self._frameworks(), *self._bound(), *needs]

    def _resolved(self, label: str) -> str:
        """Return the 80 % interval of a change's ratio and the verdict, to follow the ratio; "" where none is known."""
        interval = self.answer.speedup_interval(label)
        if interval is None:
            return ""
        low, high = interval if self.answer.speedup(label) > 1 else (1 / interval[1], 1 / interval[0])
        return f" (80 % interval {low:.3g} to {high:.3g}): {self.answer.verdict(label)}"

    def _frameworks(self) -> list[str]:
        """Whose defaults both steps have, and what a change gains by the fastest of today's frameworks for each."""
        first, other = self.answer.first, self.answer.answers[self.answer.best]
        if not (isinstance(first, Step) and isinstance(other, Step)) or "framework" not in first.defaulted:
            return []
        said = framework_words(first.framework, first.defaulted) + "."
        if "framework" not in other.defaulted or len(self.answer.other_answers) > 1:
            return [said]
        (was, before), (now, after) = (
            min((took, name) for name, took in {one.framework.name: one.seconds, **one.elsewhere}.items())
            for one in (first, other)
        )
        gain = was / now
        if abs(gain / self.answer.speedup(self.answer.best) - 1) < _APART:
            return [said]
        factor = f"{gain:.3g} times as fast" if gain > 1 else f"{1 / gain:.3g} times as long"
        took = f"{seconds(now)} ({after}) instead of {seconds(was)} ({before})"
        return [f"{said} By the fastest of today's frameworks for each it takes {took}: {factor}."]

    def _misfits(self) -> list[str]:
        """Return which of the steps that the lead compares need more memory than a GPU has, a sentence each."""
        compared = {"as asked": self.answer.first, f"with {self.answer.best}": self.answer.answers[self.answer.best]}
        held = {name: getattr(one, "memory", None) for name, one in compared.items()}
        return [
            fitting(one, f"{name[:1].upper()}{name[1:]} it")
            for name, one in held.items()
            if isinstance(one, Memory) and not one.fits
        ]

    def _by_capacity(self, best: str) -> list[str]:
        """Compare rates where a load is above capacity: there is no time to compare."""
        answer = self.answer
        first, other, gain = answer.first, answer.answers[best], answer.speedup(best)
        said = [f"{one.requests_per_s:.3g} requests/s" for one in (first, other)]
        if first.overloaded and other.overloaded:
            lead = f"Above capacity either way, {first.offered:.3g} requests/s arrive: with {best} the capacity is "
            lead += f"{said[1]} instead of {said[0]}, {gain:.3g} times it."
        elif first.overloaded:
            lead = f"With {best} the load is answered, {said[1]}; as asked, it is above the capacity of {said[0]}."
        else:
            lead = (
                f"With {best} the load is above capacity, {said[1]} of {other.offered:.3g}; as asked, it is answered."
            )
        return [
            f"{lead} Capacities are compared, as latencies above them grow without end.",
            *getattr(other, "needs", ()),
        ]

    def _bound(self) -> list[str]:
        """Return what a step waits for whatever else is hidden, in a sentence."""
        for step in (self.answer.first, self.answer.answers[self.answer.best]):
            hidden, exposed = getattr(step, "hidden", None), getattr(step, "exposed", None)
            if not isinstance(hidden, dict) or not isinstance(exposed, dict):
                return []
            modelled = float(step.seconds) - step.parts.get(RESIDUAL, 0.0)
            for axis in dict.fromkeys((*hidden, *exposed)):
                share = min(1.0, (hidden.get(axis, 0.0) + exposed.get(axis, 0.0)) / modelled)
                if share >= _BUSY:
                    what = AXES.get(axis, axis)
                    of = f"{percent(share)} of the step without its calibration residual"
                    return [f"The communication of {what} is under way for {of}, and bounds it."]
        return []

    def tables(self) -> list[Table]:
        """Before and after, part by part, and what else the answers measure; of more than two, a row for each."""
        if len(self.answer.answers) != 2:
            return [self._by_answer()]
        if self.answer.has_overload:
            return self._by_measure()
        return [self._by_part(), *self._by_measure()]

    def _by_measure(self) -> list[Table]:
        """Rates, latencies and memory before and after; nothing for answers that have their time alone."""
        (before, first), (after, second) = self.answer.answers.items()
        measured = [dict(getattr(one, "measures", {})) for one in (first, second)]
        names = [name for name in measured[0] if name in measured[1]]
        rows = [
            (
                name,
                *(one[name] for one in measured),
                measured[1][name] / measured[0][name] if measured[0][name] else None,
            )
            for name in names
        ]
        columns = [
            text("measure", " "),
            number("before", before, "", ",.4g"),
            number("after", after, "", ",.4g"),
            number("ratio", "after / before", "", ".2f"),
        ]
        return [Table(columns, rows, "What else changes")] if rows else []

    def _by_part(self) -> Table:
        (before, first), (after, second) = self.answer.answers.items()
        names = order_parts({**first.parts, **second.parts})
        pairs = [(label(name), float(first.parts.get(name, 0.0)), float(second.parts.get(name, 0.0))) for name in names]
        pairs = [one for one in pairs if max(one[1:]) >= _SMALL * float(first.seconds)]
        pairs.append(("in all", float(first.seconds), float(second.seconds)))
        unit, scale = _unit(max(float(first.seconds), float(second.seconds)))
        rows = [
            # a part that only one of them has, or hardly any of, has no ratio
            (name, one * scale, other * scale, other / one if one >= _SMALL * float(first.seconds) else None)
            for name, one, other in pairs
        ]
        columns = [
            text("part"),
            number("before", before, unit, _three),
            number("after", after, unit, _three),
            number("ratio", "after / before", "", ".2f"),
        ]
        return Table(columns, rows, self.title())

    def _by_answer(self) -> Table:
        unit, scale = _unit(float(self.answer.first.seconds))
        rows = []
        for name, one in self.answer.answers.items():
            if self.answer.has_overload:
                rows.append((name, float(one.requests_per_s), self.answer.speedup(name), "", None, ""))
                continue
            exposed = sum(getattr(one, "exposed", {}).values()) / float(one.seconds)
            needs = " ".join(getattr(one, "needs", ()))
            verdict = "" if one is self.answer.first else self.answer.verdict(name)
            rows.append((name, float(one.seconds) * scale, self.answer.speedup(name), verdict, exposed, needs))
        rows[1:] = sorted(rows[1:], key=lambda row: row[1])
        time = number("time", "time", unit, _three)
        columns = [
            text("changed", "with"),
            number("requests_per_s", "requests/s", "", ",.3g") if self.answer.has_overload else time,
            number("gain", "times as fast", "", ".3f"),
            text("verdict", "by its 80 % interval"),
            number("exposed", "exposed communication", "", ".1%"),
            text("needs", "note", prose=True),
        ]
        return Table(columns, rows, self.title())

    def notes(self) -> list[str]:
        """Return the ways that were left out, with the reasons, and what the answers say of how sure they are."""
        alike: dict[str, list[str]] = {}
        for name, reason in self.answer.left_out.items():
            alike.setdefault(reason, []).append(name)
        out = [f"{', '.join(names)}: left out, {reason}" for reason, names in alike.items()]
        out += self._differing()
        if why := getattr(self.answer.ratio_error(self.answer.best), "why", ""):
            out.append(f"{why[:1].upper()}{why[1:]}.")
        others = [one.report().notes()[-1:] for one in self.answer.answers.values() if hasattr(one, "error")]
        return [*out, *dict.fromkeys(note for notes in (self._first_report().notes()[-1:], *others) for note in notes)]

    def _differing(self) -> list[str]:
        """Return what only one of two answers says of its assumptions, each with what it was asked."""
        if len(self.answer.answers) != 2:
            return []
        notes = {name: tuple(getattr(one, "notes", ())) for name, one in self.answer.answers.items()}
        shared = set.intersection(*map(set, notes.values()))
        return [
            f"{name[:1].upper()}{name[1:]}: {note}"
            for name, told in notes.items()
            for note in told
            if note not in shared
        ]

    def figures(self) -> Sequence[Figure]:
        """Return a bar for each answer that stacks its parts; none for loads above capacity, which have no time."""
        if self.answer.has_overload:
            return []
        lanes = {
            name: {part: float(took) for part, took in one.parts.items()} for name, one in self.answer.answers.items()
        }
        of = "the first time" if hasattr(self.answer.first, "timed") else "the step"
        return [waterfall("What does the change do?", lanes, float(self.answer.first.seconds), of)]

    def _first_report(self) -> Any:
        return self.answer.first.report()


def _unit(longest: float) -> tuple[str, float]:
    """Return the unit that suits a time, and how many of it a second has."""
    return ("s", 1.0) if longest >= 1 else ("ms", 1e3) if longest >= 1e-3 else ("µs", 1e6)


def _three(value: float) -> str:
    """Return a number to three significant digits, without an exponent."""
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"
