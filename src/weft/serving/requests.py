"""Requests: what each asks for, its state while it is served, and those of a trace."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weft.core.errors import InputError, check_type, is_whole, reason, show_value
from weft.core.files import Rows, read_text

if TYPE_CHECKING:
    from weft.serving.decoding import DecodeGroup

T = TypeVar("T")
_LARGEST_TRACE = 1 << 28
_MOST_IDS = 512
"""Most ids of blocks that the common prefix of a load is divided into."""
LATEST_S = 1e10
"""Latest arrival of a trace [s]: 317 years, beyond which a double cannot tell two engine iterations apart."""
HASHED_TOKENS = 512
"""Tokens of a prompt that an id of a trace's `hash_ids` stands for (Mooncake's block size, arXiv:2407.00079)."""


class RequestSpec(NamedTuple):
    """A request: its arrival time [s], and the tokens of its prompt and of its answer.

    `blocks` are ids of the blocks of its prompt; prompts with a common prefix share ids.
    """

    arrival: float
    input: int
    output: int
    blocks: tuple[int, ...] = ()


STATE = {
    **dict.fromkeys(("arrival", "reached", "started", "first", "done"), "f"),
    **dict.fromkeys(("computed", "generated", "held", "passes", "preemptions", "replica", "kv_capacity"), "i"),
}
"""What changes of a request while it is served: times (f) and whole numbers (i), numpy's kinds."""


class Request:
    """The state of a request while it is served: the tokens computed so far, and the times of its tokens [s].

    It has `reached` a scheduler some time after its arrival. Its `num_tokens` are the prompt and what it has generated;
    `held` bytes of KV cache are allocated on each GPU, which suffice for `kv_capacity` tokens at least. `passes` counts
    the forward passes that wrote to it. While it decodes in a `group` (`weft.serving.decoding`), it is the member of a
    `number`, and what it has computed and generated follows from the iterations of the group.
    """

    __slots__ = (
        "_computed",
        "_generated",
        "arrival",
        "asked",
        "blocks",
        "done",
        "first",
        "group",
        "held",
        "id",
        "input",
        "kv_capacity",
        "number",
        "output",
        "passes",
        "preemptions",
        "reached",
        "replica",
        "started",
    )  # fmt: skip

    def __init__(self, number: int, asked: RequestSpec) -> None:
        self.id, self.asked = number, asked
        self.arrival, self.input, self.output, self.blocks = asked
        self.group: DecodeGroup | None = None
        self._computed = self._generated = self.held = self.kv_capacity = self.passes = self.preemptions = 0
        self.replica = self.number = -1
        self.reached = self.arrival
        self.started = self.first = self.done = float("nan")

    @property
    def computed(self) -> int:
        """Tokens whose KV cache has been computed."""
        return self._computed + self.group.steps if self.group else self._computed

    @computed.setter
    def computed(self, tokens: int) -> None:
        self._computed = tokens - self.group.steps if self.group else tokens

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self._generated + self.group.steps if self.group else self._generated

    @generated.setter
    def generated(self, tokens: int) -> None:
        self._generated = tokens - self.group.steps if self.group else tokens

    def join(self, group: DecodeGroup, number: int) -> None:
        """Count tokens by the steps of a group from now on."""
        self._computed, self._generated = self.computed - group.steps, self.generated - group.steps
        self.group, self.number = group, number

    def leave(self) -> None:
        """Count tokens by itself again."""
        self._computed, self._generated, self.group = self.computed, self.generated, None

    @property
    def num_tokens(self) -> int:
        """Tokens that are known: the prompt, and what has been generated."""
        return self.input + self.generated

    @property
    def uncomputed_tokens(self) -> int:
        """Known tokens that are not in the KV cache yet: 1 while the request generates."""
        return self.input + self._generated - self._computed

    @property
    def total(self) -> int:
        """Tokens of prompt and answer together."""
        return self.input + self.output


