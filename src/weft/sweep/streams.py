"""Runs of a GEMM, a collective, or both, as tasks of a sweep: what `simulation.concurrent` needs, by value.

Studies and tables that ask for the same run share its record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weft.hardware import Gpu
from weft.hardware.ring_kernels import in_flight_moved
from weft.kernels import GemmTiling
from weft.overlap.machine import check_request
from weft.overlap.strategies import find_strategy
from weft.result.stream_run import StreamRun
from weft.simulation.concurrent import isolated_collective, isolated_gemm, together
from weft.sweep.inputs import gpu_inputs
from weft.units import format_bytes
from weft.workload import Gemm

_FLOPS_PER_WEIGHT = 1e9
_BYTES_PER_WEIGHT = 1e6


@dataclass(frozen=True)
class Setting:
    """Where and how runs are made: `ranks` equal GPUs, the clock ("short", "sustained"), the request size [bytes].

    Without `request_bytes` requests are as large as suits the GPU. `in_flight` are bytes that a workgroup of a
    library's kernel has on their way where they are not the catalogue's, by kernel, such as ("cdna.simple", 4096).
    Raises InputError for a request size that the GPU cannot have.
    """

    gpu: Gpu
    ranks: int = 8
    clock: str = "sustained"
    request_bytes: int | None = None
    in_flight: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.request_bytes is not None:
            check_request(self.gpu, self.request_bytes)  # before there are processes and progress

    def inputs(self) -> dict[str, Any]:
        """Everything of the setting that decides a run's answer."""
        return {**gpu_inputs(self.gpu), **self.options(), "in_flight": dict(self.in_flight)}

    def options(self) -> dict[str, Any]:
        """What every function of `simulation.concurrent` takes."""
        return {"ranks": self.ranks, "clock": self.clock, "request_bytes": self.request_bytes}


class StreamTask(ABC):
    """A run of `simulation.concurrent`: its fields, but for `setting`, are what the function takes, by name."""

    setting: Setting

    @abstractmethod
    def simulate(self) -> StreamRun:
        """The run, made in this process."""

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        shapes = (Gemm, GemmTiling)
        own = {name: asdict(v) if isinstance(v, shapes) else v for name, v in self._own().items()}
        return {**own, **self.setting.inputs()}

    def run(self) -> dict[str, Any]:
        """The record of the `StreamRun`."""
        return self.simulate().record()

    def options(self) -> dict[str, Any]:
        """What the function takes: the machine, the task's own fields, and the options of the setting."""
        return {"machine": self.setting.gpu, **self._own(), **self.setting.options()}

    def _through(self, function: Callable[..., StreamRun]) -> StreamRun:
        with in_flight_moved(self.setting.in_flight):
            return function(**self.options())

    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "setting"}


@dataclass(frozen=True)
class GemmAlone(StreamTask):
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

    def simulate(self) -> StreamRun:
        """The GEMM alone."""
        return self._through(isolated_gemm)


@dataclass(frozen=True)
class CollectiveAlone(StreamTask):
    """A collective of `bytes_` (the whole buffer) by `units` workgroups (None: the library's number) or DMA engines.

    `plain_ring` is that of `simulation.concurrent.together`.
    """

    collective: str
    bytes_: int
    setting: Setting
    driver: str = "cu"
    units: int | None = None
    dtype: str = "bf16"
    plain_ring: int | None = None

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

    def simulate(self) -> StreamRun:
        """The collective alone."""
        return self._through(isolated_collective)


@dataclass(frozen=True)
class Together(StreamTask):
    """A GEMM and a collective of `bytes_` under a strategy, `units` compute units set apart where it partitions.

    `first` is what the host launches first (None: as the strategy says), `plain_ring` that of
    `simulation.concurrent.together`.
    """

    gemm: Gemm
    collective: str
    bytes_: int
    setting: Setting
    strategy: str = "streams"
    units: int | None = None
    first: str | None = None
    tiling: GemmTiling | None = None
    plain_ring: int | None = None

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
        return {**super().inputs(), "first": self.first or find_strategy(self.strategy).first}

    def simulate(self) -> StreamRun:
        """Both side by side."""
        return self._through(together)


def _on(units: int | None) -> str:
    return "" if units is None else f", {units} CUs"
