"""What you see: pictures (`weft.report.plots`), self-contained pages, traces for Perfetto."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.report.advice import advice_report
    from weft.report.c3 import c3_report
    from weft.report.corun import corun_report
    from weft.report.cu_split import cu_split_report
    from weft.report.goldyloc import goldyloc_report
    from weft.report.run import run_report
    from weft.report.t3 import t3_report
    from weft.report.tune import tune_report

__all__ = [
    "advice_report",
    "c3_report",
    "corun_report",
    "cu_split_report",
    "goldyloc_report",
    "run_report",
    "t3_report",
    "tune_report",
]


_HOMES: dict[str, str] = {}


def __getattr__(name: str) -> object:
    """Import a public function when it is first used: a trace, for one, needs no plotting library."""
    if name not in __all__:
        raise AttributeError(f"module 'weft.report' has no attribute '{name}'; public: {', '.join(__all__)}")
    home = _HOMES.get(name, name.removesuffix("_report"))
    value: object = getattr(importlib.import_module(f"weft.report.{home}"), name)
    return value
