"""Suites of cases: those that studies declare, and a user's own from a TOML file; errors name the case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from weft.core.catalog import read_toml, translate_error
from weft.core.errors import ConfigError, InputError

MOST = 1000
"""Most cases of one kind in a suite."""


class SuiteCase(BaseModel):
    """A case of a suite, read from a table of a TOML file; messages call it a `NOUN`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    NOUN: ClassVar[str]

    def checked(self) -> Self:
        """Return the case with its names resolved; InputError if it cannot be simulated."""
        return self

    @classmethod
    def all_of(cls, rows: Any, file: str) -> tuple[Self, ...]:
        """Return the cases in the tables of a file; ConfigError names the first wrong one by its number."""
        place = f"{file}: {cls.NOUN}"
        if not isinstance(rows, list | tuple):
            raise ConfigError(f"{rows!r} must be a list of tables; write each below a line in double brackets", place)
        if len(rows) > MOST:
            raise ConfigError(f"there are {len(rows)}; a suite may have {MOST}", place)
        return tuple(cls._read(row, f"{place} {number}") for number, row in enumerate(rows, start=1))

    @classmethod
    def _read(cls, row: Any, place: str) -> Self:
        if not isinstance(row, dict):
            raise ConfigError(f"this must be a table of values, not {row!r}", place)
        try:
            return cls(**row).checked()
        except ValidationError as error:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            raise translate_error(error, known, place) from None
        except InputError as error:
            raise ConfigError(str(error), place) from None


class Suite(BaseModel):
    """Cases with a `title`, and the `rule` by which they were chosen.

    A study's suite has a field for each of `KINDS`, the kinds of cases by their key in a file, and declares its `OWN`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    KINDS: ClassVar[Mapping[str, type[SuiteCase]]]
    OWN: ClassVar[Mapping[str, Any]]

    title: str
    rule: str = ""

    @classmethod
    def declared(cls) -> Self:
        """Return the suite that the study declares."""
        return cls._read(cls.OWN, "the declared suite")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the suite in a TOML file; InputError if it cannot be read, ConfigError if it breaks a rule."""
        return cls._read(read_toml(Path(path)), str(path))

    @classmethod
    def given(cls, suite: Self | Path | None) -> Self:
        """Resolve a suite, a file, or None (the declared suite) to a suite."""
        return cls.load(suite) if isinstance(suite, Path) else suite or cls.declared()

    @classmethod
    def _read(cls, content: Mapping[str, Any], file: str) -> Self:
        cases = {key: kind.all_of(content.get(key, ()), file) for key, kind in cls.KINDS.items()}
        if not any(cases.values()):
            lines = " or ".join(f"[[{key}]]" for key in cls.KINDS)
            raise ConfigError(f"there is no {next(iter(cls.KINDS.values())).NOUN}; add one below a line {lines}", file)
        try:
            return cls(**{**content, **cases})
        except ValidationError as error:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            raise translate_error(error, known, file) from None
