"""Types of the fields of a hardware description: numbers that know their dimension and parse "450 GB/s"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from weft import units
from weft.errors import UnitError
from weft.units import Dimension

# Beyond these, whole runs no longer fit into 64-bit femtoseconds, or tables into memory [base units].
_SIMULATED = {
    Dimension.BYTES: (1.0, 2.0**50),
    Dimension.BYTES_PER_SECOND: (1e6, 1e18),
    Dimension.SECONDS: (1e-15, 1.0),
    Dimension.HERTZ: (1e6, 1e13),
    Dimension.COUNT: (0.0, 1e6),
}


@dataclass(frozen=True)
class Quantity:
    """The rule of a numeric field: its dimension, whether it is whole, and its bounds [base unit]."""

    dimension: Dimension
    whole: bool = False
    zero_allowed: bool = False
    at_most: float | None = None

    @property
    def example(self) -> str:
        """A value that obeys the rule, for messages."""
        return "0.5" if self.at_most == 1 else units.example(self.dimension)

    def parse(self, raw: object) -> float:
        """The plain number of what a user wrote; UnitError for a bare number where a unit belongs."""
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise UnitError(f"{raw!r} is not a quantity; write it like '{self.example}'")
        return self.check(units.parse(str(raw), self.dimension), str(raw))

    def check(self, value: float, text: str) -> float:
        """`value` as int or float if it obeys the rule, else UnitError; `text` is how it was written."""
        if not value >= 0 or (value == 0 and not self.zero_allowed):
            rule = "zero or more" if self.zero_allowed else "greater than zero"
            raise UnitError(f"'{text}' must be {rule}; write it like '{self.example}'")
        if self.at_most is not None and value > self.at_most:
            raise UnitError(f"'{text}' must be at most {self.at_most:g}; write it like '{self.example}'")
        low, high = _SIMULATED.get(self.dimension, (0.0, float("inf")))
        if value > high or 0 < value < low:
            shown = (units.format(bound, self.dimension) for bound in (low, high))
            raise UnitError(f"'{text}' cannot be simulated; it must lie between {' and '.join(shown)}")
        if self.whole and value != int(value):
            raise UnitError(
                f"'{text}' must be a whole number ({self.dimension}); write it like '{self.example}'"
            )
        return int(value) if self.whole else float(value)

    def format(self, value: float) -> str:
        """`value` as a user would write it."""
        return units.format(value, self.dimension)

    def __call__(self, raw: object) -> float:
        """Validates what pydantic receives: text with a unit, or a plain number [base unit]."""
        try:
            if isinstance(raw, int | float) and not isinstance(raw, bool):
                return self.check(raw, self.format(raw))
            return self.parse(raw)
        except UnitError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None


_BYTES = Quantity(Dimension.BYTES, whole=True)
_BYTES_PER_SECOND = Quantity(Dimension.BYTES_PER_SECOND)
_SECONDS = Quantity(Dimension.SECONDS)
_DELAY = Quantity(Dimension.SECONDS, zero_allowed=True)
_HERTZ = Quantity(Dimension.HERTZ)
_COUNT = Quantity(Dimension.COUNT, whole=True)
_BYTES_OR_NONE = Quantity(Dimension.BYTES, whole=True, zero_allowed=True)
_RATE_OR_NONE = Quantity(Dimension.BYTES_PER_SECOND, zero_allowed=True)
_COUNT_OR_NONE = Quantity(Dimension.COUNT, whole=True, zero_allowed=True)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
_SHARE_OR_NONE = Quantity(Dimension.COUNT, at_most=1, zero_allowed=True)

Bytes = Annotated[int, _BYTES, BeforeValidator(_BYTES)]
"""A capacity or size, whole and positive [bytes]."""
BytesPerSecond = Annotated[float, _BYTES_PER_SECOND, BeforeValidator(_BYTES_PER_SECOND)]
"""A data rate, positive [bytes/s]."""
Seconds = Annotated[float, _SECONDS, BeforeValidator(_SECONDS)]
"""A duration, positive [seconds]."""
Delay = Annotated[float, _DELAY, BeforeValidator(_DELAY)]
"""A duration that may be zero [seconds]."""
Hertz = Annotated[float, _HERTZ, BeforeValidator(_HERTZ)]
"""A frequency, positive [hertz]."""
Count = Annotated[int, _COUNT, BeforeValidator(_COUNT)]
"""A number of things, whole and positive."""
Share = Annotated[float, _SHARE, BeforeValidator(_SHARE)]
"""A fraction of a whole, above 0 and at most 1."""
ShareOrNone = Annotated[float, _SHARE_OR_NONE, BeforeValidator(_SHARE_OR_NONE)]
"""A fraction of a whole, 0 to 1."""
BytesOrNone = Annotated[int, _BYTES_OR_NONE, BeforeValidator(_BYTES_OR_NONE)]
"""A capacity, whole, 0 for none [bytes]."""
BytesPerSecondOrNone = Annotated[float, _RATE_OR_NONE, BeforeValidator(_RATE_OR_NONE)]
"""A data rate, 0 for none [bytes/s]."""
CountOrNone = Annotated[int, _COUNT_OR_NONE, BeforeValidator(_COUNT_OR_NONE)]
"""A number of things, whole, 0 for none."""
