"""What stored copies of the weights in block formats take of the memory, by what else is kept for each parameter."""

from __future__ import annotations

from dataclasses import dataclass

from weft.formats import FORMATS


@dataclass(frozen=True)
class State:
    """What is kept for each parameter: bytes of weights, moments and gradients, and the copies by format."""

    about: str
    bytes: float
    copies: tuple[str, ...]

    @property
    def copied(self) -> float:
        """Bytes of the copies for each parameter."""
        return sum(FORMATS[name].bits / 8 for name in self.copies)

    @property
    def saved(self) -> float:
        """Share of all that is saved where copies are made just in time."""
        return self.copied / (self.bytes + self.copied)

    def buffered(self, layers: int) -> float:
        """The same where a buffer of two layers' copies remains."""
        return self.saved * (1 - 2 / layers)


BOTH_WAYS = ("mx9", "mx9", "mx6", "mx6")
STATES = (
    State("fp32 weights and moments; MX9 and MX6, both directions", 12, BOTH_WAYS),
    State("bf16 weights and moments; MX9 and MX6, one direction each", 6, ("mx9", "mx6")),
    State("bf16 weights, fp32 moments; MX9 both directions, MX6 one", 10, ("mx9", "mx9", "mx6")),
    State("the first with bf16 gradients", 14, BOTH_WAYS),
    State("the first with fp32 gradients", 16, BOTH_WAYS),
    State("fp32 weights and moments; MX9, both directions", 12, ("mx9", "mx9")),
)
"""What may be kept; the first is the bar's."""
