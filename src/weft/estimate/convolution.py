"""How long a convolution takes, in closed form, by its algorithm: what it multiplies, and what its transforms move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from weft.estimate.answer import Estimate, FloatArray, floats, from_parts, in_sequence
from weft.estimate.gemm import Inside, gemm
from weft.estimate.kernel import DataSweep, SweepKernel, kernel_time
from weft.estimate.streaming import THREADS
from weft.estimate.target import Target
from weft.graph.convolution import Convolution
from weft.graph.gemm import Gemm
from weft.graph.op import plain, width
from weft.kernels.library.tiles import convolution_kernels, convolution_shares

FUSED_OUTPUT, SEPARATE_OUTPUT = 2, 4
"""Outputs along a side of a tile: F(2 x 2, 3 x 3) fits into the registers of one kernel, F(4 x 4, r x r) has its
transforms in memory (arXiv:1509.09308, Fast Algorithms for Convolutional Neural Networks)."""
_TRANSFORM = 2
"""Additions for each point of a tile that is transformed: 32 for the 16 of F(2 x 2, 3 x 3) (arXiv:1509.09308)."""
_FFT_TILES = 16, 32
"""Sides of a tile of cuDNN's tiled Fourier transforms (kernels fft2d_r2c_16x16 and 32x32; cuDNN developer guide)."""


def convolution(op: Convolution, machine: Target) -> Estimate:
    """Return the time of a convolution: its GEMM, or transforms, products of transformed tiles, and the transform back.

    The gradient of the data is multiplied as the forward pass with inputs and outputs exchanged, that of the weights as
    a sum over tiles. Parts as of GEMMs; transforms add launch, latency, memory, cache and compute.
    """
    if op.algorithm == "gemm":
        return in_sequence(
            [_time_product(op.product, machine, _implicit(op, machine)), _filters_moved(op, machine, 1.0)]
        )
    if op.computes == "data":
        return convolution(_mirror_pass(op), machine)
    if op.algorithm == "winograd":
        spread = _points(op, FUSED_OUTPUT) / floats(op.windows[0]) ** 2
        product = _time_product(_products(op, FUSED_OUTPUT, fused=True), machine, _fuse_products(op, machine))
        return in_sequence([product, _filters_moved(op, machine, spread)])
    separate = op.algorithm == "winograd_nonfused"
    output = SEPARATE_OUTPUT if separate else _fft_tile(op, machine) - np.maximum(*op.windows) + 1
    size = _points(op, output) * width(op.dtype)  # half a spectrum of complex numbers is as long
    tiles, channels, filters = _tiles(op, output), floats(op.channels), floats(op.filters)
    spread = _points(op, output) / (floats(op.windows[0]) * floats(op.windows[1]))
    share = _shares(machine)["transform"] if separate else 1.0
    images, outputs = (floats(one.bytes) for one in op.backward.weights[0].reads)
    return in_sequence(
        [
            _time_product(_products(op, output), machine, Inside(rate=_rate(op, machine))),
            _filters_moved(op, machine, spread),
            _time_transform(images / share, size * tiles * channels / share, machine),
            _time_transform(size * tiles * filters / share, outputs / share, machine),
        ]
    )


def _fft_tile(op: Convolution, machine: Target) -> FloatArray:
    """Side of a tile that is transformed: the smaller of cuDNN's for small images, or an image as a whole (MIOpen)."""
    side = np.maximum(floats(op.height), op.width) + np.maximum(*op.windows) - 1
    return np.asarray(
        2 * np.ceil(side / 2) if machine.gpu.vendor == "amd" else np.where(side <= _FFT_TILES[0], *_FFT_TILES)
    )


def _shares(machine: Target) -> Mapping[str, float]:
    return convolution_shares(machine.gpu.architecture)


def _rate(op: Convolution, machine: Target) -> float:
    """Return the share of a GEMM's rate that the kernels of convolutions reach."""
    return _shares(machine)["product"] if op.dtype == "fp32" else 1.0


def _implicit(op: Convolution, machine: Target) -> Inside:
    """Return the GEMM of an implicit convolution, whose overlapping windows read each image element from memory once.

    Whole rows of an image are read, except those that a stride leaves out.
    """
    product, rate = op.product, _rate(op, machine)
    kernels = convolution_kernels("convolution") if op.dtype == "fp32" else ()
    a, b = floats(product.m) * product.k, floats(product.k) * product.n
    if op.computes == "data":
        return Inside(kernels, (_outputs(op) / a, 1.0), rate, whole=True)
    images = _images(op) * np.minimum(floats(op.windows[0]) / op.strides[0], 1.0)
    if op.computes == "weights":
        return Inside(distinct=(1.0, images / b), rate=rate)
    return Inside(kernels, (images / a, 1.0), rate, whole=True)


