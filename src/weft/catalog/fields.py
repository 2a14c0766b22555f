"""Types of the fields of a hardware description: numbers that know their dimension and parse "450 GB/s"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

from weft import units
from weft.errors import UnitError, shown
from weft.units import Dimension

# Beyond these, whole runs no longer fit into 64-bit femtoseconds, or tables into memory [base units].
_SIMULATED = {
    Dimension.BYTES: (1.0, 2.0**50),
    Dimension.BYTES_PER_SECOND: (1e6, 1e18),
    Dimension.SECONDS: (1e-15, 1.0),
    Dimension.HERTZ: (1e6, 1e13),
    Dimension.COUNT: (0.0, 1e6),
}
_WRITTEN = 1e300
"""Beyond it, numbers are not written with a unit."""


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
            raise UnitError(f"{shown(raw)} is not a quantity; write it like '{self.example}'")
        text = raw if isinstance(raw, str) else shown(raw)
        return self.check(units.parse(text, self.dimension), text)

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
            raise UnitError(f"'{text}' must be a whole number ({self.dimension}); write it like '{self.example}'")
        return int(value) if self.whole else float(value)

    def format(self, value: float) -> str:
        """`value` as a user would write it."""
        return units.format(value, self.dimension)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic validates a field with this rule."""
        return no_info_before_validator_function(self._validated, handler(source))

    def _validated(self, raw: object) -> float:
        """What pydantic receives, text with a unit or a plain number [base unit], as a number."""
        try:
            if isinstance(raw, int | float) and not isinstance(raw, bool):
                return self.check(raw, shown(raw) if abs(raw) > _WRITTEN else self.format(raw))
            return self.parse(raw)
        except UnitError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None


Bytes = Annotated[int, Quantity(Dimension.BYTES, whole=True)]
"""A capacity or size, whole and positive [bytes]."""
BytesPerSecond = Annotated[float, Quantity(Dimension.BYTES_PER_SECOND)]
"""A data rate, positive [bytes/s]."""
Seconds = Annotated[float, Quantity(Dimension.SECONDS)]
"""A duration, positive [seconds]."""
Delay = Annotated[float, Quantity(Dimension.SECONDS, zero_allowed=True)]
"""A duration that may be zero [seconds]."""
Hertz = Annotated[float, Quantity(Dimension.HERTZ)]
"""A frequency, positive [hertz]."""
Count = Annotated[int, Quantity(Dimension.COUNT, whole=True)]
"""A number of things, whole and positive."""
Units = Annotated[int, Quantity(Dimension.COUNT, whole=True, at_most=10_000)]
"""A number of blocks that the engine keeps a state of each for, whole and positive."""
Share = Annotated[float, Quantity(Dimension.COUNT, at_most=1)]
"""A fraction of a whole, above 0 and at most 1."""
ShareOrNone = Annotated[float, Quantity(Dimension.COUNT, at_most=1, zero_allowed=True)]
"""A fraction of a whole, 0 to 1."""
Cycles = Annotated[float, Quantity(Dimension.COUNT, zero_allowed=True)]
"""Clock cycles of a compute unit, zero or more."""
BytesOrNone = Annotated[int, Quantity(Dimension.BYTES, whole=True, zero_allowed=True)]
"""A capacity, whole, 0 for none [bytes]."""
BytesPerSecondOrNone = Annotated[float, Quantity(Dimension.BYTES_PER_SECOND, zero_allowed=True)]
"""A data rate, 0 for none [bytes/s]."""
CountOrNone = Annotated[int, Quantity(Dimension.COUNT, whole=True, zero_allowed=True)]
"""A number of things, whole, 0 for none."""
