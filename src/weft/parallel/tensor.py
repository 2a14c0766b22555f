"""Tensor parallelism: the inner dimension K is cut, so every GPU makes a partial output of full size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from weft.errors import InputError
from weft.workload import Gemm, SubLayer, Transformer
from weft.workload import sublayer as unsplit


@dataclass(frozen=True)
class ShardedSubLayer:
    """One GPU's share of a sub-layer: its GEMM with K / TP, whose output is reduced over `tp` GPUs."""

    model: str
    name: str
    title: str
    gemm: Gemm
    tp: int

    @property
    def payload_bytes(self) -> int:
        """What the all-reduce reduces: the whole output, M x N elements [bytes]."""
        return self.gemm.output_bytes


def split(sublayer: SubLayer, tp: int) -> ShardedSubLayer:
    """The share of each of `tp` GPUs; InputError unless tp is at least 2 and divides N (which is H) and K."""
    gemm = sublayer.gemm
    if not _fits(tp, math.gcd(gemm.n, gemm.k)):
        raise InputError(_tp_problem(sublayer, tp))
    return ShardedSubLayer(
        model=sublayer.model,
        name=sublayer.name,
        title=sublayer.title,
        gemm=replace(gemm, k=gemm.k // tp),
        tp=tp,
    )


def sublayer(model: Transformer | str | Path, name: str, tp: int, dtype: str = "fp16") -> ShardedSubLayer:
    """A GPU's share of a model's sub-layer.

    Raises UnknownNameError for an unknown model, sub-layer or dtype, InputError for a degree that does not fit.

    >>> sublayer("t-nlg", "fc2", tp=8).gemm
    Gemm(m=8192, n=4256, k=2128, dtype='fp16')
    """
    return split(unsplit(model, name, dtype), tp)


def legal_degrees(sublayer: SubLayer) -> list[int]:
    """Every tensor-parallel degree that divides the sub-layer's N and K, ascending."""
    common = math.gcd(sublayer.gemm.n, sublayer.gemm.k)
    small = [degree for degree in range(1, math.isqrt(common) + 1) if common % degree == 0]
    return sorted({*small, *(common // degree for degree in small)} - {1})


def _fits(tp: object, common: int) -> bool:
    return isinstance(tp, int) and not isinstance(tp, bool) and tp >= 2 and common % tp == 0


def _tp_problem(sublayer: SubLayer, tp: object) -> str:
    gemm = sublayer.gemm
    subject = " ".join(dict.fromkeys((sublayer.model, sublayer.name)))
    rule = f"it must be a whole number of at least 2 that divides N = H = {gemm.n} and K = {gemm.k}"
    degrees = legal_degrees(sublayer)
    if not degrees:
        return f"TP {tp!r} cannot split {subject}: {rule}, and none does; change N or K"
    wanted = tp if isinstance(tp, int) and tp > 0 else 2
    closest = sorted(sorted(degrees, key=lambda degree: abs(math.log(degree / wanted)))[:3])
    listed = ", ".join(map(str, closest))
    return f"TP {tp!r} cannot split {subject}: {rule}; nearest that do: {listed}"
