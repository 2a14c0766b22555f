"""Which GEMM kernels the vendors' libraries have: the tiles that a product may be cut into, by architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from weft.kernels.gemm import GemmTiling

_MOST_SLOTS = 8  # K steps that a workgroup of the engine can have in flight


@dataclass(frozen=True)
class Candidate:
    """A kernel of a library: its tile, its K step, and how many steps and workgroups a compute unit holds.

    With `granule` > 0 the library has the same kernel with fewer columns, in multiples of it. `cluster` workgroups
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
            slots=min(self.stages, _MOST_SLOTS),
            stages=self.stages,
            resident=self.resident,
            share_rows=1 if by_columns else self.cluster,
            share_columns=self.cluster if by_columns else 1,
            splits=splits,
        )


def candidates(architecture: str, dtype: str, *, scaled: bool = False) -> tuple[Candidate, ...]:
    """The kernels that a library may choose from; the K step follows the size of an element of `dtype`.

    `scaled` asks for the kernels of inference frameworks that multiply 8-bit operands with scale factors.

    Sources: tile lists of NVIDIA/cutlass @7107b05 (generator, sm80) and public profiles of cuBLAS kernels (sm80
    16816 and sm90, sm100 nvjet names); ROCm/hipBLASLt @7d9fb68 and ROCm/aiter @e404860 tuned tables; kernel names of
    FP32 products in sitar-lab/NeuSight @6945927.
    """
    return _scaled() if scaled and architecture in _NVJET else _candidates(architecture, dtype)


_NVJET = ("hopper", "blackwell")

# (rows, columns, step, stages, resident); the mirrored tile is there as well. Steps are for 2-byte elements.
_TILES = {
    "ampere": (
        (256, 128, 32, 3, 1),
        (128, 128, 32, 4, 2),
        (256, 64, 32, 4, 2),
        (128, 64, 32, 6, 2),
        (128, 32, 64, 4, 2),
        (64, 64, 32, 10, 2),
        (64, 32, 64, 4, 3),
        (32, 32, 64, 5, 4),
        (16, 64, 64, 4, 4),
    ),
    "ada": (
        (256, 128, 32, 3, 1),
        (128, 128, 32, 3, 1),
        (256, 64, 32, 4, 1),
        (128, 64, 32, 4, 1),
        (64, 64, 32, 5, 1),
        (64, 32, 64, 4, 1),
        (32, 32, 64, 6, 1),
    ),
    "hopper": (
        (256, 128, 64, 4, 1, 8, 2),
        (192, 128, 64, 4, 1, 8, 2),
        (320, 128, 64, 3, 1, 8, 2),
        (128, 128, 64, 6, 1, 8, 2),
        (64, 256, 64, 5, 1, 8, 2),
        (64, 128, 64, 8, 1, 8),
        (64, 64, 64, 7, 2, 8),
        (64, 32, 64, 6, 3, 8),
        (64, 16, 64, 7, 3, 8),
        (64, 8, 64, 8, 3),
    ),
    "blackwell": (
        (256, 256, 64, 4, 1, 16, 2),
        (192, 256, 64, 5, 1, 16, 2),
        (128, 256, 64, 6, 1, 16, 2),
        (128, 128, 64, 7, 1, 16, 2),
        (128, 64, 64, 8, 1, 16, 2),
        (128, 32, 64, 10, 1, 16),
        (64, 64, 64, 10, 1, 8),
        (64, 32, 64, 9, 2, 8),
        (64, 8, 64, 12, 2),
    ),
    "cdna3": (
        (256, 256, 64, 3, 1, 16),
        (256, 128, 64, 3, 1, 16),
        (128, 128, 64, 3, 1, 16),
        (64, 128, 64, 3, 1, 16),
        (64, 64, 64, 3, 2, 16),
        (32, 64, 64, 3, 2, 16),
        (16, 64, 64, 3, 2, 16),
    ),
    "cdna": (
        (256, 256, 32, 2, 1, 16),
        (256, 128, 64, 2, 1, 16),
        (128, 128, 64, 2, 1, 16),
        (64, 128, 64, 2, 1, 16),
        (64, 64, 64, 2, 2, 16),
        (32, 64, 64, 2, 2, 16),
        (16, 64, 64, 2, 2, 16),
    ),
}

# FP32 without matrix units keeps short K steps; steps here are for 4-byte elements.
_TILES_FP32 = {
    "nvidia": (
        (256, 128, 8, 4, 1),
        (128, 128, 8, 4, 2),
        (128, 64, 8, 4, 3),
        (128, 32, 8, 4, 4),
        (64, 64, 8, 4, 4),
        (32, 32, 8, 4, 6),
    ),
    "amd": (
        (256, 128, 16, 2, 1),
        (128, 128, 16, 2, 2),
        (128, 96, 16, 2, 2),
        (96, 96, 16, 2, 2),
        (128, 64, 16, 2, 3),
        (64, 64, 16, 2, 4),
        (32, 64, 16, 2, 4),
    ),
}

# vLLM's CUTLASS kernels for FP8 with a scale per row and column, by how many rows there are.
_SCALED = ((128, 128, 128, 5, 1, 0, 2), (64, 128, 128, 6, 1, 0, 2), (64, 64, 128, 8, 1, 0, 4))

# CDNA3 and 4 hold two K steps in LDS and one more in registers.
_FAMILIES = {"cdna1": "cdna", "cdna2": "cdna", "cdna4": "cdna3", "t3": "cdna"}
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1}


@cache
def _candidates(architecture: str, dtype: str) -> tuple[Candidate, ...]:
    amd = architecture.startswith("cdna") or architecture == "t3"
    if dtype in ("fp32", "fp64"):
        return _mirrored([Candidate(*entry) for entry in _TILES_FP32["amd" if amd else "nvidia"]])
    entries = _TILES[_FAMILIES.get(architecture, architecture)]
    size = _BYTES.get(dtype, 2)
    found = [Candidate(entry[0], entry[1], entry[2] * 2 // size, *entry[3:]) for entry in entries]
    return _mirrored(found)


@cache
def _scaled() -> tuple[Candidate, ...]:
    return tuple(Candidate(*entry, threads=384) for entry in _SCALED)


def _mirrored(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Every tile also with rows and columns exchanged: libraries compute the transposed product where it fits."""
    both = {}
    for one in found:
        for rows, columns in ((one.rows, one.columns), (one.columns, one.rows)):
            both[rows, columns] = replace(one, rows=rows, columns=columns)
    return tuple(both.values())
