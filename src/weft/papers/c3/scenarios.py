"""Scenarios of a GEMM beside a collective: the declared suite, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from weft.core.catalog import Bytes
from weft.core.errors import InputError
from weft.core.units import Dimension, format_bytes, parse
from weft.graph import Collective, Gemm
from weft.kernels.library.collectives import canonical
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.collectives import PUSHES
from weft.papers import suites
from weft.papers.headline import declared
from weft.papers.suites import SuiteCase

DECLARED = declared(__file__)
Bound = Literal["compute", "memory"]
"""What limits a GEMM on a whole GPU."""
Kind = Literal["G-long", "GC-equal", "C-long"]
"""Which operator of a scenario takes longer alone."""
IDS: Mapping[str, str] = {name: f"c3.{'base' if name == 'streams' else name.replace('-', '_')}" for name in STRATEGIES}
"""The claim of each strategy: its mean share of the ideal speedup."""


class Scenario(SuiteCase):
    """A GEMM of `layer`, M x N x K, beside a collective of `size` [bytes of the whole buffer].

    `bound` is what limits the GEMM; `kind` ("class" in files) declares which of both takes longer alone. Both are
    optional in a user's suite.
    """

    NOUN = "scenario"

    layer: str
    gemm: tuple[int, int, int]
    dtype: str = "bf16"
    bound: Bound | None = None
    collective: str
    size: Bytes
    kind: Kind | None = Field(default=None, alias="class")

    @field_validator("size", mode="before")
    @classmethod
    def _with_its_unit(cls, size: Any) -> Any:
        parse(str(size), Dimension.BYTES)
        return size

    @property
    def product(self) -> Gemm:
        """The GEMM."""
        return Gemm(*self.gemm, self.dtype)

    def moved(self, ranks: int) -> Collective:
        """The collective among `ranks` GPUs."""
        return Collective(self.collective, self.size, ranks, self.dtype)

    @property
    def title(self) -> str:
        """The scenario in a few words."""
        m, n, k = self.gemm
        return f"{self.layer} {m}x{n}x{k}, {self.collective} {format_bytes(self.size)}"

    @property
    def shape(self) -> str:
        """The GEMM's M, N and K."""
        return "×".join(map(str, self.gemm))

    @property
    def beside(self) -> str:
        """The collective and its size."""
        return f"{self.collective} {format_bytes(self.size, 4)}"

    def checked(self) -> Scenario:
        """The scenario with its collective's canonical name; InputError for a part that cannot be simulated."""
        _ = self.product
        collective = canonical(self.collective)
        if collective not in PUSHES:
            raise InputError(
                f"{collective} has to add, which DMA engines cannot, so that not every strategy can drive it; "
                f"choose {' or '.join(PUSHES)}"
            )
        return self.model_copy(update={"collective": collective})


class Suite(suites.Suite):
    """A set of scenarios."""

    KINDS: ClassVar = {"scenario": Scenario}
    OWN = DECLARED.cases

    scenarios: tuple[Scenario, ...] = Field(alias="scenario")
