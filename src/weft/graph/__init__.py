"""What to compute, independent of a machine: operators, their data, and their dependencies."""

from weft.graph.attention import Attention
from weft.graph.call import Call
from weft.graph.choice import (
    KERNEL_CLASSES,
    DmaCopies,
    Driver,
    ExecutionPlanKernel,
    FusedChunks,
    FusedTiles,
    KernelChoice,
    LibraryCollective,
    MoEExchange,
    NearMemoryRing,
    PaperAllReduce,
    PaperRing,
    RemoteLoads,
    TiledGemm,
    TrackedArrivals,
    TrackedDirect,
    TrackedMoEExchange,
    TrackedRing,
)
from weft.graph.collective import (
    COLLECTIVES,
    EXCHANGES,
    Collective,
    Copy,
    Send,
    TokenExchange,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
)
from weft.graph.convolution import Convolution
from weft.graph.ctc import Ctc
from weft.graph.file import KINDS, graph_lines, graph_of_lines, read_graph, write_graph
from weft.graph.gemm import Gemm, gemm
from weft.graph.gemv import Gemv
from weft.graph.graph import Edge, Graph, Node, Storages, concurrent, gemm_queue, live_bytes, tensor_bytes
from weft.graph.grouped import GroupedGemm
from weft.graph.moe import experts
from weft.graph.named import Constant, Joined, View
from weft.graph.op import DTYPE_BYTES, Op, Opaque, Tensor
from weft.graph.operators import OPERATORS, operator
from weft.graph.pooling import Pooling
from weft.graph.recurrent import Recurrent
from weft.graph.routing import Routing
from weft.graph.streaming import STREAMING, Streaming

__all__ = [
    "COLLECTIVES",
    "DTYPE_BYTES",
    "EXCHANGES",
    "KERNEL_CLASSES",
    "KINDS",
    "OPERATORS",
    "STREAMING",
    "Attention",
    "Call",
    "Collective",
    "Constant",
    "Convolution",
    "Copy",
    "Ctc",
    "DmaCopies",
    "Driver",
    "Edge",
    "ExecutionPlanKernel",
    "FusedChunks",
    "FusedTiles",
    "Gemm",
    "Gemv",
    "Graph",
    "GroupedGemm",
    "Joined",
    "KernelChoice",
    "LibraryCollective",
    "MoEExchange",
    "NearMemoryRing",
    "Node",
    "Op",
    "Opaque",
    "PaperAllReduce",
    "PaperRing",
    "Pooling",
    "Recurrent",
    "RemoteLoads",
    "Routing",
    "Send",
    "Storages",
    "Streaming",
    "Tensor",
    "TiledGemm",
    "TokenExchange",
    "TrackedArrivals",
    "TrackedDirect",
    "TrackedMoEExchange",
    "TrackedRing",
    "View",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "concurrent",
    "experts",
    "gemm",
    "gemm_queue",
    "graph_lines",
    "graph_of_lines",
    "live_bytes",
    "operator",
    "read_graph",
    "reduce_scatter",
    "tensor_bytes",
    "write_graph",
]
