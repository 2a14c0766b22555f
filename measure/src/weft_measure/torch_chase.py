"""The pointer chase as a Triton kernel: loads that wait for each other, and so show latency."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from weft_measure.device import Unsupported

_LINE = 128
_HERE = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if _HERE else None
tl: Any = importlib.import_module("triton.language") if _HERE else None


# Without annotations, which Triton would compile as well.
def _follow(table, out, steps):  # type: ignore[no-untyped-def]
    """Each load's value is the next one's place; the next run goes on where this one ends, so that it finds no line of
    a set larger than the cache where the run before left it.
    """
    at = tl.load(out)
    for _ in range(steps):
        at = tl.load(table + at, cache_modifier=".cg")
    tl.store(out, at)


def chase_kernel(torch: Any, size: int, steps: int) -> Callable[[], object]:
    """What runs `steps` dependent loads over `size` bytes, in the order of one random cycle of 128-B lines.

    Raises Unsupported without Triton, which comes with PyTorch for GPUs.
    """
    if triton is None:
        raise Unsupported("a pointer chase needs Triton, which is not installed")
    lines, words = size // _LINE, _LINE // 8
    order = torch.randperm(lines, device="cuda")
    table = torch.zeros(lines * words, dtype=torch.int64, device="cuda")
    table[order * words] = order.roll(-1) * words
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    kernel = triton.jit(_follow)
    return lambda: kernel[(1,)](table, out, steps, num_warps=1)
