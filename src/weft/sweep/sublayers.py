"""Comparisons of sub-layers as tasks of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlap.machine import check_request
from weft.parallel import ShardedSubLayer
from weft.result import Comparison
from weft.result.stored import as_record, from_record
from weft.simulation import compare
from weft.sweep.inputs import gpu_inputs, tiling_inputs

_FLOPS_PER_WEIGHT = 1e9


@dataclass(frozen=True)
class Compared:
    """A sub-layer under several overlaps on a GPU, with requests of a size [bytes].

    `tiling` is how the GEMM is cut (None: as usual). A record without `spans` has times, bytes and counters only.
    `about` says what is special, for people. Raises InputError for a request size that the GPU cannot have.
    """

    layer: ShardedSubLayer
    gpu: Gpu
    overlaps: tuple[str, ...]
    request_bytes: int
    tiling: GemmTiling | None = None
    spans: bool = True
    about: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_request(self.gpu, self.request_bytes)  # before there are processes and progress

    @property
    def title(self) -> str:
        """The sub-layer in a few words."""
        layer = f"{self.layer.model} {self.layer.name}, TP {self.layer.tp}"
        return f"{layer}, {self.about}" if self.about else layer

    @property
    def weight(self) -> float:
        """How long the comparison takes beside others, roughly."""
        return self.layer.gemm.flops / _FLOPS_PER_WEIGHT

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the answer."""
        return {
            "layer": asdict(self.layer),
            "overlaps": list(self.overlaps),
            "request_bytes": self.request_bytes,
            "tiling": tiling_inputs(self.tiling),
            "spans": self.spans,
            **gpu_inputs(self.gpu),
        }

    def run(self) -> Mapping[str, Any]:
        """The record of the comparison."""
        made = compare(
            self.layer, self.gpu, self.overlaps, request_bytes=self.request_bytes, tiling=self.tiling
        )
        return as_record(made, self.spans)

    @staticmethod
    def comparison(record: Mapping[str, Any]) -> Comparison:
        """The comparison that a record holds."""
        return from_record(record)
