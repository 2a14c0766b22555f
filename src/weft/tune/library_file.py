"""A GO-kernel library as a JSON file for runtimes: kernels by degree, degrees by queue length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from weft.catalog import broken_rule, translated
from weft.errors import ConfigError, InputError
from weft.files import read_json, write_json
from weft.graph import Gemm
from weft.kernels import GemmTiling
from weft.tune.kernels import GoKernels

AGAIN = "write it anew with 'weft tune'"
SCHEMA = 1
"""Version of the file format; other versions are rejected."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _whole(tile: Any) -> Any:
    """Check a tile's fields, none missing and none unknown; `splits` is optional (default: K in one piece)."""
    if isinstance(tile, Mapping):
        known = {field.name for field in fields(GemmTiling)}
        odd = (known - {"splits"}) ^ (set(tile) - {"splits"})
        if odd:
            raise ValueError(f"a tile has exactly the fields {', '.join(sorted(known))}")
    return tile


class Kernel(_Plain):
    """The GO-kernel of a degree, how it tiles the GEMM, and the time of that many copies [s]."""

    tile: Annotated[GemmTiling, BeforeValidator(_whole)]
    seconds: float = Field(gt=0)


class Entry(_Plain):
    """A GEMM: its kernel at each degree, and the degree by number of queued GEMMs."""

    name: str
    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    dtype: str
    kernels: dict[int, Kernel]
    degrees: dict[int, int]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Reject a degree without a kernel, and an entry without the time of one GEMM alone."""
        missing = sorted({degree for degree in self.degrees.values() if degree not in self.kernels})
        if missing or 1 not in self.degrees:
            what = f"degree {missing[0]} has no kernel" if missing else "nothing is chosen for one GEMM alone"
            raise broken_rule(f"{self.name}: {what}; {AGAIN}")
        return self

    @property
    def gemm(self) -> Gemm:
        """The GEMM."""
        return Gemm(self.m, self.n, self.k, self.dtype)


class KernelLibrary(_Plain):
    """GO-kernels of some GEMMs on one GPU, at a "short" or a "sustained" clock."""

    weft_kernel_library: Literal[1] = 1
    gpu: str
    clock: str
    gemms: tuple[Entry, ...]

    def choose(self, gemm: Gemm, queued: int) -> tuple[int, GemmTiling]:
        """How many of the queued copies of a GEMM to run together, and with which kernel.

        A queue length that was not tuned takes the next smaller one's choice. Raises InputError for a GEMM that the
        library does not hold, and for an empty queue.
        """
        if queued < 1:
            raise InputError(f"{queued} GEMMs are queued; at least one must be")
        entry = next((one for one in self.gemms if one.gemm == gemm), None)
        if entry is None:
            raise InputError(f"the library for {self.gpu} has no {gemm}; tune it with 'weft tune' and load that file")
        degree = entry.degrees[max(known for known in entry.degrees if known <= queued)]
        return degree, entry.kernels[degree].tile

    def save(self, path: str | Path) -> Path:
        """Write the library as JSON; OutputError if the path cannot be written."""
        return write_json(path, self.model_dump(mode="json"))


def library_of(gpu: str, clock: str, tuned: Iterable[tuple[str, GoKernels, Mapping[int, int]]]) -> KernelLibrary:
    """The library of tuned GEMMs: for each its name, its GO-kernels, and the degree by number of queued GEMMs."""
    return KernelLibrary(gpu=gpu, clock=clock, gemms=tuple(_entry(*one) for one in tuned))


def _entry(name: str, kernels: GoKernels, degrees: Mapping[int, int]) -> Entry:
    gemm = kernels.gemm
    each = {degree: Kernel(tile=kernels.best(degree), seconds=kernels.seconds(degree)) for degree in kernels.degrees}
    return Entry(name=name, m=gemm.m, n=gemm.n, k=gemm.k, dtype=gemm.dtype, kernels=each, degrees=dict(degrees))


def load_library(path: str | Path) -> KernelLibrary:
    """Load the library that `weft tune --out` wrote.

    Raises InputError for an unreadable file, ConfigError for other content or another version.
    """
    content = read_json(path, "kernel library", AGAIN)
    version = content.get("weft_kernel_library")
    if version != SCHEMA:
        raise ConfigError(
            f"its version is {version!r}, but this Weft reads version {SCHEMA}; {AGAIN}",
            str(path),
            "weft_kernel_library",
        )
    try:
        return KernelLibrary(**content)
    except ValidationError as error:
        raise translated(error, tuple(KernelLibrary.model_fields), str(path)) from None
