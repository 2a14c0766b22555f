"""The pointer chase as a Triton kernel: loads that wait for each other, and so show latency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

_LINE = 128


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _follow(table: Any, out: Any, steps: Any) -> None:
    at = tl.zeros((), dtype=tl.int64)
    for _ in range(steps):
        at = tl.load(table + at, cache_modifier=".cg")
    tl.store(out, at)


def chase_kernel(torch: Any, size: int, steps: int) -> Callable[[], object]:
    """What runs `steps` dependent loads over `size` bytes, in the order of one random cycle of 128-B lines."""
    lines, words = size // _LINE, _LINE // 8
    order = torch.randperm(lines, device="cuda")
    table = torch.zeros(lines * words, dtype=torch.int64, device="cuda")
    table[order * words] = order.roll(-1) * words
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    return lambda: _follow[(1,)](table, out, steps, num_warps=1)
