"""Packages that add to Weft and that nothing imports: what each registers, found by entry points.

An extension is an object `Extension` that its distribution names in the entry-point group "weft.extensions". Weft's
own are `weft.papers`, `weft.lab`, `weft.torch`, `weft.rewrite` and `weft.ui`; without one of them, everything else
works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from weft.core.errors import InputError

GROUP = "weft.extensions"


@dataclass(frozen=True)
class Extension:
    """What a package adds to Weft; every target is text "module:attribute", imported when it is first used.

    `names` are public names of `weft`. `commands` are commands of the command line: the title of their group on the
    help page, then their name, to a target and the line on the help page. `reports` has the report of each `kind` of
    answer, `readers` a function of a path that returns a graph, by the kind of file (`weft.graph.file_kind`).
    `measured` are functions that set studies of papers against measured rows, by name.
    """

    name: str
    names: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    reports: Mapping[str, str] = field(default_factory=dict)
    readers: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)


def load_target(target: str) -> Any:
    """Import a target "module:attribute" and return it."""
    module, attribute = target.split(":")
    return getattr(import_module(module), attribute)


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the installed extensions in the order of their names; one whose package is gone is left out."""
    from importlib.metadata import entry_points

    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found.append(entry.load())
        except ModuleNotFoundError as error:
            if not entry.module.startswith(error.name or "?"):  # a dependency, not the extension itself
                raise
    return tuple(found)


def find_public_name(name: str) -> str | None:
    """Return the target of a public name that an extension adds to `weft`, or None."""
    return next((each.names[name] for each in extensions() if name in each.names), None)


def find_report(kind: str) -> str | None:
    """Return the target of the report that an extension has for a kind of answer, or None."""
    return next((each.reports[kind] for each in extensions() if kind in each.reports), None)


def find_reader(kind: str) -> Callable[[Any], Any] | None:
    """Return the function with which an extension reads files of a kind as a graph, or None."""
    target = next((each.readers[kind] for each in extensions() if kind in each.readers), None)
    return None if target is None else load_target(target)


def find_measured(name: str, data: object = None) -> Callable[..., Any] | None:
    """Return the function with which an extension sets a study against measured rows, or None.

    Raises InputError if no extension has it, although `data`, the place of the rows, were named.
    """
    target = next((each.measured[name] for each in extensions() if name in each.measured), None)
    if target is None and data is not None:
        raise InputError(
            f"the measured rows in '{data}' are read by the extension 'lab' of Weft, which is not installed; leave out "
            "--data"
        )
    return None if target is None else load_target(target)
