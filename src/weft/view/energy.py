"""Power and energy in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import Section
from weft.core.report.table import Table, number, text
from weft.core.units import Dimension, format
from weft.view import looks
from weft.view.figure import Color, stacked_bars

if TYPE_CHECKING:
    from weft.estimate.power import Energy

_WORDS = {"idle": "idle", "busy": "kernels running", "memory": "memory", "links": "links", "matrix": "matrix units"}

_DRAWN = 0.5
"""Least power that is shown [W]."""


def energy_sentences(found: Energy | None, token: str = "token") -> list[str]:
    """Return what GPUs draw, by what they do, and what a token and a run take."""
    if found is None:
        return []
    gpu, terms = found.gpu, found.terms
    drawn = ", ".join(f"{_WORDS[name]} {value:,.0f}" for name, value in gpu.parts.items() if value >= _DRAWN)
    beside = f" ({terms.words})" if terms.node or terms.pue > 1 else ""
    every = f"{format(found.watts, Dimension.WATTS, 3)} in all{beside}"
    power = f"{gpu.mean:,.0f} W per GPU (80 % interval {gpu.low:,.0f} to {gpu.high:,.0f} W: {drawn}), {every}"
    low, high = found.joules_per_token_80
    run = f"; the run {kwh(found.kwh)}" if found.kwh is not None else ""
    energy = f"{found.joules_per_token:.3g} J for each {token} (80 % interval {low:.3g} to {high:.3g} J){run}"
    said = [f"Power: {power}.", f"Energy: {energy}."]
    if found.million_tokens is not None:
        whole = f", {money(found.cost, terms.currency)} for the run" if found.cost is not None else ""
        price = money(found.million_tokens, terms.currency)
        said.append(f"Electricity: {price} for a million {token}s{whole}.")
    return said


def power_section(found: Energy | None) -> list[Section]:
    """Return what draws the power of a GPU as a bar up to its mean, where that was asked for."""
    if found is None:
        return []
    names = {name: word for name, word in _WORDS.items() if found.gpu.parts[name] >= _DRAWN}
    rows = [("a GPU", word, found.gpu.parts[name]) for name, word in names.items()]
    table = Table([text("lane", " "), text("part"), number("power", "power", "W", ",.0f")], rows)
    hues = dict(zip(_WORDS.values(), (looks.GREY, looks.SKY, looks.GREEN, looks.ORANGE, looks.BLUE), strict=True))
    color = Color("part", {word: hues[word] for word in names.values()})
    return [Section("Power", [stacked_bars("What draws the power?", table, lane="lane", value="power", color=color)])]


def kwh(value: float) -> str:
    """Return an energy [kWh] in the unit in which it is read: "12.3 GWh"."""
    for factor, unit in ((1e6, "GWh"), (1e3, "MWh")):
        if value >= factor:
            return f"{value / factor:,.3g} {unit}"
    return f"{value:,.3g} kWh"


def money(value: float, currency: str) -> str:
    """Return an amount of a currency to three digits."""
    from weft.core.price import Price

    return Price(1.0, currency).text(value)
