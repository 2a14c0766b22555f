"""Lower bounds of the time per token under a load, from step times alone: which plans no simulation need try.

Steps of a replica compute `d` next tokens and `p` tokens of prompts in at least t(d, p). Good requests, which get their
first token within a limit and further ones within tau each, need D next tokens and P tokens of prompts each, in steps
whose time, weighted by next tokens, is tau on average or less. For every a in [0, 1] and m >= 0, no more of them are
answered per second of steps than

    max over (d, p) of [a d/D + (1 - a) p/P + m d/D (1 - t/tau)] / t

since the last term adds up to nothing or more (a Lagrangian bound; the smallest of them counts). All steps of good
requests lie between the first arrival and the last good answer. Where a step verifies drafts and writes E tokens of a
sequence in the mean, D and tau are those of its steps: D/E and E tau. Replicas that share a pipeline each pass all of
its stages, one step after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.result.serving import Objective
from weft.serving.framework import Serves
from weft.serving.requests import Asked
from weft.serving.step_times import StepTimes

FloatArray = NDArray[np.float64]
_MARGIN = 0.98
"""Share of a step's least time that bounds count: sizes are timed at some points, and linear between them."""
_TIMES = np.geomspace(1e-3, 100.0, 145)
"""Times per token at which the bounds are computed [s]; between them, that of the next smaller one holds."""


