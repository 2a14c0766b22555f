"""Answers to one question asked in several ways: with another value, another option, or another overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.answer import Answer, to_plain
from weft.core.errors import InputError

UNRESOLVED = "no difference that Weft can resolve"
"""The verdict on a ratio whose 80 % interval holds 1."""


@dataclass(frozen=True, repr=False)
class Contrast(Answer):
    """Times of one question by what was changed in it; the first answer is the baseline of the others.

    `left_out` are ways to ask that were not answered, each with the reason. Raises InputError for fewer than two
    answers, and for answers that are not one time with its parts.
    """

    kind = "contrast"

    answers: Mapping[str, Any]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.answers) < 2:
            raise InputError(f"a contrast needs two answers, and has {len(self.answers)}; change something for another")
        for label, answer in self.answers.items():
            if getattr(getattr(answer, "seconds", None), "ndim", 0) or not hasattr(answer, "parts"):
                raise InputError(f"the answer '{label}' is not one time with its parts; contrast steps or estimates")

    def to_dict(self) -> dict[str, Any]:
        """Return the rows, the answers and what was left out as plain data."""
        return to_plain(rows=self.rows, answers=self.answers, left_out=self.left_out)

    @property
    def first(self) -> Any:
        """The answer to the question as it was asked."""
        return next(iter(self.answers.values()))

    @property
    def other_answers(self) -> dict[str, Any]:
        """The other answers by what was changed."""
        return dict(list(self.answers.items())[1:])

    @property
    def has_overload(self) -> bool:
        """Whether one of the answers is a load above capacity, so that rates are compared and not times."""
        return any(getattr(answer, "overloaded", False) for answer in self.answers.values())

    def speedup(self, label: str) -> float:
        """Return how many times as fast as the first answer another one is; under overload, how many times its rate."""
        if self.has_overload:
            return float(self.answers[label].requests_per_s) / float(self.first.requests_per_s)
        return float(self.first.seconds) / float(self.answers[label].seconds)

    def speedup_interval(self, label: str) -> tuple[float, float] | None:
        """Return both ends of the 80 % interval of a speedup; None for answers that say nothing of their ratio."""
        interval = self.ratio_error(label)
        if interval is None:
            return None
        low, high = interval.around(self.speedup(label))
        return float(low), float(high)

    def ratio_error(self, label: str) -> Any:
        """Return the 80 % interval of the ratio of the first time and another one's, relative to the predicted."""
        asked = getattr(self.first, "ratio_error", None)
        return None if asked is None or self.has_overload else asked(self.answers[label])

    def verdict(self, label: str) -> str:
        """Return "faster", "slower" or `UNRESOLVED` for another answer against the first; "" where no interval says."""
        interval = self.speedup_interval(label)
        if interval is None:
            return ""
        return "faster" if interval[0] > 1 else "slower" if interval[1] < 1 else UNRESOLVED

    @property
    def best(self) -> str:
        """What was changed in the fastest of the other answers; the earliest of equals."""
        return max(self.other_answers, key=self.speedup)

    def _resolved(self, label: str) -> dict[str, Any]:
        interval = None if self.answers[label] is self.first else self.speedup_interval(label)
        return {} if interval is None else {"times_as_fast_80": interval, "verdict": self.verdict(label)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Time [s], how many times as fast as the first, the parts [s] of each answer, and what else it measures.

        Steps have the 80 % interval of the speedup and the verdict, too. A load above capacity has no time, and
        `times_as_fast` then compares capacities.
        """
        return [
            {
                "changed": label,
                "seconds": None if getattr(answer, "overloaded", False) else float(answer.seconds),
                "times_as_fast": self.speedup(label),
                **self._resolved(label),
                **(
                    {"overloaded": answer.overloaded, "requests_per_s": answer.requests_per_s}
                    if self.has_overload
                    else {}
                ),
                "parts": {name: float(part) for name, part in answer.parts.items()},
                "measures": dict(getattr(answer, "measures", {})),
            }
            for label, answer in self.answers.items()
        ]
