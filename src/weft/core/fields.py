"""Fields of options declared once: what each means, its range and its default, for the command line and for checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from importlib import import_module
from numbers import Real
from types import UnionType
from typing import Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weft.core.errors import LARGEST_WHOLE, InputError, UnknownNameError, check_name, check_whole, is_whole, show_value

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_KEY = "declared"


@dataclass(frozen=True)
class FieldDeclaration:
    """What is said of a field beside its type and default.

    `help` is its line on a help page, in which {names} stands for the known names. `least` and `most` bound a whole
    number; errors give an `example`; `bounds` are the least and the most of a number that need not be whole. `default`
    says in words what happens without a value. `noun` names a choice in errors; `names` are those that a text may be,
    where its type does not list them, or "package.module:NAMES", imported when a name is checked. `unit` is that of a
    number, in the plural. `scope` says what the field is of, where not all readers of its class read it. A field's name
    is that of its option and its key in a sweep's file.
    """

    help: str
    least: int = 1
    most: int | None = None
    example: float = 8
    default: str = ""
    noun: str = ""
    names: tuple[str, ...] | str = ()
    unit: str = ""
    bounds: tuple[float, float] | None = None
    scope: str = ""


def declare(value: Any, help: str, **more: Any) -> Any:
    """A field of a dataclass with its default, or the class that makes it, and its declaration (`FieldDeclaration`)."""
    metadata = {_KEY: FieldDeclaration(help, **more)}
    return (
        field(default_factory=value, metadata=metadata)
        if isinstance(value, type)
        else field(default=value, metadata=metadata)
    )


def redeclare(owner: type, name: str, value: Any = MISSING, **changed: Any) -> Any:
    """Return a field of a subclass as `owner` declares it, with another default, or another part of its declaration."""
    one = next(each for each in fields(owner) if each.name == name)
    about = replace(one.metadata[_KEY], **changed)
    return declare(one.default if value is MISSING else value, **vars(about))


@dataclass(frozen=True)
class Described:
    """A field: its name, default, types without None, its declaration, and whether it may be None."""

    name: str
    value: Any
    kinds: tuple[Any, ...]
    declared: FieldDeclaration
    optional: bool = False

    @property
    def takes_names(self) -> bool:
        """Whether the field takes only names."""
        return bool(self.declared.names) or (len(self.kinds) == 1 and get_origin(self.kinds[0]) is Literal)

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that the field takes, if it takes only names; else empty."""
        names = self.declared.names
        if isinstance(names, str):
            module, _, name = names.partition(":")
            return tuple(getattr(import_module(module), name))
        return names or (get_args(self.kinds[0]) if self.takes_names else ())


@cache
def describe_fields(owner: Any) -> dict[str, Described]:
    """Return the declared fields of a dataclass by name, in order."""
    return {one.name: one for one in _describe_each(owner)}


def _describe_each(owner: Any) -> Iterator[Described]:
    for one in fields(owner):
        if _KEY in one.metadata:
            yield _described_field(owner, one)


def _described_field(owner: Any, one: Field[Any]) -> Described:
    """A field with its types, as the module of the class that declares it names them; one that is not declared, too."""
    value = None if one.default is MISSING else one.default
    declaration = one.metadata.get(_KEY, _UNDECLARED)
    if not isinstance(one.type, str):
        return Described(one.name, value, _kinds(one.type), declaration, type(None) in get_args(one.type))
    home = next(each for each in owner.__mro__ if one.name in vars(each).get("__annotations__", {}))
    try:
        hint = get_type_hints(
            type("_", (), {"__annotations__": {one.name: one.type}}), vars(import_module(home.__module__))
        )
    except NameError:  # a type that only a type checker imports
        return Described(one.name, value, (Any,), declaration)
    return Described(one.name, value, _kinds(hint[one.name]), declaration, type(None) in get_args(hint[one.name]))


_UNDECLARED = FieldDeclaration("", least=0)


class Options:
    """Base of dataclasses whose fields users name: UnknownNameError for a name that no field has, with the nearest."""

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Make an object whose fields `__init__` sets."""
        known: Mapping[str, Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        for name in given:
            if name not in known:
                raise UnknownNameError(f"field of {cls.__name__}", name, tuple(known), listed=True)
        return super().__new__(cls)


def from_options(owner: type[T], values: Mapping[str, Any]) -> T:
    """Return the object of a dataclass of declared fields by its fields' names; others and None are left out."""
    given = {name: values.get(name) for name in describe_fields(cast(Any, owner))}
    return owner(**{name: value for name, value in given.items() if value is not None})


