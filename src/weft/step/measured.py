"""What a measured step says beside the predicted one: whether it was to be expected, and what would be faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from weft.core.errors import InputError
from weft.core.options import RESERVE, SUSTAINED, RunOptions
from weft.core.units import format_time
from weft.models.parallel.check import problems
from weft.models.parallel.plan import ScheduleName, TrainingPlan
from weft.models.parallel.plan_text import changes
from weft.step.clock import many
from weft.step.result.step import Step, exposed_axis

_UNITS = {"s": 1.0, "ms": 1e-3, "tokens/s": 1.0, "FLOP/s": 1.0, "TFLOP/s": 1e12, "PFLOP/s": 1e15}
_NEEDED = ("gemm", "grouped_gemm", "attention", "scan", "norm", "element-wise", "embedding", "loss", "optimizer")
"""Parts of a step that each of its operators needs: what a measured step loses lies in the others."""
_SUGGESTED = 3
_WORTH_A_LOOK = 0.01
"""Share of the step from which a part is named as a place where time may be lost [assumed, 0.005 to 0.05]."""
_WORTH_A_CHANGE = 0.005
"""Share of the step from which a change of the plan is suggested [assumed, 0.002 to 0.02]."""


@dataclass(frozen=True)
class Measured:
    """A measured throughput or time: the number in the unit "s", "tokens/s" or "FLOP/s", the last two of each GPU."""

    value: float
    unit: str

    @classmethod
    def of(cls, text: str) -> Measured:
        """Parse "9.3 s", "1400 tokens/s" or "412 TFLOP/s" (tokens and operations of each GPU).

        Raises InputError for anything else.

        >>> Measured.of("412 TFLOP/s")
        Measured(value=412000000000000.0, unit='FLOP/s')
        """
        found = re.fullmatch(r"\s*([\d.,]+(?:e[+-]?\d+)?)\s*(\S+)\s*", text)
        number = found[1].replace(",", "") if found else ""
        value = float(number) if re.fullmatch(r"\d+\.?\d*(e[+-]?\d+)?|\.\d+", number) else 0.0
        if found is None or found[2] not in _UNITS or not 0 < value < 1e30:
            raise InputError(
                f"'{text}' is no measured step; write it like '9.3 s', '1400 tokens/s' or '412 TFLOP/s', of each GPU"
            )
        unit = found[2] if found[2] == "tokens/s" else "FLOP/s" if found[2].endswith("FLOP/s") else "s"
        return cls(value * _UNITS[found[2]], unit)

    def seconds(self, step: Step) -> float:
        """Return the time of the step [s]; operations count as for MFU, without recomputation."""
        if self.unit == "tokens/s":
            return step.tokens / step.plan.gpus / self.value
        return step.flops() / step.plan.gpus / self.value if self.unit == "FLOP/s" else self.value


def judge_step(step: Step, measured: Measured, options: RunOptions = SUSTAINED) -> Step:
    """The step with sentences on a measured one: whether it lies in the 80 % interval, where the difference may lie,
    and the three changes of the plan that would gain most.
    """
    took, (low, high) = measured.seconds(step), step.interval_s
    off = took / step.seconds - 1
    said = f"Measured {format_time(took, 3)} is {abs(off):.0%} {'longer' if off > 0 else 'shorter'} than predicted"
    if low <= took <= high:
        said += ", within the 80 % interval: as is to be expected."
    elif took > high:
        said += f", {format_time(took - high, 3)} beyond the 80 % interval: something costs more than it should."
    else:
        said += ", below the 80 % interval: check what was timed, and what the plan computes."
    lost = {
        name: part for name, part in step.parts.items() if name not in _NEEDED and part > _WORTH_A_LOOK * step.seconds
    }
    ranked = sorted(lost.items(), key=lambda one: -one[1])[:_SUGGESTED]
    axes = {name: exposed_axis(name).upper() for name, _ in ranked}
    words = {name: f"exposed {axis} communication" if axis else name for name, axis in axes.items()}
    where = ", ".join(f"{words[name]} {format_time(part, 3)}" for name, part in ranked)
    look = [f"Where time may be lost: {where}; a trace of the step shows it (weft import TRACE)."] * bool(where)
    return suggest_changes(replace(step, needs=(*step.needs, said, *look)), options)


def suggest_changes(step: Step, options: RunOptions = SUSTAINED) -> Step:
    """Return the step with a sentence on the three changes of the plan that would gain most, and that fit."""
    gains = list(_gains(step, options))
    better = "Of single changes none that fits is faster."
    if gains:
        better = f"What would gain most, one change at a time: {'; '.join(gains)}."
    return replace(step, needs=(*step.needs, better))


def _gains(step: Step, options: RunOptions) -> Iterator[str]:
    """Yield the changes of the plan that shorten the step most and fit, in closed forms, each with its gain."""
    plans = [step.plan, *_neighbours(step)]
    found = many(step.model, step.system, plans, step.framework, options)
    capacity = step.system.gpu.memory.capacity
    room = (1 - RESERVE) * capacity
    now, best = found.seconds[0], []
    for plan, seconds, peak in zip(plans[1:], found.seconds[1:].tolist(), found.peak_bytes[1:].tolist(), strict=True):
        if seconds < (1 - _WORTH_A_CHANGE) * now and peak <= room:
            best.append((seconds, peak, plan))
    shown: set[frozenset[str]] = set()
    for seconds, peak, plan in sorted(best, key=lambda one: one[0]):
        said = ", ".join(changes(plan, _following(step.plan, plan)))
        kind = frozenset(one.name for one in fields(plan) if getattr(plan, one.name) != getattr(step.plan, one.name))
        if said and kind not in shown and len(shown) < _SUGGESTED:
            shown.add(kind)
            yield f"{said} ({now / seconds:.2f}x as fast, {peak / 1e9:.0f} of {capacity / 1e9:.0f} GB)"


def _following(base: TrainingPlan, plan: TrainingPlan) -> TrainingPlan:
    """Return `base` with what only follows from another plan's degrees: replicas, layers of stages, sp."""
    shared = plan.sp if 1 in (plan.tp, base.tp) else base.sp
    return base.alter(dp=plan.dp, layers=plan.layers, sp=shared)


