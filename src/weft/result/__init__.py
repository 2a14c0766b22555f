"""What happened: times, bytes by cause, traffic over time, stages, chunks and DMA commands of a run."""

from weft.result.comparison import Comparison
from weft.result.result import ChunkSpan, DmaSpan, KernelSpan, Residency, Result, RunConfig, Series, StageSpan
from weft.result.stream_run import StreamRun

__all__ = [
    "ChunkSpan",
    "Comparison",
    "DmaSpan",
    "KernelSpan",
    "Residency",
    "Result",
    "RunConfig",
    "Series",
    "StageSpan",
    "StreamRun",
]
