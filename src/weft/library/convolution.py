"""How a vendor's library runs a convolution: the shares of a GPU's rates that its kernels reach."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from weft.catalog import Quantity, read_leaves, read_toml
from weft.units import Dimension

_SHARE = Quantity(Dimension.COUNT, at_most=1)
RULES: Mapping[str, Quantity | None] = {"product": _SHARE, "transform": _SHARE, "misaligned": _SHARE}
"""Every value by name, with its rule; all are ratios."""

_FILE = resources.files("weft.library") / "convolution.toml"


@cache
def convolution_shares(architecture: str) -> Mapping[str, float]:
    """What an architecture's library reaches: of the GEMMs' rate in products, of the memory's in transforms."""
    for table in read_toml(_FILE).values():
        if architecture in table["serves"]:
            leaves = read_leaves({key: one for key, one in table.items() if key != "serves"}, RULES, _FILE.name)
            return {path: leaf.value for path, leaf in leaves.items()}
    raise KeyError(architecture)
