"""What a machine reaches of its rates: the values that calibration may change."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from weft.hardware.fields import Delay, Quantity, Share
from weft.hardware.parts import Part
from weft.units import Dimension

_CYCLES = Quantity(Dimension.COUNT, zero_allowed=True)
Cycles = Annotated[float, _CYCLES, BeforeValidator(_CYCLES)]
"""Clock cycles of a compute unit, zero or more."""


class Achieved(Part):
    """What tuned GEMM kernels reach on the machine.

    `matrix_*` is the share of the matrix rate in the main loop of a product of that type, in short runs near
    the boost clock. `gemm_cache` and `gemm_memory` are the shares of the peak bandwidths of the last-level cache
    and the DRAM, `gemm_resident` the share of the cache that holds operands between uses. `gemm_issue` is what a
    K step costs beside the matrix instructions [cycles]. Times [s]: `gemm_latency` from asking for a K step's
    operands to having them, loaded; `gemm_fill` to begin and end a workgroup; `gemm_split` to add up the partial
    sums of a split K; `gemm_launch` from one kernel to the next where nothing else is done; `gemm_host` the same
    where the host issues each kernel and waits for it.
    """

    matrix_fp16: Share
    matrix_bf16: Share
    matrix_fp8: Share
    matrix_int8: Share
    matrix_tf32: Share
    matrix_fp32: Share
    gemm_cache: Share
    gemm_memory: Share
    gemm_resident: Share
    gemm_issue: Cycles
    gemm_latency: Delay
    gemm_fill: Delay
    gemm_split: Delay
    gemm_launch: Delay
    gemm_host: Delay
