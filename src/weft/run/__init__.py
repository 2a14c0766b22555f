"""Run a graph on a system: once, under several overlaps, or as many runs on several processes."""

from typing import TYPE_CHECKING

from weft.rooms import lazy_names

if TYPE_CHECKING:
    from weft.run.several import balanced, compare
    from weft.run.single import alone, baseline, simulate

__all__ = ["alone", "balanced", "baseline", "compare", "simulate"]

__getattr__ = lazy_names(
    __name__,
    {
        "balanced": "several",
        "compare": "several",
        "alone": "single",
        "baseline": "single",
        "simulate": "single",
    },
)
