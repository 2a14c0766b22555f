"""How a collective becomes chunk moves: who sends which chunk where, and the address maps that say so."""

from weft.collectives.ring import Ring

__all__ = ["Ring"]
