"""One slow part of a machine (a GPU, a node's network, an adapter), and how much of its delay reaches a step."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from weft.core.answer import Record, to_plain
from weft.core.errors import InputError, show_value
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.step.clock import train
from weft.step.pipeline.clock import latencies, starts
from weft.step.result.step import exposed_part

if TYPE_CHECKING:
    from weft.step.result.step import Step

What = Literal["gpu", "node", "nic"]
_CLOCKED = ("gemm", "grouped_gemm", "attention", "scan", "recompute")
"""Parts of a step that take longer at a lower clock of the compute units; memory and links stay as they are."""
_TEXT = re.compile(r"\s*(gpu|node|nic)\s*(?::\s*(?:(network)\s*=\s*)?(\d+(?:\.\d+)?|\.\d+)\s*(%)?\s*)?")
_HALF = 0.5
_SHOWN = 0.001
"""Share of a step from which a part that waits is named [assumed, 0.0005 to 0.005]."""
_MOST = 0.5
"""Largest share by which a clock may be lower, as of `weft.hardware.Stragglers`."""


@dataclass(frozen=True)
class Straggler:
    """One slow part: a "gpu" whose clock is lower by `share`, or a "node" or a "nic" whose network has `share` of its
    rate.

    Collectives spread their data evenly over the adapters of a node, so that one slow adapter holds back all of it.

    >>> Straggler.of("gpu:5%")
    Straggler(what='gpu', share=0.05)
    >>> Straggler.of("node:network=0.5")
    Straggler(what='node', share=0.5)
    """

    what: What
    share: float = _HALF

    def __post_init__(self) -> None:
        if self.what not in get_args(What):
            raise InputError(f"{show_value(self.what)} is no slow part; name gpu, node or nic")
        most, what = (_MOST, "by which its clock is lower") if self.what == "gpu" else (1.0, "of its rate that is left")
        if not 0 < self.share <= most:
            raise InputError(
                f"the straggler {self.what} has {self.share:g} as the share {what}; give one up to {most:g}"
            )

    @classmethod
    def of(cls, text: str) -> Straggler:
        """Parse "gpu:5%", "node:network=0.5" or "nic"; InputError for another text."""
        found = _TEXT.fullmatch(text)
        if found is None or (found[1] == "gpu" and (found[2] or not found[3])) or (found[1] == "node" and not found[2]):
            raise InputError(
                f"{show_value(text)} is no straggler; write it like 'gpu:5%' (a clock 5 % lower), 'node:network=0.5' "
                "(half the rate of a node's network) or 'nic' (one adapter at half its rate)"
            )
        share = _HALF if not found[3] else float(found[3]) / (100 if found[4] else 1)
        what: Any = found[1]
        return cls(what, share)

    @property
    def words(self) -> str:
        """The slow part in words: "one GPU with a clock 5 % lower"."""
        if self.what == "gpu":
            return f"one GPU with a clock {100 * self.share:.3g} % lower"
        part = "node whose network has" if self.what == "node" else "network adapter with"
        return f"one {part} {self.share:.3g} of its rate"


@dataclass(frozen=True)
class Delay(Record):
    """What a straggler costs a step: its `delay_s` of a step of `step_s`, and by the part that grows [s] (`waits`).

    `own_s` is how much longer the slow part itself takes in a step; `stage` is the pipeline stage where that costs
    most.
    """

    straggler: Straggler
    step_s: float
    delay_s: float
    own_s: float
    waits: dict[str, float]
    stage: int | None = None

    @property
    def reaching(self) -> float:
        """Share of the slow part's own delay that reaches the step."""
        return self.delay_s / self.own_s if self.own_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the delay and who waits as plain data."""
        return to_plain(
            straggler=self.straggler, step_time_s=self.step_s, delay_s=self.delay_s, own_s=self.own_s,
            waits_s=self.waits, stage=self.stage,
        )  # fmt: skip


def delayed(step: Step, straggler: Straggler | str, options: RunOptions = SUSTAINED) -> Step:
    """Return the step with what a slow part costs it (`Step.late`); errors as of `Straggler.of` and `delay`."""
    return replace(
        step, late=delay(step, Straggler.of(straggler) if isinstance(straggler, str) else straggler, options)
    )


def delay(step: Step, straggler: Straggler, options: RunOptions = SUSTAINED) -> Delay:
    """Return what a straggler costs a step; InputError for a network that the plan does not use."""
    return _slow_gpu(step, straggler) if straggler.what == "gpu" else _slow_network(step, straggler, options)


def _slow_gpu(step: Step, straggler: Straggler) -> Delay:
    """The ranks of its tensor-parallel group wait in every layer, so that its whole stage is late.

    Replicas wait at the end of the step. A stage is never later than by what the GPU itself takes longer.
    """
    factor = 1 / (1 - straggler.share) - 1
    own = [
        factor * sum(seconds for name, seconds in step.work(device).parts.items() if name in _CLOCKED)
        for device in range(step.devices)
    ]
    delays = [_pipeline_delay(step, device, own[device]) for device in range(step.devices)]
    worst = int(np.argmax(delays))
    plan, late = step.plan, delays[worst]
    axes = {"tp": plan.tp, "cp": plan.cp, "ep": plan.ep, "pp": plan.pp, "dp": plan.dp}
    waits = {exposed_part(axis): late for axis, degree in axes.items() if degree > 1 and late}
    return Delay(straggler, step.seconds, late, own[worst], waits, worst if step.devices > 1 else None)


def _pipeline_delay(step: Step, device: int, own: float) -> float:
    """Return how much later the pipeline ends if a device takes `own` longer over all of its tasks [s]."""
    ran = step.pipeline
    schedule = ran.schedule
    taken = np.nan_to_num(ran.end - ran.start)
    mine = np.broadcast_to((schedule.device == device)[None], taken.shape)
    whole = float(taken[mine].sum())
    if not whole:
        return 0.0
    if not schedule.flushes:
        return max(float(ran.busy[device]) + own - float(ran.busy.max()), 0.0)
    arrive = latencies(schedule, step.send)

    def makespan(times: Any) -> float:
        start, _, _ = starts(schedule, times, arrive, ran.receiving, ran.sending)
        ends = np.where(schedule.position >= 0, start + times + ran.sending, -np.inf)
        return float(ends.max())

    return max(makespan(np.where(mine, taken * (1 + own / whole), taken)) - makespan(taken), 0.0)


def _slow_network(step: Step, straggler: Straggler, options: RunOptions) -> Delay:
    """Every group that passes through the node has the rate of its slowest member, and all groups wait for that one.

    Sends between stages count as if all were slow, an upper bound.
    """
    system = step.system
    if system.node is None or system.gpus <= system.gpus_per_node:
        raise InputError(
            f"a straggler {straggler.what} slows the network between nodes, and {step.plan.gpus} GPUs are one node; "
            "name a slow GPU, like 'gpu:5%', or a larger system"
        )
    rate = system.node.network.bandwidth * straggler.share
    slow = system.replace({"network.bandwidth": f"{rate!r} B/s"})
    late = train(step.model, slow, step.plan, step.framework, options, cast(Fidelity, step.fidelity))
    names = {*step.parts, *late.parts}
    grown = {name: late.parts.get(name, 0.0) - step.parts.get(name, 0.0) for name in sorted(names)}
    waits = {name: seconds for name, seconds in grown.items() if seconds > _SHOWN * step.seconds}
    taken = max(late.seconds - step.seconds, 0.0)
    hidden = sum(late.hidden.values()) - sum(step.hidden.values())
    return Delay(straggler, step.seconds, taken, taken + max(hidden, 0.0), waits)
