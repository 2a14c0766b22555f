"""A question and the values that vary: lists and ranges as text, and combinations in order, each a task.

The record of a task is a row of a table.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from weft.core.catalog import is_file, read_toml, unknown_key
from weft.core.errors import ConfigError, InputError, SimulationError, UnknownNameError, check_name, check_type
from weft.core.store.records import checked_cache
from weft.core.store.task import as_json
from weft.serving.requests import read_requests
from weft.sweep.questions import (
    KINDS,
    OVERLOADED,
    PlanQuestion,
    SimulateQuestion,
    SweepQuestion,
    content,
    found_model,
    found_system,
    list_text,
    models_in,
    question_of,
    value_name,
)

LONGEST = 10_000
"""Most values of a range."""
_NUMBER = r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
_RANGE = re.compile(rf"{_NUMBER}([^:\d]*):{_NUMBER}([^:\d]*):\s*([x+]){_NUMBER}")
GOALS = dict.fromkeys(("step", "serve", "simulate", "estimate"), "seconds") | {"memory": "peak_bytes"}
"""The figure that is best if it is least, by the kind of run."""


@dataclass(frozen=True)
class Combination:
    """One combination, the `number`-th: the question's `data`, and digests of the files that it names.

    `values` are those of the axes. The record holds the answer's figures under "found", or the reason why the
    combination does not work under "why".
    """

    data: Mapping[str, Any] = field(hash=False)
    files: Mapping[str, str] = field(hash=False)
    title: str
    number: int = field(compare=False)
    values: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def weight(self) -> float:
        """Rough relative duration of a simulation; all other questions weigh the same."""
        try:
            asked = question_of(self.data) if self.data["run"] == SimulateQuestion.run else None
            return asked.weight() if isinstance(asked, SimulateQuestion) else 1.0
        except InputError:
            return 1.0

    def inputs(self) -> Mapping[str, Any]:
        """Return the values of the question, and what its files hold."""
        return {"question": content(self.data), "files": self.files}

    def run(self) -> Mapping[str, Any]:
        """Compute the answer; a combination that does not work has the reason as its answer.

        Raises UnknownNameError for a name that no combination knows, and InputError for a file that has changed.
        """
        _check_cache()
        _check_files(self.data, self.files)
        try:
            return question_of(self.data).record()
        except UnknownNameError:
            raise
        except (InputError, SimulationError) as error:
            return {"why": str(error)}

    def misfit(self, record: Any) -> str:
        """Return why a record found in a folder is none of this combination; empty if it is one."""
        held = record if isinstance(record, Mapping) else {}
        if held.keys() == {"why"} and isinstance(held["why"], str) and held["why"]:
            return ""
        found = held.get("found")
        if not isinstance(found, Mapping) or not all(map(_is_figure, found.values())):
            return "it holds no figures"
        goal = found.get(GOALS[self.data["run"]])
        if held.get("why") == OVERLOADED and goal is None:
            return ""
        is_number = isinstance(goal, int | float) and not isinstance(goal, bool)
        return "" if is_number else f"it has no figure {GOALS[self.data['run']]}"


def _is_figure(value: Any) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


_check_cache = cache(checked_cache)
"""Refuse an unsafe cache once in a process, before an error of it can pass for a combination that does not work."""


@dataclass(frozen=True)
class Matrix:
    """A question's `data` under every combination of the values of `axes`, by name; the last one varies fastest.

    `files` are digests of what the files hold that the question names.
    """

    data: Mapping[str, Any]
    axes: Mapping[str, tuple[Any, ...]]
    files: Mapping[str, str]

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    @cached_property
    def kind(self) -> type[SweepQuestion]:
        """The class of the question."""
        return KINDS[self.data["run"]]

    @cached_property
    def digest(self) -> str:
        """A hash of everything that is asked."""
        axes = [[name, content(list(each))] for name, each in self.axes.items()]
        asked = {"question": content(self.data), "axes": axes, "files": self.files}
        return hashlib.sha256(as_json(asked, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return what is asked, as plain data; objects by their names."""
        return {"question": value_name(self.data), "vary": value_name(self.axes), "files": dict(self.files)}

    def cases(self) -> Iterator[Combination]:
        """Yield every combination in order."""
        places = self._places
        for number, values in enumerate(product(*self.axes.values())):
            data, chosen = self.data, dict(zip(self.axes, values, strict=True))
            for name, value in chosen.items():
                data = _with_value(data, places[name], value)
            title = ", ".join(f"{name}={list_text(value_name(value))}" for name, value in chosen.items())
            yield Combination(data, self.files, title or str(data["run"]), number, values)

    @cached_property
    def _places(self) -> dict[str, tuple[str, ...]]:
        systems = _systems_in(self.data, self.axes)
        return {name: place(name, self.kind, systems) for name in self.axes}

    def check(self) -> None:
        """Check each value on its own: keys, types and names; ConfigError or UnknownNameError for the first bad one."""
        for path in self.data.get("set", {}):
            place(f"set.{path}", self.kind, _systems_in(self.data, self.axes))
        for name, values in self.axes.items():
            for value in values:
                data = _with_value(self.data, self._places[name], value)
                for other, first in self.axes.items():
                    data = data if other == name else _with_value(data, self._places[other], first[0])
                question_of(data).check()
        if not self.axes:
            question_of(self.data).check()