def _fuse_products(op: Convolution, machine: Target) -> Inside:
    """Return the products of a fused kernel, which transforms tiles in registers: memory sees images and outputs only.

    The kernel transforms the tiles of a step's channels again for each `columns` of filters. Two outputs of a row are
    stored at once, at the rate of a transform to memory.
    """
    product, kernels = _products(op, FUSED_OUTPUT, fused=True), convolution_kernels("winograd")
    a, b = floats(product.m) * product.k, floats(product.k) * product.n
    rate = _rate(op, machine) / (1 + _TRANSFORM / kernels[0].columns)
    if op.computes == "weights":
        return Inside(kernels, (_outputs(op) / a, _images(op) / b), rate)
    stored = FUSED_OUTPUT**2 / float(np.max(_points(op, FUSED_OUTPUT))) / _shares(machine)["transform"]
    return Inside(kernels, (_images(op) / a, 1.0), rate, stored, whole=True)


def _images(op: Convolution) -> FloatArray:
    return floats(op.batch) * op.height * op.width * op.channels


def _outputs(op: Convolution) -> FloatArray:
    return floats(op.batch) * op.rows * op.columns * op.filters


def _time_product(product: Gemm, machine: Target, inside: Inside | None = None) -> Estimate:
    """The products of a convolution; a host that waits for each convolution calls twice, for the filters as well."""
    found = gemm(product, machine, inside or Inside())
    if machine.harness.timed != "host":
        return found
    launch = found.parts["launch"]
    return replace(found, seconds=found.seconds + launch, parts={**found.parts, "launch": 2 * launch})


def _filters_moved(op: Convolution, machine: Target, spread: FloatArray | float) -> Estimate:
    """Return the time to transform or reorder the filters into `spread` times as many elements, for the forward pass.

    Filters whose channels are no multiple of four move at the share `misaligned` of the memory's rate.
    """
    size = floats(op.backward.weights[0].writes[0].bytes)
    odd = (floats(op.channels) % 4 != 0) | (floats(op.filters) % 4 != 0)
    slow = np.where(odd, 1 / _shares(machine)["misaligned"], 1.0)
    found = _time_transform(slow * size, slow * size * spread, machine)
    needed = odd | (np.asarray(spread) != 1.0)  # an implicit product reads aligned filters as they are
    return from_parts({name: part * needed for name, part in found.parts.items()})


def _mirror_pass(op: Convolution) -> Convolution:
    """Return the forward pass that computes the gradient of the data: inputs and outputs exchanged; strides of 1."""
    high, wide = op.windows
    along = np.where(np.asarray(op.padding_width) < 0, op.padding, op.padding_width)
    return replace(
        op,
        channels=op.filters,
        filters=op.channels,
        height=op.rows,
        width=op.columns,
        padding=plain(np.maximum(high - 1 - np.asarray(op.padding), 0)),
        padding_width=plain(np.maximum(wide - 1 - along, 0)),
        computes="forward",
    )


def _tiles(op: Convolution, output: FloatArray | int) -> FloatArray:
    """Tiles of `output` x `output` results in all images."""
    return floats(op.batch) * np.ceil(floats(op.rows) / output) * np.ceil(floats(op.columns) / output)


def _points(op: Convolution, output: FloatArray | int) -> FloatArray:
    """Products of a channel with a filter for each tile."""
    high, wide = op.windows
    return np.asarray((output + floats(high) - 1) * (output + floats(wide) - 1))


def _products(op: Convolution, output: FloatArray | int, *, fused: bool = False) -> Gemm:
    """Return the GEMMs of transformed tiles: a GEMM per point; in a fused kernel a single GEMM with the rows of all.

    A complex product counts as three real products, at half the points (the spectrum of real numbers).
    """
    points, tiles = _points(op, output), _tiles(op, output)
    m, n, k = tiles, floats(op.filters), floats(op.channels)
    if op.computes == "weights":
        m, n, k = n, k, m
    if op.algorithm == "fft":
        points = np.ceil(1.5 * points)
    if fused:
        m, points = (m * points, np.ones(np.shape(points)))
    return Gemm(cast(int, m), cast(int, n), cast(int, k), op.dtype, cast(int, points))


def _time_transform(reads: FloatArray, writes: FloatArray, machine: Target) -> Estimate:
    """Return the time of a transform that reads `reads` and writes `writes` bytes."""
    per_workgroup = THREADS * 16
    workgroups = np.ceil((reads + writes) / per_workgroup)
    return kernel_time(SweepKernel((DataSweep(reads, writes),), workgroups, floats(THREADS)), machine.gpu)
