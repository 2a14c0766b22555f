"""How a vendor's library runs a recurrent layer: kernels of a step, and what each costs beyond its work."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from weft.catalog import Leaf, Quantity, parse_value, read_leaves, read_toml
from weft.units import Dimension

_TIME, _COUNT = Quantity(Dimension.SECONDS, zero_allowed=True), Quantity(Dimension.COUNT, whole=True)
RULES: Mapping[str, Quantity | None] = {
    "kernels.vanilla": _COUNT,
    "kernels.lstm": _COUNT,
    "kernels.gru": _COUNT,
    "overlap": Quantity(Dimension.COUNT, zero_allowed=True, at_most=1),
    "forward.gap": _TIME,
    "forward.pace": _TIME,
    "backward.gap": _TIME,
    "backward.pace": _TIME,
    "persistent.step": _TIME,
}
"""Every value by path, with its rule; times in seconds."""
FITTED = ("forward.gap", "forward.pace", "backward.gap", "backward.pace")
"""The values that are fitted to measured layers."""

_FILE = resources.files("weft.library") / "recurrent.toml"


@cache
def _leaves() -> Mapping[str, Mapping[str, Leaf]]:
    """The shipped values of the library of each architecture, with sources and ranges."""
    found: dict[str, Mapping[str, Leaf]] = {}
    for table in read_toml(_FILE).values():
        leaves = read_leaves({key: one for key, one in table.items() if key != "serves"}, RULES, _FILE.name)
        found |= dict.fromkeys(table["serves"], leaves)
    return found


@cache
def recurrent_values(architecture: str) -> Mapping[str, float]:
    """The values of an architecture's library by path [seconds, counts, a share]."""
    return {path: leaf.value for path, leaf in _leaves()[architecture].items()}


@cache
def recurrent_bounds(architecture: str) -> Mapping[str, tuple[float, float]]:
    """The plausible range of every value by path [as `recurrent_values`]."""
    ends = {path: (leaf.provenance.low, leaf.provenance.high) for path, leaf in _leaves()[architecture].items()}
    return {path: (_parsed(path, low), _parsed(path, high)) for path, (low, high) in ends.items()}


def _parsed(path: str, text: str | None) -> float:
    return float(parse_value(RULES[path], path, text))
