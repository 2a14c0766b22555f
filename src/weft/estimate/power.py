"""The power of a GPU by what it does: idle, kernels that run, matrix units, memory and links by their use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.core.answer import Record, to_plain
from weft.core.catalog import parse_value
from weft.core.energy import EnergyTerms
from weft.core.options import SUSTAINED
from weft.graph import Collective, Op
from weft.hardware import Gpu
from weft.kernels.gemm import main_loop_flops


@dataclass(frozen=True)
class Activity:
    """What a GPU does in `seconds`: for `busy` of them kernels run.

    `matrix` are its FLOPs at the rate of a long GEMM of their format, `memory` its bytes at the peak bandwidth, `links`
    the time in which it sends to other GPUs [s].
    """

    seconds: float = 0.0
    busy: float = 0.0
    matrix: float = 0.0
    memory: float = 0.0
    links: float = 0.0

    def __add__(self, other: Activity) -> Activity:
        return Activity(*(one + more for one, more in zip(_values(self), _values(other), strict=True)))

    def __mul__(self, count: float) -> Activity:
        return Activity(*(count * one for one in _values(self)))


def _values(one: Activity) -> tuple[float, ...]:
    return one.seconds, one.busy, one.matrix, one.memory, one.links


def work_of(ops: Iterable[tuple[Op, float]], gpu: Gpu) -> Activity:
    """Return the `matrix` and `memory` of operators, each with the bytes that it moves beyond its least traffic.

    Collectives move their data within `links`, whose time the caller knows.
    """
    matrix = memory = 0.0
    for op, more in ops:
        if isinstance(op, Collective):
            continue
        memory += max(op.least_bytes + more, 0.0) / gpu.memory.bandwidth
        if op.matrix_dtype and op.flops:
            rate = main_loop_flops(op.matrix_dtype, gpu, SUSTAINED) * gpu.compute.compute_units
            matrix += op.flops / rate
    return Activity(matrix=matrix, memory=memory)


class Watts(NamedTuple):
    """Mean power [W], and what draws it: `parts` in the order of `PARTS`.

    `low` and `high` are the ends of its 80 % interval: the shares of the GPU's limit vary within their ranges, each by
    itself.
    """

    mean: float
    low: float
    high: float
    parts: Mapping[str, float]

    @property
    def lasting(self) -> float:
        """Share of the power that flows however fast the work is done."""
        return (self.parts["idle"] + self.parts["busy"]) / self.mean


PARTS = ("idle", "busy", "memory", "links", "matrix")
"""What draws power: a GPU without kernels, kernels that run, its DRAM, its links, its matrix units."""


def watts(gpu: Gpu, done: Activity) -> Watts:
    """Return the mean power of a GPU; InputError for one whose power is not known.

    Idle power flows all the time, and `busy` power while kernels run. Memory and links add their share by how much they
    are used, and matrix units at the rate of a long GEMM all that is left up to the limit, as such a GEMM runs at the
    clock that the limit allows. While kernels run, the mean power is at most the limit.
    """
    limit = gpu.power_limit
    stated = {name: float(gpu.value(f"power.{name}")) for name in _SHARES}
    parts = _parts(limit, stated, done)
    mean = sum(parts.values())
    ends = []
    for end in ("low", "high"):
        changed = (sum(_parts(limit, stated | {name: _end(gpu, name, end)}, done).values()) for name in _SHARES)
        ends.append(math.sqrt(sum((one - mean) ** 2 for one in changed)))
    return Watts(mean, mean - ends[0], min(mean + ends[1], limit), parts)


_SHARES = ("idle", "busy", "memory", "links")


def _end(gpu: Gpu, name: str, end: str) -> float:
    """Return the low or the high end of the range of a share; the share itself without a range."""
    path = f"power.{name}"
    origin = gpu.provenance.get(path)
    return float(parse_value(gpu.rules()[path], path, getattr(origin, end, None) or gpu.text(path)))


def _parts(limit: float, share: Mapping[str, float], done: Activity) -> dict[str, float]:
    if not done.seconds:
        return dict.fromkeys(PARTS, 0.0) | {"idle": share["idle"] * limit}
    busy = min(done.busy / done.seconds, 1.0)
    idle, running = share["idle"] * limit, min(share["busy"], 1 - share["idle"]) * limit
    left = limit - idle - running
    asked = {
        "memory": share["memory"] * limit * done.memory / done.seconds,
        "links": share["links"] * limit * done.links / done.seconds,
        "matrix": left * done.matrix / done.seconds,
    }
    total = sum(asked.values())
    fits = min(left * busy / total, 1.0) if total else 0.0
    return {"idle": idle, "busy": running * busy} | {name: fits * each for name, each in asked.items()}


@dataclass(frozen=True)
class Energy(Record):
    """The power and the energy of `gpus` GPUs that process `tokens_per_s` together.

    `gpu` is the power of a GPU, `terms` say what else counts, `time_80` are both ends of the 80 % interval of the time,
    relative to the predicted. A run takes `days`, if it is known.
    """

    gpu: Watts
    gpus: int
    tokens_per_s: float
    terms: EnergyTerms
    time_80: tuple[float, float] = (1.0, 1.0)
    days: float | None = None

    @property
    def watts(self) -> float:
        """Power of all GPUs and of what else counts [W]."""
        return self._all(self.gpu.mean)

    @property
    def watts_80(self) -> tuple[float, float]:
        """Both ends of its 80 % interval."""
        return self._all(self.gpu.low), self._all(self.gpu.high)

    def _all(self, each: float) -> float:
        return (each + self.terms.node) * self.terms.pue * self.gpus

    @property
    def joules_per_token(self) -> float:
        """Energy of a token [J]."""
        return self.watts / self.tokens_per_s

    @property
    def joules_per_token_80(self) -> tuple[float, float]:
        """Both ends of its 80 % interval [J]: errors of power, and of the time in which what is not work flows."""
        lasting = (self.gpu.mean * self.gpu.lasting + self.terms.node) / (self.gpu.mean + self.terms.node)
        low, high = (
            math.hypot(math.log(power / self.watts), math.log(1 + lasting * (time - 1)))
            for power, time in zip(self.watts_80, self.time_80, strict=True)
        )
        return self.joules_per_token * math.exp(-low), self.joules_per_token * math.exp(high)

    @property
    def kwh(self) -> float | None:
        """Energy of the whole run [kWh]; None without its length."""
        return None if self.days is None else self.watts * self.days * 24 / 1000

    @property
    def cost(self) -> float | None:
        """Price of the electricity of the whole run; None without its length or a price."""
        return None if self.kwh is None or not self.terms.price else self.kwh * 3.6e6 * self.terms.price

    @property
    def million_tokens(self) -> float | None:
        """Price of the electricity of a million tokens; None without a price."""
        return 1e6 * self.joules_per_token * self.terms.price if self.terms.price else None

    def to_dict(self) -> dict[str, Any]:
        """Return power, energy and what draws it as plain data."""
        return to_plain(
            watts_per_gpu=self.gpu.mean, watts_per_gpu_80=(self.gpu.low, self.gpu.high), watts_by_part=self.gpu.parts,
            watts=self.watts, watts_80=self.watts_80, joules_per_token=self.joules_per_token,
            joules_per_token_80=self.joules_per_token_80, kwh=self.kwh, terms=self.terms, cost=self.cost,
            cost_of_million_tokens=self.million_tokens,
        )  # fmt: skip
