"""The result of a run as one timeline, and comparisons of several runs."""

from weft.result.comparison import Comparison
from weft.result.corun import CoRun
from weft.result.heat import Heat
from weft.result.interference import Interference, Percentiles, StreamInterference
from weft.result.timeline import ChunkSpan, DmaSpan, Residency, Series, Span, StageSpan, Timeline

__all__ = [
    "ChunkSpan",
    "CoRun",
    "Comparison",
    "DmaSpan",
    "Heat",
    "Interference",
    "Percentiles",
    "Residency",
    "Series",
    "Span",
    "StageSpan",
    "StreamInterference",
    "Timeline",
]
