"""What you see: tables, figures and pages of results, traces for Perfetto.

Tables go to a terminal, to CSV, JSON and HTML; figures are interactive in a page and still in a notebook.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.view.run import run_report, speedups, sub_layer_times, traffic_by_cause, waits

_HOMES = {"speedups": "run", "sub_layer_times": "run", "traffic_by_cause": "run", "waits": "run"}

__all__ = ["run_report", "speedups", "sub_layer_times", "traffic_by_cause", "waits"]


def __getattr__(name: str) -> object:
    """Import a public function when it is first used: a trace, for one, needs no plotting library."""
    if name not in __all__:
        raise AttributeError(f"module 'weft.view' has no attribute '{name}'; public: {', '.join(__all__)}")
    home = _HOMES.get(name, name.removesuffix("_report"))
    value: object = getattr(importlib.import_module(f"weft.view.{home}"), name)
    return value
