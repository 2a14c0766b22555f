"""Closed forms of one operator each, as tests write them."""

from typing import Any

from weft import hardware
from weft.core.options import RunOptions
from weft.estimate import BenchmarkProtocol, Estimate, estimate
from weft.graph import Collective, Gemm, operator


def gemm(
    m: Any, n: Any, k: Any, dtype: str, gpu: Any, *, batch: Any = 1, clock: Any = "short", **harness: Any
) -> Estimate:
    """A GEMM on a GPU."""
    return estimate(Gemm(m, n, k, dtype, batch), gpu, RunOptions(clock), BenchmarkProtocol(**harness))


def collective(
    name: str,
    size: Any,
    ranks: Any,
    system: Any,
    *,
    dtype: str = "fp16",
    nodes: int | None = None,
    **harness: Any,
) -> Estimate:
    """Return a collective on a system, perhaps spread over several nodes."""
    where = system if nodes is None else hardware.system(system).with_gpus(ranks, nodes)
    return estimate(Collective(name, size, ranks, dtype), where, harness=BenchmarkProtocol(**harness))


def time_of(name: str, gpu: Any, dtype: str = "fp16", clock: Any = "short", **sizes: Any) -> Estimate:
    """A declared operator on a GPU."""
    return estimate(operator(name, dtype, **sizes), gpu, RunOptions(clock))
