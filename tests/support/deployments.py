"""Calls of serve, prefill, decode and plan_serving by fields of their plan, load and limits in one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import weft
from weft.serving.serve import ready
from weft.step.forward import Forward


def parted(fields: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The fields of a serving plan, of a load and of limits, and what is none of them."""
    owners = (weft.ServingPlan, weft.Load, weft.Limits)
    found = tuple({k: v for k, v in fields.items() if k in owner.__dataclass_fields__} for owner in owners)
    return (*found, {k: v for k, v in fields.items() if not any(k in one for one in found)})


def serve_with(model, system, **fields):
    """`weft.serve` by fields."""
    plan, load, limits, more = parted(fields)
    return weft.serve(model, system, weft.ServingPlan(**plan), weft.Load(**load), weft.Limits(**limits), **more)


def plan_with(model, system, **fields):
    """`weft.plan_serving` by fields, those of the plan fixed."""
    fix, load, limits, more = parted(fields)
    return weft.plan_serving(model, system, weft.Load(**load), weft.Limits(**limits), fix, **more)


def decode_with(model, system, **fields):
    """`weft.decode` by fields."""
    plan, _, _, more = parted(fields)
    return weft.decode(model, system, weft.ServingPlan(**plan), **more)


def prefill_with(model, system, **fields):
    """`weft.prefill` by fields."""
    plan, _, _, more = parted(fields)
    return weft.prefill(model, system, weft.ServingPlan(**plan), **more)


def forward_with(model, system, **fields):
    """A `Forward` by fields."""
    plan, _, _, more = parted(fields)
    return Forward(model, system, weft.ServingPlan(**plan), **more)


def ready_with(model, system, **fields):
    """A load on a server, ready to be served, by fields."""
    plan, load, limits, more = parted(fields)
    where = weft.load_model(model), weft.system(system)
    return ready(*where, weft.ServingPlan(**plan), weft.Load(**load), weft.Limits(**limits), **more)
