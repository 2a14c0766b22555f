"""Names of kernels that run several times."""

from __future__ import annotations

import pytest

from weft.result.loops import is_gemm, loop_of, number_of


@pytest.mark.parametrize(
    ("kernel", "loop", "number", "gemm"),
    [
        ("gemm 12", "gemm", 12, True),
        ("gemm", "gemm", 0, True),
        ("gemm sum 3", "gemm", 3, True),
        ("all_gather 3", "all_gather", 3, False),
        ("reduce_scatter", "reduce_scatter", 0, False),
        ("some kernel", "some kernel", 0, False),
    ],
)
def test_kernel_belongs_to_the_loop_that_it_is_named_by(kernel, loop, number, gemm):
    assert (loop_of(kernel), number_of(kernel), is_gemm(kernel)) == (loop, number, gemm)
