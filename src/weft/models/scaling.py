"""Computation against communication of a Transformer layer in closed form: compute's edge, and its slack.

Source: S. Pati et al., "Computation vs. Communication Scaling for Future Transformers on Future Hardware", IISWC 2023,
arXiv:2302.02825, section 3: of a layer with H hidden elements and an MLP of 4 H, on sequences of SL tokens.
"""

from __future__ import annotations


def edge(hidden: float, sequence: float, tp: int, element: float = 2.0) -> float:
    """FLOPs that a layer computes for each byte that its tensor-parallel ranks all-reduce: 2 (6 H + SL) / (bytes x TP).

    `element` is the size of an activation [bytes]. Forward and backward pass have the same ratio: twice the FLOPs,
    twice the all-reduces.

    >>> edge(12288, 2048, tp=8)
    9472.0
    """
    return 2 * (6 * hidden + sequence) / (element * tp)


def all_reduce_rate(link: float, ranks: int) -> float:
    """Return the bytes per second that ring all-reduces of `ranks` GPUs get through at links of `link` bytes/s."""
    return link * ranks / (2 * (ranks - 1))


def share(flops_per_byte: float, flops_per_s: float, bytes_per_s: float) -> float:
    """Return share of the time that communication takes if none is hidden: 1 / (1 + FLOPs per byte x bytes/s / FLOP/s).

    >>> share(1000, flops_per_s=1e14, bytes_per_s=1e11)
    0.5
    """
    return 1 / (1 + flops_per_byte * bytes_per_s / flops_per_s)
