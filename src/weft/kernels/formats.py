"""Number formats in which blocks of values share a scale: encode, decode, and what a value takes in memory.

Shared microexponents (MX9, MX6, MX4; arXiv:2302.08007): 16 values share an exponent of 8 bits, every two of them a bit
that halves their scale, and each has a sign and a magnitude. OCP's MX formats (v1.0; MXFP8, MXFP4): 32 floating-point
elements share a power of two. NVFP4 (arXiv:2509.25149): 16 elements share a scale in FP8, and all an FP32 scale.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
_LOWEST, _HIGHEST = -127, 127
"""Exponents that 8 bits hold with a bias of 127."""
_BIAS = 127


@dataclass(frozen=True, eq=False)
class Encoded:
    """A tensor in a block format: `fields` are its arrays of integers by name, blocks along the last axis.

    `shape` is that of the tensor, `axis` the direction of its blocks; `scale` multiplies all values.
    """

    format: BlockFormat
    shape: tuple[int, ...]
    axis: int
    fields: Mapping[str, Array]
    scale: float = 1.0

    @property
    def bytes(self) -> int:
        """Size in memory, all fields packed [bytes]."""
        return math.ceil(math.prod(self.shape) * self.format.bits / 8)

    def decode(self) -> npt.NDArray[np.float32]:
        """Return the values that the fields stand for, in the tensor's shape."""
        blocks = self.format.read(self.fields) * self.scale
        moved = np.moveaxis(np.empty(self.shape), self.axis, -1).shape
        return np.moveaxis(blocks.reshape(moved), -1, self.axis).astype(np.float32)


class BlockFormat(ABC):
    """A number format of blocks of `block` values, each of `bits` bits with its share of the scales.

    A member says how blocks become integers (`write`) and back (`read`); both take and give blocks as rows.
    """

    block: int
    bits: float

    @abstractmethod
    def write(self, blocks: Floats) -> tuple[dict[str, Array], float]:
        """Return the fields of blocks, shape (..., block), and the scale of all."""

    @abstractmethod
    def read(self, fields: Mapping[str, Array]) -> Floats:
        """Return the blocks that the fields stand for, shape (..., block)."""

    def encode(self, values: npt.ArrayLike, axis: int = -1) -> Encoded:
        """Return the tensor in this format, blocks along `axis`.

        Raises InputError if blocks do not divide the axis, and for NaN and infinities, which these formats do not hold.
        """
        whole = np.asarray(values, np.float64)
        if not whole.ndim or whole.shape[axis] % self.block:
            size = whole.shape[axis] if whole.ndim else 1
            raise InputError(
                f"an axis of {size} values does not divide into blocks of {self.block}; pad it to "
                f"{-(-size // self.block) * self.block}"
            )
        if bad := int(whole.size - np.isfinite(whole).sum()):
            raise InputError(
                f"{bad} of {whole.size} values are NaN or infinite, which a shared scale cannot hold; "
                "clip them or leave them out"
            )
        moved = np.moveaxis(whole, axis, -1)
        blocks = moved.reshape(*moved.shape[:-1], -1, self.block)
        return Encoded(self, whole.shape, axis, *self.write(blocks))


@dataclass(frozen=True)
class SharedMicroexponents(BlockFormat):
    """MX9, MX6 or MX4: `magnitude` bits of magnitude beside a sign, 16 values to an exponent, 2 to a shift of one bit.

    Rounds to nearest, ties to even; a value that rounds up to 2^magnitude is cut to the largest magnitude, the exponent
    is not raised. Zero counts as the smallest exponent.
    """

    magnitude: int
    block: int = 16
    pair: int = 2

    @property
    def bits(self) -> float:  # type: ignore[override]
        """Bits of a value: sign and magnitude, and its share of exponent and shift."""
        return self.magnitude + 1 + 8 / self.block + 1 / self.pair

    @property
    def largest(self) -> int:
        """The largest magnitude."""
        return int(2**self.magnitude) - 1

    def write(self, blocks: Floats) -> tuple[dict[str, Array], float]:
        """Exponents (..., 1), shifts (..., pairs) and signed magnitudes (..., block)."""
        own = np.clip(np.frexp(blocks)[1] - 1, _LOWEST, _HIGHEST)
        own = np.where(blocks == 0, _LOWEST, own)
        top = own.max(axis=-1, keepdims=True)
        shift = (own.reshape(*own.shape[:-1], -1, self.pair).max(axis=-1) < top).astype(np.uint8)
        rounded = np.rint(np.ldexp(blocks, -self._power(top, shift)))
        cut = np.clip(rounded, -self.largest, self.largest).astype(np.int16)
        return {"exponent": (top + _BIAS).astype(np.uint8), "shift": shift, "element": cut}, 1.0

    def read(self, fields: Mapping[str, Array]) -> Floats:
        """Magnitudes times the scale of their pair."""
        top = fields["exponent"].astype(np.int64) - _BIAS
        return np.ldexp(fields["element"].astype(np.float64), self._power(top, fields["shift"]))

    def _power(self, top: Array, shift: Array) -> npt.NDArray[np.int64]:
        """Return the power of two of each value's unit."""
        power: npt.NDArray[np.int64] = top - np.repeat(shift, self.pair, axis=-1) - (self.magnitude - 1)
        return power


