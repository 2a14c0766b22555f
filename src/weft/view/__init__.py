"""Tables, figures and pages of results, and traces for Perfetto.

Tables are written to a terminal, CSV, JSON and HTML; figures are interactive in a page and static in a notebook.
"""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names

if TYPE_CHECKING:
    from weft.view.corun import held_units as held_units
    from weft.view.corun import strategies as strategies
    from weft.view.corun import stream_waits as stream_waits
    from weft.view.explorer import timeline as timeline
    from weft.view.interference import bursts as bursts
    from weft.view.memory import memory_curve as memory_curve
    from weft.view.pipeline import pipeline_diagram as pipeline_diagram
    from weft.view.run import speedups as speedups
    from weft.view.run import sub_layer_times as sub_layer_times
    from weft.view.run import traffic_by_cause as traffic_by_cause
    from weft.view.run import waits as waits
    from weft.view.run_trace import write_trace as write_trace
    from weft.view.step import layer_streams as layer_streams
    from weft.view.step_trace import write_graph_trace as write_graph_trace
    from weft.view.step_trace import write_step_trace as write_step_trace
    from weft.view.training_plans import choices_map as choices_map

__getattr__, __all__ = lazy_names(
    __name__,
    corun="held_units strategies stream_waits",
    explorer="timeline",
    interference="bursts",
    memory="memory_curve",
    pipeline="pipeline_diagram",
    run="speedups sub_layer_times traffic_by_cause waits",
    run_trace="write_trace",
    step="layer_streams",
    step_trace="write_graph_trace write_step_trace",
    training_plans="choices_map",
)
