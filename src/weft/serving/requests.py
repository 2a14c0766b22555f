"""Requests and their arrivals: a number of clients, random arrivals at a rate, or a trace; lengths fixed or drawn."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from weft.errors import InputError, check_type, check_whole, is_whole, nearest, reason, shown
from weft.files import read_text

T = TypeVar("T")
ARRIVALS = ("poisson", "gamma", "even")
"""Random arrivals: independent, in bursts or evened out (gamma-distributed gaps), or at equal gaps."""
_LARGEST_TRACE = 1 << 28


class Asked(NamedTuple):
    """What a request asks for: when it arrives [s], and tokens of its prompt and of its answer.

    `blocks` are ids of the blocks of its prompt, equal where prompts begin alike.
    """

    arrival: float
    input: int
    output: int
    blocks: tuple[int, ...] = ()


class Request:
    """The state of a request while it is served: the tokens computed so far, and the times of its tokens [s].

    It has `reached` a scheduler some time after its arrival. `known` tokens are its prompt and what it has generated;
    `held` bytes of keys and values are allocated on each GPU, which suffice for `room` tokens at least. So many
    `passes` of the model wrote to it.
    """

    __slots__ = (
        "arrival", "asked", "blocks", "computed", "done", "first", "generated", "held", "id", "input", "output",
        "passes", "preemptions", "reached", "replica", "room", "started",
    )  # fmt: skip

    def __init__(self, number: int, asked: Asked) -> None:
        self.id, self.asked = number, asked
        self.arrival, self.input, self.output, self.blocks = asked
        self.computed = self.generated = self.held = self.room = self.passes = self.preemptions = 0
        self.replica = -1
        self.reached = self.arrival
        self.started = self.first = self.done = float("nan")

    @property
    def known(self) -> int:
        """Tokens that are known: the prompt, and what has been generated."""
        return self.input + self.generated

    @property
    def missing(self) -> int:
        """Known tokens whose keys and values have not been computed: one while it generates."""
        return self.input + self.generated - self.computed

    @property
    def total(self) -> int:
        """Tokens of prompt and answer together."""
        return self.input + self.output


@dataclass(frozen=True)
class Load:
    """What a server is asked, in the order of arrival; `about` says it in words.

    Each of `clients` (0: none) sends its next request when its last one is answered; arrivals are those of their first.
    """

    asked: Sequence[Asked]
    about: str
    clients: int = 0

    @property
    def rate(self) -> float:
        """Requests per second that arrive; infinite if all arrive at once, 0 for clients, who wait."""
        span = self.asked[-1].arrival - self.asked[0].arrival
        if self.clients:
            return 0.0
        return (len(self.asked) - 1) / span if span else float("inf")


def load(
    *, rate: float | None, concurrency: int | None, trace: str | Path | None, requests: int | None, input: Any,
    output: Any, arrivals: str | None, burstiness: float | None, seed: int | None,
) -> Load:  # fmt: skip
    """The load of a server; InputError for contradicting or missing choices."""
    if trace is not None:
        drawn = {"input": input, "output": output}
        _refuse("a trace has lengths of its own", **drawn)
    if trace is not None or concurrency is not None:
        why = "clients ask when they are answered" if concurrency is not None else "a trace has times of its own"
        _refuse(why, arrivals=arrivals, burstiness=burstiness, **({} if concurrency is not None else {"seed": seed}))
    elif burstiness is not None and arrivals != "gamma":
        raise InputError("burstiness is that of gamma arrivals; give arrivals='gamma', too, or leave it out")
    chosen = [name for name, value in (("rate", rate), ("concurrency", concurrency)) if value is not None]
    if trace is not None and concurrency is None:
        found = read_requests(trace)[: requests or None]
        _check_times(found, str(trace))
        about = f"{len(found):,} requests of {Path(trace).name}"
        if rate is not None:
            found, about = _at_rate(found, rate), f"{about} at {rate:g} requests/s"
        return Load(found, about)
    if len(chosen) != 1:
        both = "rate and concurrency exclude each other" if chosen else "nothing says when requests arrive"
        raise InputError(f"{both}; give rate (requests/s), concurrency (clients) or a trace")
    drawn_lengths = not (input is None or is_whole(input)) or not (output is None or is_whole(output))
    if not drawn_lengths and (concurrency is not None or arrivals == "even"):
        _refuse("nothing is drawn", seed=seed)
    random = np.random.default_rng(seed or 0)
    count = requests or (1000 if concurrency is None else max(10 * concurrency, 100))
    lengths = _lengths(trace, input, output, count, random)
    if concurrency is not None:
        kept = [Asked(0.0, *each) for each in lengths]
        return Load(kept, f"{count:,} requests of {concurrency:,} clients", min(concurrency, count))
    assert rate is not None
    arrivals, burstiness = arrivals or "poisson", burstiness or 1.0
    gaps = _gaps(arrivals, burstiness, count, random) / rate
    times = np.cumsum(gaps) - gaps[0]
    how = {"poisson": "Poisson arrivals", "even": "even arrivals"}.get(arrivals, f"gamma arrivals ({burstiness:g})")
    asked = [Asked(float(at), *each) for at, each in zip(times, lengths, strict=True)]
    return Load(asked, f"{count:,} requests at {rate:g} requests/s ({how})")


def _refuse(why: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{why}, and {name} is {shown(value)}; leave it out")


def _gaps(arrivals: str, burstiness: float, count: int, random: np.random.Generator) -> Any:
    """Gaps between arrivals of mean 1; of gamma ones, `burstiness` is the variance of a gap by that of Poisson's."""
    if arrivals == "even":
        return np.ones(count)
    shape = 1.0 if arrivals == "poisson" else 1.0 / burstiness
    return random.gamma(shape, 1.0 / shape, count)


