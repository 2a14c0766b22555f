"""Cost-based rewriting of graphs: rules that are proven on small arrays, and the search for their best order."""

from weft.core.rooms import callable_room
from weft.rewrite.answer import Rewriting
from weft.rewrite.rules import RULES, Rule
from weft.rewrite.run import rewrite

__all__ = ["RULES", "Rewriting", "Rule", "rewrite"]

callable_room(__name__, "weft.rewrite.run", "rewrite")
