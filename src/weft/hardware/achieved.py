"""What a machine reaches of its rates: the values that calibration may change."""

from __future__ import annotations

from weft.hardware.fields import Share
from weft.hardware.parts import Part


class Achieved(Part):
    """Share of the matrix rate at the running clock that the main loop of a tuned GEMM reaches, by data type."""

    matrix_fp16: Share
    matrix_bf16: Share
    matrix_fp8: Share
    matrix_int8: Share
    matrix_tf32: Share
    matrix_fp32: Share
