"""Check the types of public functions' arguments at the border; one that does not fit is named in a sentence."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, ValuesView
from functools import cache, wraps
from inspect import Parameter, Signature, signature, unwrap
from numbers import Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from weft.core.errors import InputError, is_whole, show_value

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
    "Op": "an operator like weft.gemm(8192, 8192, 8192)",
    "Gemm": "a GEMM like weft.gemm(8192, 8192, 8192)",
    "Collective": "a collective like weft.all_gather('896 MiB', ranks=8)",
    "Routing": "a routing like weft.Routing(tokens=4096, top_k=2, experts=64, ranks=8)",
    "Graph": "a graph like weft.sublayer('t-nlg/fc2', tp=8)",
    "Gpu": "a GPU like weft.gpu('h100-sxm')",
    "Node": "a node",
    "System": "a system like weft.system('8xh100')",
    "Transformer": "a model like weft.load_model('gpt-3')",
    "RunOptions": "options like weft.RunOptions(request_bytes=512)",
    "TrainingPlan": "a plan like weft.TrainingPlan(tp=8)",
    "ServingPlan": "a plan like weft.ServingPlan(tp=8)",
    "Load": "a load like weft.Load(rate=4)",
    "Limits": "limits like weft.Limits(ttft='1 s')",
}
"""Types in words; types of Weft with an example."""


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with a check of its arguments before each call.

    An argument of another type than declared raises InputError, and so does a path that this computer cannot use.
    """

    @wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        _check(function, args, named)
        try:
            return function(*args, **named)
        except OSError as error:
            if error.filename is None:
                raise
            rule = "give a path that this computer can use"
            raise InputError(f"{show_value(str(error.filename))}: {error.strerror}; {rule}") from None

    return call


@cache
def _read_signature(function: Callable[..., Any]) -> tuple[Signature, Mapping[str, Any]]:
    """Return the signature and the types of the parameters; Any for types that only a type checker imports."""
    known = getattr(unwrap(function), "__globals__", {})  # a context manager wraps its function

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            return known.get(name, getattr(builtins, name, Any))

    return signature(function), get_type_hints(function, localns=Names())


def _check(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    declared, kinds = _read_signature(function)
    try:
        given = declared.bind(*args, **named).arguments
    except TypeError:  # the call itself names the argument that is missing or unknown
        return
    for name, value in given.items():
        values = (value,)
        if declared.parameters[name].kind is Parameter.VAR_POSITIONAL:
            values = value
        elif declared.parameters[name].kind is Parameter.VAR_KEYWORD:
            values = tuple(value.values())
        for each in values:
            misfit = _misfit(name, each, kinds.get(name, Any))
            if misfit:
                raise InputError(misfit)


def _misfit(name: str, value: Any, kind: Any) -> str | None:
    """Return a sentence on a value, or the first element of a list or mapping, that has another type than declared."""
    if _fits(value, kind):
        return None
    for part in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        origin, parts = get_origin(part), get_args(part)
        if isinstance(origin, type) and isinstance(value, origin) and isinstance(value, list | tuple | Mapping):
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            found = (
                _misfit(f"{name}[{at!r}]", each, parts[-1 if isinstance(value, Mapping) else 0]) for at, each in pairs
            )
            return next(filter(None, found), None) or f"{name} is {show_value(value)}; it takes {_sentence(kind)}"
    if isinstance(value, type):
        return (
            f"{name} is the class {value.__name__}; it takes {_sentence(kind)}; give an object, like {value.__name__}()"
        )
    return f"{name} is {show_value(value)}; it takes {_sentence(kind)}"


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type, as far as that shows without computing anything."""
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
    if issubclass(plain, Iterable) and plain.__module__ == "collections.abc" and not isinstance(value, str | bytes):
        if not issubclass(plain, Mapping):
            return isinstance(value, Iterable) and _each_fits(value, parts)
        return isinstance(value, Mapping) and _each_fits(value, parts[:1]) and _each_fits(value.values(), parts[1:])
    if not isinstance(value, plain) or (isinstance(value, str | bytes) and plain not in (type(value), object)):
        return False
    if isinstance(value, tuple) and plain is tuple and parts and parts[-1] is not Ellipsis:
        return len(value) == len(parts) and all(map(_fits, value, parts))
    return not isinstance(value, Collection) or isinstance(value, str | bytes) or _each_fits(value, parts)


def _each_fits(values: Iterable[Any], parts: Sequence[Any]) -> bool:
    """Return whether each element has a type; elements of an iterator or an array are left to the function."""
    known = isinstance(values, list | tuple | set | frozenset | Mapping | ValuesView)
    return not parts or not known or all(_fits(each, parts[0]) for each in values)


def _sentence(kind: Any) -> str:
    """Return a type in words: "text, a path or None"."""
    *most, last = dict.fromkeys(_words(kind))
    return f"{', '.join(most)} or {last}" if most else last


def _words(kind: Any) -> Iterator[str]:
    """Yield a type in words, each of several alone."""
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
