"""Runs of a GEMM, a collective, or both, as tasks of a sweep: what `simulation.concurrent` needs, by value.

Studies and tables that ask for the same run share its record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlap.strategies import find_strategy
from weft.simulation.concurrent import isolated_collective, isolated_gemm, together
from weft.sweep.inputs import gpu_inputs, tiling_inputs
from weft.units import format_bytes
from weft.workload import Gemm

_FLOPS_PER_WEIGHT = 1e9
_BYTES_PER_WEIGHT = 1e6


@dataclass(frozen=True)
class Setting:
    """Where and how runs are made: `ranks` equal GPUs, the clock ("short", "sustained"), the request size [bytes].

    Without `request_bytes` requests are as large as suits the GPU.
    """

    gpu: Gpu
    ranks: int = 8
    clock: str = "sustained"
    request_bytes: int | None = None

    def inputs(self) -> dict[str, Any]:
        """Everything of the setting that decides a run's answer."""
        return {
            **gpu_inputs(self.gpu),
            "ranks": self.ranks,
            "clock": self.clock,
            "request_bytes": self.request_bytes,
        }

    def options(self) -> dict[str, Any]:
        """What every function of `simulation.concurrent` takes."""
        return {"ranks": self.ranks, "clock": self.clock, "request_bytes": self.request_bytes}


@dataclass(frozen=True)
class GemmAlone:
    """A GEMM on `units` compute units of a GPU (None: all)."""

    gemm: Gemm
    setting: Setting
    units: int | None = None
    tiling: GemmTiling | None = None

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"GEMM {self.gemm}{_on(self.units)}"

    @property
    def weight(self) -> float:
        """How long the run takes beside others, roughly."""
        return self.gemm.flops / _FLOPS_PER_WEIGHT

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {
            "run": "isolated_gemm",
            "gemm": asdict(self.gemm),
            "units": self.units,
            "tiling": tiling_inputs(self.tiling),
            **self.setting.inputs(),
        }

    def run(self) -> dict[str, Any]:
        """The record of the `StreamRun`."""
        options = {**self.setting.options(), "units": self.units, "tiling": self.tiling}
        return isolated_gemm(self.gemm, self.setting.gpu, **options).record()


@dataclass(frozen=True)
class CollectiveAlone:
    """A collective of `bytes_` (the whole buffer) by `units` workgroups (None: the library's number) or DMA engines."""

    collective: str
    bytes_: int
    setting: Setting
    driver: str = "cu"
    units: int | None = None
    dtype: str = "bf16"

    @property
    def title(self) -> str:
        """The run in a few words."""
        return (
            f"{self.collective} of {format_bytes(self.bytes_, 3)} by {self.driver.upper()}{_on(self.units)}"
        )

    @property
    def weight(self) -> float:
        """How long the run takes beside others, roughly."""
        return self.bytes_ / _BYTES_PER_WEIGHT

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {
            "run": "isolated_collective",
            "collective": self.collective,
            "bytes": self.bytes_,
            "driver": self.driver,
            "units": self.units,
            "dtype": self.dtype,
            **self.setting.inputs(),
        }

    def run(self) -> dict[str, Any]:
        """The record of the `StreamRun`."""
        options = {**self.setting.options(), "units": self.units, "dtype": self.dtype, "driver": self.driver}
        return isolated_collective(self.collective, self.bytes_, self.setting.gpu, **options).record()


@dataclass(frozen=True)
class Together:
    """A GEMM and a collective of `bytes_` under a strategy, `units` compute units set apart where it partitions.

    `first` is what the host launches first (None: as the strategy says).
    """

    gemm: Gemm
    collective: str
    bytes_: int
    setting: Setting
    strategy: str = "streams"
    units: int | None = None
    first: str | None = None
    tiling: GemmTiling | None = None

    @property
    def title(self) -> str:
        """The run in a few words."""
        size = format_bytes(self.bytes_, 3)
        return f"GEMM {self.gemm} beside {self.collective} of {size}, {self.strategy}{_on(self.units)}"

    @property
    def weight(self) -> float:
        """How long the run takes beside others, roughly."""
        return self.gemm.flops / _FLOPS_PER_WEIGHT + self.bytes_ / _BYTES_PER_WEIGHT

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {
            "run": "together",
            "gemm": asdict(self.gemm),
            "collective": self.collective,
            "bytes": self.bytes_,
            "strategy": self.strategy,
            "units": self.units,
            "first": self.first or find_strategy(self.strategy).first,
            "tiling": tiling_inputs(self.tiling),
            **self.setting.inputs(),
        }

    def run(self) -> dict[str, Any]:
        """The record of the `StreamRun`."""
        options = {**self.setting.options(), "units": self.units, "tiling": self.tiling}
        options |= {"strategy": self.strategy, "first": self.first}
        return together(self.gemm, self.collective, self.bytes_, self.setting.gpu, **options).record()


def _on(units: int | None) -> str:
    return "" if units is None else f", {units} CUs"
