"""Overlap methods and co-run strategies, one class each: where it applies, how it runs, what it takes; arbiters."""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names, make_callable

if TYPE_CHECKING:
    from weft.overlaps.base import AXES as AXES
    from weft.overlaps.base import FORMS as FORMS
    from weft.overlaps.base import PLACES as PLACES
    from weft.overlaps.base import SEQUENTIAL as SEQUENTIAL
    from weft.overlaps.base import Axis as Axis
    from weft.overlaps.base import Clock as Clock
    from weft.overlaps.base import OverlapMethod as OverlapMethod
    from weft.overlaps.base import Part as Part
    from weft.overlaps.base import Place as Place
    from weft.overlaps.corun import STRATEGIES as STRATEGIES
    from weft.overlaps.corun import CoRunStrategy as CoRunStrategy
    from weft.overlaps.corun import find_strategy as find_strategy
    from weft.overlaps.graphs import Pattern as Pattern
    from weft.overlaps.ideals import Ideal as Ideal
    from weft.overlaps.lowering import lower_under as lower_under
    from weft.overlaps.registry import BUILT_IN as BUILT_IN
    from weft.overlaps.registry import OVERLAPS as OVERLAPS
    from weft.overlaps.registry import applicable as applicable
    from weft.overlaps.registry import find_overlap as find_overlap
    from weft.overlaps.registry import find_simulated as find_simulated
    from weft.overlaps.registry import not_an_overlap as not_an_overlap
    from weft.overlaps.registry import overlap_names as overlap_names
    from weft.overlaps.registry import register_overlap as register_overlap
    from weft.overlaps.registry import simulated_methods as simulated_methods

__getattr__, __all__ = lazy_names(
    __name__,
    base="AXES FORMS PLACES SEQUENTIAL Axis Clock OverlapMethod Part Place",
    corun="STRATEGIES CoRunStrategy find_strategy",
    graphs="Pattern",
    ideals="Ideal",
    lowering="lower_under",
    registry="BUILT_IN OVERLAPS applicable find_overlap find_simulated "
    "not_an_overlap overlap_names register_overlap simulated_methods",
)

make_callable(__name__, "weft.overlaps.registry", "overlap_names")
