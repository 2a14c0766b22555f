"""Weft: what compute and communication cost each other when they share the GPUs of a machine.

>>> import weft
>>> gpu = weft.load_gpu("t3-paper")
>>> layer = weft.sublayer("t-nlg", "fc2", tp=8)
>>> layer.gemm
Gemm(m=8192, n=4256, k=2128, dtype='fp16')

`weft.compare(layer, gpu, ["sequential", "t3", "t3-mca"])` then simulates the sub-layer under three overlaps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.errors import WeftError
    from weft.hardware import System, find_gpu, find_system
    from weft.hardware import load as load_gpu
    from weft.overlap import arbiter
    from weft.parallel import sublayer
    from weft.result import Comparison, Result
    from weft.simulation import beside, compare, simulate
    from weft.workload import load_model

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Result",
    "System",
    "WeftError",
    "__version__",
    "arbiter",
    "beside",
    "compare",
    "find_gpu",
    "find_system",
    "load_gpu",
    "load_model",
    "simulate",
    "sublayer",
]

# Public name -> where it lives. A room is imported when one of its names is first asked for, so that
# `import weft` costs neither a compiler nor a plotting library.
_HOMES = {
    "Comparison": ("weft.result", "Comparison"),
    "Result": ("weft.result", "Result"),
    "System": ("weft.hardware", "System"),
    "WeftError": ("weft.errors", "WeftError"),
    "arbiter": ("weft.overlap", "arbiter"),
    "beside": ("weft.simulation", "beside"),
    "compare": ("weft.simulation", "compare"),
    "find_gpu": ("weft.hardware", "find_gpu"),
    "find_system": ("weft.hardware", "find_system"),
    "load_gpu": ("weft.hardware", "load"),
    "load_model": ("weft.workload", "load_model"),
    "simulate": ("weft.simulation", "simulate"),
    "sublayer": ("weft.parallel", "sublayer"),
}


def __getattr__(name: str) -> object:
    """Import the room of a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'weft' has no attribute '{name}'; public names: {', '.join(__all__)}")
    room, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(room), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
