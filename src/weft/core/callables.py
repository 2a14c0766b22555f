"""Packages that are called like functions: `weft.estimate(...)` is the function, `weft.estimate.target` a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Signature, cleandoc, signature
from types import ModuleType
from typing import Any

from weft.core.arguments import check_arguments


def make_callable(package: str, module: str, function: str) -> None:
    """Make a call of `package` one of `module`'s `function`, which is imported at the first call.

    `help(package)` shows the function's text, with its signature below the first line.
    """

    def call() -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module(module), function)
        return found

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **named: Any) -> Any:
            return check_arguments(call())(*args, **named)

        @property
        def __signature__(self) -> Signature:
            return signature(call())

        @property
        def __doc__(self) -> str:  # type: ignore[override]
            first, _, rest = cleandoc(call().__doc__ or "").partition("\n")
            return f"{first}\n\n``{function}{signature(call())}``\n{rest}"

    sys.modules[package].__class__ = CallablePackage


def lazy_names(package: str, **homes: str) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the `__all__` of a package that imports a public name's module when it is first used.

    `homes` has the names of each module of the package, with spaces between them.
    """
    modules = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'; public: {', '.join(modules)}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, sorted(modules)
