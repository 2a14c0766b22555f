"""A law of decode iterations over the catalogue: a larger batch never makes one faster."""

from __future__ import annotations

from itertools import pairwise

import pytest

import weft
from weft.hardware import gpu_names

BATCHES = (1, 2, 3, 4, 8, 32)
GPUS = [name for name in gpu_names() if weft.gpu(name).supports("bf16")]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("model", "library"), [("llama-3-8b", "vendor"), ("qwen3-30b-a3b", "vllm")])
def test_a_larger_batch_never_makes_a_decode_iteration_faster(gpu, model, library):
    times = [
        weft.decode(model, f"1x{gpu}", weft.ServingPlan(library=library), batch=batch).seconds for batch in BATCHES
    ]
    for (batch, seconds), (larger, longer) in pairwise(zip(BATCHES, times, strict=True)):
        assert longer >= seconds * (1 - 1e-9), f"batch {larger} takes {longer} s, batch {batch} {seconds} s"
