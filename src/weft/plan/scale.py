"""A model on machines of the future: a training step where GPUs compute faster and links carry more.

The empirical strategy of arXiv:2302.02825 for any model: the operators of one machine, as its closed forms and its
measured rows have them, projected to machines whose rates are multiples of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from weft import hardware
from weft.core.answer import Answer, Record, to_plain
from weft.core.errors import InputError, check_type, check_whole
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.estimate.errors import Error, collective_error, gemm_error
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.parallel.check import divisors
from weft.models.parallel.plan import TrainingPlan
from weft.step.queries import memory as memory_of
from weft.step.queries import step
from weft.step.result.step import Step

COMPUTE_RATES = (
    "compute.clock",
    "clocks.matrix_peak",
    "clocks.sustained",
    "clocks.sustained_fp8",
    "cache.clock",
    "memory_cache.bandwidth",
    "package.bandwidth",
)
"""Values of a GPU that grow with its rate of computing: clocks of the matrix and vector units and of the caches."""
COMPUTE_WAITS = ("achieved.gemm_latency",)
"""What shrinks as computing grows: the wait of a K step, since kernels that compute faster keep more in flight."""
NETWORK_RATES = ("link.bandwidth", "network.bandwidth", "dma.bandwidth")
"""Values that grow with the links: those of a GPU, its share of the network between nodes, and each DMA engine."""
MEMORY_RATES = ("memory.bandwidth",)
AS_PLANNED = "framework"
"""The overlap that the framework has by itself."""
METHODS = ("sequential", AS_PLANNED)
"""What is compared unless asked otherwise: nothing of tensor parallelism hidden, and what the framework hides."""


def faster(system: System, compute: float = 1.0, network: float = 1.0, memory: float | None = None) -> System:
    """Return the system with `compute`, `network` and `memory` times the rates of today (memory None: as computing).

    Kernels keep as many times more in flight as they compute faster; latencies, capacities and the number of compute
    units stay. Raises InputError for factors that are no positive
    numbers.
    """
    for name, factor in (("compute", compute), ("network", network), ("memory", memory)):
        if factor is not None and not 0 < factor <= _MOST:
            raise InputError(f"{name} is {factor:g}; give factors above 0 and at most {_MOST:g}, such as 2 or 0.5")
    factors = dict.fromkeys(COMPUTE_RATES, compute) | dict.fromkeys(NETWORK_RATES, network)
    factors |= dict.fromkeys(COMPUTE_WAITS, 1 / compute) | dict.fromkeys(
        MEMORY_RATES, compute if memory is None else memory
    )
    rules, changed = system.rules, {}
    for path, factor in factors.items():
        rule = rules.get(path)
        if rule is not None and factor != 1 and (value := system.value(path)):
            changed[path] = rule.format(value * factor)
    return system.replace(changed)


_MOST = 1000.0
_DEGREES = ("tp", "pp", "cp", "dp", "ep")


@dataclass(frozen=True)
class Scaled(Record):
    """A step on a machine with multiples of today's rates, its tensor parallelism overlapped by `method`."""

    compute: float
    network: float
    memory: float
    method: str
    step: Step

    def to_dict(self) -> dict[str, Any]:
        """Return the point and the figures of its step as plain data."""
        return to_plain(
            compute=self.compute, network=self.network, memory=self.memory, method=self.method,
            step_time_s=self.step.seconds, mfu=self.step.mfu, exposed_share=self.exposed, hidden_share=self.hidden,
            exposed_s=self.step.exposed, hidden_s=self.step.hidden, waterfall=self.step.parts,
        )  # fmt: skip

    @property
    def communication(self) -> float:
        """Communication that computing waits for [s]."""
        return sum(self.step.exposed.values())

    @property
    def exposed(self) -> float:
        """Share of the step in which computing waits for communication."""
        return self.communication / self.step.seconds

    @property
    def hidden(self) -> float:
        """Communication during computing, relative to the step."""
        return sum(self.step.hidden.values()) / self.step.seconds


