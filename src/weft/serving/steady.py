"""Closed loops in their steady state, without simulating one: clients that each ask again when they are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft.serving.step_times import Shape

_ROUNDS = 6
"""Times that the number of requests that write is found anew from the steps that a cycle then takes."""

_NEAR = 32
"""The number of clients of a rate is found to one part in `_NEAR`."""


class Steady(NamedTuple):
    """A closed loop's mean time to the first token and per decode token [s], and answers per second of a replica."""

    ttft: float
    tpot: float
    rate: float


def steady(
    seconds: Callable[[Shape], float], clients: int, prompt: int, answer: int, *, tokens: int, host: float = 0.0,
    mixes: bool = True, most: int = 1 << 30, together: bool = False, outside: float = 0.0,
    waits: float = 0.0,
) -> Steady:  # fmt: skip
    """The steady state of `clients` that ask a replica for equal answers, each at its own time or all `together`.

    A step takes `seconds(shape)` and `host` [s], and at most `tokens`; a request is `outside` of steps [s] before its
    first token, with no other work of the server; at most `most` requests run at once, and others wait. A request is
    scheduled `waits` steps after its arrival if others run. Prompts pass in chunks: with decode tokens if the scheduler
    `mixes` them, else in steps of their own. Requests that come together fill steps with their prompts, and half of
    these, in the mean, delay a request that writes.
    """
    wave = _together if together else _spread
    inside = float(min(clients, most))
    for _ in range(2 if outside or waits else 1):  # those that are outside take no place
        running = max(round(inside), 1)
        ttft, tpot = wave(lambda shape: seconds(shape) + host, running, prompt, answer, tokens, mixes)
        cycle = ttft + (answer - 1) * tpot
        unseen = outside + (waits * tpot if running > 1 else 0.0)
        inside = min(clients * cycle / (cycle + unseen), most)
    rate = inside / cycle
    return Steady(clients / rate - (answer - 1) * tpot, tpot, rate)


def steady_at(
    seconds: Callable[[Shape], float], rate: float, prompt: int, answer: int, *, tokens: int, host: float = 0.0,
    most: int = 1 << 30,
) -> Steady | None:  # fmt: skip
    """Return the steady state of a replica that requests reach at a `rate` [1/s]: that of the fewest clients who ask as
    often; None if `most` of them ask less often.
    """

    def solve(clients: int) -> Steady:
        return steady(seconds, clients, prompt, answer, tokens=tokens, host=host, most=most)

    low, high = 0, 1
    while solve(high).rate < rate:
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > max(low // _NEAR, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if solve(middle).rate < rate else (low, middle)
    return solve(high)


def _together(
    step: Callable[[Shape], float], running: int, prompt: int, answer: int, tokens: int, mixes: bool
) -> tuple[float, float]:
    """Of prompts that come together an idle server reads the first by itself, and the others behind it."""
    alone = step(_shape(prompt, answer, running))
    room = max(tokens - (running // 2 if mixes else 0), 1)
    first = prompt / min(prompt, room) * step(_shape(prompt, answer, 0, min(prompt, room)))
    if running == 1:
        return first, alone
    every = (running - 1) * prompt
    new = min(every, room)
    reading = every / new
    full = step(_shape(prompt, answer, running // 2 if mixes else 0, new))
    others = (running - 1) / running
    delayed = (reading / running + others * (reading - 1) / 2) * (full - (alone if mixes else 0.0))
    return first + others * (reading + 1) / 2 * full, alone + max(delayed, 0.0) / max(answer - 1, 1)


def _spread(
    step: Callable[[Shape], float], running: int, prompt: int, answer: int, tokens: int, mixes: bool
) -> tuple[float, float]:
    writing = running
    for _ in range(_ROUNDS):
        alone = step(_shape(prompt, answer, writing))
        room = max(tokens - writing, 1) if mixes else tokens
        chunk: float = min(prompt, room)
        steps = answer - 1 + prompt / chunk
        load = running * prompt / chunk / steps
        if mixes and load > 1:  # every step reads its share of all prompts, or as much of them as fits
            chunk, load = min(running * prompt / answer, room), 1.0
            steps = running * prompt / chunk
        read = step(_shape(prompt, answer, writing if mixes else 0, round(chunk)))
        found = max(round(running * (answer - 1) / steps), 1) if mixes else running
        if abs(found - writing) <= writing * 0.05:
            break
        writing = (writing + found) // 2
    others, own = (running - 1) / running, prompt / chunk if load < 1 or not mixes else max(steps - (answer - 1), 1)
    if mixes:
        tpot = alone + load * others * (read - alone)
        full = load * chunk / room  # steps read several short prompts at once
        waits = min(full * others / (2 * (1 - full)), (running - 1) / 2) if load < 1 else 0.0
        return (own + waits * own) * read + tpot / 2, tpot
    busy = running * own * read
    tpot = alone + others * busy / max(answer - 1, 1)
    return own * read * (1 + others * busy / (busy + (answer - 1) * alone) / 2) + alone / 2, tpot


def _shape(prompt: int, answer: int, decodes: int, new: int = 0) -> Shape:
    """Return a step of decode tokens in the middle of their answers, and of `new` tokens of prompts in equal chunks."""
    context = round(decodes * (prompt + (answer + 1) / 2))
    if not new:
        return Shape(decodes, context)
    prompts = max(new // prompt, 1)
    each = new / prompts
    mean = (min(prompt / each, prompt) * each + 1) / 2  # keys that a token sees, over all chunks of its prompt
    return Shape(decodes, context, prompts, new, round(new * max(mean, (each + 1) / 2)))