@dataclass(frozen=True)
class Work:
    """What `good` requests of a load ask for at least, whichever they are.

    On average each has `answer` next tokens and computes `prompt` tokens of its prompt; a next token attends to `keys`
    tokens or more. The requests arrive within `span` [s], and get their first token within `ttft` [s].
    """

    good: int
    answer: float
    prompt: float
    keys: tuple[int, int]
    first: int
    ends: FloatArray
    lengths: FloatArray
    ttft: float

    @classmethod
    def of(cls, asked: Sequence[Asked], objective: Objective, good: int, shared: int) -> Work:
        """The least work of `good` of the requests; whole blocks of `shared` tokens may be known already."""
        outputs = np.array([one.output for one in asked], float)
        inputs = np.array([one.input for one in asked])
        computed = [
            one.input - min((one.input - 1) // shared, len(one.blocks)) * shared if shared else one.input
            for one in asked
        ]
        arrivals = np.array([one.arrival for one in asked]) - asked[0].arrival
        return cls(
            good, float(np.sort(outputs - 1)[:good].mean()), float(np.sort(computed)[:good].mean()),
            (int(inputs.min()) + 1, int((inputs + outputs).max())), int(np.sort(computed)[good - 1]),
            arrivals + objective.ttft, outputs - 1, objective.ttft,
        )  # fmt: skip

    @cached_property
    def horizon(self) -> FloatArray:
        """Time from the first arrival to the last good answer, for each of `_TIMES` per token [s]."""
        found: FloatArray = np.max(self.ends + np.outer(_TIMES, self.lengths), axis=1)
        return found

    @cached_property
    def first_tokens(self) -> float:
        """Time from the first arrival to the last good first token [s]."""
        return float(self.ends.max())


class Bounds:
    """Bounds of replicas of one kind: good requests per second of steps, and the least time to a first token [s].

    `mixed` and `answers` are for each of `_TIMES` per token, of replicas that do both and of writers; `prompts` is of
    readers.
    """

    def __init__(self, times: StepTimes, how: Serves, work: Work) -> None:
        self.work = work
        room = how.cache_bytes // max(times.forward.cache(-(-work.keys[0] // how.block) * how.block), 1)
        decodes = max(min(how.sequences, how.tokens // times.queries, int(room)), 1)
        self._written = times.forward.speculation.expected
        least = times.least(how.tokens, decodes, work.keys)
        total, shared, alone = (one[:, None] for one in (least.tokens, least.shared, least.alone))
        counts = least.sequences[None, :]
        took = np.maximum(shared + least.attention * work.keys[0] * counts, alone) + least.logits[None, :]
        tokens, nexts = (np.broadcast_to(one, took.shape).ravel() for one in (total, counts))
        prompts, took = tokens - nexts * times.queries, took.ravel() * _MARGIN + how.host
        real = prompts >= 0
        nexts, prompts, took = nexts[real], prompts[real], took[real]
        only, none = prompts == 0, nexts == 0
        self.lone = float(took[nexts > 0].min()) / self._written
        self.mixed = self._rates(nexts, prompts, took)
        self.answers = self._rates(nexts[only], prompts[only], took[only], only=1.0)
        self.prompts = float((prompts[none] / took[none]).max() / work.prompt)
        steps = -(-work.first // how.tokens)
        self.ttft = steps * how.host + work.first * _MARGIN * float((least.alone / least.tokens).min())
        # a chunk ends where a step is full
        full = float(np.interp(min(work.first, how.tokens), least.tokens, least.alone))
        self.ttft = max(self.ttft, full * _MARGIN + how.host)

    def _rates(self, nexts: FloatArray, prompts: FloatArray, took: FloatArray, only: float | None = None) -> FloatArray:
        """Most good requests per second of steps, for each time per token."""
        written = self._written * nexts / max(self.work.answer, 1e-9)
        points = np.array([written / took, prompts / self.work.prompt / took, -written / self._written])
        x, y, late = points[:, _extreme(points)]
        found = np.empty(len(_TIMES))
        for at, limit in enumerate(_TIMES):
            if limit < self.lone:
                found[at] = 0.0
                continue
            slack = x + late / limit
            shares, multipliers = (
                np.linspace(0, 1, 6) if only is None else np.array([only]),
                np.array([0, 0.3, 1, 3, 9, 27]),
            )
            for _ in range(4):
                both = shares[:, None, None] * x + (1 - shares)[:, None, None] * y + multipliers[None, :, None] * slack
                worst = both.max(axis=2)
                i, j = np.unravel_index(worst.argmin(), worst.shape)
                shares, multipliers = _around(shares, int(i)), _around(multipliers, int(j))
            found[at] = worst.min()
        return found

    def time_per_token(self, replicas: int, readers: int = 0) -> float:
        """The least time per token that `good` requests can get [s]; infinite if no time suffices."""
        work = self.work
        if readers and readers * self.prompts * work.first_tokens < work.good:
            return float("inf")
        rates = (replicas - readers) * (self.answers if readers else self.mixed)
        enough = np.flatnonzero(rates * work.horizon >= work.good)
        if not len(enough):
            return float("inf")
        first = int(enough[0])
        return max(self.lone, float(_TIMES[first - 1]) if first else 0.0)

    def settles(self, replicas: int, readers: int, tpot: float) -> bool:
        """Whether the work could be done in time if steps of any length were fine."""
        work = self.work
        horizon = float(np.interp(tpot, _TIMES, work.horizon))
        if readers and readers * self.prompts * work.first_tokens < work.good:
            return False
        most = (self.answers if readers else self.mixed)[-1]
        return bool((replicas - readers) * most * horizon >= work.good)


def _around(values: FloatArray, at: int) -> FloatArray:
    """Finer values around one of some, which stays among them."""
    if len(values) == 1:
        return values
    low, high = values[max(at - 1, 0)], values[min(at + 1, len(values) - 1)]
    found: FloatArray = np.union1d(np.linspace(low, high, 5), values[at])
    return found


def _extreme(points: FloatArray) -> NDArray[np.intp]:
    """Those of points, columns of coordinates, among which the largest of every weighted sum is."""
    from scipy.spatial import ConvexHull, QhullError

    largest = np.abs(points).max(axis=1, keepdims=True)
    try:
        return np.asarray(ConvexHull((points / np.where(largest, largest, 1.0)).T).vertices)
    except (QhullError, ValueError):  # all in a plane, or few
        return np.arange(points.shape[1])
