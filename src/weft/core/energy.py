"""What is counted beside the power of GPUs, as users state it: the rest of a node, the building, electricity."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from weft.core.errors import InputError, show_value
from weft.core.price import SIGNS
from weft.core.units import Dimension, parse

_KWH = 3.6e6
_PUE = re.compile(r"PUE\s*(\d+(?:\.\d+)?)")
_NODE = re.compile(r"(.*\S)\s*/\s*GPU")
_PRICE = re.compile(r"(?P<sign>[$€£])?\s*(?P<amount>\d*\.?\d+)\s*(?P<currency>[A-Z]{3})?\s*/\s*kWh")
_MOST_PUE = 5.0


@dataclass(frozen=True)
class EnergyTerms:
    """What is counted beside GPUs: `node` watts for each of them, the building by its `pue`, and `price` by the joule.

    >>> EnergyTerms.of("300 W/GPU, PUE 1.2")
    EnergyTerms(node=300.0, pue=1.2, price=0.0, currency='')
    """

    node: float = 0.0
    pue: float = 1.0
    price: float = 0.0
    currency: str = ""

    @classmethod
    def of(cls, text: str) -> EnergyTerms:
        """Parse "gpus" (these alone), or terms with commas between: "300 W/GPU", "PUE 1.2", "0.1 USD/kWh".

        Raises InputError for another text, and UnitError for a node's power without a unit of power.
        """
        found = cls()
        for part in (one.strip() for one in text.split(",")):
            changed = cls._term(part)
            if changed is None:
                raise InputError(
                    f"{show_value(part)} is no term of an energy; write gpus for these alone, or what counts beside "
                    "them, like '300 W/GPU, PUE 1.2, 0.1 USD/kWh'"
                )
            found = replace(found, **changed)
        return found

    @staticmethod
    def _term(text: str) -> dict[str, Any] | None:
        if text == "gpus":
            return {}
        if (pue := _PUE.fullmatch(text)) and 1 <= float(pue[1]) <= _MOST_PUE:
            return {"pue": float(pue[1])}
        if node := _NODE.fullmatch(text):
            power = parse(node[1], Dimension.WATTS)
            return {"node": power} if power > 0 else None
        price = _PRICE.fullmatch(text)
        if price is None or bool(price["sign"]) == bool(price["currency"]) or float(price["amount"]) <= 0:
            return None
        return {"price": float(price["amount"]) / _KWH, "currency": price["currency"] or SIGNS[price["sign"]]}

    @property
    def words(self) -> str:
        """What is counted, in words: "the GPUs alone"."""
        node = f"GPUs and {self.node:g} W of the node for each" if self.node else "the GPUs alone"
        return node + (f", with a PUE of {self.pue:g}" if self.pue > 1 else "")
