"""The result of a run as one timeline, and comparisons of several runs."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        "Comparison": "comparison",
        "CoRun": "corun",
        "Heat": "heat",
        "Interference": "interference",
        "Percentiles": "interference",
        "StreamInterference": "interference",
        "ChunkSpan": "timeline",
        "DmaSpan": "timeline",
        "Residency": "timeline",
        "Series": "timeline",
        "Span": "timeline",
        "StageSpan": "timeline",
        "Timeline": "timeline",
    },
)
