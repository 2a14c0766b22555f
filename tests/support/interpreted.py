"""The engine's blocks as plain Python functions: to call, watch or replace."""

from __future__ import annotations

import importlib
import pkgutil
from types import FunctionType, SimpleNamespace
from typing import Any

import weft.engine


def interpreted(**replacements: Any) -> SimpleNamespace:
    """All functions of the engine by name, calling one another uncompiled.

    A replacement is a function of the original that returns what stands in its place, wherever it is called.
    """
    modules = [
        importlib.import_module(f"weft.engine.{module.name}")
        for module in pkgutil.iter_modules(weft.engine.__path__)
        if module.name not in ("jit", "code", "compiler", "kept")
    ]
    scopes = {module.__name__: dict(vars(module)) for module in modules}
    plain: dict[tuple[str, str], Any] = {}
    for module in modules:
        for name, value in vars(module).items():
            source = getattr(value, "py_func", value)
            if isinstance(source, FunctionType) and source.__module__ == module.__name__:
                function = FunctionType(source.__code__, scopes[module.__name__], name, source.__defaults__)
                function.__kwdefaults__ = source.__kwdefaults__
                plain[module.__name__, name] = replacements.get(name, lambda same: same)(function)
    unknown = set(replacements) - {name for _, name in plain}
    if unknown:
        raise LookupError(f"the engine has no function {sorted(unknown)}")
    for scope in scopes.values():
        for name, value in scope.items():
            source = getattr(value, "py_func", value)
            if isinstance(source, FunctionType):
                scope[name] = plain.get((source.__module__, name), value)
    return SimpleNamespace(**{name: function for (_, name), function in plain.items()})


PLAIN = interpreted()
"""The engine as it is."""
