"""Several GPUs and how they are connected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from weft.hardware.fields import BytesPerSecondOrNone, Delay
from weft.hardware.gpu import Gpu
from weft.hardware.parts import Part
from weft.hardware.sourced import translated


class System(Part):
    """A machine: `gpus` GPUs in a ring, equal unless `variants` gives a GPU of its own to some ranks.

    `start` gives ranks that begin late their delay [seconds]; `peer_bandwidth` is what leads to one peer alone where
    every pair of GPUs has links of its own, `egress` what all links of a GPU carry, also those to GPUs that take no
    part [bytes/s]; 0 where there are none. Raises ConfigError for values that break a rule.
    """

    gpu: Gpu
    gpus: int = Field(ge=2)
    topology: Literal["ring"] = "ring"
    variants: Mapping[int, Gpu] = Field(default_factory=dict)
    start: Mapping[int, Delay] = Field(default_factory=dict)
    peer_bandwidth: BytesPerSecondOrNone = 0.0
    egress: BytesPerSecondOrNone = 0.0

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise translated(error, tuple(type(self).model_fields)) from None

    @property
    def uniform(self) -> bool:
        """Whether all GPUs are equal and start together, so that one can stand for all."""
        return all(gpu == self.gpu for gpu in self.variants.values()) and not any(self.start.values())

    def gpu_of(self, rank: int) -> Gpu:
        """The GPU of a rank."""
        return self.variants.get(rank, self.gpu)

    def start_of(self, rank: int) -> float:
        """How late a rank begins [seconds]."""
        return self.start.get(rank, 0.0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, ranks in (("variants", self.variants), ("start", self.start)):
            outside = [rank for rank in ranks if not 0 <= rank < self.gpus]
            if outside:
                sentence = f"{field} names rank {outside[0]}, but the ranks run from 0 to {self.gpus - 1}"
                raise PydanticCustomError("rule", "{sentence}", {"sentence": sentence})
        return self
