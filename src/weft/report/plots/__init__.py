"""Pictures of results: each function takes results and returns a matplotlib Figure that a notebook shows.

>>> from weft.report import plots
>>> plots.merged([(0, 1), (1.1, 2), (5, 6)], gap=0.5)
[(0, 2), (5, 1)]
"""

from weft.report.plots.sharing import channel_owners, held_units
from weft.report.plots.speedups import speedups
from weft.report.plots.streams import strategies, stream_waits
from weft.report.plots.style import Picture
from weft.report.plots.timeline import merged, timeline
from weft.report.plots.times import fused_reduce_scatter, phases, sub_layer_times, waits
from weft.report.plots.traffic import busiest_stages, traffic_by_cause, traffic_over_time
from weft.report.plots.units import Way, units_by_way

__all__ = [
    "Picture",
    "Way",
    "busiest_stages",
    "channel_owners",
    "fused_reduce_scatter",
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