@dataclass(frozen=True, repr=False)
class Scaling(Answer):
    """Steps of a model on machines of the future, and what methods of overlap change there.

    `system` is the machine of today, whose rates the points are multiples of. `compute_error` and `network_error` are
    half the 80 % intervals of GEMMs and of collectives on it, `errors` says from which rows.
    """

    kind = "scaling"

    points: tuple[Scaled, ...]
    system: System
    compute_error: float
    network_error: float
    errors: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Step:
        """The step on the first machine, with the first method."""
        return self.points[0].step

    def machines(self) -> Iterator[tuple[Scaled, ...]]:
        """Return the points of each machine, one for each method."""
        found: dict[tuple[float, float, float], list[Scaled]] = {}
        for point in self.points:
            found.setdefault((point.compute, point.network, point.memory), []).append(point)
        return iter(map(tuple, found.values()))

    def speedup(self, point: Scaled, base: Scaled) -> tuple[float, float, float]:
        """Return how many times faster a method is than another on one machine: the value, and the ends of its range.

        At the ends all computing is `compute_error` slower and all exposed communication `network_error` faster, and
        the other way round.
        """
        ends = []
        for side in (-1.0, 0.0, 1.0):
            computing, moving = 1 - side * self.compute_error, 1 + side * self.network_error
            times = [
                (one.step.seconds - one.communication) * computing + one.communication * moving for one in (base, point)
            ]
            ends.append(times[0] / times[1])
        return ends[1], min(ends), max(ends)

    def share(self, point: Scaled) -> tuple[float, float, float]:
        """Return the exposed share, and the ends of its range, as for `speedup`."""
        odds = point.exposed / (1 - point.exposed)
        low = odds * (1 - self.network_error) / (1 + self.compute_error)
        high = odds * (1 + self.network_error) / (1 - self.compute_error)
        return point.exposed, low / (1 + low), high / (1 + high)

    def to_dict(self) -> dict[str, Any]:
        """Every point, speedups over the first method of each machine with their range, and the errors of the times."""
        rows = []
        for points in self.machines():
            for point in points:
                value, low, high = self.speedup(point, points[0])
                _, least, most = self.share(point)
                ranges = {"exposed_share_range": [least, most], "speedup": value, "speedup_range": [low, high]}
                rows.append({**point.to_dict(), **ranges})
        return {
            "model": self.first.model.name,
            "system": self.system.label,
            "plan": self.first.plan.to_dict(),
            "framework": self.first.framework.name,
            "points": rows,
            "gemm_error": self.compute_error,
            "collective_error": self.network_error,
            "errors": list(self.errors),
            "notes": list(self.notes),
        }


