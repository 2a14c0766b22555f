"""Convert timelines to plain data and back, every field exactly: for records on disk and between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.errors import InputError, reason
from weft.core.options import RunOptions
from weft.graph import KERNEL_CLASSES, KINDS, Constant, Edge, Graph, Joined, KernelChoice, Node, Routing, Tensor, View
from weft.graph.execution_plan import BufferPart, Channel, Chunks, ExecutionPlan, PlanMove, PlanStep
from weft.hardware import System
from weft.hardware.fabric import Fabric, Link
from weft.hardware.pim import Pim
from weft.kernels import GemmTiling
from weft.simulate.result.heat import Heat
from weft.simulate.result.interference import MemoryInterference, Percentiles, StreamInterference

if TYPE_CHECKING:
    from weft.simulate.result.timeline import Timeline

Plain = Any
_KINDS: dict[str, Any] = {}


def stored_kinds(*kinds: type) -> None:
    """Let `from_record` rebuild dataclasses of these kinds, by their names."""
    _KINDS.update((kind.__name__, kind) for kind in kinds)


stored_kinds(Graph, Node, Tensor, View, Joined, Constant, KernelChoice, Routing, *KINDS.values(), *KERNEL_CLASSES)
stored_kinds(ExecutionPlan, PlanStep, PlanMove, Chunks, Channel, BufferPart)
stored_kinds(RunOptions, GemmTiling, Fabric, Link, Heat, MemoryInterference, StreamInterference, Percentiles)


def summary(timeline: Timeline) -> Timeline:
    """Return the timeline without stages, chunks, copies, commands, series, heat, updates and residency.

    Times, bytes, counters and spans are kept.
    """
    parts, met = tuple(summary(part) for part in timeline.parts), timeline.interference
    met = None if met is None else met.without_series()
    left_out: dict[str, Any] = {"stages": (), "chunks": (), "dmas": (), "series": None, "residency": None}
    left_out |= {"heat": None, "updates": None, "commands": None}
    return replace(timeline, **left_out, interference=met, parts=parts)


def as_record(timeline: Timeline) -> dict[str, Plain]:
    """Return a timeline as JSON-compatible data; functions in the options (arbiter, progress) are left out."""
    return plain(timeline)  # type: ignore[no-any-return]


def from_record(record: Mapping[str, Any]) -> Timeline:
    """Rebuild the timeline that `as_record` wrote; InputError for any other record."""
    rule = "write one with Timeline.save, or run again with --no-cache"
    try:
        made = _make_value(record)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, InputError) as error:
        raise InputError(f"this is no record of a timeline ({reason(error)}); {rule}") from None
    if not isinstance(made, _KINDS["Timeline"]):
        raise InputError(f"this is no record of a timeline; {rule}")
    return made  # type: ignore[no-any-return]


def plain(value: Any) -> Plain:
    """Return a value of a timeline as JSON-compatible data."""
    if isinstance(value, System):
        return {"System": {**value.model_dump(mode="json", exclude={"fabric"}), "fabric": plain(value.fabric)}}
    if isinstance(value, Pim):
        return {"Pim": value.model_dump(mode="json")}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "shape": list(value.shape)}
    if isinstance(value, Edge):
        return {"Edge": [value.node, value.by]}
    if is_dataclass(value):
        stated = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {
            type(value).__name__: {
                name: plain(_keep_value(name, each)) for name, each in stated if name not in _MODELS or each
            }
        }
    if isinstance(value, Mapping):
        return {"map": [[plain(key), plain(inner)] for key, inner in value.items()]}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return value


_MODELS = "role", "operator"
"""Fields of a node that say what it is for in a model, left out where it is part of none: they decide no time."""


def _keep_value(name: str, value: Any) -> Any:
    return None if name in ("arbiter", "progress") and callable(getattr(value, "rule", value)) else value


def _make_value(value: Plain) -> Any:
    if isinstance(value, list):
        return tuple(_make_value(inner) for inner in value)
    if not isinstance(value, Mapping):
        return value
    if "array" in value:
        return np.array(value["array"], dtype=np.int64).reshape(value["shape"])
    ((name, content),) = value.items()
    if name == "map":
        return {_make_value(key): _make_value(inner) for key, inner in content}
    if name == "Edge":
        return Edge(*content)
    if name == "System":
        return System(**{**content, "fabric": _make_value(content.get("fabric"))})
    return _KINDS[name](**{field: _make_value(inner) for field, inner in content.items()})
