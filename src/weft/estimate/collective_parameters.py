"""The closed list of what calibration may fit in a collective library's profile."""

from __future__ import annotations

from weft.catalog import Quantity
from weft.estimate.answer import Parameter
from weft.library.collectives import ONE_STEP, canonical
from weft.library.profiles import Profile, values
from weft.units import Dimension

_NEEDS_ROWS = 4
_NEEDS_ROWS_OF_LL128 = 2
"""A library uses LL128 for few sizes; without these rows nothing tells its rate."""


def collective_parameters(profile: Profile, *collectives: str) -> tuple[Parameter, ...]:
    """The parameters that a profile holds, all of them or those that the given collectives depend on."""
    tables = {table for collective in collectives for table in tables_of(collective)}
    return tuple(
        Parameter(path, value.low, value.high, _unit(value.rule), _rows(path), value.about)
        for path, value in values().items()
        if path in profile.values and (not collectives or path.partition(".")[0] in tables)
    )


def tables_of(collective: str) -> tuple[str, ...]:
    """The tables of a profile that the time of a collective may depend on."""
    name = canonical(collective)
    own = {"send_recv": "all_to_all", "broadcast": "all_gather"}.get(name, name)
    switch = ("nvls",) if name in ("all_reduce", "reduce_scatter", "all_gather") else ()
    direct = ("direct",) if name in ONE_STEP else ()
    reduced = ("oneshot",) if name == "all_reduce" else ()
    ring = () if own == "all_to_all" else ("ring",)
    return (own, *ring, *switch, *direct, *reduced, "network", "host", "release_2_26", "release_2_18")


def _rows(path: str) -> int:
    return _NEEDS_ROWS_OF_LL128 if "ll128" in path else _NEEDS_ROWS


def _unit(rule: Quantity) -> str:
    return {Dimension.SECONDS: "s", Dimension.BYTES: "bytes"}.get(rule.dimension, "")
