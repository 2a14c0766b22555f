"""The closed list of what calibration may fit in a collective library's profile."""

from __future__ import annotations

from weft.hardware.fields import Quantity
from weft.hardware.libraries import Profile, values
from weft.predict.prediction import Parameter
from weft.units import Dimension

_NEEDS_ROWS = 4


def collective_parameters(profile: Profile, *collectives: str) -> tuple[Parameter, ...]:
    """The parameters that a profile holds, all of them or those that the given collectives depend on.

    An all-reduce also depends on "nvls" and "direct"; "network" and "host" are named by themselves.
    """
    tables = set(collectives) | ({"nvls", "direct"} if "all_reduce" in collectives else set())
    return tuple(
        Parameter(path, value.low, value.high, _unit(value.rule), _NEEDS_ROWS, value.about)
        for path, value in values().items()
        if path in profile.values and (not collectives or path.partition(".")[0] in tables)
    )


def _unit(rule: Quantity) -> str:
    return {Dimension.SECONDS: "s", Dimension.BYTES: "bytes"}.get(rule.dimension, "")
