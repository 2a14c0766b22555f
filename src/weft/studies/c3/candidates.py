"""The GEMMs that the declared suite was chosen from; scenarios.toml says how, and holds the choice."""

from __future__ import annotations

from collections.abc import Iterator

from weft.estimate import estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.options import RunOptions
from weft.studies.c3.scenarios import Bound

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
"""Layers that prefill needs for the last row of a sequence alone: never bound by compute."""
ROWS: dict[Bound, tuple[int, ...]] = {"compute": (8192, 16384), "memory": (16, 32, 64)}
"""M of compute-bound GEMMs, as training and prefill have it, and of memory-bound ones, as decoding has it."""
LONGEST = 25e-3
"""GEMMs that take longer by the closed form are left out: they cost most to simulate [s]."""
LEAST_BOUND = 2.0
"""How many times longer reading a memory-bound GEMM's weights takes than multiplying."""


def candidates(gpu: Gpu) -> Iterator[tuple[str, tuple[int, int, int], Bound]]:
    """Every GEMM of the rule: its layer, M x N x K, and what bounds it on a GPU."""
    for bound, rows in ROWS.items():
        for layer, (n, k) in LAYERS.items():
            if bound == "memory" or layer not in ONE_ROW:
                yield from ((layer, (m, n, k), bound) for m in rows if _bound(m, n, k, gpu) == bound)


def _bound(m: int, n: int, k: int, gpu: Gpu) -> Bound | None:
    """What clearly limits a GEMM; None for one in between, or too long."""
    found = estimate(Gemm(m, n, k, DTYPE), gpu, RunOptions("sustained"))
    reading = 2 * n * k / (gpu.memory.bandwidth * gpu.memory.read_efficiency)
    multiplying = 2 * m * n * k / gpu.matrix_rate(DTYPE, "sustained")
    if float(found.seconds) > LONGEST:
        return None
    if reading >= LEAST_BOUND * multiplying:
        return "memory"
    return "compute" if multiplying >= LEAST_BOUND * reading else None
