"""Quantised numbers: how many bits, how large an error, and how much faster a GEMM on quantised weights.

A symmetric format of w bits maps x to round(x / S), S = max|x| / (2^(w-1) - 1), an asymmetric one shifts by a zero
point; elements of a group share S. The error is at most S / 2; as zero points are whole numbers, that of an asymmetric
group's largest element at most S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from weft.core.errors import check_name, check_whole
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate.dispatch import estimate
from weft.graph import Gemm, Opaque
from weft.hardware import Gpu
from weft.hardware import gpu as gpu_named


@dataclass(frozen=True)
class Format:
    """Elements of `bits` bits; each `group` of them (0: a whole tensor) shares a scale and perhaps a zero point.

    `levels` are spaced evenly if the format is of integers; those of floating-point elements ("float") are not.
    """

    about: str
    bits: int
    group: int = 0
    scale_bits: int = 0
    zero_bits: int = 0
    levels: str = "integer"

    def __post_init__(self) -> None:
        for name, least in (("bits", 2), ("group", 0), ("scale_bits", 0), ("zero_bits", 0)):
            check_whole(name, getattr(self, name), least, 8)

    @property
    def bits_per_element(self) -> float:
        """Bits of an element with its share of the scale and the zero point; a tensor's own scale counts nothing."""
        return self.bits + ((self.scale_bits + self.zero_bits) / self.group if self.group else 0.0)

    def bytes(self, elements: float) -> float:
        """Return the size of `elements` elements [bytes]."""
        return elements * self.bits_per_element / 8


FORMATS: Mapping[str, Format] = {
    "fp32": Format("32-bit floating point", 32, levels="float"),
    "bf16": Format("16-bit floating point", 16, levels="float"),
    "fp8": Format("8-bit floating point, a scale for each tensor", 8, levels="float"),
    "int8": Format("8-bit integers, a scale for each tensor or row", 8),
    "int4-g128": Format("4-bit integers, an fp16 scale for each 128 (GPTQ, AWQ)", 4, 128, 16),
    "int4-g128-zero": Format("the same with a 4-bit zero point", 4, 128, 16, 4),
    "mxfp8": Format("8 bits, a scale of 8 bits for each 32 (OCP Microscaling Formats 1.0)", 8, 32, 8, levels="float"),
    "mxfp4": Format("4 bits, a scale of 8 bits for each 32 (OCP Microscaling Formats 1.0)", 4, 32, 8, levels="float"),
    "nvfp4": Format("4 bits, a scale of 8 bits for each 16 (arXiv:2509.25149)", 4, 16, 8, levels="float"),
}
"""Formats by name."""


def quantized_format(name: str) -> Format:
    """Return the format of that name; UnknownNameError lists the known ones.

    >>> [quantized_format(name).bits_per_element for name in ("int4-g128", "mxfp4", "nvfp4", "mxfp8")]
    [4.125, 4.25, 4.5, 8.25]
    """
    check_name("format", name, FORMATS)
    return FORMATS[name]


_DEQUANTISE_OPERATIONS = 2.0
"""Vector operations to turn an element of a weight into 16 bits [assumed; 1 to 4]: unpack and convert two at once,
shift by the zero point, multiply by the scale."""


@dataclass(frozen=True)
class Quantised:
    """A GEMM with weights of a format: its time [s], that with 16-bit weights, and what bounds it.

    `dequantise` is the time to turn all weights into 16 bits on vector units, 0 if the operands are multiplied as they
    are.
    """

    seconds: float
    plain: float
    bound: str
    dequantise: float

    @property
    def speedup(self) -> float:
        """How many times faster than with 16-bit weights."""
        return self.plain / self.seconds


def weight_only(gemm: Gemm, gpu: Gpu | str, format: str, options: RunOptions = SUSTAINED) -> Quantised:
    """Return a GEMM whose weights (K x N) are of a narrow format and become 16 bits on the way to the matrix units.

    The weights' part of the traffic shrinks by the ratio of bytes, the product stays in 16 bits, and vector units turn
    every element into 16 bits once for each row of tiles of the output (of 128 rows). The slowest of the three bounds
    the kernel: a roofline without launches, in which memory has the rate of copies.
    """
    machine, chosen = gpu_named(gpu) if isinstance(gpu, str) else gpu, quantized_format(format)
    weights, rows = gemm.n * gemm.k * gemm.batch, -(-gemm.m // 128)
    rest = gemm.least_bytes - 2 * weights
    moved, traffic = round(chosen.bytes(weights)), 2 * machine.memory.copy_rate
    times = {
        "memory": (rest + moved) / traffic,
        "compute": gemm.flops * _seconds_per_operation(machine, options, gemm.dtype),
        "dequantise": round(weights * rows * _DEQUANTISE_OPERATIONS) * _seconds_per_operation(machine, options),
    }
    bound = max(times, key=lambda name: times[name])
    plain = max(gemm.least_bytes / traffic, times["compute"])
    return Quantised(times[bound], plain, bound, times["dequantise"])


@lru_cache(64)
def _seconds_per_operation(machine: Gpu, options: RunOptions, dtype: str | None = None) -> float:
    """Return the time of each FLOP on the matrix units of a number format, or on vector units [s]."""
    many = Opaque("product", _MANY, matrix_dtype=dtype)
    return float(estimate(many, machine, options).parts["compute"]) / _MANY


_MANY = 10**12
"""FLOPs whose mean time is taken."""