@dataclass(frozen=True)
class RequestStream:
    """What a server is asked, in the order of arrival; `about` says it in words.

    Each of `clients` (0: none) sends its next request when its last one is answered; arrivals are those of their first.
    Requests are drawn at a `stated` rate [1/s], if it is not 0; a `finite` load is a trace, which no more follow.
    """

    asked: Sequence[RequestSpec]
    about: str
    clients: int = 0
    stated: float = 0.0
    finite: bool = False

    @property
    def rate(self) -> float:
        """Requests per second that arrive; infinite if all arrive at once, 0 for clients, who wait."""
        if self.stated:
            return self.stated
        span = self.asked[-1].arrival - self.asked[0].arrival
        if self.clients:
            return 0.0
        return (len(self.asked) - 1) / span if span else float("inf")


def with_prefix(asked: RequestStream, prefix: int, block: int) -> tuple[int, RequestStream]:
    """Return the tokens that an id of a block stands for, and a load whose prompts begin with the same `prefix` tokens.

    What a prompt shares are whole KV-cache blocks of `block` tokens, and never its last token, which gives the first
    one of the answer (vllm-project/vllm vllm/v1/core/kv_cache_manager.py, get_computed_blocks). An id stands for as
    many blocks as divide what all prompts share, or for a part of `_MOST_IDS` of the longest where those are too many.
    """
    found = {size: min(prefix, size - 1) // block for size in {one.input for one in asked.asked}}
    most, each = max(found.values()), math.gcd(*found.values())
    if not most:
        return 0, asked
    each = max(each, -(-most // _MOST_IDS))
    ids = tuple(range(most // each))
    kept = {size: ids[: min(prefix, size) // (each * block)] for size in found}
    return each * block, replace(asked, asked=[one._replace(blocks=kept[one.input]) for one in asked.asked])


_COLUMNS = (
    ("arrival_s", "input_tokens", "output_tokens"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("timestamp", "input_length", "output_length"),
)
"""Columns of time and lengths: Weft's own, those of Azure's traces (dates) and of Mooncake's (milliseconds)."""
_LISTED = 6
"""Columns of a file that a message lists."""
_WHOLE = re.compile(r"[0-9]+(\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_requests(file: str | Path) -> list[RequestSpec]:
    """Return the requests of a file: CSV, or JSON lines, in Weft's own columns, Azure's or Mooncake's.

    Columns are arrival_s, input_tokens, output_tokens; a time may be empty. Dates without a zone are UTC, and arrivals
    count from the first date. "FILE#NAME" takes the rows whose column `trace` is that name. Raises InputError for a
    file that cannot be read, for a value that is not a time or a whole number of tokens, and for a column that occurs
    twice.
    """
    check_type("the trace", file, (str, Path), "give the path of a CSV or JSON-lines file")
    path, _, name = str(file).partition("#")
    text = read_text(path, _LARGEST_TRACE)
    path = printable(path)
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
        lacking = min(([one for one in names if one not in rows[0]] for names in _COLUMNS), key=len)
        has = ", ".join(show_value(key) for key in [*rows[0]][:_LISTED]) or "none"
        raise InputError(
            f"{path} lacks {', '.join(map(show_value, lacking))} among its columns {has}; add or rename them"
        )
    return _relative(path, [_parse_request(path, at, row, names) for at, row in enumerate(rows, 1)])


def printable(name: str) -> str:
    """The name of a file with a mark for each byte that is not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def _rows(path: str, text: str) -> Iterator[Mapping[str, Any]]:
    if not text.lstrip().startswith("{"):
        yield from _cells(path, text)
        return
    for at, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_once)
            except InputError as error:
                raise InputError(f"{path}, line {at}: {error}") from None
            except (ValueError, RecursionError) as error:
                why = reason(error)
                raise InputError(f"{path}, line {at} is no JSON ({why}); write an object on each line") from None
            if not isinstance(row, dict):
                raise InputError(f'{path}, line {at} is no object; write one like {{"timestamp": 0, ...}}')
            yield row


def _cells(path: str, text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a CSV file by the names of its columns."""
    lines = Rows(text, path)
    names = next(lines, [])
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise InputError(f"{path} has the column {show_value(twice)} twice; remove one of them")
    for cells in lines:
        if len(cells) > len(names):
            raise InputError(
                f"{path}, line {lines.line} has {len(cells)} cells, and the first line names {len(names)} columns; "
                "give each cell a name, or quote a comma"
            )
        if cells:
            yield dict(zip(names, [*cells, *[None] * (len(names) - len(cells))], strict=True))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, each of whose names must occur once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise InputError(f"the name {show_value(twice)} occurs twice; leave out one of them")
    return found


class _Time(NamedTuple):
    """A time of a trace [s; NaN where it is left out]: a number, or a date as seconds since 1970 in UTC."""

    seconds: float
    is_date: bool = False


def _relative(path: str, asked: list[tuple[_Time, RequestSpec]]) -> list[RequestSpec]:
    """Requests whose arrivals count from the first date, if they are dates; InputError if only some are."""
    dates = [at for at, (when, _) in enumerate(asked, 1) if when.is_date]
    if not dates:
        return [one for _, one in asked]
    number = next((at for at, (when, _) in enumerate(asked, 1) if not when.is_date), None)
    if number is not None:
        raise InputError(
            f"{path}: request {dates[0]} arrives at a date, and request {number} at a number of seconds or without a "
            "time; write all of them in one way"
        )
    first = asked[0][0].seconds
    return [one._replace(arrival=one.arrival - first) for _, one in asked]


def _parse_request(path: str, at: int, row: Mapping[str, Any], names: Sequence[str]) -> tuple[_Time, RequestSpec]:
    when = _read(path, at, row, names[0], _time, "a number of seconds, or a date such as 2026-01-31 12:00:00")
    seconds = when.seconds * (1e-3 if names[0] == "timestamp" and not when.is_date else 1.0)
    lengths = [_read(path, at, row, name, _whole, "a whole number of tokens") for name in names[1:]]
    blocks = _read(path, at, row, "hash_ids", _blocks, "whole numbers in brackets, like [0, 1]")
    if min(lengths) < 1 or seconds < 0 or seconds > (LATEST_S if not when.is_date else float("inf")):
        raise InputError(
            f"{path}, request {at}: {show_value(lengths[0])} tokens in and {show_value(lengths[1])} out at {seconds:g} "
            "s; give "
            f"at least 1 of each, and a time of 0 to {LATEST_S:g} s"
        )
    most = -(-lengths[0] // HASHED_TOKENS)
    if len(blocks) > most:
        raise InputError(
            f"{path}, request {at} has {len(blocks)} hash_ids, and its prompt of {show_value(lengths[0])} tokens "
            f"{most} "
            f"blocks of {HASHED_TOKENS} tokens; give an id for each such block"
        )
    return when, RequestSpec(seconds, lengths[0], lengths[1], blocks)


def _read(path: str, at: int, row: Mapping[str, Any], name: str, read: Callable[[Any], T], wanted: str) -> T:
    """Return a value of a request; InputError for one that cannot be read."""
    try:
        return read(row.get(name))
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise InputError(f"{path}, request {at}: {name} is {show_value(row.get(name))}; give {wanted}") from None


def _whole(raw: Any) -> int:
    """A whole number: of JSON, or ASCII digits of a CSV cell, also as pandas writes it beside missing ones (12.0)."""
    if is_whole(raw):
        return int(raw)
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, str) and _WHOLE.fullmatch(raw.strip()):
        return int(raw.strip().partition(".")[0])
    raise ValueError(raw)


def _blocks(raw: Any) -> tuple[int, ...]:
    """Return the blocks of a prompt: a list, or its text in a CSV file."""
    found = json.loads(raw) if isinstance(raw, str) and raw else raw or []
    if not isinstance(found, list) or not all(map(is_whole, found)):
        raise ValueError(raw)
    return tuple(found)


def _time(raw: Any) -> _Time:
    """Return a time [s], or the date of one, in UTC unless it names a zone; not a number where it is left out."""
    if raw is None or raw == "":
        return _Time(float("nan"))
    if isinstance(raw, str) and not _NUMBER.fullmatch(raw.strip()):
        date = datetime.fromisoformat(raw.strip())
        return _Time((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), is_date=True)
    seconds = float(raw)
    if isinstance(raw, bool) or seconds != seconds:
        raise ValueError(raw)
    return _Time(seconds)
