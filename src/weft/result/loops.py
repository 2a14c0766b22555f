"""Kernels that run several times on a GPU: each is named by its loop and its number in it, such as "gemm 3"."""

from __future__ import annotations

GEMM = "gemm"
"""The loop of the GEMMs; a collective's goes by the collective's name."""


def loop_of(kernel: str) -> str:
    """The loop of a kernel; one that runs once has no number and is a loop of its own.

    >>> loop_of("all_gather 2"), loop_of("reduce_scatter")
    ('all_gather', 'reduce_scatter')
    """
    loop, _, number = kernel.rpartition(" ")
    return loop if loop and number.isdecimal() else kernel


def number_of(kernel: str) -> int:
    """A kernel's number in its loop, from 0."""
    return int(kernel[len(loop_of(kernel)) :] or 0)


def is_gemm(kernel: str) -> bool:
    """Whether a kernel is a GEMM; else it moves data for a collective."""
    return loop_of(kernel) == GEMM
