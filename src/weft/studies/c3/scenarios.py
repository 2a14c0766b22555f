"""Scenarios of a GEMM beside a collective: the declared suite, and suites of the user's own, from TOML files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from weft.catalog import Bytes
from weft.errors import ConfigError
from weft.graph import Collective, Gemm
from weft.library.collectives import canonical
from weft.lower.collectives import PUSHES
from weft.studies.headline import declared
from weft.studies.suites import cases_of, suite_in, suite_of
from weft.units import Dimension, format_bytes, parse

DECLARED = declared(__file__)
Bound = Literal["compute", "memory"]
"""What limits a GEMM on a whole GPU."""
Kind = Literal["G-long", "GC-equal", "C-long"]
"""Which of a scenario's two takes longer alone."""
MOST = 1000
"""Scenarios that a suite may have."""


class Scenario(BaseModel):
    """A GEMM of `layer`, M x N x K, beside a collective of `size` [bytes of the whole buffer].

    `bound` says what limits the GEMM, `kind` ("class" in files) which of both is declared to take longer alone; both
    may be left out in a suite of one's own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

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
        """The collective among so many GPUs."""
        return Collective(self.collective, self.size, ranks, self.dtype)

    @property
    def title(self) -> str:
        """The scenario in a few words."""
        m, n, k = self.gemm
        return f"{self.layer} {m}x{n}x{k}, {self.collective} {format_bytes(self.size)}"


class Suite(BaseModel):
    """A set of scenarios with a `title`, and how they were chosen, `rule`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    rule: str = ""
    scenarios: tuple[Scenario, ...]


def declared_suite() -> Suite:
    """The suite of `weft study c3`: 30 scenarios."""
    return _suite(DECLARED.cases, "scenarios.toml")


def load_suite(path: str | Path) -> Suite:
    """The suite in a TOML file of the form of the declared cases; errors of `suite_in` name the scenario."""
    return suite_in(path, _suite)


def _suite(content: Mapping[str, Any], file: str) -> Suite:
    rows = content.get("scenario")
    if not isinstance(rows, list | tuple) or not rows:
        raise ConfigError("there is no scenario; add one below a line [[scenario]]", file)
    if len(rows) > MOST:
        raise ConfigError(f"there are {len(rows)} scenarios; a suite may have {MOST}", file)
    scenarios = cases_of(Scenario, rows, f"{file}: scenario", _checked)
    return suite_of(Suite, content, {"scenario": scenarios}, file, scenarios=scenarios)


def _checked(scenario: Scenario, place: str) -> Scenario:
    """A scenario whose every part can be simulated, its collective by its usual name."""
    _ = scenario.product
    collective = canonical(scenario.collective)
    if collective not in PUSHES:
        raise ConfigError(
            f"{collective} has to add, which DMA engines cannot, so that not every strategy can drive it; "
            f"choose {' or '.join(PUSHES)}",
            place,
            "collective",
        )
    return scenario.model_copy(update={"collective": collective})
