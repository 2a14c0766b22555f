"""A batch of independent GEMMs on one GPU as a task of a sweep, by value; and many of them with their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlap.gemms import TiledGemm
from weft.result.gemms_run import GemmsRun
from weft.simulation.gemms import concurrent_gemms
from weft.sweep import Store, results
from weft.sweep.inputs import gpu_inputs, tiling_inputs
from weft.workload import Gemm

_FLOPS_PER_WEIGHT = 1e9


@dataclass(frozen=True)
class Batch:
    """GEMMs that are launched together on a GPU, each in a queue of its own, on `units` compute units (None: all).

    With `queues` they are dealt to fewer of them in turn. `clock` is "short" or "sustained"; without `request_bytes`
    requests are as large as suits the GPU.
    """

    gpu: Gpu
    gemms: tuple[TiledGemm, ...]
    units: int | None = None
    clock: str = "sustained"
    request_bytes: int | None = None
    queues: int | None = None

    @property
    def title(self) -> str:
        """The run in a few words."""
        first = self.gemms[0]
        many = "" if len(self.gemms) == 1 else f"{len(self.gemms)} GEMMs, the first "
        return f"{many}{first.gemm} in tiles of {first.tiling}"

    @property
    def weight(self) -> float:
        """How long the run takes beside others, roughly: small tiles load more."""
        return sum(
            one.gemm.flops / _FLOPS_PER_WEIGHT / min(one.tiling.rows, one.tiling.columns)
            for one in self.gemms
        )

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {
            **gpu_inputs(self.gpu),
            "gemms": [{"gemm": asdict(one.gemm), "tiling": tiling_inputs(one.tiling)} for one in self.gemms],
            "units": self.units,
            "queues": self.queues,
            "clock": self.clock,
            "request_bytes": self.request_bytes,
        }

    def run(self) -> dict[str, Any]:
        """The record of the `GemmsRun`."""
        return concurrent_gemms(
            self.gemms,
            self.gpu,
            queues=None if self.queues is None else min(self.queues, len(self.gemms)),
            units=self.units,
            clock=self.clock,
            request_bytes=self.request_bytes,
        ).record()


Runs = Mapping[Batch, GemmsRun]
"""What was simulated, by batch."""


@dataclass(frozen=True)
class Bench:
    """Where GEMMs are tried: a GPU, a clock ("short", "sustained"), and the size of memory requests [bytes]."""

    gpu: Gpu
    clock: str = "sustained"
    request_bytes: int | None = None

    def copies(self, gemm: Gemm, tiling: GemmTiling, count: int, units: int | None = None) -> Batch:
        """So many copies of a GEMM, each with operands of its own."""
        return self.batch((TiledGemm(gemm, tiling),) * count, units)

    def batch(self, gemms: Iterable[TiledGemm], units: int | None = None) -> Batch:
        """Some GEMMs that are launched together."""
        return Batch(self.gpu, tuple(gemms), units, self.clock, self.request_bytes)


@dataclass(frozen=True)
class Workshop:
    """How many processes simulate, what remembers their answers (None: nothing), and who is told of the progress."""

    jobs: int = 1
    store: Store | None = None
    progress: Callable[[int, int, str], None] | None = None

    def simulate(self, batches: Iterable[Batch]) -> Runs:
        """Every batch with what it took; each is simulated once, whatever the number of processes."""
        return results(batches, GemmsRun.from_record, self.jobs, self.progress, self.store)
