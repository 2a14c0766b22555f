"""The state of a page: the tab and the values of its form, as the query of its address and as a command's arguments.

A form has the options of its command, in their order, with their help texts: nothing is declared a second time.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import click

from weft.cli.main import weft
from weft.core.errors import InputError, UnknownNameError
from weft.core.files import packaged_toml

State = Mapping[str, tuple[str, ...]]
"""Values by the name of their option or argument."""
FILE, PIN = "file", "pin"
"""Keys of the query that are no options: a dropped file, and the pinned state."""
_HIDDEN = frozenset({"against", "launch", "define", "trace", "no-cache", "jobs", "heatmap", "compare-overlaps"})
"""Options that read or write files, or that the page asks by its buttons."""
_LARGEST_FILE = 200_000
_LARGEST_QUERY = 60_000
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,78}\.(json|toml|ya?ml|sh|txt)")
_ELSEWHERE = re.compile(r"""(^|[\s,=:;'"])([/~\\]|\.\.?[/\\])|\.py\b""")
_DOUBLINGS, _STEEP = 12, 64
"""Doublings over which a slider goes, and the largest range whose slider has a stop at every whole number."""
_DEFAULT = re.compile(r"\s*\[default: (.*?)\]\s*(?:\[.*\])?$", re.DOTALL)


@dataclass(frozen=True)
class Ask:
    """A further question on a state: a command, or options `added` to the tab's, `without` some.

    `is_live` ones follow every change.
    """

    label: str
    command: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    is_live: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Tab:
    """A tab: its command, the fields shown first, the state of a first visit, and further questions.

    The answer of an `is_live` one follows every change; that of another one is asked for by a button.
    """

    label: str
    about: str
    command: tuple[str, ...]
    front: tuple[str, ...]
    start: str
    asks: tuple[Ask, ...] = ()
    is_live: bool = True

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The command of the tab, and those of its further questions."""
        return tuple(dict.fromkeys((self.command, *(ask.command for ask in self.asks if ask.command))))


def _tab(about: Mapping[str, Any]) -> Tab:
    asks = tuple(Ask(**{key: _tuple(value) for key, value in one.items()}) for one in about.get("asks", ()))
    return Tab(**{key: _tuple(value) for key, value in about.items() if key != "asks"}, asks=asks)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


TABS: Mapping[str, Tab] = {name: _tab(about) for name, about in packaged_toml("weft.ui", "tabs.toml").items()}


@lru_cache(64)
def find_command(words: tuple[str, ...]) -> tuple[click.Command, int]:
    """Return the command of a command line like ("simulate", "corun", ...), and how many words name it."""
    command, at = cast("click.Command", weft), 0
    while isinstance(command, click.Group):
        command, at = cast("click.Command", command.get_command(click.Context(command), words[at])), at + 1
    return command, at


def key_of(param: click.Parameter) -> str:
    """Return the name of an option without its dashes, or of an argument."""
    return str(param.name) if isinstance(param, click.Argument) else max(param.opts, key=len).lstrip("-")


def params_of(path: tuple[str, ...]) -> dict[str, click.Parameter]:
    """Return the options and arguments of a command that a form may state, by key."""
    found = {key_of(one): one for one in find_command(path)[0].params if one.expose_value}
    return {key: one for key, one in found.items() if key not in _HIDDEN}


def parse_state(tab: str, query: str) -> State:
    """Return the state that a query holds; empty values are left out.

    Raises UnknownNameError for a key that no command of the tab has, InputError for a query that is too long.
    """
    if len(query) > _LARGEST_QUERY:
        raise InputError(f"the address has {len(query):,} characters; at most {_LARGEST_QUERY:,} are read")
    state: dict[str, tuple[str, ...]] = {}
    known = known_keys(tab)
    for key, value in parse_qsl(query):
        if key not in known:
            raise UnknownNameError("field of this form", key, known)
        if value.strip():
            state[key] = (*state.get(key, ()), value.strip())
    return state


def known_keys(tab: str) -> tuple[str, ...]:
    """Return the keys of a tab's form, the file and the pin."""
    of = TABS[tab]
    return (*dict.fromkeys(key for command in of.commands for key in params_of(command)), FILE, PIN)


def write_query(state: State) -> str:
    """Return the query that holds a state."""
    return urlencode([(key, value) for key, values in state.items() for value in values])


def arguments(path: tuple[str, ...], state: State, added: Sequence[str] = ()) -> list[str]:
    """Return the command line of a state; values of options that the command lacks belong to other commands of the tab.

    Raises InputError for a value that names a place on this computer, or code.
    """
    positional: list[str] = []
    options: list[str] = []
    for key, param in params_of(path).items():
        if f"--{key}" in added:
            continue
        values = tuple(_checked(key, value) for value in state.get(key, ()))
        if isinstance(param, click.Argument):
            if values and values[0].startswith("-"):
                raise InputError(f"{key} is '{values[0]}'; a name does not begin with a dash")
            positional += values[:1]
        elif isinstance(param, click.Option):
            options += _option_words(param, key, values)
    return [*path, *positional, *options, *added]


def _option_words(param: click.Option, key: str, values: Sequence[str]) -> Iterator[str]:
    """Yield the words of one option; a flag is "yes" or "no"."""
    if param.is_flag:
        if values and values[0] not in ("yes", "no"):
            raise InputError(f"{key} is '{values[0]}'; give yes or no")
        if values and values[0] == "yes":
            yield f"--{key}"
        elif values and param.secondary_opts:
            yield param.secondary_opts[0]
        return
    if len(values) > 1 and not param.multiple:
        raise InputError(f"{key} is given {len(values)} times, {' and '.join(values)}; give it once")
    for value in values:
        yield from (f"--{key}={value}",) if value.startswith("-") else (f"--{key}", value)


def _checked(key: str, value: str) -> str:
    if _ELSEWHERE.search(value):
        raise InputError(
            f"{key} is '{value}'; the page takes names and dropped files, no paths and no code of this computer: "
            "ask that on the command line"
        )
    return value


def show_command(arguments: Sequence[str]) -> str:
    """Return a command line as a shell takes it.

    >>> show_command(["step", "gpt-3", "--set", "link.bandwidth=600 GB/s"])
    "weft step gpt-3 --set 'link.bandwidth=600 GB/s'"
    """
    return shlex.join(["weft", *arguments])


def pack_file(name: str, text: str) -> str:
    """Return a file as a value of a query; InputError for a name or a size that the page does not take."""
    _check_file(name, len(text.encode()))
    return f"{name}:{base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip('=')}"


def unpack_file(value: str) -> tuple[str, str]:
    """Return name and text of a file in a query; InputError for one that the page does not take."""
    name, _, packed = value.partition(":")
    _check_file(name, 0)
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _LARGEST_FILE + 1)
        _check_file(name, len(data))
        if not opened.eof:
            raise ValueError("it ends early")
        return name, data.decode()
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InputError(f"the address holds a damaged copy of '{name}'; drop the file again") from error


def _check_file(name: str, size: int) -> None:
    if _FILE_NAME.fullmatch(name) is None or size > _LARGEST_FILE:
        raise InputError(
            f"'{name}' is no file that the page takes; letters, digits, '-', '_' and '.' in its name, .json, .toml, "
            f".yaml, .sh or .txt at its end, and at most {_LARGEST_FILE:,} bytes"
        )


@dataclass(frozen=True)
class Field:
    """A field of a form as its option declares it.

    `kind` is "choice", "flag", "number" or "text"; `low` and `high` are the ends of a number's slider, which doubles
    where `is_doubling`.
    """

    key: str
    kind: str
    help: str
    default: str
    values: tuple[str, ...] = ("",)
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    is_whole: bool = False
    is_doubling: bool = False
    is_multiple: bool = False
    is_required: bool = False


def fields_of(tab: str, state: State) -> tuple[list[Field], list[Field]]:
    """Return the fields that a tab shows first, and the others, with the values of a state."""
    of = TABS[tab]
    found: dict[str, Field] = {}
    for command in of.commands:
        added = {word.lstrip("-") for ask in of.asks if not ask.command for word in ask.added}
        for key, param in params_of(command).items():
            if key not in found and (key not in added or key in of.front):
                found[key] = _field(key, param, state.get(key, ()))
    front = [found[key] for key in of.front if key in found]
    return front, [one for key, one in found.items() if key not in of.front]


def _field(key: str, param: click.Parameter, values: tuple[str, ...]) -> Field:
    told = str(getattr(param, "help", "") or "")
    said = _DEFAULT.search(told)
    own = param.default if isinstance(param.default, str | int | float) and param.default is not False else ""
    usual = said[1] if said else str(own)
    base: dict[str, Any] = {
        "key": key, "help": _DEFAULT.sub("", told), "default": usual, "values": values or ("",),
        "is_multiple": param.multiple, "is_required": param.required,
    }  # fmt: skip
    kind = param.type
    if isinstance(param, click.Option) and param.is_flag:
        return Field(kind="flag", choices=("yes", "no") if param.secondary_opts else ("yes",), **base)
    if isinstance(kind, click.Choice):
        return Field(kind="choice", choices=tuple(map(str, kind.choices)), **base)
    if not isinstance(kind, click.IntRange | click.FloatRange) and kind is not click.INT:
        known = getattr(kind, "known", None)
        return Field(kind="text", choices=tuple(known()) if callable(known) else (), **base)
    whole = not isinstance(kind, click.FloatRange)
    low, high = getattr(kind, "min", None) or 0, getattr(kind, "max", None)
    if high is not None and (high <= 1 or high - low <= _STEEP):
        return Field(kind="number", low=low, high=high, is_whole=whole, **base)
    return Field(kind="number", low=0 if whole else -3, high=_DOUBLINGS, is_whole=whole, is_doubling=True, **base)
