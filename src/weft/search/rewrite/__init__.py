"""Cost-based rewriting of graphs: rules that are proven on small arrays, and the search for their best order."""

from weft.search.rewrite.answer import Rewriting
from weft.search.rewrite.rules import RULES, Rule
from weft.search.rewrite.run import rewrite

__all__ = ["RULES", "Rewriting", "Rule", "rewrite"]
