"""The calibration residual: what measured training steps take beyond what Weft models, the same on all GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from weft.core.catalog import Leaf, Quantity, read_leaves, read_toml
from weft.core.units import Dimension

_SHARE = Quantity(Dimension.COUNT, at_most=2)
RULES: Mapping[str, Quantity | None] = {
    "streaming.kernels": _SHARE,
    "replicas.hidden": Quantity(Dimension.COUNT, at_most=1),
}
"""Every value by path, with its rule. A step that loses more than a hidden second would be faster without overlap."""
_FILE = resources.files("weft.kernels.library") / "residual.toml"


class Residual(NamedTuple):
    """Time that a step takes beyond its parts: shares of its `streaming` kernels, and of the communication among
    replicas that is `hidden` beside computing.
    """

    streaming: float = 0.0
    hidden: float = 0.0


@cache
def leaves() -> Mapping[str, Leaf]:
    """Return the shipped values by path, each with its source and range."""
    tables = {name: table for name, table in read_toml(_FILE).items() if name != "rows"}
    return read_leaves(tables, RULES, _FILE.name)


@cache
def measured_vendors() -> Sequence[str]:
    """Return the vendors whose steps the values were fitted to."""
    found: Sequence[str] = read_toml(_FILE)["rows"]["vendors"]
    return found


@cache
def shipped() -> Residual:
    """Return the shipped values."""
    return Residual(leaves()["streaming.kernels"].value, leaves()["replicas.hidden"].value)
