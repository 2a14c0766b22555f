"""The operators of a model's layers on a GPU's roofline, timed as in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import estimate
from weft.graph import Collective
from weft.hardware import Gpu, System
from weft.hardware.resolve import Described
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import RankPart
from weft.step.durations import BETWEEN_OTHERS, ROOM
from weft.step.queries import resolve_inputs
from weft.step.rank_parts import rank_parts
from weft.step.result.roofline import Roofline, RooflineOp
from weft.step.spans import class_of

VECTOR = "vector"
"""The name of the vector units' peak."""


def roofline(
    model: Transformer | str | Path,
    on: Described,
    plan: TrainingPlan | None = None,
    *,
    framework: Framework | str | None = None,
    options: RunOptions = SUSTAINED,
    **stated: Any,
) -> Roofline:
    """Return where the operators of a layer lie on the roofline of a GPU, forward and backward; arguments as for
    `weft.step`.

    Every distinct layer is shown as one rank of the plan computes it; collectives move no operand of a roofline and
    are left out. Raises what `weft.step` raises.

    >>> found = roofline("gpt-3", "8xa100", tp=8)
    >>> {op.name: found.left_of_ridge(op) for op in found.operators}["norm1"]
    True
    """
    found, where, plan, used, notes, _ = resolve_inputs(model, on, plan, framework, stated)
    timed = where.replace({"memory.capacity": ROOM})
    parts = {name: one for name, one in rank_parts(found, plan, used).items() if name not in ("embedding", "head")}
    operators = tuple(op for part in parts.values() for op in _operators(part, timed, options))
    return Roofline(found, where, plan, operators, _peaks(where.gpu, operators), notes)


def _operators(part: RankPart, timed: System, options: RunOptions) -> Iterator[RooflineOp]:
    for direction, graph in (("forward", part.forward), ("backward", part.backward)):
        for node in graph:
            op = node.op
            if isinstance(op, Collective) or not op.least_bytes:
                continue
            found = estimate(op, timed, options=options, harness=BETWEEN_OTHERS)
            yield RooflineOp(
                part.name, direction, node.name, class_of(op), op.matrix_dtype, float(op.flops),
                float(op.least_bytes), float(found.seconds), str(found.bound),
            )  # fmt: skip


def _peaks(gpu: Gpu, operators: tuple[RooflineOp, ...]) -> Mapping[str, float]:
    """Return the data sheet's rate of each number format in use, fastest first, and of the vector units in fp32."""
    used = dict.fromkeys(op.dtype for op in operators if op.dtype)
    rates = {dtype: gpu.matrix_rate(dtype) for dtype in used}
    ordered = dict(sorted(rates.items(), key=lambda one: -one[1]))
    return {**ordered, VECTOR: 2 * gpu.vector_lanes * gpu.compute.compute_units * gpu.compute.clock}
