"""Run a graph on a system: once, under several overlaps, or as many runs on several processes."""

from typing import TYPE_CHECKING

from weft.core.rooms import callable_room, lazy_names

if TYPE_CHECKING:
    from weft.simulate.several import balanced as balanced
    from weft.simulate.several import compare as compare
    from weft.simulate.single import alone as alone
    from weft.simulate.single import baseline as baseline

__getattr__, __all__ = lazy_names(
    __name__,
    several="balanced compare",
    single="alone baseline",
)

callable_room(__name__, "weft.simulate.single", "simulate")
