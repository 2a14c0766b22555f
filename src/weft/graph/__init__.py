"""What must be computed, on no machine yet: operators, their data, and how they depend on each other."""

from collections.abc import Mapping

from weft.graph.attention import Attention
from weft.graph.collective import (
    COLLECTIVES,
    Collective,
    Copy,
    Send,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from weft.graph.gemm import Gemm, gemm
from weft.graph.graph import Edge, Graph, KernelChoice, Node, concurrent, gemm_queue
from weft.graph.op import DTYPE_BYTES, Op, Opaque, Tensor
from weft.graph.operators import OPERATORS, operator
from weft.graph.streaming import STREAMING, Streaming

KINDS: Mapping[str, type[Op]] = {one.kind: one for one in (Gemm, Attention, Streaming, Collective, Send, Copy, Opaque)}
"""Every kind of operator by the name that files and tables use."""

__all__ = [
    "COLLECTIVES",
    "DTYPE_BYTES",
    "KINDS",
    "OPERATORS",
    "STREAMING",
    "Attention",
    "Collective",
    "Copy",
    "Edge",
    "Gemm",
    "Graph",
    "KernelChoice",
    "Node",
    "Op",
    "Opaque",
    "Send",
    "Streaming",
    "Tensor",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "concurrent",
    "gemm",
    "gemm_queue",
    "operator",
    "reduce_scatter",
]
