"""Suites of cases: the ones that studies declare, and a user's own from a TOML file; errors name the case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from weft.catalog import read_toml, translated, unknown_key
from weft.errors import ConfigError, InputError

E = TypeVar("E", bound=BaseModel)
S = TypeVar("S", bound=BaseModel)
KEYS = ("title", "rule", "networks")
Content = Mapping[str, Any]


def suite_in(path: str | Path, read: Callable[[Content, str], S]) -> S:
    """The suite in a TOML file; InputError for a file that cannot be read, ConfigError for one that breaks a rule."""
    return read(read_toml(Path(path)), str(path))


def suite_of(kind: type[S], content: Content, cases: Mapping[str, tuple[Any, ...]], file: str, **parts: Any) -> S:
    """A suite of a `kind`: its `parts`, made of the `cases` by their keys, and what stands beside these in the file."""
    own = {key: value for key, value in content.items() if key not in cases}
    known = [key for key in KEYS if key in kind.model_fields]
    for key in own:
        if key not in known:
            raise unknown_key(key, (*known, *cases), file)
    try:
        return kind(**own, **parts)
    except ValidationError as error:
        raise translated(error, known, file) from None


def cases_of(kind: type[E], rows: Any, place: str, check: Callable[[E, str], E]) -> tuple[E, ...]:
    """Cases that `check` lets pass, of the tables in a file; errors name them by their number behind `place`."""
    if not isinstance(rows, list | tuple):
        raise ConfigError(f"{rows!r} must be a list of tables; write each below a line in double brackets", place)
    return tuple(_case(kind, row, f"{place} {number}", check) for number, row in enumerate(rows, start=1))


def _case(kind: type[E], row: Any, place: str, check: Callable[[E, str], E]) -> E:
    if not isinstance(row, dict):
        raise ConfigError(f"this must be a table of values, not {row!r}", place)
    try:
        return check(kind(**row), place)
    except ValidationError as error:
        known = [field.alias or name for name, field in kind.model_fields.items()]
        raise translated(error, known, place) from None
    except ConfigError:
        raise
    except InputError as error:
        raise ConfigError(str(error), place) from None
