"""Stages on meshes, shardings of operators and mixtures of layers, as tables and bars."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from weft.view.figure import Figure, bars
from weft.view.looks import BLUE
from weft.view.table import Table, number, text

if TYPE_CHECKING:
    from weft.search.planner.alpa import MeshSearch
    from weft.search.planner.mixtures import MixtureSearch
    from weft.search.planner.shard import Sharding

_STEP = number("step_s", "step", "s", ",.3f")


def stages_table(answer: MeshSearch) -> Table:
    """A row per plan: its stages' GPUs and logical meshes, and its step."""
    rows = []
    for plan in answer.plans:
        shapes = ["x".join(map(str, stage["logical_mesh"])) for stage in answer.stages(plan)]
        rows.append((len(plan.stages), _runs(map(str, plan.meshes)), _runs(shapes), plan.seconds))
    columns = [number("stages"), text("gpus", "GPUs of each"), text("meshes", "logical meshes"), _STEP]
    return Table(columns, rows, f"{answer.model.title} on {answer.system.gpus} GPUs of {answer.system.name}")


def _runs(names: object) -> str:
    """Names in order, equal neighbours counted: "2 x 4, 8"."""
    found = ((name, len(list(same))) for name, same in groupby(names))  # type: ignore[call-overload]
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in found)


def stages_figure(answer: MeshSearch) -> Figure:
    """The step of each plan."""
    return _bars("Which stages are fastest?", stages_table(answer), "gpus", "step_s")


def sharding_table(answer: Sharding) -> Table:
    """A row per operator: what each axis of the mesh does for it, its time, and the part of collectives."""
    rows = [(name, *way.roles, way.seconds * 1e3, way.communication * 1e3) for name, way in answer.operators]
    columns = [
        text("operator"), text("outer", "outer axis"), text("inner", "inner axis"),
        number("ms", "time", "ms", ",.3f"), number("communication_ms", "of it collectives", "ms", ",.3f"),
    ]  # fmt: skip
    return Table(columns, rows, f"A layer takes {answer.seconds * 1e3:,.2f} ms a micro-batch")


def sharding_figure(answer: Sharding) -> Figure:
    """The time of each operator."""
    return _bars("Where does the time of a layer go?", sharding_table(answer), "operator", "ms")


def mixtures_table(answer: MixtureSearch) -> Table:
    """A row per number of stages: the mixtures of its layers in order, and its step."""
    rows = [(plan.pp, _runs(map(str, plan.mixtures)), plan.seconds) for plan in answer.plans]
    columns = [number("stages"), text("mixtures", "mixtures of the layers"), _STEP]
    return Table(columns, rows, f"{answer.model.title} on {answer.system.gpus} GPUs of {answer.system.name}")


def mixtures_figure(answer: MixtureSearch) -> Figure:
    """The step of each plan."""
    return _bars("Which mixtures are fastest?", mixtures_table(answer), "mixtures", "step_s")


def _bars(title: str, shown: Table, lane: str, end: str) -> Figure:
    kind = text("kind", " ")
    rows = [(*row, "time") for row in shown.rows]
    return bars(title, Table([*shown.columns, kind], rows), lane=lane, kind="kind", end=end, looks={"time": BLUE})
