"""How a vendor's library runs convolutions and recurrent layers: values by architecture, with sources and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from weft.core.catalog import Leaf, Quantity, Rules, read_leaves, read_toml
from weft.core.units import Dimension

_TIME, _COUNT = Quantity(Dimension.SECONDS, zero_allowed=True), Quantity(Dimension.COUNT, whole=True)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
FITTED = ("forward.gap", "forward.pace", "backward.gap", "backward.pace")
"""The values of recurrent layers that are fitted to measured ones."""
RULES: Mapping[str, Rules] = {
    "convolution": dict.fromkeys(("product", "transform", "misaligned"), _SHARE),
    "recurrent": {
        **dict.fromkeys(("kernels.vanilla", "kernels.lstm", "kernels.gru"), _COUNT),
        "overlap": Quantity(Dimension.COUNT, zero_allowed=True, at_most=1),
        **dict.fromkeys((*FITTED, "persistent.step"), _TIME),
    },
}
"""Every value by layer and path, with its rule: shares of a GPU's rates, kernels of a step, times in seconds."""


@cache
def _leaves(layer: str) -> Mapping[str, Mapping[str, Leaf]]:
    """The shipped values for a layer by the architecture that a library serves, with sources and ranges."""
    file = resources.files("weft.kernels.library") / f"{layer}.toml"
    known: dict[str, Mapping[str, Leaf]] = {}
    for table in read_toml(file).values():
        stated = {key: value for key, value in table.items() if key != "serves"}
        known |= dict.fromkeys(table["serves"], read_leaves(stated, RULES[layer], file.name))
    return known


@cache
def convolution_shares(architecture: str) -> Mapping[str, float]:
    """What an architecture's library reaches: of the GEMMs' rate in products, of the memory's in transforms."""
    return {path: leaf.value for path, leaf in _leaves("convolution")[architecture].items()}


@cache
def recurrent_values(architecture: str) -> Mapping[str, float]:
    """The values of an architecture's library by path [seconds, counts, a share]."""
    return {path: leaf.value for path, leaf in _leaves("recurrent")[architecture].items()}


@cache
def recurrent_bounds(architecture: str) -> Mapping[str, tuple[float, float]]:
    """The plausible range of every value by path [as `recurrent_values`]."""
    return {path: leaf.range for path, leaf in _leaves("recurrent")[architecture].items()}