def matrix_of(asked: str | Path | Mapping[str, Any], vary: Mapping[str, Any] | None = None) -> Matrix:
    """The matrix of a question in a TOML file (or as a mapping) and of the values that `vary`, which replace those of
    the file's table [vary].

    Raises ConfigError for unknown keys, naming the nearest, InputError for files that cannot be read and empty lists.
    """
    label = "" if isinstance(asked, Mapping) else str(asked)
    check_type("the question", asked, (str, Path, Mapping), "give a TOML file, or its values")
    data = dict(asked) if isinstance(asked, Mapping) else dict(read_toml(Path(asked)))
    if not isinstance(data.get("run"), str):
        raise ConfigError(f"'run' is missing; say what to run: {', '.join(KINDS)}", label or None)
    check_name("kind of run", data["run"], KINDS)
    inside = data.pop("vary", {})
    check_type("vary", inside, Mapping, "write a table of lists, like tp = [1, 2, 4]")
    axes = {name: several(name, values) for name, values in {**inside, **(vary or {})}.items()}
    try:
        made = Matrix(data, axes, _digests(data, axes))
        made.check()
    except ConfigError as error:
        raise ConfigError(error.message, error.file or label or None, error.key) from None
    return made


def _systems_in(data: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> list[Any]:
    """Return the systems of a question and of its axes."""
    return [system for system in axes.get("system", (data.get("system"),)) if system is not None]


def _digests(data: Mapping[str, Any], axes: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
    """Digests of the content of all machines, models and traces that are named by files, by name."""
    traces = {str(each["trace"]) for each in (data, *_choices(axes)) if each.get("trace")}
    models = {model for each in ({}, *_choices(axes)) for model in models_in({**data, **each})}
    systems = {str(system) for system in _systems_in(data, axes) if isinstance(system, str | Path)}
    known = {name: digest_of(name) for name in sorted({*systems, *models}) if _in_file(name)}
    return known | {name: _digest_of_trace(name) for name in sorted(traces)}


def _choices(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    for name in ("model", "work", "trace"):
        yield from ({name: value} for value in axes.get(name, ()))


def _in_file(name: str) -> bool:
    return is_file(name) or name.endswith(".json")


@lru_cache(256)
def digest_of(name: str) -> str:
    """Hash of every value of the system or the model in a file."""
    try:
        held: Any = found_system(name).inputs()
    except InputError:
        held = {"model": repr(found_model(name))}
    return hashlib.sha256(as_json(held, sort_keys=True).encode()).hexdigest()


def _digest_of_trace(name: str) -> str:
    """Hash of the requests of a file."""
    return hashlib.sha256(repr(read_requests(name)).encode()).hexdigest()


def _check_files(data: Mapping[str, Any], files: Mapping[str, str]) -> None:
    trace = str(data.get("trace"))
    found = dict.fromkeys((str(data.get("system")), *models_in(data)), digest_of) | {trace: _digest_of_trace}
    for name, digest in found.items():
        if name in files and digest(name) != files[name]:
            raise InputError(f"the file '{name}' holds other values than when the sweep began; begin a new sweep")


def axis_of(text: str) -> tuple[str, tuple[Any, ...]]:
    """Return the name and the values of "tp=1,2,4", "batch=64:1024:x2" or "gemm=8192,8192,8192;4096,4096,4096".

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
    """Return a whole number, a number, true or false; any other text is returned unchanged."""
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


def _with_value(data: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy of a question's data with a value at a path."""
    name, *inner = path
    return {**data, name: _with_value(data.get(name, {}), tuple(inner), value) if inner else value}


def place(name: str, kind: type[SweepQuestion], systems: Iterable[Any]) -> tuple[str, ...]:
    """Return where the value `name` belongs in a question: a key, one of its tables, or a path of its systems.

    Raises ConfigError for an unknown name, with the nearest known ones.
    """
    tables = ("options", "set", *(("overlap",) if issubclass(kind, PlanQuestion) else ()))
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
