"""Lower bounds of the time per token under a load, from step times alone: which plans no simulation need try.

Steps of a replica compute `d` next tokens and `p` tokens of prompts in at least t(d, p). Good requests, which get their
first token within a limit and further ones within tau each, need D decode tokens and P tokens of prompts each, in steps
whose time, weighted by decode tokens, is tau on average or less. For every a in [0, 1] and m >= 0, no more of them are
answered per second of steps than

    max over (d, p) of [a d/D + (1 - a) p/P + m d/D (1 - t/tau)] / t

since the last term adds up to nothing or more (a Lagrangian bound; the smallest of them counts). All steps of good
requests lie between the first arrival and the last good answer. Where a step verifies drafts and writes E tokens of a
sequence in the mean, D and tau are those of its steps: D/E and E tau. Replicas that share a pipeline each pass all of
its stages, one step after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.serving.framework import ServingDefaults
from weft.serving.requests import RequestSpec, RequestStream
from weft.serving.result import Objective
from weft.serving.steady import steady_at
from weft.serving.step_times import Shape, StepTimes

FloatArray = NDArray[np.float64]
_SOME = 1000
"""Requests whose mean lengths are taken."""
_MARGIN = 0.98
"""Share of a step's least time that bounds count: sizes are timed at some points, and linear between them."""
_TIMES = np.geomspace(1e-3, 100.0, 1153)
"""Candidate bounds of the times per token [s], 1 % apart."""


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
    def of(cls, asked: Sequence[RequestSpec], objective: Objective, good: int, shared: int) -> Work:
        """Return the least work of `good` of the requests; whole blocks of `shared` tokens may be known already."""
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

    def horizon(self, tpot: float) -> float:
        """Return the time from the first arrival to the last good answer, for a time per token [s]."""
        return float((self.ends + tpot * self.lengths).max())

    @cached_property
    def first_tokens(self) -> float:
        """Time from the first arrival to the last good first token [s]."""
        return float(self.ends.max())


class Bounds:
    """Bounds of replicas of one kind: good requests per second of steps, and the least time to a first token [s].

    `mixed` and `answers` are of replicas that do both and of decode workers, by the time per token; `prompts` is of
    prefill workers.
    """

    def __init__(self, times: StepTimes, how: ServingDefaults, work: Work) -> None:
        self.work, self._times, self._how = work, times, how
        room = how.cache_bytes // max(times.forward.cache(-(-work.keys[0] // how.block) * how.block), 1)
        decodes = max(min(how.sequences, how.tokens // times.queries, int(room)), 1)
        self._written, self._decodes = times.forward.speculation.expected_tokens, decodes
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

    def _rates(self, nexts: FloatArray, prompts: FloatArray, took: FloatArray, only: float | None = None) -> _Rates:
        """Return most good requests per second of steps, by the time per token."""
        written = self._written * nexts / max(self.work.answer, 1e-9)
        points = np.array([written / took, prompts / self.work.prompt / took, -written / self._written])
        return _Rates(points[:, _extreme(points)], self.lone, only)

    def time_per_token(self, replicas: int, readers: int = 0) -> float:
        """Return the least time per token that `good` requests can get [s]; infinite if no time suffices."""
        if readers and readers * self.prompts * self.work.first_tokens < self.work.good:
            return float("inf")
        rates, count = self.answers if readers else self.mixed, replicas - readers
        first = bisect_left(range(len(_TIMES)), True, key=lambda at: self._suffices(rates, count, float(_TIMES[at])))
        if first == len(_TIMES):
            return float("inf")
        return max(self.lone, float(_TIMES[first - 1]) if first else 0.0)

    def expected_tpot(self, load: RequestStream, replicas: int, readers: int = 0) -> float:
        """Return about what a token takes [s], no bound: in a steady state, of requests of the mean lengths."""
        prompt, answer = (
            max(round(float(np.mean([getattr(one, name) for one in load.asked[:_SOME]]))), 1)
            for name in ("input", "output")
        )

        def seconds(step: Shape) -> float:
            return self._times.seconds(Shape(step.decodes, step.context) if readers else step)

        how, rate, steps = self._how, load.rate / (replicas - readers), max(round(answer / self._written), 1)
        found = steady_at(seconds, rate, prompt, steps, tokens=how.tokens, host=how.host, most=self._decodes)
        return found.tpot / self._written if found else float("inf")

    def _suffices(self, rates: _Rates, replicas: int, tpot: float) -> bool:
        """Return whether replicas may answer enough requests in a time per token [s]; if so, also in a longer one."""
        return replicas * rates(tpot) * self.work.horizon(tpot) >= self.work.good

    def settles(self, replicas: int, readers: int, tpot: float) -> bool:
        """Return whether the work could be done in time if steps of any length were fine."""
        if readers and readers * self.prompts * self.work.first_tokens < self.work.good:
            return False
        most = (self.answers if readers else self.mixed)(float(_TIMES[-1]))
        return (replicas - readers) * most * self.work.horizon(tpot) >= self.work.good


class _Rates:
    """Most good requests per second of steps by the time per token [s]; none below that of a `lone` sequence.

    `points` are steps: decode tokens, and tokens of prompts, by requests per second, and decode tokens by requests. The
    share a of the bound is `only` this, if one is given.
    """

    def __init__(self, points: FloatArray, lone: float, only: float | None) -> None:
        self._points, self._lone, self._only = points, lone, only
        self._known: dict[float, float] = {}

    def __call__(self, tpot: float) -> float:
        """Return the rate of a time per token [1/s]."""
        if tpot not in self._known:
            self._known[tpot] = self._least(tpot) if tpot >= self._lone else 0.0
        return self._known[tpot]

    def _least(self, tpot: float) -> float:
        x, y, late = self._points
        slack = x + late / tpot
        shares = np.linspace(0, 1, 6) if self._only is None else np.array([self._only])
        multipliers = np.array([0, 0.3, 1, 3, 9, 27])
        for _ in range(4):
            both = shares[:, None, None] * x + (1 - shares)[:, None, None] * y + multipliers[None, :, None] * slack
            worst = both.max(axis=2)
            i, j = np.unravel_index(worst.argmin(), worst.shape)
            shares, multipliers = _around(shares, int(i)), _around(multipliers, int(j))
        return float(worst.min())


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
