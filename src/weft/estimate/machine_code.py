"""Functions of a module as machine code, compiled once and then loaded from disk without numba."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

_RESULTS: Mapping[str, tuple[str, Any]] = {
    "None": ("none", ctypes.c_void_p),
    "bool": ("bool", ctypes.c_bool),
    "float": ("float64", ctypes.c_double),
    "tuple[float, float, float]": ("UniTuple(float64 x 3)", ctypes.c_double * 3),
}
"""What a function can return, as its annotation says: numba's type, and the memory that its machine code fills."""
Loaded = tuple[Any, Callable[..., int]]
"""Machine code, which stays loaded as long as the object, and its function."""
_SCALARS: Mapping[type, Any] = {
    bool: ctypes.c_bool,
    int: ctypes.c_int64,
    float: ctypes.c_double,
}


def machine_code(scope: Mapping[str, Any], entries: Sequence[str], **instead: Any) -> dict[str, Callable[..., Any]]:
    """Return the `entries` among a module's functions as machine code, with all functions of the module they call.

    `scope` is the module's `globals()`; `instead` replaces names in it. Arguments are numbers, arrays and NamedTuples
    of both. The functions write into arrays that they are given and allocate none, and call no function of another
    module: machine code is cached until the module's file changes.
    """
    from weft.engine.jit import is_plain

    return {name: scope[name] if is_plain() else _Compiled(scope, name, instead) for name in entries}


class _Compiled:
    """A function of a module that runs as machine code, loaded or compiled for each combination of argument types."""

    def __init__(self, scope: Mapping[str, Any], name: str, instead: Mapping[str, Any]) -> None:
        self._scope, self._instead, self._function = scope, instead, scope[name]
        self._name = f"{scope['__name__'].rpartition('.')[2]}.{name}"
        self._returns, self._result = _RESULTS[self._function.__annotations__["return"]]
        self._loaded: dict[tuple[Any, ...], Loaded] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code; TypeError for an argument that is no number, array or NamedTuple of both."""
        kinds: list[Any] = []
        values: list[Any] = []
        _flatten(arguments, kinds, values)
        _, function = self._loaded.get(tuple(kinds)) or self._load(kinds, arguments, values)
        result, reason = self._result(), ctypes.c_void_p()
        if function(ctypes.addressof(result), ctypes.addressof(reason), *values):
            raise IndexError(f"{self._name}: an index is outside of an array, or the shapes of two arrays differ")
        if self._result is ctypes.c_void_p:
            return None
        return tuple(result) if isinstance(result, ctypes.Array) else result.value

    def _load(self, kinds: Sequence[Any], arguments: Sequence[Any], values: Sequence[Any]) -> Loaded:
        from weft.engine.code import load

        content = Path(self._function.__code__.co_filename).read_bytes() + repr(kinds).encode()
        name = f"{self._name}-{hashlib.sha256(content).hexdigest()[:32]}"
        code = load(name, lambda: self._module(name, arguments))
        flat = [_SCALARS.get(type(value), ctypes.c_void_p) for value in values]
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *flat)(code.address)
        return self._loaded.setdefault(tuple(kinds), (code, function))

    def _module(self, name: str, arguments: Sequence[Any]) -> Any:
        """Return the LLVM module that numba makes of the function for arguments of these types."""
        from weft.engine.compiler import Session

        session, names = Session(), {**self._scope, **self._instead}
        for other, function in self._scope.items():
            if isinstance(function, FunctionType) and function.__module__ == self._scope["__name__"]:
                plain = FunctionType(function.__code__, names, other)
                names[other] = session.function(plain, error_model="numpy")
        entry = names[self._function.__name__]
        module = session.module(entry, [_type_of(argument) for argument in arguments], name)
        returned = entry.nopython_signatures[0].return_type
        if str(returned) != self._returns:
            raise TypeError(f"{self._name} returns {returned} for these arguments, not {self._returns}")
        return module


def _flatten(arguments: Sequence[Any], kinds: list[Any], values: list[Any]) -> None:
    """Append the types of `arguments` to `kinds`, and to `values` their parts, in numba's order."""
    for argument in arguments:
        kind = type(argument)
        kinds.append(kind)
        if kind in _SCALARS:
            values.append(argument)
        elif kind is np.ndarray:
            # An array comes without an owner whose references numba would count.
            values += None, None, argument.size, argument.itemsize, argument.__array_interface__["data"][0]
            values += argument.shape + argument.strides
            kinds += argument.dtype, argument.ndim, argument.flags.c_contiguous
        elif isinstance(argument, tuple):
            _flatten(argument, kinds, values)
        elif isinstance(argument, np.generic):
            kinds.pop()
            _flatten((argument.item(),), kinds, values)
        else:
            raise TypeError(f"machine code takes no {kind.__name__}; give a number, an array or a NamedTuple of both")


def _type_of(argument: Any) -> Any:
    """Return numba's type of an argument."""
    import numba

    types: Any = numba.types
    if isinstance(argument, np.ndarray):
        layout = "C" if argument.flags.c_contiguous else "A"
        return types.Array(numba.from_dtype(argument.dtype), argument.ndim, layout)
    if isinstance(argument, tuple):
        return types.NamedTuple([_type_of(field) for field in argument], type(argument))
    value = argument.item() if isinstance(argument, np.generic) else argument
    return {bool: types.boolean, int: types.int64, float: types.float64}[type(value)]