def scale(
    model: Transformer | str,
    system: Described,
    compute: Sequence[float] = (1, 2, 4),
    network: Sequence[float] = (1,),
    *,
    memory: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    options: RunOptions = SUSTAINED,
    fidelity: Fidelity = "estimate",
    **plan: Any,
) -> Scaling:
    """Time a training step of a model on machines with multiples of a machine's rates, under methods of overlap.

    Every combination of `compute`, `network` and `memory` (None: as computing) is a machine. Without degrees in the
    plan, the GPUs of a node share every layer, and nodes are added as pipeline stages until the model fits. `methods`
    overlap the collectives of tensor parallelism ("framework": as the framework does); without tensor parallelism that
    one alone is left. Further keywords are fields of the plan, as for `weft.step`. Raises what `weft.step` raises, and
    InputError for factors that are no positive numbers.

    >>> found = scale("gpt-3", "64xa100", [1, 4], methods=["sequential"], tp=8, pp=8, batch=64)
    >>> found.points[1].exposed > 1.5 * found.points[0].exposed
    True
    """
    where = hardware.system(system)
    for name, values in (("compute", compute), ("network", network), ("methods", methods)):
        check_type(name, values, (list, tuple), "give a list, such as [1, 2, 4]")
        if not values:
            raise InputError(f"{name} is empty; give at least one value")
    found = load_model(model)
    overlap = dict(TrainingPlan(overlap=plan.pop("overlap", None) or {}).overlap)
    for axis in _DEGREES:
        if plan.get(axis) is not None:
            check_whole(axis, plan[axis], 1, 8)
    where, plan, chosen = _place_plan(found, where, plan)
    tp = plan.get("tp") or 1
    used = methods if tp > 1 else (AS_PLANNED,)
    points = []
    for factor, wide in product(compute, network):
        for fast in memory or (factor,):
            machine = faster(where, factor, wide, fast)
            for method in used:
                own = overlap if method == AS_PLANNED else {**overlap, "tp": method}
                answer = step(found, machine, options=options, fidelity=fidelity, overlap=own, **plan)
                points.append(Scaled(factor, wide, fast, method, answer))
    gemm, moved, whole = _errors(points[0].step)
    notes = (*chosen, *_notes(points, memory, tp))
    return Scaling(tuple(points), where, gemm.value, moved.value, (gemm.why, moved.why, whole.why), notes)


def _place_plan(
    model: Transformer, where: System, plan: dict[str, Any]
) -> tuple[System, dict[str, Any], tuple[str, ...]]:
    """The machine and the plan; without degrees: a node shares every layer, with as many stages as the model needs."""
    degrees = (plan.get(axis) or 1 for axis in _DEGREES)
    if any(degree > 1 for degree in degrees) or plan.get("zero") or where.gpus == 1:
        return where, plan, ()
    heads = math.gcd(model.attention_heads, model.key_heads)
    tp = max(each for each in divisors(where.gpus_per_node) if heads % each == 0)
    for pp in divisors(model.layers):
        dp = max(where.gpus // (tp * pp), 1)
        gpus = tp * pp * dp
        stated = {**plan, "tp": tp, "pp": pp, "dp": dp}
        if gpus % where.gpus_per_node == 0 and memory_of(model, where.with_gpus(gpus), **stated).fits:
            more = (
                "" if gpus == where.gpus else f"{model.title} does not fit {where.gpus} GPUs; {gpus} of them hold it. "
            )
            return (
                where.with_gpus(gpus),
                stated,
                (f"{more}No degrees were stated; they are TP {tp}, PP {pp}, DP {dp}.",),
            )
    raise InputError(
        f"{model.title} does not fit GPUs like {where.gpu.name} with tp {tp} and any number of stages; state degrees, "
        "recompute or zero"
    )


def _errors(answer: Step) -> tuple[Error, Error, Error]:
    """The errors of large GEMMs, of the largest collectives of the plan, and of steps, on the machine of today."""
    gpu, plan = answer.system.gpu.name, answer.plan
    size = 2 * plan.micro_batch * plan.sequence * answer.model.hidden
    kind = "all_gather" if plan.sp else "all_reduce"
    nodes = -(-plan.tp // answer.system.node.gpus_per_node) if answer.system.node else 1
    return gemm_error(gpu, 1e-3), collective_error(gpu, kind, size, nodes), answer.error


def _notes(points: Sequence[Scaled], memory: Sequence[float] | None, tp: int) -> tuple[str, ...]:
    first = points[0].step
    rates = (
        "Compute scales the clocks of matrix and vector units and caches, and what kernels keep in flight; network the "
        "links of GPUs and nodes"
    )
    kept = "; memory scales with compute" if memory is None else ""
    notes = [f"{rates}{kept}; latencies, capacities and the number of compute units stay as they are."]
    if tp == 1:
        notes.append("Without tensor parallelism no method of overlap applies; give --tp to compare some.")
    needs: Mapping[str, None] = dict.fromkeys(need for point in points for need in point.step.needs)
    return (*notes, *needs, *first.notes)