def stated_fields(options: Any, *without: str) -> dict[str, Any]:
    """Return the fields of a dataclass's object that differ from their defaults, `without` some."""
    each = ((one, getattr(options, one.name)) for one in fields(options) if one.name not in without)
    return {one.name: value for one, value in each if value != _default(one)}


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _kinds(hint: Any) -> tuple[Any, ...]:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for kind in kinds if kind is not type(None))


def check_fields(options: Any, sizes: bool = True) -> None:
    """Check every choice, number, flag and text of a dataclass's object by its type, and by what it declares.

    A whole number is at least 0 where it declares no `least`; other numbers are finite and at least 0. Without `sizes`,
    whole numbers are left to the caller: those of operators may be arrays.

    Raises UnknownNameError for an unknown name, InputError for a number out of its range, and for another type.
    """
    owner: Any = type(options)
    for name, passes, check, one in _rules(owner, sizes):
        value = getattr(options, name)
        if type(value) is passes or (value is None and one.optional):
            continue
        found = check(one, value)
        if found is not value:
            object.__setattr__(options, name, found)


def _check_choice(one: Described, value: Any) -> Any:
    if len(one.kinds) > 1 and not isinstance(value, str):
        return value  # what its owner checks, such as a function
    if type(value) is not str or value not in one.choices:
        check_name(one.declared.noun or one.name, value, one.choices)
    return value


def _check_whole(one: Described, value: Any) -> Any:
    least, most = one.declared.least, one.declared.most
    if type(value) is not int or not least <= value <= (LARGEST_WHOLE if most is None else most):
        check_whole(one.name, value, least, int(one.declared.example))
        if most is not None and value > most:
            raise InputError(f"{one.name} is {show_value(value)}; it must be at most {most}")
        return int(value)  # numpy's integers overflow
    return value


def _check_flag(one: Described, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InputError(f"{one.name} is {show_value(value)}; give True or False")


def _check_number(one: Described, value: Any) -> Any:
    bounds = one.declared.bounds
    if bounds is None and type(value) is float and 0 <= value < math.inf:
        return value  # without a look at abstract classes: operators are checked by the 100,000
    if bounds is not None:
        low, high = bounds
        if isinstance(value, bool) or not (isinstance(value, Real) and low <= float(value) <= high):
            raise InputError(
                f"{one.name} is {show_value(value)}; give a number of {low:g} to {high:g}, such as "
                f"{one.declared.example:g}"
            )
        return value
    if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= float(value) < math.inf):
        number = f"number of {one.declared.unit}" if one.declared.unit else "number"
        raise InputError(f"{one.name} is {show_value(value)}; give a finite {number} of at least 0")
    return value


def _check_text(one: Described, value: Any) -> Any:
    if not isinstance(value, str):
        raise InputError(f"{one.name} is {show_value(value)}; give a text")
    return value


def _check_wholes(one: Described, value: Any) -> Any:
    if type(value) is tuple and set(map(type, value)) <= {int}:
        return value
    if not isinstance(value, tuple | list) or not all(is_whole(each) for each in value):
        raise InputError(f"{one.name} is {show_value(value)}; give a whole number for each, as (4, 4)")
    return tuple(map(int, value))


def _check_texts(one: Described, value: Any) -> Any:
    if type(value) is not tuple or not set(map(type, value)) <= {str}:
        raise InputError(f"{one.name} is {show_value(value)}; give a tuple of texts, as ('a', 'b')")
    return value


def _check_member(one: Described, value: Any) -> Any:
    members: Any = one.kinds[0]
    check_name(one.declared.noun or one.name, value, [member.value for member in members])
    return members(value)


_Check = Callable[[Described, Any], Any]
_CHECKS: dict[Any, _Check] = {
    int: _check_whole,
    bool: _check_flag,
    float: _check_number,
    str: _check_text,
    tuple[int, ...]: _check_wholes,
    tuple[str, ...]: _check_texts,
}
"""What checks a value of each type, and returns it as it is kept."""


@cache
def _rules(owner: Any, sizes: bool) -> list[tuple[str, type | None, _Check, Described]]:
    """Of each field of one known type its name, the type whose values all pass, and its check.

    Plans and operators are checked by the 100,000.
    """
    found = []
    for field_ in fields(owner):
        one = _described_field(owner, field_)
        kinds = set(one.kinds) - {int} if float in one.kinds else set(one.kinds)
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        check = _check_choice if one.takes_names else _CHECKS.get(kind)
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            check = _check_member
        passes = kind if check in (_check_text, _check_flag, _check_member) else None
        if check is not None and (sizes or check is not _check_whole):
            found.append((one.name, passes, check, one))
    return found
