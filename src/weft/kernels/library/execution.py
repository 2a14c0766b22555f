"""What the executor of MSCCL++'s plans costs: starts, signals, ports, and what its workgroups keep in flight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from weft.core.catalog import Leaf, Quantity, read_leaves, read_toml
from weft.core.units import Dimension

_TIME, _BYTES = Quantity(Dimension.SECONDS), Quantity(Dimension.BYTES, whole=True)
RULES: Mapping[str, Quantity | None] = {
    "kernel.start": _TIME,
    "kernel.registers": Quantity(Dimension.COUNT, whole=True),
    "kernel.lds": _BYTES,
    "kernel.in_flight": _BYTES,
    "kernel.link": Quantity(Dimension.COUNT, at_most=1),
    "signal.fence": _TIME,
    "signal.poll": _TIME,
    "port.proxy": _TIME,
}
"""Every value by path, with its rule; times in seconds, sizes in bytes, those in flight by thread."""

_FILE = resources.files("weft.kernels.library") / "execution.toml"


@cache
def leaves() -> Mapping[str, Leaf]:
    """The shipped values by path, each with its source and range."""
    return read_leaves(read_toml(_FILE), RULES, _FILE.name)


@cache
def costs() -> Mapping[str, float]:
    """The shipped values by path [seconds, bytes or a share]."""
    return {path: leaf.value for path, leaf in leaves().items()}
