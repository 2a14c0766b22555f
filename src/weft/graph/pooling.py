"""Pooling of images: the largest or the mean of every window, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import numpy as np

from weft.core.errors import InputError
from weft.core.fields import check_fields
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes, plain


@dataclass(frozen=True)
class Pooling(Op):
    """The largest of each `window` x `window` elements of `batch` images of `height` x `width` in `channels`.

    Windows move by `stride`, over images with `padding` on every side. The place of each largest element is kept, 8
    bytes each, as PyTorch does; a `mean` keeps none. The `gradient` writes images from the gradients of outputs. Raises
    InputError for sizes that are no whole numbers in range, and for a window that is larger than the padded image,
    UnknownNameError for an unknown dtype.

    >>> Pooling(batch=64, channels=6, height=28, width=28).rows
    14
    """

    kind: ClassVar[str] = "pooling"

    batch: int
    channels: int
    height: int = 28
    width: int = 28
    window: int = 2
    stride: int = 2
    padding: int = 0
    dtype: str = "bf16"
    mean: bool = False
    gradient: bool = False

    def __post_init__(self) -> None:
        least = dict.fromkeys(("batch", "channels", "height", "width", "window", "stride"), 1)
        check_sizes(self, "{} of a pooling", {**least, "padding": 0})
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        if np.any(np.asarray(self.rows) < 1) or np.any(np.asarray(self.columns) < 1):
            raise InputError(
                f"a window of {self.window} is larger than the image of {self.height} x {self.width}; give a smaller "
                "one, or more padding"
            )

    def _steps(self, size: int) -> int:
        return cast(int, plain((size + 2 * self.padding - self.window) // self.stride + 1))

    @property
    def rows(self) -> int:
        """Height of the output."""
        return self._steps(self.height)

    @property
    def columns(self) -> int:
        """Width of the output."""
        return self._steps(self.width)

    @property
    def _images(self) -> Tensor:
        return Tensor((self.batch, self.channels, self.height, self.width), self.dtype)

    @property
    def _outputs(self) -> tuple[Tensor, ...]:
        shape = (self.batch, self.channels, self.rows, self.columns)
        return (Tensor(shape, self.dtype), *([] if self.mean else [Tensor(shape, "int64")]))

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The images; of the gradient, that of the outputs and their places."""
        return self._outputs if self.gradient else (self._images,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The outputs and their places; of the gradient, that of the images."""
        return (self._images,) if self.gradient else self._outputs

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The places of the largest elements."""
        return self._outputs[1:]

    @property
    def backward(self) -> Gradients:
        """The gradient of the images."""
        return Gradients((replace(self, gradient=True),))

    @property
    def flops(self) -> int:
        """A comparison or an addition for each element of a window."""
        return self.batch * self.channels * self.rows * self.columns * self.window**2

    def __str__(self) -> str:
        what = "mean" if self.mean else "largest"
        image = f"{self.batch} x {self.height} x {self.width} x {self.channels} {self.dtype}"
        return f"{what} of {self.window} x {self.window} on {image}{', gradient' if self.gradient else ''}"
