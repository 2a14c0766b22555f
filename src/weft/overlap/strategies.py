"""How a GEMM and an independent collective share one GPU: who drives, who goes first, who gets what.

The strategies are those that C3 and ConCCL compare (arXiv:2412.14335): two plain streams, a collective with priority,
compute units set apart for it, and copies by DMA engines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu

Driver = Literal["cu", "dma"]
DRIVERS: tuple[Driver, ...] = ("cu", "dma")
"""What moves a collective's data: compute units or DMA engines."""
Launched = Literal["collective", "gemm"]
LAUNCHED: tuple[Launched, ...] = ("collective", "gemm")
"""Which of both streams the host launches first."""
DMA_UNITS = 8
"""Compute units that `dma-partition` takes off the GEMM unless told otherwise: one of each XCD of an MI300X."""


@dataclass(frozen=True)
class Strategy:
    """A way to share a GPU; `name` is what users type.

    `driver` moves the collective's data. With `priority` the collective is launched first and its workgroups take
    compute units before the GEMM's. With `partition` masks set compute units apart: for the collective, or, where
    DMA engines drive it, just off the GEMM.
    """

    name: str
    title: str
    summary: str
    driver: Driver
    priority: bool
    partition: bool

    @property
    def first(self) -> Launched:
        """What the host launches first unless told otherwise: the collective if it has priority, else the GEMM."""
        return "collective" if self.priority else "gemm"


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "streams", "Streams", "two streams, as launched: who comes first takes the compute units",
            "cu", priority=False, partition=False,
        ),
        Strategy(
            "priority", "Priority", "the collective comes first and takes a compute unit per workgroup",
            "cu", priority=True, partition=False,
        ),
        Strategy(
            "partition", "Partition", "masks give the collective compute units of its own, the GEMM the rest",
            "cu", priority=False, partition=True,
        ),
        Strategy(
            "priority-partition", "Priority and partition", "masks, and the collective comes first",
            "cu", priority=True, partition=True,
        ),
        Strategy(
            "dma", "DMA", "DMA engines push the data: no compute unit, no L2; memory and links are shared",
            "dma", priority=False, partition=False,
        ),
        Strategy(
            "dma-partition", "DMA and partition", "DMA engines, and a few compute units taken off the GEMM",
            "dma", priority=False, partition=True,
        ),
    )
}  # fmt: skip
"""Every strategy by name, plain streams first."""


def find_strategy(strategy: str | Strategy) -> Strategy:
    """A strategy by name; UnknownNameError lists the known ones."""
    if isinstance(strategy, Strategy):
        return strategy
    if strategy not in STRATEGIES:
        raise UnknownNameError("strategy", strategy, STRATEGIES)
    return STRATEGIES[strategy]


class Split(NamedTuple):
    """The compute units that a GEMM may use, and those set apart: numbers from 0."""

    gemm: tuple[int, ...]
    apart: tuple[int, ...]


def split_units(gpu: Gpu, apart: int) -> Split:
    """The compute units of a GPU, with `apart` of them set apart.

    On AMD GPUs each XCD gives as many as the others (the first ones one more where `apart` is no multiple), so that
    none of them lags behind; unit u lies in XCD u * XCDs // units. Elsewhere they are the last ones.
    Raises InputError if either side has no unit.
    """
    units = gpu.compute.compute_units
    if not 1 <= apart < units:
        raise InputError(
            f"{apart} of {units} compute units cannot be set apart on {gpu.name}: each side needs at least one; "
            f"choose 1 to {units - 1}"
        )
    parts = gpu.dies
    chosen = tuple(unit for part in range(parts) for unit in _last(units, parts, part, apart))
    taken = set(chosen)
    return Split(tuple(unit for unit in range(units) if unit not in taken), chosen)


def _last(units: int, parts: int, part: int, apart: int) -> range:
    """The last units of a part: its share of those set apart."""
    end = -(-(part + 1) * units // parts)
    return range(end - (apart // parts + (part < apart % parts)), end)


def apart_of(gemm: int, apart: int, gpu: Gpu) -> int:
    """The units set apart by a split "gemm-apart"; InputError if it does not add up to those of the GPU."""
    units = gpu.compute.compute_units
    if gemm + apart != units:
        raise InputError(
            f"the split {gemm}-{apart} has {gemm + apart} compute units, but {gpu.name} has {units}; "
            f"write {units - apart}-{apart}"
            if 0 < apart < units
            else f"the split {gemm}-{apart} does not add up to the {units} compute units of {gpu.name}"
        )
    split_units(gpu, apart)
    return apart
