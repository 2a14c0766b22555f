"""What a contract suite is made of: laws, cases, and the error that names a broken law."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.core.errors import WeftError

Law = Callable[..., str | None]
"""Returns what contradicts the law in the evidence, or None. The first line of its docstring states the law."""


class ContractError(WeftError, AssertionError):
    """A member breaks a law of its contract; the message names the member, the law, the case and what was found."""

    def __init__(self, member: str, law: str, case: str, found: str) -> None:
        self.member, self.law, self.case, self.found = member, law, case, found
        super().__init__(member, law, case, found)

    def __str__(self) -> str:
        return f"{self.member} breaks a law of its contract, '{self.law}', in the case '{self.case}': {self.found}"


def statement(law: Law) -> str:
    """Return the first line of a law's docstring, without its full stop."""
    return (law.__doc__ or law.__name__).strip().partition("\n")[0].rstrip(".")


def check_laws(member: str, case: str, laws: Sequence[Law], *evidence: Any) -> None:
    """Raise ContractError for the first law that the evidence of a case contradicts."""
    for law in laws:
        found = law(*evidence)
        if found:
            raise ContractError(member, statement(law), case, found)


@contextmanager
def runs_to_the_end(member: str, law: str, case: str) -> Iterator[None]:
    """Raise ContractError where a member ends the run of a case by an error of its own or one of Weft's."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(member, law, case, f"{type(error).__name__}: {error}") from error