@dataclass(frozen=True)
class Microscaling(BlockFormat):
    """OCP MX: elements of a floating-point type `element` under a power of two for 32; too large ones saturate."""

    element: str
    block: int = 32

    @property
    def bits(self) -> float:  # type: ignore[override]
        """Bits of a value, with its share of the scale."""
        return _ELEMENTS[self.element][1] + 8 / self.block

    def write(self, blocks: Floats) -> tuple[dict[str, Array], float]:
        """Exponents (..., 1) and elements (..., block)."""
        kind, largest = _element(self.element)
        amax = np.abs(blocks).max(axis=-1, keepdims=True)
        power = np.frexp(amax)[1] - np.frexp(largest)[1]
        power = np.where(amax > 0, np.clip(power, _LOWEST, _HIGHEST), _LOWEST)
        scaled = np.clip(np.ldexp(blocks, -power), -largest, largest)
        return {"exponent": (power + _BIAS).astype(np.uint8), "element": scaled.astype(kind)}, 1.0

    def read(self, fields: Mapping[str, Array]) -> Floats:
        """Elements times their block's power of two."""
        return np.ldexp(fields["element"].astype(np.float64), fields["exponent"].astype(np.int64) - _BIAS)


@dataclass(frozen=True)
class NvFp4(BlockFormat):
    """NVFP4: 16 elements of 4 bits (E2M1) under a scale in FP8 (E4M3), and one scale in FP32 for the tensor."""

    block: int = 16

    @property
    def bits(self) -> float:  # type: ignore[override]
        """Bits of a value, with its share of the block's scale."""
        return 4 + 8 / self.block

    def write(self, blocks: Floats) -> tuple[dict[str, Array], float]:
        """Scales of blocks (..., 1) and elements (..., block); the tensor's scale maps its largest value on theirs."""
        (kind, largest), (narrow, most) = _element("fp4"), _element("fp8")
        amax = np.abs(blocks).max(axis=-1, keepdims=True)
        whole = float(np.float32(amax.max(initial=0.0) / (largest * most))) or 1.0
        scale = np.clip(amax / (largest * whole), 0, most).astype(narrow)
        unit = scale.astype(np.float64) * whole
        scaled = np.divide(blocks, unit, out=np.zeros_like(blocks), where=unit > 0)
        return {"scale": scale, "element": np.clip(scaled, -largest, largest).astype(kind)}, whole

    def read(self, fields: Mapping[str, Array]) -> Floats:
        """Elements times their block's scale."""
        values: Floats = fields["element"].astype(np.float64) * fields["scale"].astype(np.float64)
        return values


_ELEMENTS: Mapping[str, tuple[Any, int, float]] = {
    "fp8": (ml_dtypes.float8_e4m3fn, 8, 448.0),
    "fp4": (ml_dtypes.float4_e2m1fn, 4, 6.0),
}
"""Element types by name, with their bits and their largest value."""


def _element(name: str) -> tuple[Any, float]:
    """Return an element type and its largest value."""
    kind, _, largest = _ELEMENTS[name]
    return kind, largest


FORMATS: Mapping[str, BlockFormat] = {
    "mx9": SharedMicroexponents(7),
    "mx6": SharedMicroexponents(4),
    "mx4": SharedMicroexponents(2),
    "mxfp8": Microscaling("fp8"),
    "mxfp4": Microscaling("fp4"),
    "nvfp4": NvFp4(),
}
"""The block formats by name."""
