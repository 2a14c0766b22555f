"""Pictures of results: each function takes results and returns a matplotlib Figure that a notebook shows.

The plotting library is imported when the first one is drawn.

>>> from weft.report import plots
>>> plots.merged([(0, 1), (1.1, 2), (5, 6)], gap=0.5)
[(0, 2), (5, 1)]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.report.plots import advice, c3, cu_split, goldyloc
    from weft.report.plots.corun import COLLECTIVE, GEMM, channel_owners, held_units, strategies, stream_waits
    from weft.report.plots.style import Picture
    from weft.report.plots.sublayer import merged, phases, speedups, sub_layer_times, timeline, waits
    from weft.report.plots.traffic import busiest_stages, traffic_by_cause, traffic_over_time
    from weft.report.plots.units import Way, units_by_way

_HOMES = {
    "corun": ("COLLECTIVE", "GEMM", "channel_owners", "held_units", "strategies", "stream_waits"),
    "style": ("Picture",),
    "sublayer": ("merged", "phases", "speedups", "sub_layer_times", "timeline", "waits"),
    "traffic": ("busiest_stages", "traffic_by_cause", "traffic_over_time"),
    "units": ("Way", "units_by_way"),
}
_STUDIES = ("advice", "c3", "cu_split", "goldyloc")

__all__ = [
    "COLLECTIVE",
    "GEMM",
    "Picture",
    "Way",
    "advice",
    "busiest_stages",
    "c3",
    "channel_owners",
    "cu_split",
    "goldyloc",
    "held_units",
    "merged",
    "phases",
    "speedups",
    "strategies",
    "stream_waits",
    "sub_layer_times",
    "timeline",
    "traffic_by_cause",
    "traffic_over_time",
    "units_by_way",
    "waits",
]


def __getattr__(name: str) -> object:
    """Import a picture, or the pictures of a study, when first asked for."""
    if name in _STUDIES:
        return importlib.import_module(f"weft.report.plots.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"weft.report.plots.{home}"), name)
    raise AttributeError(f"module 'weft.report.plots' has no attribute '{name}'; public: {', '.join(__all__)}")
