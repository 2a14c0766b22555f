"""Arguments of public functions: a call that fails because of a wrong type is answered by a sentence that names it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from inspect import signature
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from weft.core.errors import InputError, WeftError, is_whole, shown

P = ParamSpec("P")
T = TypeVar("T")

_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "Path": "a path",
    "NoneType": "None",
    "Sequence": "a list",
    "Iterable": "a list",
    "Mapping": "a mapping",
    "Callable": "a function",
    "ndarray": "an array",
}


def answering(function: Callable[P, T]) -> Callable[P, T]:
    """The same function; where it fails on an argument of another type than it declares, InputError names the argument.

    Arguments are looked at only after a call has failed: what a function accepts beyond its annotations stays
    accepted, and errors that have another cause stay as they are.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            return function(*args, **named)
        except WeftError:
            raise
        except OSError as error:
            if error.filename is None:
                raise
            rule = "give a path that this computer can use"
            raise InputError(f"{shown(str(error.filename))}: {error.strerror}; {rule}") from None
        except Exception:
            wrong = _misfit(function, args, named)
            if wrong is None:
                raise
        raise InputError(wrong)

    return call


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    """The first argument that has another type than its annotation says, in a sentence; None if all fit."""
    declared = signature(function)
    try:
        given = declared.bind(*args, **named).arguments
    except TypeError:  # Python names the argument that is missing or unknown
        return None
    for name, value in given.items():
        parameter = declared.parameters[name]
        kind, values = _kind(parameter.annotation, function), [value]
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = list(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = list(value.values())
        for each in values:
            if not _fits(each, kind):
                return f"{name} is {shown(each)}; it takes {_sentence(kind)}"
    return None


def _kind(annotation: Any, function: Callable[..., Any]) -> Any:
    """The type that an annotation names; Any for one that only a type checker imports."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)
    except (NameError, TypeError):
        return Any


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has a type, as far as that shows at run time."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, tuple({type(part) for part in parts}))
    if kind is int:
        return is_whole(value)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    plain = NoneType if kind is None else origin or kind
    if plain is Any or not isinstance(plain, type) or getattr(plain, "_is_protocol", False):
        return True
    if not isinstance(value, plain) or (isinstance(value, str | bytes) and plain not in (type(value), object)):
        return False
    if isinstance(value, tuple) and plain is tuple and parts and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if isinstance(value, Mapping) and issubclass(plain, Mapping) and parts:
        return all(_fits(key, parts[0]) and _fits(each, parts[1]) for key, each in value.items())
    if isinstance(value, Collection) and not isinstance(value, str | bytes) and parts:
        return all(_fits(each, parts[0]) for each in value)
    return True


def _sentence(kind: Any) -> str:
    """A type in words: "text, a path or None"."""
    *most, last = dict.fromkeys(_words(kind))
    return f"{', '.join(most)} or {last}" if most else last


def _words(kind: Any) -> Iterator[str]:
    """A type in words, each of several alone."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        for part in parts:
            yield from _words(part)
    elif origin is Literal:
        yield from map(repr, parts)
    else:
        plain = NoneType if kind is None else origin or kind
        name = plain.__name__
        yield _WORDS.get(name, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")
