"""Convolution and pooling of images as operators: channels last, a convolution by its algorithm and pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from weft.core.errors import InputError, check_name
from weft.core.fields import check_fields
from weft.graph.gemm import Gemm
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes, plain

Algorithm = Literal["gemm", "winograd", "winograd_nonfused", "fft"]
"""An implicit GEMM; Winograd in one kernel, or with its transforms in memory; products of Fourier transforms."""
ConvolutionPass = Literal["forward", "data", "weights"]


@dataclass(frozen=True)
class Convolution(Op):
    """`filters` of `window` x `window_width` over `batch` images of `height` x `width` elements in `channels`.

    A filter moves by `stride` (`stride_width` along rows), over images with `padding` zeros above and below
    (`padding_width` left and right); `window_width` and `stride_width` of 0 and `padding_width` of -1 are as the
    other direction. `algorithm` says how it is carried out, `computes` which pass it is. Raises InputError for sizes
    that are no whole numbers in range, for a window that is larger than the padded image and for windows and strides
    that the algorithm does not have, UnknownNameError for an unknown dtype, algorithm or pass.

    >>> Convolution(batch=32, channels=64, filters=64).flops
    7398752256
    """

    kind: ClassVar[str] = "convolution"

    batch: int
    channels: int
    filters: int
    height: int = 56
    width: int = 56
    window: int = 3
    stride: int = 1
    padding: int = 1
    dtype: str = "bf16"
    window_width: int = 0
    stride_width: int = 0
    padding_width: int = -1
    algorithm: Algorithm = "gemm"
    computes: ConvolutionPass = "forward"

    def __post_init__(self) -> None:
        least = dict.fromkeys(("batch", "channels", "filters", "height", "width", "window", "stride"), 1)
        least |= {"padding": 0, "window_width": 0, "stride_width": 0, "padding_width": -1}
        check_sizes(self, "{} of a convolution", least)
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        check_name("algorithm of a convolution", self.algorithm, get_args(Algorithm))
        check_name("pass of a convolution", self.computes, get_args(ConvolutionPass))
        if np.any(self.rows < 1) or np.any(self.columns < 1):
            high, wide = self.windows
            raise InputError(
                f"a window of {high} x {wide} is larger than the image of {self.height} x {self.width}; "
                "give a smaller one, or more padding"
            )
        if self.algorithm.startswith("winograd"):
            self._check_winograd()

    def _check_winograd(self) -> None:
        sizes = (3,) if self.algorithm == "winograd" else (3, 5)
        square = all(np.all(np.isin(size, sizes)) for size in self.windows)
        if not square or any(np.any(np.asarray(step) != 1) for step in self.strides):
            allowed = " or ".join(f"{size} x {size}" for size in sizes)
            raise InputError(f"{self.algorithm} has windows of {allowed} and a stride of 1 only; use algorithm='gemm'")

    @property
    def windows(self) -> tuple[int, int]:
        """Height and width of a filter."""
        return self.window, _else(self.window_width, 0, self.window)

    @property
    def strides(self) -> tuple[int, int]:
        """Steps of a filter down and along rows."""
        return self.stride, _else(self.stride_width, 0, self.stride)

    @property
    def rows(self) -> int:
        """Height of the output."""
        return _steps(self.height, self.windows[0], self.strides[0], self.padding)

    @property
    def columns(self) -> int:
        """Width of the output."""
        padding = _else(self.padding_width, -1, self.padding)
        return _steps(self.width, self.windows[1], self.strides[1], padding)

    @property
    def product(self) -> Gemm:
        """The GEMM of an implicit product: every window with every filter, or that of a gradient.

        Its operands are read from the image, not stored. The gradient of the data has a row for each element of the
        images, and, with a stride, only the taps that reach it; that of the weights is a sum over all windows.
        """
        high, wide = self.windows
        places, depth = self.batch * self.rows * self.columns, self.channels * high * wide
        if self.computes == "weights":
            return Gemm(self.filters, depth, places, self.dtype)
        if self.computes == "data":
            down, along = self.strides
            taps = plain(np.ceil(self.filters * high * wide / (down * along)))
            return Gemm(self.batch * self.height * self.width, self.channels, taps, self.dtype)
        return Gemm(places, self.filters, depth, self.dtype)

    @property
    def _images(self) -> Tensor:
        return Tensor((self.batch, self.height, self.width, self.channels), self.dtype)

    @property
    def _filters(self) -> Tensor:
        return Tensor((*self.windows, self.channels, self.filters), self.dtype, "weight")

    @property
    def _output(self) -> Tensor:
        return Tensor((self.batch, self.rows, self.columns, self.filters), self.product.output_dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Images and filters; of gradients, that of the output with the filters or the images."""
        if self.computes == "forward":
            return self._images, self._filters
        return (self._output, self._filters) if self.computes == "data" else (self._images, self._output)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """An image of each filter, or the gradients of images or filters."""
        if self.computes == "forward":
            return (self._output,)
        return (self._images,) if self.computes == "data" else (replace(self._filters, role="gradient"),)

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The images, from which the gradient of the filters is computed."""
        return (self._images,)

    @property
    def backward(self) -> Gradients:
        """The gradients of images and of filters."""
        return Gradients((replace(self, computes="data"),), (replace(self, computes="weights"),))

    @property
    def flops(self) -> int:
        """Those of the direct product, the same in every pass and for every algorithm."""
        high, wide = self.windows
        places = self.batch * self.rows * self.columns
        return 2 * places * self.filters * self.channels * high * wide

    @property
    def matrix_dtype(self) -> str:
        """The dtype of the operands."""
        return self.dtype

    def __str__(self) -> str:
        image = f"{self.batch} x {self.height} x {self.width} x {self.channels} {self.dtype}"
        what = {"forward": "", "data": ", gradients of data", "weights": ", gradients of weights"}[self.computes]
        return f"{self.filters} filters of {self.windows[0]} x {self.windows[1]} on {image}{what}"


def _steps(size: int, window: int, stride: int, padding: int) -> int:
    return cast(int, plain((size + 2 * padding - window) // stride + 1))


def _else(given: Any, nothing: int, other: Any) -> int:
    """Return a dimension, or another where it is not stated."""
    return cast(int, plain(np.where(np.asarray(given) == nothing, other, given)))


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
