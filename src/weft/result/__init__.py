"""The result of a run as one timeline, and comparisons of several runs."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
    from weft.result.comparison import Comparison as Comparison
    from weft.result.corun import CoRun as CoRun
    from weft.result.heat import Heat as Heat
    from weft.result.interference import Interference as Interference
    from weft.result.interference import Percentiles as Percentiles
    from weft.result.interference import StreamInterference as StreamInterference
    from weft.result.timeline import ChunkSpan as ChunkSpan
    from weft.result.timeline import DmaSpan as DmaSpan
    from weft.result.timeline import Residency as Residency
    from weft.result.timeline import Series as Series
    from weft.result.timeline import Span as Span
    from weft.result.timeline import StageSpan as StageSpan
    from weft.result.timeline import Timeline as Timeline

__getattr__, __all__ = lazy_names(
    __name__,
    comparison="Comparison",
    corun="CoRun",
    heat="Heat",
    interference="Interference Percentiles StreamInterference",
    timeline="ChunkSpan DmaSpan Residency Series Span StageSpan Timeline",
)
