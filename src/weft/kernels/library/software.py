"""What software adds where it joins a GEMM and a collective: gaps, starts, barriers, and the host's time per launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from weft.core.catalog import Leaf, Quantity, read_leaves, read_toml
from weft.core.units import Dimension

_TIME, _RATE = Quantity(Dimension.SECONDS), Quantity(Dimension.BYTES_PER_SECOND)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
RULES: Mapping[str, Quantity | None] = {
    "sequential.gap": _TIME,
    "flux.start": _TIME,
    "flux.round": _TIME,
    "flux.store_rate": _RATE,
    "userbuffers.start": _TIME,
    "userbuffers.issue": _TIME,
    "userbuffers.copy_share": _SHARE,
    "async-tp.start": _TIME,
    "async-tp.issue": _TIME,
    "async-tp.copy_share": _SHARE,
    "async-tp.barrier": _TIME,
}
"""Every value by path, with its rule; times in seconds, the rate in bytes/s, the share a ratio."""
COPY_STREAMS = 3
"""Streams over which userbuffers deals the GEMMs of ranks' shares (NVIDIA/TransformerEngine @0004dbd,
pytorch/module/base.py)."""
SPLITS = 4
"""Parts into which userbuffers cuts a GEMM before a reduce-scatter (same source); the last one's stays exposed."""
WORKGROUPS = 16
"""Workgroups, each on a compute unit, of userbuffers' kernels that reduce and scatter (same source)."""

_FILE = resources.files("weft.kernels.library") / "software.toml"


@cache
def leaves() -> Mapping[str, Leaf]:
    """The shipped values by path, each with its source and range."""
    tables = {name: table for name, table in read_toml(_FILE).items() if name != "rows"}
    return read_leaves(tables, RULES, _FILE.name)


@cache
def rows() -> Mapping[str, Sequence[str]]:
    """The "systems" and "methods" whose rows were in sight when a value was read or a form chosen."""
    found: Mapping[str, Sequence[str]] = read_toml(_FILE)["rows"]
    return found


@cache
def costs() -> Mapping[str, float]:
    """The shipped values by path [seconds or bytes/s]."""
    return {path: leaf.value for path, leaf in leaves().items()}


@cache
def bounds() -> Mapping[str, tuple[float, float]]:
    """The plausible range of every value by path [seconds or bytes/s]."""
    return {path: leaf.range for path, leaf in leaves().items()}
