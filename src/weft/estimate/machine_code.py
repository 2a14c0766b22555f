"""Functions of a module as machine code, kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any


def machine_code(scope: Mapping[str, Any], entries: Sequence[str], **instead: Any) -> dict[str, Any]:
    """The `entries` among a module's functions as machine code, with every function of the module that they call.

    `scope` is the module's `globals()`; `instead` replaces names in it. The code is kept on disk until the module's
    file changes, so that it may call no functions of other modules.
    """
    import numba

    from weft.engine.kept import kept

    names: dict[str, Any] = {**scope, **instead}
    for name, function in scope.items():
        if isinstance(function, FunctionType) and function.__module__ == scope["__name__"]:
            names[name] = numba.njit(error_model="numpy")(FunctionType(function.__code__, names, name))
    return {name: kept(names[name], getattr(names[name], "py_func", names[name])) for name in entries}
