"""Scenarios of a GEMM beside a collective: the declared suite, and suites of the user's own, from TOML files."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.catalog import Bytes, read_toml, translated, unknown_key
from weft.errors import ConfigError, InputError
from weft.graph import Collective, Gemm
from weft.library.collectives import canonical
from weft.lower.collectives import PUSHES
from weft.units import Dimension, format_bytes, parse

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
    """The suite of `weft study c3`: 30 scenarios, as declared in scenarios.toml."""
    return _suite(read_toml(files(__package__) / "scenarios.toml"), "scenarios.toml")


def load_suite(path: str | Path) -> Suite:
    """The suite in a TOML file of the form of scenarios.toml.

    Raises InputError for a file that cannot be read, ConfigError for one that breaks a rule: it names the scenario.
    """
    return _suite(read_toml(Path(path)), str(path))


def _suite(content: dict[str, Any], file: str) -> Suite:
    rows = content.pop("scenario", None)
    if not isinstance(rows, list) or not rows:
        raise ConfigError("there is no scenario; add one below a line [[scenario]]", file)
    if len(rows) > MOST:
        raise ConfigError(f"there are {len(rows)} scenarios; a suite may have {MOST}", file)
    for key in content:
        if key not in ("title", "rule"):
            raise unknown_key(key, ("title", "rule", "scenario"), file)
    scenarios = tuple(_scenario(row, number, file) for number, row in enumerate(rows, start=1))
    try:
        return Suite(**content, scenarios=scenarios)
    except ValidationError as error:
        raise translated(error, ("title", "rule"), file) from None


def _scenario(row: Any, number: int, file: str) -> Scenario:
    """A scenario whose every part can be simulated; errors name it by its number in the file."""
    place = f"{file}: scenario {number}"
    known = [field.alias or name for name, field in Scenario.model_fields.items()]
    if not isinstance(row, dict):
        raise ConfigError(f"this must be a table of values, not {row!r}", place)
    try:
        if "size" in row:
            parse(str(row["size"]), Dimension.BYTES)
        scenario = Scenario(**row)
        _ = scenario.product
        collective = canonical(scenario.collective)
    except ValidationError as error:
        raise translated(error, known, place) from None
    except InputError as error:
        raise ConfigError(str(error), place) from None
    if collective not in PUSHES:
        raise ConfigError(
            f"{collective} has to add, which DMA engines cannot, so that not every strategy can drive it; "
            f"choose {' or '.join(PUSHES)}",
            place,
            "collective",
        )
    return scenario.model_copy(update={"collective": collective})
