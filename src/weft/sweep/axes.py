"""Values that vary: lists and ranges as text, and the place of a name in a question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.catalog import unknown_key
from weft.errors import ConfigError, InputError
from weft.sweep.questions import Planned, Question, found_system

LONGEST = 10_000
"""Most values of a range."""
_RANGE = re.compile(r"\s*([\d.]+)\s*([^:\d]*):\s*([\d.]+)\s*([^:\d]*):\s*([x+])\s*([\d.]+)\s*")


def axis_of(text: str) -> tuple[str, tuple[Any, ...]]:
    """The name and the values of "tp=1,2,4", "batch=64:1024:x2" or "gemm=8192,8192,8192;4096,4096,4096".

    Values that contain commas are separated by semicolons. Raises InputError for a text without name or values.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    parts = [part for part in values.split(";" if ";" in values else ",") if part.strip()]
    if not (name and equals and parts):
        raise InputError(f"'{text}' varies nothing; write a name and its values, like tp=1,2,4,8 or batch=64:1024:x2")
    return name, tuple(value for part in parts for value in _values(part.strip()))


def _values(text: str) -> Iterator[Any]:
    """The values of a range "1:64:x2", "8:64:+8" or "100 GB/s:400 GB/s:x2", both ends included, or the one value."""
    found = _RANGE.fullmatch(text)
    if found is None:
        yield scalar(text)
        return
    first, unit, last, other, how, by = (part.strip() for part in found.groups())
    if unit != other or float(by) <= (how == "x") or float(first) <= 0:
        raise InputError(f"'{text}' is no range; write first:last:x2 (times) or first:last:+8 (plus), in one unit")
    value, count = float(first), 0
    while value <= float(last) * (1 + 1e-9):
        yield scalar(f"{value:.12g}{f' {unit}' if unit else ''}")
        value, count = (value * float(by) if how == "x" else value + float(by)), count + 1
        if count > LONGEST:
            raise InputError(f"'{text}' has more than {LONGEST:,} values; take a larger step")


def scalar(text: str) -> Any:
    """A whole number, a number, true or false; any other text is returned unchanged."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def several(name: str, values: Any) -> tuple[Any, ...]:
    """The values of an axis as a file or Python gives them: a list, or a text as after --vary; InputError for none."""
    if isinstance(values, str):
        return axis_of(f"{name}={values}")[1]
    found = tuple(values) if isinstance(values, Sequence | range) else (values,)
    if not found:
        raise InputError(f"{name} varies over an empty list; give at least one value")
    if any(value is None for value in found):
        raise InputError(f"{name} is None in its list; give a value, or leave it out")
    return found


def with_value(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of a question's data with a value at a path."""
    name, *inner = path
    return {**data, name: with_value(data.get(name, {}), tuple(inner), value) if inner else value}


def place(name: str, kind: type[Question], systems: Iterable[Any]) -> tuple[str, ...]:
    """Where the value `name` belongs in a question: a key, one of its tables, or a path of its systems.

    Raises ConfigError for an unknown name, with the nearest known ones.
    """
    tables = ("options", "set", *(("overlap",) if issubclass(kind, Planned) else ()))
    if name in kind.model_fields and name not in tables:
        return (name,)
    table, dot, inner = name.partition(".")
    if dot and table in tables:
        if table != "set":
            return table, inner
        name = inner
    paths = {path: None for system in systems for path in found_system(system).rules}
    if name in paths:
        return "set", name
    keys = [key for key in kind.model_fields if key not in tables]
    error = unknown_key(name, [*keys, *paths])
    raise ConfigError(error.message, "--vary", name)
