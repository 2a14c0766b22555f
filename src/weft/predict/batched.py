"""Batched GEMMs in closed form: many equal ones in a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.predict.gemm import Clock, gemm
from weft.predict.kernel import Amount, Residency, memory_seconds
from weft.predict.prediction import Bound, Prediction
from weft.workload.gemm import DTYPE_BYTES, OUTPUT_DTYPES

if TYPE_CHECKING:
    from weft.hardware import Gpu


def batched_gemm(
    count: Amount, m: Amount, n: Amount, k: Amount, dtype: str, gpu: Gpu, clock: Clock = "short"
) -> Prediction:
    """The time of `count` GEMMs of m x n x k in one launch: as tiles, one GEMM of count x m rows.

    That GEMM's B would be one for all, so its time is at least that of everybody's operands and products in memory.
    Parts and errors as for `gemm`; a count of 1 is that GEMM itself.
    """
    rows = np.asarray(count) * m
    found = gemm(rows, n, k, dtype, gpu, clock=clock)
    size, out_size = DTYPE_BYTES[dtype], DTYPE_BYTES[OUTPUT_DTYPES.get(dtype, dtype)]
    reads, writes = size * count * (m * k + k * n) * 1.0, out_size * rows * n * 1.0
    held = Residency(np.asarray(reads + writes), gpu)
    least = memory_seconds(gpu, held.dram * reads, held.dram * writes) + found.parts["launch"]
    short = np.where(np.asarray(count) > 1, np.maximum(least - found.seconds, 0.0), 0.0)
    return Prediction(
        seconds=found.seconds + short,
        bound=np.where(short > 0, int(Bound.MEMORY), found.bound),
        parts={**found.parts, "memory": found.parts["memory"] + short},
    )
