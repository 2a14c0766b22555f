"""The kernels of the vendors' libraries by architecture: tiles of GEMMs, convolutions and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from weft.core.catalog import Leaf, Quantity, Rules, read_leaves, read_toml
from weft.core.units import Dimension
from weft.graph.op import width
from weft.graph.tiling import GemmTiling

_MOST_PARTS = 64
"""Most parts into which K is cut where no lower limit of the library is known [assumed]."""
MOST_SLOTS = 8
"""Most K steps that a workgroup of the engine can have in flight."""


@dataclass(frozen=True)
class KernelCandidate:
    """A kernel of a library: its tile, its K step, and the steps and workgroups that a compute unit holds.

    With `granule` > 0 the library also has the kernel with fewer columns, in multiples of it. `cluster` workgroups
    fetch the longer operand slab together (multicast, or one instruction over a pair of compute units).
    """

    rows: int
    columns: int
    step: int
    stages: int
    resident: int
    granule: int = 0
    cluster: int = 1
    threads: int = 256

    def tiling(self, columns: int | None = None, splits: int = 1) -> GemmTiling:
        """The candidate as the engine runs it, with fewer `columns` where the library has them, K in `splits` parts."""
        width = columns or self.columns
        by_columns = self.rows >= width  # the longer slab is the one that is shared
        return GemmTiling(
            rows=self.rows,
            columns=width,
            step=self.step,
            threads=self.threads,
            slots=min(self.stages, MOST_SLOTS),
            stages=self.stages,
            resident=self.resident,
            share_rows=1 if by_columns else self.cluster,
            share_columns=self.cluster if by_columns else 1,
            splits=splits,
        )


@cache
def candidates(architecture: str, dtype: str, *, scaled: bool = False) -> tuple[KernelCandidate, ...]:
    """Return the kernels that a library may choose from; the K step follows the size of an element of `dtype`.

    `scaled` asks for the kernels of inference frameworks that multiply 8-bit operands with scale factors. The lists
    are in kernels/library/tiles.toml, with their sources.
    """
    if scaled and architecture in ("hopper", "blackwell"):
        return tuple(replace(KernelCandidate(*tile), threads=384) for tile in _lists()["scaled"])
    if dtype in ("fp32", "fp64"):
        amd = architecture.startswith("cdna") or architecture in ("t3", "vega")
        return _mirror_tiles(KernelCandidate(*tile) for tile in _lists()["single-amd" if amd else "single-nvidia"])
    found = (KernelCandidate(*tile) for tile in _lists()[architecture])
    packed = math.floor(2 * width(dtype)) / 2  # bytes of an element without its share of a block's scale
    return _mirror_tiles(replace(one, step=int(one.step * 2 / packed)) for one in found)


@cache
def batched_candidates(architecture: str, dtype: str) -> tuple[KernelCandidate, ...]:
    """Return the kernels that a library chooses from for batches of products, where those are not all; else none."""
    found = _lists().get(f"batched-{architecture}", ()) if dtype == "fp32" else ()
    return _mirror_tiles(KernelCandidate(*tile) for tile in found)


@cache
def convolution_kernels(algorithm: str) -> tuple[KernelCandidate, ...]:
    """Return the fp32 kernels of an implicit product, "convolution", or of Winograd in one kernel, "winograd".

    Their rows are windows, or points of tiles.
    """
    return tuple(KernelCandidate(*tile) for tile in _lists()[algorithm])


@cache
def most_parts(architecture: str, dtype: str, *, tuned: bool = False) -> int:
    """The most parts into which the library of an architecture cuts K by itself, or, `tuned`, the best kernel that a
    tuner finds.
    """
    free = tuned or dtype in ("fp32", "fp64")
    return _MOST_PARTS if free else int(_tables()[architecture].get("parts", _MOST_PARTS))


@cache
def _lists() -> Mapping[str, Sequence[Sequence[int]]]:
    """Return the lists of tiles, by architecture and for special kernels."""
    return {name: table["tiles"] for name, table in _tables().items()}


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of kernels/library/tiles.toml, by architecture and for special kernels."""
    tables = read_toml(resources.files("weft.kernels.library") / "tiles.toml")
    return {name: table for key, table in tables.items() for name in (key, *table.get("serves", ()))}


def _mirror_tiles(found: Iterable[KernelCandidate]) -> tuple[KernelCandidate, ...]:
    """Return every tile also with rows and columns exchanged."""
    both = {}
    for one in found:
        for rows, columns in ((one.rows, one.columns), (one.columns, one.rows)):
            both[rows, columns] = replace(one, rows=rows, columns=columns)
    return tuple(both.values())


_TIME, _COUNT = Quantity(Dimension.SECONDS, zero_allowed=True), Quantity(Dimension.COUNT, whole=True)
_SHARE = Quantity(Dimension.COUNT, at_most=1)
FITTED = ("forward.gap", "forward.pace", "backward.gap", "backward.pace")
"""The values of recurrent layers that are fitted to measured ones."""
RULES: Mapping[str, Rules] = {
    "convolution": dict.fromkeys(("product", "transform", "misaligned"), _SHARE),
    "recurrent": {
        **dict.fromkeys(("kernels.vanilla", "kernels.lstm", "kernels.gru"), _COUNT),
        "overlap": Quantity(Dimension.COUNT, zero_allowed=True, at_most=1),
        **dict.fromkeys((*FITTED, "persistent.step"), _TIME),
    },
}
"""Every value by layer and path, with its rule: shares of a GPU's rates, kernels of a step, times in seconds."""


@cache
def _leaves(layer: str) -> Mapping[str, Mapping[str, Leaf]]:
    """Return the shipped values for a layer by the architecture that a library serves, with sources and ranges."""
    file = resources.files("weft.kernels.library") / f"{layer}.toml"
    known: dict[str, Mapping[str, Leaf]] = {}
    for table in read_toml(file).values():
        stated = {key: value for key, value in table.items() if key != "serves"}
        known |= dict.fromkeys(table["serves"], read_leaves(stated, RULES[layer], file.name))
    return known


@cache
def convolution_shares(architecture: str) -> Mapping[str, float]:
    """Return what an architecture's library reaches: of the GEMMs' rate in products, of the memory's in transforms."""
    return {path: leaf.value for path, leaf in _leaves("convolution")[architecture].items()}


@cache
def recurrent_values(architecture: str) -> Mapping[str, float]:
    """Return the values of an architecture's library by path [seconds, counts, a share]."""
    return {path: leaf.value for path, leaf in _leaves("recurrent")[architecture].items()}


@cache
def recurrent_bounds(architecture: str) -> Mapping[str, tuple[float, float]]:
    """Return the plausible range of every value by path [as `recurrent_values`]."""
    return {path: leaf.range for path, leaf in _leaves("recurrent")[architecture].items()}