def _schedule(plan: TrainingPlan, pp: int) -> str:
    """Return the order of a pipeline of other stages that cuts the model into as many parts, or else 1F1B."""
    parts = plan.pp * plan.chunks
    if plan.order_of_pipeline.kind != "interleaved" or parts % pp or parts == pp or plan.micro_batches % pp:
        return "1f1b"
    return str(ScheduleName("interleaved", (parts // pp,)))


def _neighbours(step: Step) -> Iterator[TrainingPlan]:
    """Yield plans on as many GPUs with the same batch that differ in one choice."""
    plan, model = step.plan, step.model
    ways: list[dict[str, Any]] = [{"recompute": each} for each in ("none", "selective", "full")]
    ways += [{"micro_batch": each} for each in (plan.micro_batch * 2, plan.micro_batch // 2) if each]
    ways += [{"zero": each} for each in (0, 1, 3)]
    ways += [{"sp": not plan.sp}] if plan.tp > 1 else []
    for axis in ("tp", "pp", "cp"):
        degree = getattr(plan, axis)
        ways += [{axis: degree * 2, "dp": plan.dp // 2}] if plan.dp % 2 == 0 else []
        ways += [{axis: degree // 2, "dp": plan.dp * 2}] if degree % 2 == 0 else []
    if plan.tp % 2 == 0:
        ways += [{"tp": plan.tp // 2, "pp": plan.pp * 2}]
    if plan.pp % 2 == 0:
        ways += [{"pp": plan.pp // 2, "tp": plan.tp * 2}]
    if plan.pp > 1 and not plan.layers:
        ways += [{"schedule": f"interleaved:{each}"} for each in range(2, 9)] + [{"schedule": "1f1b"}]
    for way in ways:
        pp = way.get("pp", plan.pp)
        more: dict[str, Any] = {"schedule": _schedule(plan, pp), "layers": ()} if pp != plan.pp else {}
        if way.get("tp", plan.tp) == 1:
            more["sp"] = False
        elif plan.tp == 1 and "tp" in way:
            more["sp"] = True
        try:
            one = replace(plan, **{**more, **way})
        except InputError:
            continue
        small = one.tp <= step.system.gpus_per_node and not any(problems(model, one))
        if one != plan and small:
            yield one
