"""Quantised numbers by hand: errors of rounding, signal to noise, and bytes of training states and caches.

A symmetric format of w bits maps x to round(x / S), S = max|x| / (2^(w-1) - 1), an asymmetric one shifts by a zero
point; elements of a group share S. The error is at most S / 2; as zero points are whole numbers, that of an asymmetric
group's largest element at most S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.core.errors import InputError, check_name, check_whole
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import BenchmarkProtocol, estimate
from weft.estimate.answer import FloatArray
from weft.estimate.quantization import Quantised, quantized_format
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.hardware import gpu as gpu_named


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


_COLD = BenchmarkProtocol(rotation=math.inf, after_others=True)
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
    """Return the KV cache of all layers in a format [bytes]: 2 x sequences x tokens x layers x key heads x head
    elements.
    """
    counts = {"sequences": sequences, "tokens": tokens, "layers": layers, "key_heads": key_heads, "head": head}
    for name, count in counts.items():
        check_whole(name, count, 1, 8)
    return quantized_format(format).bytes(2.0 * math.prod(counts.values()))
