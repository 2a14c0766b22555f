"""80 % interval of the ratio of two served loads, from pairs of measured ones that differ in the same things.

`docs/errors.py` writes the pairs' intervals into `model_errors.toml` from what `weft.lab.load_ratios` finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.estimate.errors import CARRIED, Error, interval_text
from weft.estimate.step_errors import NORMAL_80, REPEAT_SPREAD, UNMEASURED_VENDOR, what_if_share

CHANGES = ("gpu", "framework", "model", "precision", "plan", "clients", "lengths")
"""What two served loads may differ in, each with an error of its own on the ratio of their times."""
_CALLED = {
    "gpu": "GPU", "framework": "framework", "model": "model", "precision": "formats", "plan": "plan",
    "clients": "number of clients", "lengths": "lengths",
}  # fmt: skip


_VENDORS_OF_PAIRS = {"nvidia"}
"""Vendors of the GPUs of the pairs."""


class ServedLoad(NamedTuple):
    """What decides how alike the errors of two served loads are. `gpu` is a name, `machine` holds the values."""

    gpu: str
    framework: str
    model: str
    precision: Any
    plan: Any
    clients: int
    lengths: str
    machine: Any = None
    vendor: str = "nvidia"


def load_ratio_error(one: ServedLoad, other: ServedLoad, change: float) -> Error | None:
    """Return the 80 % interval of measured / predicted of the ratio of two times per token, or of two requests.

    The interval is from pairs of measured loads that differ in the same things. Values of one machine were not
    measured in pairs: their interval is a share of what changes, `change`, as for steps. None where no load is public.

    Parameters
    ----------
    change
        Sum of the changes of all parts of an iteration, relative to the mean of both.
    """
    known: Mapping[str, Sequence[float]] = CARRIED.get("load_ratio", {})
    if not known:
        return None
    changed = [name for name in CHANGES if getattr(one, name) != getattr(other, name)]
    is_what_if = one.machine != other.machine and "gpu" not in changed
    changed = changed if changed or is_what_if else ["plan"]
    most = max(float(found[0]) for found in known.values())
    widths = [float(known[name][0]) if name in known else most for name in changed]
    said = [
        f"{int(known[name][1]):,} pairs that differ in {_CALLED[name]}"
        if name in known
        else f"no pair that differs in {_CALLED[name]}"
        for name in changed
    ]
    if is_what_if:
        share, of = what_if_share()
        widths += [REPEAT_SPREAD, share * change]
        said.append(f"{share:.2f} of what changes, as of {of}")
    strange = {one.vendor, other.vendor} - _VENDORS_OF_PAIRS
    if strange and one.vendor != other.vendor:
        widths.append(NORMAL_80 * UNMEASURED_VENDOR)
        said.append("no measured pair of GPUs of two vendors")
    off = math.hypot(*widths)
    low, high = math.exp(-off), math.exp(off)
    return Error(low, high, f"ratio of two served loads: {interval_text(low, high)}, from {' and '.join(said)}")
