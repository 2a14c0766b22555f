"""The demands on the models, measured by each protocol in turn."""

from __future__ import annotations

from weft.validation.bar import Line, Protocol, lines
from weft.validation.demands import demands
from weft.validation.overlaps import FLUX, right_signs
from weft.validation.protocols import hold_out, leave_one_out
from weft.validation.run import Validation
from weft.validation.subjects import Predicted, Progress

SPLITS = 3
"""How many random splits the held-out errors are averaged over: small groups depend on which rows a split takes."""


def judged(validation: Validation, progress: Progress | None = None) -> list[Line]:
    """Every demand with what was reached: held out, leaving one machine out, and as shipped."""
    subjects = [part.subject for part in validation.predictions if part.subject.parameters]
    splits = [hold_out(subjects, _part(progress, seed), seed) for seed in range(SPLITS)]
    done = splits[0]
    predictions: dict[Protocol, list[Predicted]] = {
        "held out": [each.held_out for split in splits for each in split],
        "leave one out": leave_one_out(subjects, {each.subject.name: each.fit.firm() for each in done}),
        "as shipped": list(validation.predictions),
    }
    return [*lines(demands(), predictions), _signs(validation)]


def _part(progress: Progress | None, split: int) -> Progress | None:
    """Progress through all splits from that through one of them."""
    if progress is None:
        return None
    return lambda done, total, what: progress(split * total + done, SPLITS * total, what)


def _signs(validation: Validation) -> Line:
    """Whether overlapping wins or loses over the sequence is what a user decides by."""
    right, count = right_signs(validation.predictions)
    reached = right / count if count else None
    return Line(f"{FLUX}: right sign of win or loss", "as shipped", "share", 0.85, reached, count, at_least=True)
