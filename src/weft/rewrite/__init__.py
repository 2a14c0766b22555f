"""Cheaper graphs by rules that are proven on small arrays, and the search for the best order of rules."""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names, make_callable

if TYPE_CHECKING:
    from weft.rewrite.answer import Rewriting as Rewriting
    from weft.rewrite.rules import RULES as RULES
    from weft.rewrite.rules import Rule as Rule
    from weft.rewrite.run import rewrite as rewrite

__getattr__, __all__ = lazy_names(
    __name__,
    answer="Rewriting",
    rules="RULES Rule",
    run="rewrite",
)

make_callable(__name__, "weft.rewrite.run", "rewrite")
