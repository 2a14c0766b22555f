"""Run a graph on a system, request by request: once, under several overlap methods, or on real numbers."""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names, make_callable

if TYPE_CHECKING:
    from weft.simulate.several import balance_loops as balance_loops
    from weft.simulate.several import compare as compare
    from weft.simulate.single import alone as alone
    from weft.simulate.single import baseline as baseline

__getattr__, __all__ = lazy_names(
    __name__,
    several="balance_loops compare",
    single="alone baseline",
)

make_callable(__name__, "weft.simulate.single", "simulate")