def _lengths(
    trace: str | Path | None, input: Any, output: Any, count: int, random: np.random.Generator
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Lengths of prompts and answers: of a trace in its order, again from its begin where it is too short, or drawn."""
    if trace is not None:
        found = read_requests(trace)
        return [tuple(found[at % len(found)][1:]) for at in range(count)]  # type: ignore[misc]
    asked = ("input", 1024 if input is None else input), ("output", 128 if output is None else output)
    drawn = (_drawn(name, value, count, random) for name, value in asked)
    return [(int(i), int(o), ()) for i, o in zip(*drawn, strict=True)]


def _drawn(name: str, value: Any, count: int, random: np.random.Generator) -> Any:
    if is_whole(value):
        check_whole(name, value, 1, 1024)
        return [value] * count
    if isinstance(value, tuple | list) and len(value) == 2 and all(is_whole(each) and each > 0 for each in value):
        low, high = value
        if low <= high:
            return random.integers(low, high, count, endpoint=True)
    raise InputError(f"{name} is {shown(value)}; give a number of tokens, or the least and the most, like (100, 4000)")


def _at_rate(asked: Sequence[Asked], rate: float) -> list[Asked]:
    """The same requests with their gaps scaled to a mean rate."""
    first, span = asked[0].arrival, asked[-1].arrival - asked[0].arrival
    if not span:
        raise InputError("all requests of the trace arrive at once, which no rate scales; leave out rate")
    scale = (len(asked) - 1) / span / rate
    return [one._replace(arrival=(one.arrival - first) * scale) for one in asked]


def _check_times(asked: Sequence[Asked], file: str) -> None:
    for at, (before, after) in enumerate(pairwise(asked), 1):
        if after.arrival < before.arrival:
            raise InputError(
                f"{file}: request {at + 1} arrives at {after.arrival:g} s, before request {at} at {before.arrival:g} "
                "s; sort the trace by time"
            )
    if any(one.arrival != one.arrival for one in asked):
        raise InputError(f"{file} has lengths without times; give rate or concurrency, too")


_COLUMNS = (
    ("arrival_s", "input_tokens", "output_tokens"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("timestamp", "input_length", "output_length"),
)
"""Columns of time and lengths: Weft's own, those of Azure's traces (dates) and of Mooncake's (milliseconds)."""


def read_requests(file: str | Path) -> list[Asked]:
    """The requests of a file: CSV, or JSON lines, in Weft's own columns, Azure's or Mooncake's.

    Columns are arrival_s, input_tokens, output_tokens; a time may be empty. "FILE#NAME" takes the rows whose column
    `trace` is that name. Raises InputError for a file that cannot be read or a value that is none.
    """
    check_type("the trace", file, (str, Path), "give the path of a CSV or JSON-lines file")
    path, _, name = str(file).partition("#")
    text = _text(Path(path))
    rows = list(_rows(path, text))
    if name:
        rows = [row for row in rows if row.get("trace") == name]
    if not rows:
        raise InputError(f"{path} holds no request{f' of trace {name!r}' if name else ''}; give one with rows")
    kinds = sorted({str(row["trace"]) for row in rows if row.get("trace")})
    if len(kinds) > 1:
        raise InputError(f"{path} holds several traces; name one, like '{path}#{kinds[0]}': {', '.join(kinds)}")
    names = next((names for names in _COLUMNS if all(one in rows[0] for one in names)), None)
    if names is None:
        near = ", ".join(nearest("input_tokens", [str(key) for key in rows[0]])) or "none alike"
        raise InputError(
            f"{path} lacks the columns arrival_s, input_tokens and output_tokens (it has {near}); add them"
        )
    return [_asked(path, at, row, names) for at, row in enumerate(rows, 1)]


def _text(file: Path) -> str:
    """The text of a file, which may be compressed by gzip."""
    if file.suffix != ".gz":
        return read_text(file, _LARGEST_TRACE)
    try:
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            return opened.read(_LARGEST_TRACE)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{file} cannot be read ({reason(error)}); give a file that gzip wrote") from None


def _rows(path: str, text: str) -> Iterator[Mapping[str, Any]]:
    if not text.lstrip().startswith("{"):
        yield from csv.DictReader(text.splitlines())
        return
    for at, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {at} is no JSON ({error}); write an object on each line") from None
            if not isinstance(row, dict):
                raise InputError(f'{path}, line {at} is no object; write one like {{"timestamp": 0, ...}}')
            yield row


def _asked(path: str, at: int, row: Mapping[str, Any], names: Sequence[str]) -> Asked:
    when = _read(path, at, row, names[0], _seconds, "a time") * (1e-3 if names[0] == "timestamp" else 1.0)
    lengths = [_read(path, at, row, name, int, "a whole number of tokens") for name in names[1:]]
    blocks = _read(path, at, row, "hash_ids", _blocks, "whole numbers in brackets, like [0, 1]")
    if min(lengths) < 1 or when == float("inf") or when < 0:
        raise InputError(
            f"{path}, request {at}: {lengths[0]} tokens in and {lengths[1]} out at {when:g} s; give at least 1 of "
            "each, and a time of 0 or more"
        )
    return Asked(when, lengths[0], lengths[1], blocks)


def _read(path: str, at: int, row: Mapping[str, Any], name: str, read: Callable[[Any], T], wanted: str) -> T:
    """A value of a request; InputError for one that cannot be read."""
    try:
        return read(row.get(name))
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{path}, request {at}: {name} is {shown(row.get(name))}; give {wanted}") from None


def _blocks(raw: Any) -> tuple[int, ...]:
    """The blocks of a prompt: a list, or its text in a CSV file."""
    return tuple(map(int, (json.loads(raw) if isinstance(raw, str) and raw else raw) or ()))


def _seconds(raw: Any) -> float:
    """A time [s], or the date of one; not a number where it is left out."""
    if raw is None or raw == "":
        return float("nan")
    try:
        if (given := float(raw)) == given:
            return given
        raise OverflowError(raw)  # a number that is none is not a time that is left out
    except ValueError:
        return datetime.fromisoformat(str(raw)[:26]).timestamp()
