"""Scenarios of a GEMM co-run with a collective: the declared suite, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from weft.core.catalog import Bytes
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.units import Dimension, format_bytes, parse
from weft.estimate import estimate
from weft.graph import Collective, Gemm
from weft.hardware import Gpu
from weft.kernels.library.collectives import canonical
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.collectives import PUSHES
from weft.papers import suites
from weft.papers.headline import read_declaration
from weft.papers.suites import SuiteCase

DECLARED = read_declaration(__file__)
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

    def collective_among(self, ranks: int) -> Collective:
        """Return the collective among `ranks` GPUs."""
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
        """Return the scenario with its collective's canonical name; InputError for a part that cannot be simulated."""
        _ = self.product
        collective = canonical(self.collective)
        if collective not in PUSHES:
            raise InputError(
                f"{collective} has to add, which DMA engines cannot, so that not every strategy can drive it; "
                f"choose {' or '.join(PUSHES)}"
            )
        return self.model_copy(update={"collective": collective})


class ScenarioSuite(suites.Suite):
    """A set of scenarios."""

    KINDS: ClassVar = {"scenario": Scenario}
    OWN = DECLARED.cases

    scenarios: tuple[Scenario, ...] = Field(alias="scenario")


DTYPE = "bf16"
LAYERS = {
    "Llama-70B QKV": (10240, 8192),
    "Llama-70B O": (8192, 8192),
    "Llama-70B gate": (28672, 8192),
    "Llama-70B down": (8192, 28672),
    "Llama-70B LM head": (128256, 8192),
    "Llama-405B QKV": (18432, 16384),
    "Llama-405B O": (16384, 16384),
    "Llama-405B gate": (53248, 16384),
    "Llama-405B down": (16384, 53248),
    "Llama-405B LM head": (128256, 16384),
}
"""Layers by name: N and K of their weights (Llama 3, arXiv:2407.21783); gate and up are GEMMs of their own."""
_ONE_ROW = ("Llama-70B LM head", "Llama-405B LM head")
"""Layers that prefill runs only for the last row of a sequence: never compute-bound."""
ROWS: dict[Bound, tuple[int, ...]] = {"compute": (8192, 16384), "memory": (16, 32, 64)}
"""M of compute-bound GEMMs, as in training and prefill, and of memory-bound ones, as in decoding."""
LONGEST = 25e-3
"""GEMMs with a longer closed-form time are left out, as they cost most to simulate [s]."""
_LEAST_BOUND = 2.0
"""Ratio of the time to read a memory-bound GEMM's weights to the time to multiply, at least."""


def candidates(gpu: Gpu) -> Iterator[tuple[str, tuple[int, int, int], Bound]]:
    """Yield every GEMM that the rule admits: its layer, M x N x K, and what bounds it on a GPU."""
    for bound, rows in ROWS.items():
        for layer, (n, k) in LAYERS.items():
            if bound == "memory" or layer not in _ONE_ROW:
                yield from ((layer, (m, n, k), bound) for m in rows if _bound(m, n, k, gpu) == bound)


def _bound(m: int, n: int, k: int, gpu: Gpu) -> Bound | None:
    """Return the clear bound of a GEMM; None if there is none, or if the GEMM runs too long."""
    found = estimate(Gemm(m, n, k, DTYPE), gpu, RunOptions("sustained"))
    reading = 2 * n * k / (gpu.memory.bandwidth * gpu.memory.read_efficiency)
    multiplying = 2 * m * n * k / gpu.matrix_rate(DTYPE, "sustained")
    if float(found.seconds) > LONGEST:
        return None
    if reading >= _LEAST_BOUND * multiplying:
        return "memory"
    return "compute" if multiplying >= _LEAST_BOUND * reading else None
