"""Quantised numbers: how many bits, how large an error, and how much faster a GEMM on quantised weights.

A symmetric format of w bits maps x to round(x / S), S = max|x| / (2^(w-1) - 1), an asymmetric one shifts by a zero
point; elements of a group share S. The error is at most S / 2; as zero points are whole numbers, that of an asymmetric
group's largest element at most S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.errors import InputError, check_name, check_whole
from weft.estimate.answer import FloatArray
from weft.estimate.dispatch import estimate
from weft.estimate.target import Harness
from weft.graph import Gemm, Opaque
from weft.hardware import Gpu
from weft.hardware import gpu as gpu_named
from weft.options import SUSTAINED, RunOptions


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
        """Size of so many elements [bytes]."""
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
    """The format of that name; UnknownNameError lists the known ones.

    >>> [quantized_format(name).bits_per_element for name in ("int4-g128", "mxfp4", "nvfp4", "mxfp8")]
    [4.125, 4.25, 4.5, 8.25]
    """
    check_name("format", name, FORMATS)
    return FORMATS[name]


@dataclass(frozen=True)
class Rounded:
    """An array after quantisation: `values` of the array's shape, and the `scale` of each group, shape (groups,)."""

    values: FloatArray
    scale: FloatArray

    def snr(self, original: FloatArray) -> float:
        """Power of the original over that of the error [dB]."""
        error = np.square(self.values - original).sum()
        return float(10 * np.log10(np.square(original).sum() / error)) if error else math.inf


def quantize(array: FloatArray, bits: int, group: int = 0, symmetric: bool = True) -> Rounded:
    """Round an array to integers of `bits` bits and back, in groups of consecutive elements (0: all at once).

    Symmetric: S = max|x| / (2^(bits-1) - 1). Asymmetric: S = (max - min) / (2^bits - 1), with the zero point
    round(-min / S), a whole number. Raises InputError for an empty array, and for groups that do not divide it.
    """
    check_whole("bits", bits, 2, 8)
    values = np.asarray(array, dtype=np.float64)
    length = group or values.size
    if not values.size or values.size % length:
        raise InputError(f"{values.size} elements do not divide into groups of {length}; give a divisor, or pad them")
    rows = values.reshape(-1, length)
    low, high = rows.min(axis=1), rows.max(axis=1)
    if symmetric:
        most = 2 ** (bits - 1) - 1
        scale = np.maximum(np.maximum(-low, high), np.finfo(float).tiny) / most
        back = np.clip(np.rint(rows / scale[:, None]), -most, most) * scale[:, None]
    else:
        most = 2**bits - 1
        scale = np.maximum(np.maximum(high, 0.0) - np.minimum(low, 0.0), np.finfo(float).tiny) / most
        zero = np.rint(-np.minimum(low, 0.0) / scale)[:, None]
        codes = np.clip(np.rint(rows / scale[:, None]) + zero, 0, most)
        back = (codes - zero) * scale[:, None]
    return Rounded(back.reshape(values.shape), scale)


def signal_to_noise(bits: int, peak_over_rms: float) -> float:
    """SNR of a symmetric format in closed form [dB]: 6.02 w + 4.77 - 20 lg(max / rms), of errors spread evenly.

    A uniform distribution has the ratio sqrt(3), a sine sqrt(2). It counts 2^(w-1) steps to the peak; with one fewer,
    as in `quantize`, the SNR is 0.07 dB lower at 8 bits and 1.2 dB at 4.

    >>> [round(signal_to_noise(8, ratio), 1) for ratio in (3**0.5, 2**0.5)]
    [48.2, 49.9]
    """
    check_whole("bits", bits, 2, 8)
    if peak_over_rms < 1:
        raise InputError(f"the peak is {peak_over_rms:g} times the mean square's root; no peak is below it")
    return 20 * bits * math.log10(2) + 10 * math.log10(3) - 20 * math.log10(peak_over_rms)


DEQUANTISE_OPERATIONS = 2.0
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
    """A GEMM whose weights (K x N) are of a narrow format and become 16 bits on the way to the matrix units.

    The weights' part of the traffic shrinks by the ratio of bytes, the product stays in 16 bits, and vector units turn
    every element into 16 bits once for each row of tiles of the output (of 128 rows). The slowest of the three bounds
    the kernel: a roofline without launches, in which memory has the rate of copies.
    """
    on, chosen = gpu_named(gpu) if isinstance(gpu, str) else gpu, quantized_format(format)
    weights, rows = gemm.n * gemm.k * gemm.batch, -(-gemm.m // 128)
    rest = gemm.least_bytes - 2 * weights
    moved, traffic = round(chosen.bytes(weights)), 2 * on.memory.copy_rate
    times = {
        "memory": (rest + moved) / traffic,
        "compute": _computing(Opaque("product", gemm.flops, matrix_dtype=gemm.dtype), on, options),
        "dequantise": _computing(Opaque("dequantise", round(weights * rows * DEQUANTISE_OPERATIONS)), on, options),
    }
    bound = max(times, key=lambda name: times[name])
    plain = max(gemm.least_bytes / traffic, times["compute"])
    return Quantised(times[bound], plain, bound, times["dequantise"])


def _computing(op: Opaque, on: Gpu, options: RunOptions) -> float:
    return float(estimate(op, on, options).parts["compute"])


_COLD = Harness(rotation=math.inf, after_others=True)
"""Between the layers of a model: other operators have used the caches since the weights were read."""


def both_narrow(gemm: Gemm, gpu: Gpu | str, dtype: str = "int8", options: RunOptions = SUSTAINED) -> Quantised:
    """A GEMM on weights and activations of 8 bits, such as W8A8, beside the same in 16 bits: both by the GEMM model."""
    on = gpu_named(gpu) if isinstance(gpu, str) else gpu
    plain, narrow = (estimate(one, on, options, _COLD) for one in (gemm, replace(gemm, dtype=dtype)))
    return Quantised(float(narrow.seconds), float(plain.seconds), str(narrow.bound), 0.0)


def state_bytes(recipe: str = "mixed") -> Mapping[str, int]:
    """Bytes for each parameter of Adam by what they hold, of "mixed" precision (arXiv:1710.03740) or of plain "fp32".

    Of mixed precision 12 of 16 are the optimizer's: the fp32 weights and two moments, as ZeRO counts them. Plain fp32
    has 12 beside its weights as well, but other ones: the gradient and the two moments.

    >>> sum(state_bytes().values()), sum(state_bytes("fp32").values())
    (16, 16)
    """
    recipes: dict[str, dict[str, int]] = {
        "mixed": {"weights": 2, "gradients": 2, "master weights": 4, "first moment": 4, "second moment": 4},
        "fp32": {"weights": 4, "gradients": 4, "first moment": 4, "second moment": 4},
    }
    check_name("recipe of number formats", recipe, recipes)
    return recipes[recipe]


def cache_bytes(sequences: int, tokens: int, layers: int, key_heads: int, head: int, format: str = "bf16") -> float:
    """Cache of keys and values of all layers in a format [bytes].

    It holds 2 x sequences x tokens x layers x key heads x head elements.
    """
    counts: dict[str, Any] = {
        "sequences": sequences, "tokens": tokens, "layers": layers, "key_heads": key_heads, "head": head,
    }  # fmt: skip
    for name, count in counts.items():
        check_whole(name, count, 1, 8)
    return quantized_format(format).bytes(2.0 * math.prod(counts.values()))
