"""Fields of options declared once: what each means, its range and its default, for the command line and for checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib import import_module
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from weft.errors import LARGEST_WHOLE, InputError, check_name, check_whole, is_whole, shown

_KEY = "declared"


@dataclass(frozen=True)
class Declared:
    """What is said of a field beside its type and default.

    `help` is its line on a help page, in which {names} stands for the known names. `least` and `most` bound a whole
    number, of which errors give an `example`. `default` says in words what happens without a value. `noun` names a
    choice in errors.
    """

    help: str
    least: int = 1
    most: int | None = None
    example: int = 8
    default: str = ""
    noun: str = ""


def declared(value: Any, help: str, **more: Any) -> Any:
    """A field of a dataclass with its default and its declaration (`Declared`)."""
    return field(default=value, metadata={_KEY: Declared(help, **more)})


@dataclass(frozen=True)
class Described:
    """A declared field: its name, its default, the types that it takes (without None), and its declaration."""

    name: str
    value: Any
    kinds: tuple[Any, ...]
    declared: Declared

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that the field takes, if it takes only names; else empty."""
        return get_args(self.kinds[0]) if len(self.kinds) == 1 and get_origin(self.kinds[0]) is Literal else ()


@cache
def described(owner: Any) -> dict[str, Described]:
    """The declared fields of a dataclass by name, in order."""
    return {one.name: one for one in _described(owner)}


def _described(owner: Any) -> Iterator[Described]:
    names = vars(import_module(owner.__module__))
    for one in fields(owner):
        if _KEY in one.metadata:
            hint = get_type_hints(type("_", (), {"__annotations__": {one.name: one.type}}), names)[one.name]
            kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            value = None if one.default is MISSING else one.default
            yield Described(one.name, value, tuple(k for k in kinds if k is not type(None)), one.metadata[_KEY])


def check_fields(options: Any) -> None:
    """Check every declared choice, whole number and flag of a dataclass's object.

    Raises UnknownNameError for an unknown name, InputError for a number below its range, no flag and no whole numbers.
    """
    owner: Any = type(options)
    for name, kind, choices, one in _rules(owner):
        value = getattr(options, name)
        if value is None and one.value is None:
            continue
        if choices and (type(value) is not str or value not in choices):
            check_name(one.declared.noun or name, value, one.choices)
        elif kind is int and (type(value) is not int or not one.declared.least <= value <= LARGEST_WHOLE):
            check_whole(name, value, one.declared.least, one.declared.example)
            object.__setattr__(options, name, int(value))  # numpy's integers overflow
        elif kind is bool and not isinstance(value, bool):
            raise InputError(f"{name} is {shown(value)}; give True or False")
        elif kind == tuple[int, ...] and not (type(value) is tuple and set(map(type, value)) <= {int}):
            if not isinstance(value, tuple | list) or not all(is_whole(each) for each in value):
                raise InputError(f"{name} is {shown(value)}; give a whole number for each, as (4, 4)")
            object.__setattr__(options, name, tuple(map(int, value)))


@cache
def _rules(owner: Any) -> list[tuple[str, Any, frozenset[str], Described]]:
    """Of each declared field its name, its type if it takes one, and its choices: plans are checked by the 100,000."""
    return [
        (name, one.kinds[0] if len(one.kinds) == 1 else None, frozenset(one.choices), one)
        for name, one in described(owner).items()
    ]
