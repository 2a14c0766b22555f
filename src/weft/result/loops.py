"""Kernels that run several times on a GPU are named by their loop and their number in it, such as "gemm 3".

Where an iteration takes several kernels, a word between both says which one it is.
"""

from __future__ import annotations

GEMM = "gemm"
"""The loop of the GEMMs; a collective's goes by the collective's name."""


def loop_of(kernel: str) -> str:
    """The loop of a kernel; one without a number runs once and is a loop of its own.

    >>> loop_of("all_gather 2"), loop_of("gemm sum 3"), loop_of("reduce_scatter")
    ('all_gather', 'gemm', 'reduce_scatter')
    """
    first, *rest = kernel.split(" ")
    return first if rest and rest[-1].isdecimal() else kernel


def number_of(kernel: str) -> int:
    """A kernel's number in its loop, from 0."""
    last = kernel.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def is_gemm(kernel: str) -> bool:
    """Whether a kernel belongs to a GEMM; else it moves data for a collective."""
    return loop_of(kernel) == GEMM
