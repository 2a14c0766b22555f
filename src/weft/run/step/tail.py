"""What ends a training step: gradients summed over replicas, the optimizer, and weights gathered again."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph import DTYPE_BYTES, Collective, Streaming
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.result.step import Chunk
from weft.run.step.prices import Prices


def tail(chunks: Sequence[Chunk], plan: Parallelism, framework: Framework, prices: Prices) -> dict[str, float]:
    """What one pipeline device does after its last micro-batch, by its kind [s]."""
    count = sum(chunk.parameters for chunk in chunks)
    replicas = plan.dp * plan.cp
    parts: dict[str, float] = {}
    if replicas > 1 and plan.zero < 3:
        parts["exposed dp"] = _reduced(chunks, count, plan, framework, prices)
    shard = -(-count // replicas) if plan.zero else count
    parts["optimizer"] = optimizer(shard, plan, framework, prices)
    return parts


def optimizer(count: int, plan: Parallelism, framework: Framework, prices: Prices) -> float:
    """Time of the optimizer's step on so many parameters, and of the norm of their gradients [s]."""
    norm = Streaming("elementwise", count, 1, framework.gradients, inputs=1, outputs=0)
    return prices.of(norm) + prices.of(Streaming(framework.optimizer, count, 1, plan.dtype))


def _reduced(chunks: Sequence[Chunk], count: int, plan: Parallelism, framework: Framework, prices: Prices) -> float:
    """Time that the compute stream waits for the sum of gradients and, if sharded, for the gathering of weights [s].

    Frameworks that overlap send a bucket as soon as its gradients are complete, in the backward pass of the last
    micro-batch, and gather weights in the forward pass of the first.
    """
    replicas, size = plan.dp * plan.cp, DTYPE_BYTES[framework.reduced]

    def moved(kind: str, parameters: int, width: int) -> float:
        return prices.of(Collective(kind, max(parameters, replicas) * width, replicas, framework.reduced), "dp")

    if not plan.zero:
        ways = [("all_reduce", size, "backward", framework.dp_overlap)]
    else:
        ways = [
            ("reduce_scatter", size, "backward", framework.dp_overlap),
            ("all_gather", DTYPE_BYTES[plan.dtype], "forward", framework.gather_overlap),
        ]
    exposed = 0.0
    bucket = framework.bucket_of(replicas) or count
    buckets = max(-(-count // bucket), 1)
    for kind, width, during, overlaps in ways:
        if not overlaps:
            exposed += moved(kind, count, width)
            continue
        each = moved(kind, -(-count // buckets), width)
        beside = sum(getattr(chunk, during).seconds for chunk in chunks) * (buckets - 1) / buckets
        exposed += max(each * buckets - beside, each)
    return exposed
