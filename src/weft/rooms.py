"""Packages that are called like functions: `weft.estimate(...)` is the function, `weft.estimate.target` a module."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def callable_room(package: str, module: str, function: str) -> None:
    """Make a call of `package` one of `module`'s `function`, which is imported at the first call."""

    class Room(ModuleType):
        def __call__(self, *args: Any, **named: Any) -> Any:
            return getattr(import_module(module), function)(*args, **named)

    sys.modules[package].__class__ = Room
