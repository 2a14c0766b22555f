"""What you see: pictures (`weft.report.plots`), self-contained pages, traces for Perfetto."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.report.advice import advice_report
    from weft.report.corun import corun_report
    from weft.report.predictions import collective_report
    from weft.report.run import run_report
    from weft.report.trace import write_trace
    from weft.report.tune import tune_report
    from weft.report.validation import validation_report

__all__ = [
    "advice_report",
    "collective_report",
    "corun_report",
    "run_report",
    "tune_report",
    "validation_report",
    "write_trace",
]


_HOMES = {"collective_report": "predictions", "write_trace": "trace"}


def __getattr__(name: str) -> object:
    """Import a public function when it is first used: a trace, for one, needs no plotting library."""
    if name not in __all__:
        raise AttributeError(f"module 'weft.report' has no attribute '{name}'; public: {', '.join(__all__)}")
    home = _HOMES.get(name, name.removesuffix("_report"))
    value: object = getattr(importlib.import_module(f"weft.report.{home}"), name)
    return value
