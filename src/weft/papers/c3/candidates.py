"""The GEMMs from which the declared suite was chosen; scenarios.toml holds the rule and the choice."""

from __future__ import annotations

from collections.abc import Iterator

from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.papers.c3.scenarios import Bound

DTYPE = "bf16"
LAYERS = {
    "Llama-70B QKV": (10240, 8192),
    "Llama-70B O": (8192, 8192),
    "Llama-70B gate": (28672, 8192),
    "Llama-70B down": (8192, 28672),
    "Llama-70B LM head": (128256, 8192),
    "Llama-405B QKV": (18432, 16384),
    "Llama-405B O": (16384, 16384),
    "Llama-405B gate": (53248, 16384),
    "Llama-405B down": (16384, 53248),
    "Llama-405B LM head": (128256, 16384),
}
"""Layers by name: N and K of their weights (Llama 3, arXiv:2407.21783); gate and up are GEMMs of their own."""
ONE_ROW = ("Llama-70B LM head", "Llama-405B LM head")
"""Layers that prefill runs only for the last row of a sequence: never compute-bound."""
ROWS: dict[Bound, tuple[int, ...]] = {"compute": (8192, 16384), "memory": (16, 32, 64)}
"""M of compute-bound GEMMs, as in training and prefill, and of memory-bound ones, as in decoding."""
LONGEST = 25e-3
"""GEMMs with a longer closed-form time are left out, as they cost most to simulate [s]."""
LEAST_BOUND = 2.0
"""Ratio of the time to read a memory-bound GEMM's weights to the time to multiply, at least."""


def candidates(gpu: Gpu) -> Iterator[tuple[str, tuple[int, int, int], Bound]]:
    """Every GEMM that the rule admits: its layer, M x N x K, and what bounds it on a GPU."""
    for bound, rows in ROWS.items():
        for layer, (n, k) in LAYERS.items():
            if bound == "memory" or layer not in ONE_ROW:
                yield from ((layer, (m, n, k), bound) for m in rows if _bound(m, n, k, gpu) == bound)


def _bound(m: int, n: int, k: int, gpu: Gpu) -> Bound | None:
    """The clear bound of a GEMM; None if there is none, or if the GEMM runs too long."""
    found = estimate(Gemm(m, n, k, DTYPE), gpu, RunOptions("sustained"))
    reading = 2 * n * k / (gpu.memory.bandwidth * gpu.memory.read_efficiency)
    multiplying = 2 * m * n * k / gpu.matrix_rate(DTYPE, "sustained")
    if float(found.seconds) > LONGEST:
        return None
    if reading >= LEAST_BOUND * multiplying:
        return "memory"
    return "compute" if multiplying >= LEAST_BOUND * reading else None
