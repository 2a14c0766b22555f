"""Packages that are called like functions: `weft.estimate(...)` is the function, `weft.estimate.target` a module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def callable_room(package: str, module: str, function: str) -> None:
    """Make a call of `package` one of `module`'s `function`, which is imported at the first call."""

    class Room(ModuleType):
        def __call__(self, *args: Any, **named: Any) -> Any:
            return getattr(import_module(module), function)(*args, **named)

    sys.modules[package].__class__ = Room


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports the module of a public name when the name is first used.

    `homes` has the module of each name, relative to the package.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
