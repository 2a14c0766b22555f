"""The load of a server: a number of clients, random arrivals at a rate, or a trace; lengths fixed or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from weft.core.answer import Record
from weft.core.errors import InputError, check_type, check_whole, is_whole, show_value
from weft.core.fields import Options, check_fields, declare
from weft.serving.requests import RequestSpec, RequestStream, printable, read_requests
from weft.serving.result import LIFETIMES, WARM_UP

Arrivals = Literal["poisson", "gamma", "even"]
"""Random arrivals: independent, in bursts or evened out (gamma-distributed gaps), or at equal gaps."""
Lengths = int | tuple[int, int]
"""Tokens of each prompt or answer, or the least and the most of those that are drawn."""
FIRST_REQUESTS = 1000
"""Requests of a load at a rate, if nothing says how many; more where their lifetimes ask for more."""
EACH_CLIENT = LIFETIMES + WARM_UP + 1
"""Requests of each client that waits: lifetimes of a steady state, those of warm-up, and a last one that drains."""
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 128
_MOST = 1_000_000


@dataclass(frozen=True)
class Load(Options, Record):
    """The load of a server.

    Requests arrive at a `rate` [1/s], from `concurrency` clients that wait for each answer, or as a `trace` says (a
    file, or FILE#NAME for one of several); a `rate` with a trace scales its gaps. Prompts have `input_len` and
    answers `output_len`, or numbers drawn evenly between two, by the `seed`. The first `shared_prefix` tokens of all
    prompts are the same, and computed once. `arrivals` at a rate are Poisson's unless stated; the `burstiness` of gamma
    ones is the variance of a gap by that of Poisson's.

    Raises UnknownNameError for an unknown field or name, InputError for contradicting or missing choices.

    >>> Load(rate=4, input_len=(100, 4000), output_len=64).draw().rate
    4
    """

    rate: float | None = declare(None, "Request rate [1/s].", bounds=(1e-6, 1e6), example=4)
    concurrency: int | None = declare(
        None, "Clients, each with one request in flight (closed loop).", example=64, most=_MOST
    )
    trace: str | Path | None = declare(
        None,
        "File with arrivals and lengths: CSV or JSON lines, as Azure and Mooncake publish them or with arrival_s, "
        "input_tokens and output_tokens; FILE#NAME takes one of several. --rate scales its gaps.",
    )
    requests: int | None = declare(
        None,
        "Number of requests.",
        example=64,
        most=_MOST,
        default="1000 or ten lifetimes, 13 for each client, the whole trace",
    )
    input_len: Lengths | None = declare(None, "Prompt tokens of a request.", default=str(INPUT_TOKENS))
    output_len: Lengths | None = declare(None, "Output tokens of a request.", default=str(OUTPUT_TOKENS))
    arrivals: Arrivals | None = declare(
        None, "Arrival process at a --rate.", default="poisson", noun="kind of arrivals"
    )
    burstiness: float | None = declare(
        None, "Variance of gamma-distributed gaps relative to Poisson's.", bounds=(1e-3, 1e3), example=4, default="1"
    )
    shared_prefix: int = declare(
        0, "Tokens that all prompts begin with, computed once (prefix caching).", least=0, example=64, most=_MOST
    )
    seed: int | None = declare(None, "Seed of arrivals and lengths.", least=0, example=1, default="0")

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("input_len", "output_len"):
            object.__setattr__(self, name, _lengths(name, getattr(self, name)))
        if self.trace is not None:
            check_type("the trace", self.trace, (str, Path), "give the path of a CSV or JSON-lines file")
            self._refuse("a trace has lengths of its own", "input_len", "output_len")
        if self.concurrency is not None:
            self._refuse("clients ask when they are answered", "arrivals", "burstiness")
        elif self.trace is not None:
            self._refuse("a trace has times of its own", "arrivals", "burstiness", "seed")
        elif self.burstiness is not None and self.arrivals != "gamma":
            raise InputError("burstiness is that of gamma arrivals; give arrivals='gamma', too, or leave it out")
        if self.rate is not None and self.concurrency is not None:
            raise InputError(f"rate and concurrency exclude each other; {_ONE}")
        if self.rate is None and self.concurrency is None and self.trace is None:
            raise InputError(f"nothing says when requests arrive; {_ONE}")
        drawn = any(isinstance(each, tuple) for each in (self.input_len, self.output_len))
        if not drawn and (self.concurrency is not None or self.arrivals == "even"):
            self._refuse("nothing is drawn", "seed")

    def _refuse(self, why: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None:
                raise InputError(f"{why}, and {name} is {show_value(value)}; leave it out")

    def draw(self) -> RequestStream:
        """Return the requests, without the prefix that their prompts share; InputError for a trace without times."""
        if self.trace is not None and self.concurrency is None:
            return self._of_trace(self.trace)
        random = np.random.default_rng(self.seed or 0)
        count = self.requests or (
            FIRST_REQUESTS if self.concurrency is None else max(EACH_CLIENT * self.concurrency, 100)
        )
        lengths = self._drawn_lengths(count, random)
        if self.concurrency is not None:
            kept = [RequestSpec(0.0, *each) for each in lengths]
            about = f"{count:,} requests of {self.concurrency:,} clients"
            return RequestStream(kept, about, min(self.concurrency, count))
        assert self.rate is not None
        times = self._times(self.rate, count, random)
        asked = [RequestSpec(float(at), *each) for at, each in zip(times, lengths, strict=True)]
        about = f"{count:,} requests at {self.rate:g} requests/s ({self._arrival_words})"
        return RequestStream(asked, about, stated=self.rate)

    def _of_trace(self, trace: str | Path) -> RequestStream:
        found = read_requests(trace)[: self.requests or None]
        _check_times(found, str(trace))
        about = f"{len(found):,} requests of {printable(Path(trace).name)}"
        if self.rate is not None:
            found, about = _at_rate(found, self.rate), f"{about} at {self.rate:g} requests/s"
        return RequestStream(found, about, finite=True)

    @property
    def _arrival_words(self) -> str:
        known = {None: "Poisson arrivals", "poisson": "Poisson arrivals", "even": "even arrivals"}
        return known.get(self.arrivals, f"gamma arrivals ({self.burstiness or 1.0:g})")

    def _times(self, rate: float, count: int, random: np.random.Generator) -> Any:
        """Return arrivals [s] whose mean rate is the stated one, as in vLLM's `vllm bench serve`."""
        gaps = self._gaps(count, random) / rate
        times = np.cumsum(gaps) - gaps[0]
        if times[-1]:
            times *= (count - 1) / rate / times[-1]
        return times

    def _gaps(self, count: int, random: np.random.Generator) -> Any:
        """Return gaps between arrivals of mean 1."""
        if self.arrivals == "even":
            return np.ones(count)
        shape = 1.0 / (self.burstiness or 1.0) if self.arrivals == "gamma" else 1.0
        return random.gamma(shape, 1.0 / shape, count)

    def _drawn_lengths(self, count: int, random: np.random.Generator) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return lengths of prompts and answers: of a trace in its order, repeated where it is too short, or drawn."""
        if self.trace is not None:
            found = read_requests(self.trace)
            return [tuple(found[at % len(found)][1:]) for at in range(count)]  # type: ignore[misc]
        asked = self.input_len or INPUT_TOKENS, self.output_len or OUTPUT_TOKENS
        drawn = (
            random.integers(*each, count, endpoint=True) if isinstance(each, tuple) else [each] * count
            for each in asked
        )
        return [(int(i), int(o), ()) for i, o in zip(*drawn, strict=True)]


_ONE = "give rate (requests/s), concurrency (clients) or a trace"


def _lengths(name: str, value: Any) -> Lengths | None:
    """Return a number of tokens, or the least and the most, as plain Python has them; InputError for anything else."""
    if value is None:
        return None
    if is_whole(value):
        check_whole(name, value, 1, INPUT_TOKENS)
        return int(value)
    if isinstance(value, tuple | list) and len(value) == 2 and all(is_whole(each) and each > 0 for each in value):
        low, high = map(int, value)
        if low <= high:
            return low, high
    raise InputError(
        f"{name} is {show_value(value)}; give a number of tokens, or the least and the most, like (100, 4000)"
    )


def _at_rate(asked: Sequence[RequestSpec], rate: float) -> list[RequestSpec]:
    """Return the same requests with their gaps scaled to a mean rate."""
    first, span = asked[0].arrival, asked[-1].arrival - asked[0].arrival
    if not span:
        raise InputError("all requests of the trace arrive at once, which no rate scales; leave out rate")
    scale = (len(asked) - 1) / span / rate
    return [one._replace(arrival=(one.arrival - first) * scale) for one in asked]


def _check_times(asked: Sequence[RequestSpec], file: str) -> None:
    for at, (before, after) in enumerate(pairwise(asked), 1):
        if after.arrival < before.arrival:
            raise InputError(
                f"{file}: request {at + 1} arrives at {after.arrival:g} s, before request {at} at {before.arrival:g} "
                "s; sort the trace by time"
            )
    if any(one.arrival != one.arrival for one in asked):
        raise InputError(f"{file} has lengths without times; give rate or concurrency, too")
