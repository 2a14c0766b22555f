"""Mark the engine's functions for compilation, and call its entry points: as machine code, or as plain Python.

Marked functions stay plain Python functions. `weft.engine.compiler` compiles an entry point with all the functions that
it calls; `weft.engine.code` stores and loads the machine code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from weft.engine.state import RECORD_OUTSIDE, Machine, table_records

F = TypeVar("F", bound=Callable[..., Any])

MARKED: dict[Callable[..., Any], bool] = {}
"""The functions to compile, and whether each is inlined wherever it is called."""


def block(function: F) -> F:
    """Mark a function of the engine's inner loop, which is inlined wherever it is called."""
    MARKED[function] = True
    return function


def shared(function: F) -> F:
    """Mark a function that is rarely called or called from many places; LLVM decides whether it is inlined."""
    MARKED[function] = False
    return function


def is_plain() -> bool:
    """Whether the engine runs as plain Python: NUMBA_DISABLE_JIT is set."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def checks_bounds() -> bool:
    """Whether machine code checks every index: NUMBA_BOUNDSCHECK is set."""
    return os.environ.get("NUMBA_BOUNDSCHECK", "0") not in ("", "0")


class EntryPoint:
    """An entry point of the engine: a function of a machine, further tables, an arbiter policy and integers."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.py_func, self.__doc__ = function, function.__doc__
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._call: Callable[..., int] | None = None

    def __call__(self, *arguments: Any) -> int:
        """Call the machine code, which is loaded or made first if necessary, or the plain function."""
        if is_plain():
            return self.py_func(*arguments)
        self.prepare()
        assert self._call is not None
        kept = [_native(argument) for argument in arguments]
        result = self._call(*(one.ctypes.data if isinstance(one, np.ndarray) else one for one in kept))
        for records in kept if checks_bounds() else ():
            if isinstance(records, np.ndarray) and records[:, RECORD_OUTSIDE].any():
                raise IndexError(f"{self.name}: an index is outside of table {records.tolist()}")
        return result

    @property
    def is_ready(self) -> bool:
        """Whether this process has the machine code, or needs none."""
        return self._call is not None or is_plain()

    def prepare(self) -> None:
        """Load the machine code, or make it if there is none."""
        if not self.is_ready:
            self._call = _loaders[0](self)


_loaders: list[Callable[[EntryPoint], Callable[..., int]]] = []


def register_loader(load: Callable[[EntryPoint], Callable[..., int]]) -> None:
    """Have `load` return the machine code of an entry point, as a function of addresses and integers."""
    _loaders[:] = [load]


def _native(argument: Any) -> Any:
    """An argument as machine code takes it: an integer, or the records of its tables."""
    if isinstance(argument, Machine):
        return table_records(argument, Machine._fields)
    if isinstance(argument, np.ndarray):
        return table_records((argument,))
    return getattr(argument, "address", argument)


def entry(function: Callable[..., int]) -> EntryPoint:
    """Mark an entry point of the engine."""
    shared(function)
    return EntryPoint(function)
