"""What to compute, independent of a machine: operators, their data, and their dependencies."""

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
from weft.graph.grouped import GroupedGemm
from weft.graph.op import DTYPE_BYTES, Op, Opaque, Tensor
from weft.graph.operators import OPERATORS, operator
from weft.graph.streaming import STREAMING, Streaming

KINDS: Mapping[str, type[Op]] = {
    one.kind: one for one in (Gemm, GroupedGemm, Attention, Streaming, Collective, Send, Copy, Opaque)
}
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
    "GroupedGemm",
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
