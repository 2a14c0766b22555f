"""Options of the command line from declared fields (`weft.fields`): type, range, choices, default and help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from weft.cli.options import option, together
from weft.cli.values import NUMBERS, Count, Value
from weft.fields import Described, described
from weft.units import LARGEST_COUNT

F = TypeVar("F", bound=Callable[..., Any])


def field_options(owner: type, *names: str, **types: click.ParamType) -> Callable[[F], F]:  # type: ignore[type-arg]
    """Add an option for each named field of a dataclass, listed on the help page in the given order.

    `types` replace the type of fields whose text is parsed in its own way, or whose names a shell completes.
    """
    return together(*(_option(described(owner)[name], types.get(name)) for name in names))


def _option(one: Described, given: click.ParamType | None) -> Callable[[F], F]:  # type: ignore[type-arg]
    flag = f"--{one.name.replace('_', '-')}"
    about = one.declared
    value = None if about.default else one.value
    shown = f"  [default: {about.default}]" if about.default else ""
    if one.kinds == (bool,):
        two_ways = one.value is None or about.default or one.value
        return option(
            f"{flag}/--no-{flag[2:]}" if two_ways else flag, f"{about.help}{shown}", default=value, is_flag=True
        )
    kind = given or _kind(one)
    names = one.choices or (tuple(kind.known()) if isinstance(kind, Value) and "{names}" in about.help else ())
    return option(flag, about.help.replace("{names}", ", ".join(names)) + shown, kind, default=value)


def _kind(one: Described) -> click.ParamType:  # type: ignore[type-arg]
    """The type of an option: a choice, a whole number in its range, numbers with commas between, or a name."""
    if one.choices:
        return click.Choice(one.choices)
    if one.kinds == (int,):
        return Count(one.declared.least, one.declared.most or LARGEST_COUNT)
    return NUMBERS if one.kinds == (tuple[int, ...],) else Value("NAME")
