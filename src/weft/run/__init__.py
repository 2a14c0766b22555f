"""Run a graph on a system: once, under several overlaps, or as many runs on several processes."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
    from weft.run.several import balanced as balanced
    from weft.run.several import compare as compare
    from weft.run.single import alone as alone
    from weft.run.single import baseline as baseline
    from weft.run.single import simulate as simulate

__getattr__, __all__ = lazy_names(
    __name__,
    several="balanced compare",
    single="alone baseline simulate",
)
