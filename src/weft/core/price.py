"""Prices of GPU hours, as users state them: a number, a currency, and per what; or a table of them by GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import InputError, show_value

_PER = {"h": 3600.0, "hour": 3600.0, "s": 1.0}
_PRICE = re.compile(
    r"\s*(?P<sign>[$€£])?\s*(?P<amount>\d+(?:\.\d+)?|\.\d+)\s*(?P<currency>[A-Z]{3})?\s*/\s*(?:GPU\s*/?\s*)(?P<per>h|hour|s)\s*"
)
SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
"""Currencies by their signs."""


@dataclass(frozen=True)
class Price:
    """What a GPU costs: `amount` of a `currency` each second."""

    amount: float
    currency: str = "USD"

    @classmethod
    def of(cls, text: str, gpu: str) -> Price:
        """Parse "3.5 USD/GPU/h" or "$3.5/GPU/h", or read the price of a GPU from a TOML file of GPU names and prices.

        Raises InputError for another text, and for a file that does not name the GPU.

        >>> Price.of("3.6 USD/GPU/h", "h100-sxm")
        Price(amount=0.001, currency='USD')
        """
        if text.endswith(".toml"):
            from weft.core.catalog import read_toml  # not for every command line: it validates by pydantic

            table = read_toml(Path(text))
            if gpu not in table:
                known = ", ".join(sorted(table)) or "none"
                raise InputError(
                    f'{text} has no price of {gpu}; add a line like {gpu} = "3.5 USD/GPU/h"; it has {known}'
                )
            return cls.of(str(table[gpu]), gpu)
        found = _PRICE.fullmatch(text)
        if found is None or bool(found["sign"]) == bool(found["currency"]) or float(found["amount"]) <= 0:
            raise InputError(
                f"{show_value(text)} is not a price of a GPU; write it like '3.5 USD/GPU/h', or name a TOML file with "
                f'a line like {gpu} = "3.5 USD/GPU/h"'
            )
        return cls(float(found["amount"]) / _PER[found["per"]], found["currency"] or SIGNS[found["sign"]])

    def of_tokens(self, gpus: int, tokens_per_s: float) -> float:
        """Return what a million tokens cost on `gpus` GPUs that process `tokens_per_s` together."""
        return self.amount * gpus / tokens_per_s * 1e6

    def text(self, value: float) -> str:
        """Return an amount of the currency to three digits: "1.23 USD", "49.6 M USD"."""
        for factor, unit in ((1e9, "G "), (1e6, "M "), (1e3, "k ")):
            if value >= factor:
                return f"{value / factor:.3g} {unit}{self.currency}"
        return f"{value:.3g} {self.currency}"
