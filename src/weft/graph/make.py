"""Operators as people write them: sizes with units, arrays, a function for each collective."""

from __future__ import annotations

from typing import cast

import numpy.typing as npt

from weft.graph.collective import Collective
from weft.graph.gemm import Gemm
from weft.units import Dimension, parse

RANKS = 8
"""GPUs of a collective unless their number is given."""


def gemm(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, dtype: str = "bf16", batch: npt.ArrayLike = 1) -> Gemm:
    """C[m,n] = A[m,k] B[k,n], `batch` times; arrays broadcast in closed forms. Raises as `Gemm` does.

    >>> gemm(8192, 8192, 1024).flops
    137438953472
    """
    return Gemm(cast(int, m), cast(int, n), cast(int, k), dtype, cast(int, batch))


def all_reduce(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """An all-reduce of `bytes`, such as "64 MiB" or arrays of whole numbers, over `ranks` GPUs.

    Raises UnitError for a text without a unit, and as `Collective` does.

    >>> print(all_reduce("64 MiB"))
    all_reduce of 64 MiB over 8 GPUs
    """
    return _collective("all_reduce", bytes, ranks, dtype)


def reduce_scatter(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """A reduce-scatter of a whole input of `bytes`; arguments and errors as of `all_reduce`."""
    return _collective("reduce_scatter", bytes, ranks, dtype)


def all_gather(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """An all-gather of a whole output of `bytes`; arguments and errors as of `all_reduce`."""
    return _collective("all_gather", bytes, ranks, dtype)


def all_to_all(bytes: npt.ArrayLike, ranks: npt.ArrayLike = RANKS, dtype: str = "bf16") -> Collective:
    """An all-to-all of `bytes` on each GPU, its own part included; arguments and errors as of `all_reduce`."""
    return _collective("all_to_all", bytes, ranks, dtype)


def _collective(name: str, bytes: npt.ArrayLike, ranks: npt.ArrayLike, dtype: str) -> Collective:
    size = round(parse(bytes, Dimension.BYTES)) if isinstance(bytes, str) else bytes
    return Collective(name, cast(int, size), cast(int, ranks), dtype)
