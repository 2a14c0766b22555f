"""The timeline of a run, comparisons and co-runs, and the metrics that follow from them."""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names

if TYPE_CHECKING:
    from weft.simulate.result.comparison import Comparison as Comparison
    from weft.simulate.result.corun import CoRun as CoRun
    from weft.simulate.result.heat import Heat as Heat
    from weft.simulate.result.interference import MemoryInterference as MemoryInterference
    from weft.simulate.result.interference import Percentiles as Percentiles
    from weft.simulate.result.interference import StreamInterference as StreamInterference
    from weft.simulate.result.timeline import ChunkSpan as ChunkSpan
    from weft.simulate.result.timeline import DmaSpan as DmaSpan
    from weft.simulate.result.timeline import Residency as Residency
    from weft.simulate.result.timeline import Series as Series
    from weft.simulate.result.timeline import Span as Span
    from weft.simulate.result.timeline import StageSpan as StageSpan
    from weft.simulate.result.timeline import Timeline as Timeline

__getattr__, __all__ = lazy_names(
    __name__,
    comparison="Comparison",
    corun="CoRun",
    heat="Heat",
    interference="MemoryInterference Percentiles StreamInterference",
    timeline="ChunkSpan DmaSpan Residency Series Span StageSpan Timeline",
)
