"""The exceptions that Weft raises on purpose; the command line shows each as one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_LISTED_IN_FULL = 24
_NEAREST = 3


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that look most like `name`, best first; empty if none is close."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower_case), n=_NEAREST, cutoff=0.5)
    return [by_lower_case[candidate] for candidate in close]


def join_or(names: Sequence[str]) -> str:
    """Quoted alternatives as English: "'a'", "'a' or 'b'", "'a', 'b' or 'c'"."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


class WeftError(Exception):
    """Root of every error that Weft raises on purpose."""


class InputError(WeftError):
    """A value, name or combination that the caller gave cannot be used."""


class UnitError(InputError):
    """A quantity has no unit, an unknown unit, or a unit of another dimension."""


class UnknownNameError(InputError):
    """A name is not among the known ones; the message lists them and says which is nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        super().__init__(kind, name, self.known)

    def __str__(self) -> str:
        close = nearest(self.name, self.known)
        hint = f"; did you mean {join_or(close)}?" if close else ""
        return f"unknown {self.kind} '{self.name}'; {self._listing()}{hint}"

    def _listing(self) -> str:
        if not self.known:
            return f"no {self.kind} is known"
        if len(self.known) <= _LISTED_IN_FULL:
            return f"known: {', '.join(self.known)}"
        return f"{len(self.known)} are known, from '{self.known[0]}' to '{self.known[-1]}'"


class SystemNamedError(UnknownNameError):
    """A GPU is wanted, but the name is a system's; the message says which GPU that has."""

    def __init__(self, name: str, gpu: str) -> None:
        super().__init__("GPU", name, (gpu,))
        self.args = (name, gpu)

    def __str__(self) -> str:
        return f"'{self.name}' is a system, not a GPU; its GPU is {self.known[0]}"


class ConfigError(InputError):
    """A configuration (a file, or values set by path) breaks a rule; `file` and `key` say where."""

    def __init__(self, message: str, file: str | None = None, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        super().__init__(message, file, key)

    def __str__(self) -> str:
        place = [part for part in (self.file, self.key) if part]
        return ": ".join([*place, self.message])


class SimulationError(WeftError):
    """A simulation could not finish: it is deadlocked, or it exhausted its event budget."""


class OutputError(WeftError):
    """A result cannot be written where the caller asked."""
