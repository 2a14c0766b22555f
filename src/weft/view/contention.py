"""Where the costs of sharing a GPU come from in a step's answer, and how far off they are, in words."""

from __future__ import annotations

from collections import Counter

from weft.result.step import Step
from weft.search.model_errors import contention_error

_FROM = {
    "engine": "the request-level engine",
    "waves": "whole waves of tiles (1.4 % from the engine on average; --fidelity windows asks it)",
}


def sources(answer: Step) -> list[str]:
    """Sentences on the windows of a step: how many come from where, their error, and what has none."""
    counts = Counter(window.source for window in answer.windows if window.source in _FROM)
    if not counts:
        return _unknown(answer)
    (source, count), *_ = counts.most_common()
    pairs = f"{count} pair{'s' * (count != 1)} of kernel and collective that share a GPU"
    ways = sorted({window.sharing for window in answer.windows if window.source == source})
    why = contention_error(answer.system.gpu, ways[0]).why
    return [f"What {pairs} cost each other comes from {_FROM[source]}; {why}.", *_unknown(answer)]


def _unknown(answer: Step) -> list[str]:
    missing = [window for window in answer.windows if window.source not in _FROM]
    if not missing:
        return []
    first = missing[0]
    return [f"{len(missing)} such pairs count as undisturbed, the first because {first.why}."]
