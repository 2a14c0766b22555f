"""Convolutions: their sizes, and their time as an implicit GEMM."""

from typing import get_args

import pytest

import weft
from weft.core.errors import InputError
from weft.graph import Convolution, Gemm
from weft.hardware.gpus import Architecture
from weft.kernels.library.tiles import convolution_shares


def test_the_output_shrinks_by_the_window_and_the_stride():
    op = Convolution(2, 3, 8, height=224, width=112, window=7, stride=2, padding=3)
    assert (op.rows, op.columns) == (112, 56)
    assert op.writes[0].shape == (2, 112, 56, 8)


def test_its_product_has_a_row_for_each_window():
    op = Convolution(32, 64, 128, window=3)
    assert op.product == Gemm(32 * 56 * 56, 128, 64 * 9)
    assert op.flops == 2 * 32 * 56 * 56 * 128 * 64 * 9


def test_a_window_of_one_moves_what_its_gemm_moves():
    op = Convolution(32, 64, 128, window=1, padding=0)
    assert op.least_bytes == op.product.least_bytes
    assert weft.estimate(op, "h100-sxm").seconds == weft.estimate(op.product, "h100-sxm").seconds


def test_a_larger_window_reads_images_once_where_the_gemm_would_read_copies():
    op = Convolution(32, 64, 128)
    assert op.least_bytes < op.product.least_bytes / 3


def test_a_window_larger_than_the_image_is_refused():
    with pytest.raises(InputError, match="a window of 9 x 9 is larger than the image"):
        Convolution(1, 1, 1, height=4, width=8, window=9)


def test_windows_strides_and_padding_may_differ_by_direction():
    op = Convolution(4, 1, 32, 161, 700, window=5, window_width=20, stride=2, padding=0, dtype="fp32")
    assert (op.rows, op.columns) == (79, 341)
    assert op.reads[1].shape == (5, 20, 1, 32)
    assert Convolution(4, 1, 32, 161, 700, 41, 2, 0, "fp32", 11, 1).columns == 690


def test_every_pass_has_the_products_of_the_forward_one():
    op = Convolution(16, 64, 128, 112, 112)
    (data,), (weights,) = op.backward
    assert op.flops == data.flops == weights.flops
    assert data.product == Gemm(16 * 112 * 112, 64, 128 * 9)
    assert weights.product == Gemm(128, 64 * 9, 16 * 112 * 112)


def test_winograd_saves_products_where_there_are_many():
    time = {
        algorithm: weft.estimate(Convolution(16, 256, 256, 56, 56, dtype="fp32", algorithm=algorithm), "v100").seconds
        for algorithm in ("gemm", "winograd", "winograd_nonfused")
    }
    assert time["gemm"] / 2.3 < time["winograd"] < time["gemm"] / 1.5
    assert time["winograd_nonfused"] < time["winograd"]


def test_misaligned_filters_are_reordered_slowly():
    aligned = weft.estimate(Convolution(8, 512, 1024, 8, 8, dtype="fp32"), "v100").seconds
    odd = weft.estimate(Convolution(8, 511, 1023, 8, 8, dtype="fp32"), "v100").seconds
    assert odd > 1.1 * aligned


def test_an_algorithm_refuses_windows_and_strides_that_it_does_not_have():
    with pytest.raises(InputError, match=r"winograd has windows of 3 x 3 and a stride of 1 only; use algorithm='gemm'"):
        Convolution(8, 64, 64, window=5, padding=2, algorithm="winograd")
    with pytest.raises(InputError, match="winograd_nonfused has windows of 3 x 3 or 5 x 5"):
        Convolution(8, 64, 64, stride=2, algorithm="winograd_nonfused")


def test_windows_that_overlap_are_read_from_memory_once():
    op = Convolution(64, 12, 46, 248, 248, dtype="fp32")
    implicit, stored = weft.estimate(op, "v100"), weft.estimate(op.product, "v100")
    assert implicit.parts["memory"] < stored.parts["memory"] / 2


def test_fused_winograd_never_cuts_its_channels_between_workgroups():
    op = Convolution(1, 1762, 33, 9, 9, dtype="fp32", algorithm="winograd")
    assert weft.estimate(op, "v100").parts["split"] == 0


def test_fused_winograd_fills_blocks_of_thirty_two_filters():
    time = {
        filters: weft.estimate(Convolution(8, 256, filters, dtype="fp32", algorithm="winograd"), "v100").seconds
        for filters in (33, 64, 65)
    }
    assert time[33] == pytest.approx(time[64], rel=0.05)
    assert time[65] > 1.2 * time[64]


def test_small_images_take_small_fourier_transforms():
    time = {
        size: weft.estimate(Convolution(32, 512, 64, size, size, dtype="fp32", algorithm="fft"), "a100").seconds
        for size in (14, 15)
    }
    assert time[14] < time[15] / 1.8


@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_every_architecture_has_shares_of_its_rates(architecture):
    assert all(0 < share <= 1 for share in convolution_shares(architecture).values())
