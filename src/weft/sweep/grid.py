"""Sweep over values: every combination of works, systems, overlaps and system values, as one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args

import numpy as np

from weft import hardware
from weft.answer import Answer
from weft.errors import InputError, UnitError, check_name, check_type, check_whole
from weft.estimate import Estimate, estimate
from weft.graph import Graph
from weft.options import RunOptions
from weft.parallel import work_of
from weft.result import Timeline
from weft.run.single import Runner, baseline
from weft.schedule import find_pass
from weft.store import Store
from weft.sweep.simulations import comparisons
from weft.sweep.tasks import Progress
from weft.units import common_unit

By = Literal["simulate", "estimate"]
"""How a sweep computes times: by the engine, or in closed form."""
_WORK = ("work", "tp", "dtype")


@dataclass(frozen=True)
class Point:
    """One combination of a sweep: its value on each axis, its result, and its `speedup` over the first overlap."""

    values: tuple[Any, ...]
    answer: Timeline | Estimate
    speedup: float | None = None

    @property
    def seconds(self) -> float:
        """Its time [s]."""
        return float(self.answer.seconds)


@dataclass(frozen=True, repr=False)
class Sweep(Answer):
    """The `points` of a sweep, one per combination of values, in order.

    `axes` names the arguments with several values; `fixed` holds those with a single one.
    """

    kind = "sweep"

    axes: tuple[str, ...]
    fixed: Mapping[str, Any]
    points: tuple[Point, ...]

    @property
    def best(self) -> Point:
        """The fastest combination."""
        return min(self.points, key=lambda point: point.seconds)

    @property
    def title(self) -> str:
        """The fixed values in a line, work and system by themselves."""
        named = ("" if name in ("work", "system") else f"{name} " for name in self.fixed)
        return ", ".join(f"{name}{_name(value)}" for name, value in zip(named, self.fixed.values(), strict=True))

    @property
    def scale(self) -> tuple[str, list[float], str] | None:
        """The last numeric axis, each point's number on it, and their unit; None if there is no such axis."""
        for at in reversed(range(len(self.axes))):
            values = [point.values[at] for point in self.points]
            if all(isinstance(value, int | float) for value in values):
                return self.axes[at], list(map(float, values)), ""
            with suppress(UnitError):
                return self.axes[at], *common_unit(values)
        return None

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def to_dict(self) -> dict[str, Any]:
        """The fixed values, and every point's values and result, as plain data."""
        rows = [
            {"values": dict(zip(self.axes, map(_name, p.values), strict=True)), "speedup": p.speedup}
            | p.answer.to_dict()
            for p in self.points
        ]
        return {"fixed": {name: _name(value) for name, value in self.fixed.items()}, "points": rows}


def sweep(
    work: Any,
    system: Any,
    overlap: Any = None,
    *,
    tp: Any = None,
    dtype: Any = None,
    by: By = "simulate",
    options: RunOptions | None = None,
    jobs: int = 1,
    cache: bool = True,
    progress: Progress | None = None,
    **values: Any,
) -> Sweep:
    """Time every combination of works, systems, overlaps and values of the systems.

    Each argument is one value or a list; other arguments are values of the systems by their paths, such as
    `**{"link.bandwidth": ["150 GB/s", "300 GB/s"]}`. `by` "estimate" uses closed forms instead of the engine, also for
    operators, and takes no overlap. Simulations run on `jobs` processes and are cached on disk (`cache`), so that an
    interrupted sweep resumes where it stopped.

    Raises InputError for an empty list, and what `simulate` or `estimate` raises.
    """
    check_name("way to find times", by, get_args(By))
    check_whole("jobs", jobs, 1, 2)
    asked = {"work": work, "system": system, "tp": tp, "dtype": dtype, **values, "overlap": overlap}
    left_out = {name for name in ("tp", "dtype", "overlap") if asked[name] is None}
    axes = {name: _several(name, value) for name, value in asked.items() if name not in left_out}
    cases = [dict(zip(axes, each, strict=True)) for each in product(*axes.values())]
    if by == "estimate":
        check_type("the overlap of a closed form", overlap, type(None), "leave it out: closed forms have none")
        found = [Point((), _estimated(case, options)) for case in cases]
    else:
        found = _simulated(cases, axes.get("overlap"), options, jobs, progress, Store() if cache else None)
    varied = tuple(name for name, several in axes.items() if len(several) > 1) or ("work",)
    points = [
        Point(tuple(case[name] for name in varied), point.answer, point.speedup)
        for case, point in zip(cases, found, strict=True)
    ]
    fixed = {name: several[0] for name, several in axes.items() if name not in varied}
    return Sweep(varied, fixed, tuple(points))


def _several(name: str, value: Any) -> list[Any]:
    several = list(value) if isinstance(value, list | tuple | range) else [value]
    if not several:
        raise InputError(f"{name} is an empty list; give at least one value")
    return several


def _name(value: Any) -> Any:
    """A value of an axis as plain data."""
    return value if isinstance(value, str | int | float) else getattr(value, "name", None) or str(value)


def _values(case: Mapping[str, Any]) -> dict[str, Any]:
    """The system values that a combination changes, by path."""
    return {name: value for name, value in case.items() if name not in (*_WORK, "system", "overlap")}


def _work(case: Mapping[str, Any]) -> Any:
    return work_of(case["work"], case.get("tp"), case.get("dtype"))


def _estimated(case: Mapping[str, Any], options: RunOptions | None) -> Estimate:
    values = _values(case)
    found = estimate(
        _work(case), hardware.system(case["system"]).replace(values) if values else case["system"], options
    )
    if np.ndim(found.seconds):
        raise InputError("a work of a sweep has arrays for dimensions; give a list of works with one number each")
    return found


def _simulated(
    cases: Sequence[Mapping[str, Any]],
    overlaps: Sequence[Any] | None,
    options: RunOptions | None,
    jobs: int,
    progress: Progress | None,
    store: Store | None,
) -> list[Point]:
    """A timeline per case; the overlap varies fastest and is compared with the first one of its list."""
    several = len(overlaps or ("",))
    pairs = [_pair(case, options) for case in cases[::several]]
    names = [find_pass(one).name for one in overlaps] if overlaps else [baseline(pairs[0][0]).name]
    unique = list(dict.fromkeys(names))
    made = comparisons([(*pair, unique) for pair in pairs], options or RunOptions(), jobs, progress, store)
    return [Point((), one[name], one.speedup(name) if several > 1 else None) for one in made for name in names]


def _pair(case: Mapping[str, Any], options: RunOptions | None) -> tuple[Graph, hardware.System]:
    runner = Runner(_work(case), case["system"], options)
    return runner.graph, runner.system.replace(_values(case))
