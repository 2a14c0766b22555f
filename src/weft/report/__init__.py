"""What you see: pictures (`weft.report.plots`), self-contained pages, traces for Perfetto."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.report.advice import advice_report
    from weft.report.concurrency import concurrency_report
    from weft.report.run import run_report
    from weft.report.study import study_report
    from weft.report.trace import write_trace
    from weft.report.validation import validation_report

__all__ = [
    "advice_report",
    "concurrency_report",
    "run_report",
    "study_report",
    "validation_report",
    "write_trace",
]

# A trace needs no plotting library, so each name's module is imported when the name is first used.
_HOMES = {"run_report": "run", "study_report": "study", "write_trace": "trace"}
_HOMES |= {"advice_report": "advice", "validation_report": "validation", "concurrency_report": "concurrency"}


def __getattr__(name: str) -> object:
    """Import a public function when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft.report' has no attribute '{name}'; public: {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(f"weft.report.{_HOMES[name]}"), name)
    return value
