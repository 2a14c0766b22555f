"""How long a step of a batch takes: forward passes timed at some sizes, and interpolated between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.estimate.power import Activity
from weft.step.exchange_overlap import EXPERTS
from weft.step.forward import Forward, Group, half
from weft.step.result.step import Pass
from weft.step.spans import CONTENTION
from weft.step.stages import ForwardStages

FloatArray = NDArray[np.float64]
INTERPOLATION_ERROR = 0.04
"""Largest error of an interpolated step against the pass itself; the mean is below a tenth of it (both tested)."""


@dataclass(frozen=True)
class Shape:
    """A step's batch: decode tokens of `decodes` sequences, each with its drafts, and chunks of `prefills` prompts.

    The sequences hold `context` tokens together, the new ones included; the chunks have `new` tokens together, which
    form `pairs` of a query and a key that it sees.
    """

    decodes: int = 0
    context: int = 0
    prefills: int = 0
    new: int = 0
    pairs: int = 0

    @property
    def half(self) -> Shape:
        """The larger half of the batch, of its sequences or of the tokens of a single prompt."""
        decodes, context = -(-self.decodes // 2), -(-self.context // 2)
        if self.prefills == 1:
            one = half(Group(1, self.new, round(self.pairs / self.new - (self.new + 1) / 2)))
            return Shape(decodes, context, 1, one.new, one.new * one.cached + one.new * (one.new + 1) // 2)
        return Shape(decodes, context, -(-self.prefills // 2), -(-self.new // 2), -(-self.pairs // 2))


class StepTimes:
    """Seconds of steps on a replica.

    The decode tokens of a step count with their mean context, and prompts as equally many of equal length that have the
    same tokens, and the same pairs of a query and a key: the FLOPs stay, and so do the bytes of keys that decode tokens
    read. Between the sizes that are timed, times are interpolated linearly (`INTERPOLATION_ERROR`); between fewer of
    them, what a method of overlap leaves exposed by the engine. Each sequence that writes has `queries` tokens in a
    step (default: its next one and what the speculation drafts). What is timed of a replica `like` this one, up to its
    stages, halves and drafts, holds for both; so does the attention of one that only shares its experts otherwise.
    """

    def __init__(
        self, forward: Forward, queries: int = 0, like: StepTimes | None = None, attention: StepTimes | None = None
    ) -> None:
        self.forward, self.queries = forward, queries or forward.queries
        self._launching, self._graphed, self._pieces = 0.0, 0, 0.0
        self._bases: dict[int, float] = {}
        self._rising: dict[tuple[int, int], tuple[int, float, float]] = {}
        self.first = self.later = None
        if forward.draft:
            self.first = StepTimes(forward.draft, self.queries, like.first if like else None)
            self.later = StepTimes(forward.draft, like=self.first)
        self._hidden = _Interpolated(lambda tokens: forward.shared_pass(tokens, hides=True).seconds, _TILED)
        self._exposed = _Interpolated(self._beyond, _ENGINE)
        self._send = _Interpolated(forward.send, _TILED)
        self._decodes = _Interpolated(self._decode, _SMOOTH, _SMOOTH)
        self._layers: Forward = forward
        self._exchange = _Interpolated(lambda tokens: forward.shared_pass(tokens).parts.get(EXPERTS, 0.0), _TILED)
        self._logits = _Interpolated(lambda sequences: forward.logits(sequences).seconds, _SMOOTH)
        self._prompts = _Interpolated(self._prompt, _SMOOTH, _Axis(8, edges=True), _SMOOTH)
        if like:
            for name in ("_layers", "_hidden", "_exposed", "_exchange", "_logits", "_prompts"):
                setattr(self, name, getattr(like, name))
            if like.queries == self.queries:
                self._decodes = like._decodes
        elif attention:
            self._prompts, self._decodes = attention._prompts, attention._decodes

    def _shared_seconds(self, tokens: int) -> float:
        """Return the seconds of all that `tokens` pass through together."""
        return self._hidden(tokens) + (self._exposed(tokens) if self.forward.overlaps else 0.0)

    def _beyond(self, tokens: int) -> float:
        """Return the seconds that methods of overlap leave exposed, by the engine."""
        return self.forward.shared_pass(tokens).seconds - self.forward.shared_pass(tokens, hides=True).seconds

    def with_launches(self, each: float, graphed: int, pieces: bool = False) -> StepTimes:
        """Return these times for a host that launches each kernel of a step with prompts in `each` seconds.

        Steps of up to `graphed` tokens are replayed from graphs, as steps of next tokens alone are: from one graph, or
        with `pieces` from one for what lies between the attention of two layers, whose kernels and whose write to the
        KV cache the host launches. In eager mode it launches each kernel of every step.
        """
        found = copy(self)
        found._launching, found._graphed = each * self.forward.launches, graphed
        found._pieces = each * (3 * self.forward.model.layers + 1) if pieces else 0.0
        return found

    def seconds(self, step: Shape) -> float:
        """Return the seconds of a step: on the GPU, or of the host that launches it if that takes longer."""
        return max(self._compose_pass(step).latency, self._on_host(step))

    def stages(self, step: Shape) -> list[float]:
        """Seconds of a step in each stage of a pipeline, the send to the next included; the last has the logits."""
        found = self._compose_pass(step)
        waits = max(self._on_host(step) - found.latency, 0.0)
        return found._replace(layers=found.layers + waits).each

    def _on_host(self, step: Shape) -> float:
        graphed = not step.prefills or step.decodes * self.queries + step.new <= self._graphed
        return max(self._pieces if graphed else self._launching, self.forward.launching)

    def _compose_pass(self, step: Shape) -> ForwardStages:
        """Return a step on the GPU, composed as a pass is."""
        one = step.half if self.forward.plan.two_batch_overlap else step
        tokens = one.decodes * self.queries + one.new
        took = self._shared_seconds(tokens)
        if one.decodes:
            took += self._decodes(one.decodes, one.context / one.decodes)
        if one.prefills:
            new = one.new / one.prefills
            cached = max(one.pairs / one.new - (new + 1) / 2, 0.0)
            took += self._prompts(one.prefills, new, cached + 1)
        if self.forward.plan.two_batch_overlap:
            took = self.forward.pair_halves(Pass(took, {EXPERTS: self._exchange(tokens)}), tokens).seconds
        drafts, again = 0.0, Shape(step.decodes, step.context)
        if self.first and self.later:
            later = self.later.seconds(again) if step.decodes else 0.0
            drafts = self.forward.drafting(self.first.seconds(step), later)
        logits = self._logits(step.decodes * self.queries + step.prefills)
        return self.forward.compose(took, logits, drafts, self._send(tokens) if self.forward.plan.pp > 1 else 0.0)

    def next_tokens(self, decodes: int, context: int, steps: int) -> Iterator[float]:
        """Yield seconds of equal steps of next tokens, each with what one writes more of context in each sequence."""
        each, least = self.forward.speculation.expected_tokens, max(self._pieces, self.forward.launching)
        if self.forward.plan.two_batch_overlap:
            yield from (self.seconds(Shape(decodes, round(context + decodes * each * at))) for at in range(steps))
            return
        base, rising = self._base_of(decodes), self._rising
        keys, high, slope, at_low, low = context / decodes, 0, 0.0, 0.0, 0
        for _ in range(steps):
            if keys >= high:
                low = _SMOOTH.around(keys)[0][0]
                found = rising.get((decodes, low))
                if found is None:
                    found = rising[decodes, low] = self._rise_of(decodes, low)
                high, at_low, slope = found
            yield max(base + at_low + slope * (keys - low), least)
            keys += each

    def _base_of(self, decodes: int) -> float:
        """Return the seconds of a step of next tokens without attention."""
        found = self._bases.get(decodes)
        if found is None:
            found = self._bases[decodes] = sum(
                times * (one._shared_seconds(decodes * one.queries) + one._logits(decodes * one.queries))
                for times, one in self._passes
            )
        return found

    def _rise_of(self, decodes: int, low: int) -> tuple[int, float, float]:
        """Return the timed context behind `low`, the attention's seconds at `low`, and what each token adds [s]."""
        passes, high = self._passes, low + _SMOOTH.step(low)
        at_low, at_high = (sum(n * one._decodes(decodes, end) for n, one in passes) for end in (low, high))
        return high, at_low, (at_high - at_low) / (high - low)

    @property
    def _passes(self) -> list[tuple[int, StepTimes]]:
        """The passes of a step of decode tokens, each with its number: the model's, and the drafter's."""
        if not self.first or not self.later:
            return [(1, self)]
        return [(1, self), (1, self.first), (self.forward.speculation.tokens - 1, self.later)]

    def least(self, most_tokens: int, most_next: int, keys: Sequence[int]) -> Least:
        """Return lower bounds of step times up to `most_tokens` tokens, and for decode tokens of `most_next` sequences
        that attend to `keys`.

        Timed at once. Draft tokens count as tokens.
        """
        counts, stages = _sizes(most_next), self.forward.plan.pp
        sizes = sorted({*_sizes(most_tokens), *(count * self.queries for count in counts)})
        timed = [-(-size // 2) for size in sizes] if self.forward.plan.two_batch_overlap else sizes
        self._layers.prepare(size for size in timed if not self._hidden.knows(size))
        shared = np.array([self._shared_seconds(size) for size in timed])
        alone = shared
        if self.forward.plan.two_batch_overlap:
            exchanges = [self._exchange(size) for size in timed]
            halves = zip(shared, exchanges, timed, strict=True)
            pairs = [self.forward.pair_halves(Pass(took, {EXPERTS: sent}), size) for took, sent, size in halves]
            shared = 2 * (shared - exchanges) + np.array([pair.parts[CONTENTION] for pair in pairs])
            alone = np.array([pair.seconds for pair in pairs])
        sends = np.array([(stages - 1) * self._send(size) for size in sizes]) if stages > 1 else 0.0
        logits = np.array([self._logits(max(count * self.queries, 1)) for count in (0, *counts)])
        doublings = [count for count in counts if count & (count - 1) == 0]
        attention = min(self._decodes(count, each) / (count * each) for count in doublings for each in keys)
        if self.first and self.later:
            first, later = self.first.least(most_tokens, most_next, keys), self.later.least(most_next, most_next, keys)
            again = self.forward.speculation.tokens - 1
            sends, logits = sends + first.alone, logits + first.logits
            logits[1:] += again * (later.alone + later.logits[1:])
            attention += first.attention + again * later.attention
        return Least(
            np.array(sizes), _minorant(shared + sends), _minorant(alone + sends), np.array([0, *counts]),
            _minorant(logits), attention,
        )  # fmt: skip

    def parts(self, step: Shape) -> Mapping[str, float]:
        """Return where the time of a step goes [s], timed as it is, sizes rounded to whole tokens."""
        parts = self.forward.batch(self._groups(step)).parts
        waits = self._on_host(step) - sum(parts.values())
        return {**parts, "host": waits} if waits > 0 else parts

    def work(self, step: Shape) -> Activity:
        """Return what matrix units and memory of one rank do in a step, sizes rounded to whole tokens."""
        return self.forward.work(self._groups(step))

    def _groups(self, step: Shape) -> list[Group]:
        groups = []
        if step.decodes:
            keys = max(round(step.context / step.decodes) - 1, 0)
            groups.append(Group(step.decodes, self.queries, keys, writes=True))
        if step.prefills:
            new = max(round(step.new / step.prefills), 1)
            groups.append(Group(step.prefills, new, max(round(step.pairs / step.new - (new + 1) / 2), 0)))
        return groups

    def _decode(self, count: int, keys: int) -> float:
        return self.forward.attention(Group(count, self.queries, keys - 1, writes=True)).seconds

    def _prompt(self, count: int, new: int, behind: int) -> float:
        return self.forward.attention(Group(count, new, behind - 1)).seconds


class _Axis(NamedTuple):
    """The sizes that are timed: all small ones, else `per_octave` in each doubling.

    With `edges` also those just above them, where kernels begin another tile.
    """

    per_octave: int
    edges: bool = False

    def step(self, size: int) -> int:
        """Return how far apart timed sizes lie around a size."""
        return 1 << max(size.bit_length() - self.per_octave.bit_length(), 0)

    def around(self, size: float) -> tuple[tuple[int, float], ...]:
        """Return the timed sizes next to a size, with their shares of its time."""
        whole = int(size)
        step = self.step(whole)
        low = whole // step * step
        high = low + step
        if size == low:
            return ((low, 1.0),)
        if self.edges and step > 1:
            low, high = (low + 1, high) if size >= low + 1 else (low, low + 1)
        share = (size - low) / (high - low)
        return (low, 1 - share), (high, share)


_SMOOTH, _TILED = _Axis(4), _Axis(16, edges=True)
_ENGINE = _Axis(2)


class Least(NamedTuple):
    """Lower bounds of parts of steps [s], non-decreasing in tokens: what `tokens` share besides attention, and `alone`
    without any, logits of the decode tokens of `sequences` (0: of a prompt), and attention for each token that the next
    one of a sequence attends to, drafts included.
    """

    tokens: FloatArray
    shared: FloatArray
    alone: FloatArray
    sequences: FloatArray
    logits: FloatArray
    attention: float


def _minorant(values: FloatArray) -> FloatArray:
    """Return the largest function that never falls and never exceeds the values."""
    found: FloatArray = np.minimum.accumulate(values[::-1])[::-1]
    return found


def _sizes(most: int) -> list[int]:
    """Return the sizes from 1 to `most`: all up to 32, and 16 in each doubling."""
    found, size = [], 1
    while size < most:
        found.append(size)
        size += _Axis(16).step(size)
    return [*found, most]


class _Interpolated:
    """A function [s] of whole numbers from 1 on, computed where it is needed, linear between the sizes around."""

    def __init__(self, function: Callable[..., float], *axes: _Axis) -> None:
        self._function, self._axes = function, axes
        self._known: dict[tuple[float, ...], float] = {}

    def knows(self, *at: float) -> bool:
        """Return whether the value at sizes has been computed."""
        return at in self._known

    def __call__(self, *at: float) -> float:
        """The value at sizes that need not be whole."""
        if at in self._known:
            return self._known[at]
        total = 0.0
        for corner in product(*[axis.around(size) for axis, size in zip(self._axes, at, strict=True)]):
            place, share = tuple([size for size, _ in corner]), 1.0
            for _, part in corner:
                share *= part
            seconds = self._known.get(place)
            if seconds is None:
                seconds = self._known[place] = float(self._function(*place))
            total += seconds * share
        if len(at) == 1:
            self._known[at] = total
        return total
