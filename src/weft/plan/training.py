"""`weft.plan`: the search over uniform training plans, all in closed forms, the best with the engine's windows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import hardware
from weft.core.errors import InputError, check_name, check_type, check_whole, show_value
from weft.core.options import RESERVE, SUSTAINED, RunOptions
from weft.core.store import Store
from weft.core.store.task import question
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.parallel.check import degrees
from weft.models.parallel.framework import Framework, current_frameworks
from weft.models.parallel.framework import framework as framework_of
from weft.models.parallel.plan import TrainingPlan
from weft.plan.launch import LAUNCHERS
from weft.plan.plans import Planned, Plans, Setting, roomiest_first
from weft.plan.search import Group, Groups, Search, Workload, pareto_front
from weft.plan.space import Space, smaller, space
from weft.step.batch import pause_collection
from weft.step.clock import many, train
from weft.step.corun import CoRunWindow
from weft.step.durations import DurationCache
from weft.step.pruning import ParetoFront, Pruning
from weft.sweep.tasks import Progress, results

FloatArray = NDArray[np.float64]
OBJECTIVES: Mapping[str, Callable[[Planned], tuple[float, ...]]] = {
    "tokens/s": lambda one: (one.step_time_s, one.peak_bytes),
    "memory": lambda one: (one.peak_bytes, one.step_time_s),
    "cost": lambda one: (one.gpu_seconds, one.step_time_s),
}
"""What is least in the best plan: the step time on all GPUs, the peak of memory, the GPU-seconds of a step."""
_BASES = ("megatron-bridge-2026", "megatron-bridge", "megatron-core", "torchtitan")
"""Frameworks under which all plans are timed, the first that runs on the machine of those with whole weights on each
rank and of those that share them; the others of `current_frameworks` run only the fastest of these plans."""
_ADOPTED = 300
"""Fastest plans of a framework that the others of its kind are tried with."""
_LARGER = (2, 4, 8, 16, 32, 64)
"""How many times more GPUs are tried for a model that does not fit."""
_EXCHANGED = 1_000
"""Fastest plans of a mixture that are tried with each library that exchanges tokens, and with EP overlap: first all run
the framework's.
"""
_BETWEEN = 8
"""Most numbers of GPUs that are tried between a machine that holds the model and its half."""


def plan(
    model: Transformer | str | Path,
    system: Described,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    framework: Framework | str | None = None,
    fix: Mapping[str, Any] | None = None,
    objective: str = "tokens/s",
    top: int = 10,
    refine: int = 100,
    budget_s: float = 30.0,
    launcher: str = "",
    reserve: float = RESERVE,
    options: RunOptions = SUSTAINED,
    progress: Progress | None = None,
) -> Plans:
    """Return the best plans of a training step of `batch` sequences on a system, and why the others are not.

    Every uniform plan that fills the GPUs is timed in closed forms; the best `refine` again with the engine's windows,
    for at most `budget_s` seconds. The fastest plans of a mixture are also tried with the other libraries that
    exchange tokens, and with EP overlap. `fix` gives fields of the plan (`weft.TrainingPlan`) a value, or lists of
    values to choose from. Without a `framework`, those of today's frameworks are tried that run on the machine: all
    plans under one of each kind, the fastest of them under the others. The `objective` is "tokens/s" (least step time
    on all GPUs), "memory" (least peak), or "cost" (least GPU-seconds of a step, on all GPUs or fewer). Without a
    `sequence` it is the model's context. With a `launcher` ("megatron", "torchtitan" or "deepspeed"), all plans are
    ones that it has options for, timed with the defaults of its framework. `progress(done, total, what)` is called
    before each of the slow parts.

    A plan fits if it leaves a share `reserve` of each GPU's memory free. Of plans within 2 % of the fastest, the one
    that leaves most memory free is best, and of those that leave as much, the fastest.

    Raises UnknownNameError for unknown names, InputError for contradicting fields, and for a system that holds the
    model under no plan, with the least number of GPUs that would.

    >>> found = plan("gpt-3", "64xa100", batch=64, fix={"tp": 8, "pp": 8, "micro_batch": 1}, refine=0)
    >>> found.best.plan.tp
    8
    """
    check_name("objective", objective, OBJECTIVES)
    if batch is None:
        raise InputError("a plan is for a number of sequences in each step; give it, like batch=512")
    for name, value, least in (("batch", batch, 1), ("top", top, 1), ("refine", refine, 0)):
        check_whole(name, value, least, 10)
    check_type("reserve", reserve, (int, float), "give the share of memory that stays free, like 0.04")
    if not 0 <= reserve < 1:
        raise InputError(
            f"reserve is {show_value(reserve)}; give the share of memory that stays free, from 0 to below 1"
        )
    found = load_model(model)
    where = hardware.system(system)
    length = found.sequence_length if sequence is None else sequence
    check_whole("sequence", length, 1, 2048)
    if launcher:
        check_name("launcher", launcher, LAUNCHERS)
        framework = framework or LAUNCHERS[launcher].framework
    used = _frameworks(framework, fix or {}, where)
    spaces = ([space(found, where, one, batch, length, fix or {}) for one in alike] for alike in used)
    kinds = [_Kind([replace(one, launcher=launcher) for one in alike], options) for alike in spaces]
    between = tuple(name for name, value in (fix or {}).items() if isinstance(value, list | tuple) and len(value) > 1)
    training = TrainingSearch(kinds, objective, top, refine, reserve, launcher, between)
    if progress:
        progress(0, 0, "all plans in closed forms")
    return Search(training, budget_s, progress).run()


@dataclass
class _Kind:
    """Frameworks of one kind, each with the space of its plans and what these have in common."""

    spaces: Sequence[Space]
    options: RunOptions

    def __post_init__(self) -> None:
        self.caches = [DurationCache(one.system, self.options) for one in self.spaces]


_Plans = Groups[Planned, list[Planned]]


@dataclass
class TrainingSearch(Workload[TrainingPlan | Planned, Planned, Plans]):
    """The search of training plans: of all GPUs, for the front of fewer, then the best again with the engine's windows.

    All plans of a kind are timed under the first of its frameworks, the fastest of them also under the others.
    """

    kinds: Sequence[_Kind]
    objective: str
    top: int
    refine: int
    reserve: float
    launcher: str
    between: tuple[str, ...]
    excluded: int = 0
    is_late: bool = False

    def groups(self, search: Search[TrainingPlan | Planned, Planned, Plans]) -> Groups[Planned, Plans]:
        """Yield the plans of each framework, and return the best."""
        self.search, key = search, OBJECTIVES[self.objective]
        of = self.kinds[0].spaces[0]
        fronts: defaultdict[int, ParetoFront] | None = None if self.objective == "cost" else defaultdict(ParetoFront)
        prunes = self.objective == "tokens/s" and not self.between
        timed: list[Planned] = []
        fewer: list[Planned] = []
        with pause_collection():
            for kind in self.kinds:
                front = fronts[of.system.gpus] if fronts is not None and prunes else None
                timed += yield from self._time_plans(kind, search.infeasible, front=front)
            if not timed:
                raise InputError((yield from self._impossible()))
            searched = len(timed) + self.excluded + search.infeasible.total()
            for kind in self.kinds:
                fewer += yield from self._on_fewer(kind, fronts)
        ranked = sorted([*timed, *fewer] if self.objective == "cost" else timed, key=key)
        placed = max(self.refine, self.top)
        ranked[:placed] = [replace(one, place=place) for place, one in enumerate(ranked[:placed], 1)]
        wanted = ranked[: self.refine]
        refined = yield Group(
            wanted, self._refine_plans, lambda at: (at, len(wanted), "plans with the engine's windows"), simulates=True
        )
        best = sorted(refined, key=key) + ranked[len(refined) :]
        moved = sum(one.place != place for place, one in enumerate(best[: len(refined)], 1))
        if self.objective != "memory":
            best = roomiest_first(best)
        return Plans(
            model=of.model,
            system=of.system,
            objective=self.objective,
            plans=tuple(replace(one, tied=one.is_tied(best[0])) for one in best[: self.top]),
            searched=searched,
            rejected=dict(search.infeasible.most_common()),
            wall_s=search.wall_s,
            front=pareto_front([*timed, *fewer], self.objectives),
            timed=tuple(best),
            refined=len(refined),
            moved=moved,
            evidence=best[0].error.why,
            launcher=self.launcher,
            notes=(*_notes(len(refined), len(wanted)), *self._search_sentences(best[0].setting.framework)),
            between=self.between,
            time_all=partial(self._time_all, key) if prunes else None,
        )

    def objectives(self, planned: Planned) -> tuple[float, ...]:
        """Return what is least in a good plan: step time, GPUs, and peak of memory."""
        return planned.step_time_s, planned.gpus, planned.peak_bytes

    def is_kept(self, candidate: TrainingPlan | Planned) -> bool:
        """Return whether all windows of a plan are on disk; False for plans after the first without."""
        store = Store()
        return (
            not self.is_late
            and isinstance(candidate, Planned)
            and all(store.get(question(task)) is not None for task in candidate.meetings)
        )

    def _time_all(self, key: Callable[[Planned], tuple[float, ...]]) -> list[Planned]:
        """Return all plans that fit, those that bounds excluded at first among them, best first."""
        with pause_collection():
            return sorted(
                (one for kind in self.kinds for one in self._drive(self._time_plans(kind, Counter()))), key=key
            )

    def _drive(self, groups: _Plans) -> list[Planned]:
        return Search[Any, Planned, list[Planned]](self).drive(groups)  # type: ignore[arg-type]

    def _time_plans(
        self, kind: _Kind, rejected: Counter[str], gpus: int | None = None, front: ParetoFront | None = None
    ) -> _Plans:
        """Time the plans on all GPUs, or on `gpus`, and return those that fit the memory; others are `rejected`.

        With a `front` to which plans are added, those that can neither be on it nor among the fastest that are asked
        for are left out, and `excluded` counts them.
        """
        of, *others = kind.spaces if gpus is None else [smaller(one, gpus) for one in kind.spaces]
        plans = list(of.candidates(rejected))
        if not plans:
            return []
        least = max(self.refine, self.top) if gpus is None else 0
        adopted = max(_ADOPTED if others else 1, least)
        found = yield from self._fitting(of, kind.caches[0], plans, rejected, True, adopted, front)
        fastest = [one.plan for one in sorted(found, key=lambda one: one.step_time_s)[:_ADOPTED]]
        for other, cache in zip(others, kind.caches[1:], strict=True):
            exchange = other.dispatchers != of.dispatchers
            plans = list(other.adopt(fastest))
            found += yield from self._fitting(other, cache, plans, rejected, exchange, least, front)
        return found

    def _fitting(
        self,
        of: Space,
        cache: DurationCache,
        plans: list[TrainingPlan],
        rejected: Counter[str],
        exchange: bool,
        fastest: int,
        front: ParetoFront | None,
    ) -> _Plans:
        """Return those of the plans that fit; if `exchange`, also with the framework's other libraries of exchange.

        With a `front`, these are those that may be on it, and the `fastest`, so many.
        """
        gpu = of.system.gpu
        capacity, large = (1 - self.reserve) * gpu.memory.capacity, [np.empty(0)]
        on = Setting(of.model, of.system, of.framework, cache.options)
        exchange = exchange and of.exchanges_otherwise
        pruning = None if front is None else Pruning(front, max(fastest, _EXCHANGED * exchange))

        def estimate_plans(some: Sequence[TrainingPlan]) -> Iterator[Planned]:
            times = many(of.model, of.system, some, of.framework, cache.options, cache, limit=capacity, pruning=pruning)
            fits = times.peak_bytes <= capacity
            large.append(times.peak_bytes[~fits])
            self.excluded += int((fits & np.isinf(times.seconds)).sum())
            for plan, seconds, peak in zip(some, times.seconds.tolist(), times.peak_bytes.tolist(), strict=True):
                if peak <= capacity and seconds < inf:
                    yield Planned(plan, seconds, peak, on, estimated_s=seconds)

        def group(some: list[TrainingPlan]) -> Group[TrainingPlan, Planned]:
            title = f"plans of {of.framework.name} on {of.system.gpus:,} GPUs in closed forms"
            said = (lambda at: (at, len(some), title)) if len(some) > _QUICK else None
            return Group(some, estimate_plans, said, _AT_ONCE)

        found = list((yield group(plans)))
        if exchange:
            fastest_plans = [one.plan for one in sorted(found, key=lambda one: one.step_time_s)[:_EXCHANGED]]
            pruning = pruning.of_fewer(fastest) if pruning else None
            found += yield group(list(of.exchanged_otherwise(fastest_plans)))
        peaks = np.concatenate(large)
        if len(peaks):
            rejected[_too_large(peaks, gpu.memory.capacity, self.reserve, of.framework)] += len(peaks)
        return found

    def _on_fewer(self, kind: _Kind, fronts: Mapping[int, ParetoFront] | None) -> _Plans:
        """Time the plans on half the GPUs, a quarter, and so on, as long as one fits; with `fronts` by their GPUs,
        those that may be on one. Numbers of GPUs that nodes cannot share evenly are left out.
        """
        of, every = kind.spaces[0], list[Planned]()
        gpus = of.system.gpus
        while gpus % 2 == 0 and of.fits_on(gpus // 2):
            gpus //= 2
            if not of.system.can_have(gpus):
                continue
            found = yield from self._time_plans(kind, Counter(), gpus, fronts[gpus] if fronts is not None else None)
            if not found:
                break
            every += found
        return every

    def _refine_plans(self, some: Sequence[TrainingPlan | Planned]) -> Iterator[Planned]:
        """Yield the time plans with the engine's windows, as long as there is time for the next one."""
        for one in some:
            assert isinstance(one, Planned)
            on = one.setting
            self.is_late = not all(self._simulate_window(task) for task in one.meetings)
            if not self.is_late:
                seconds = train(on.model, on.system, one.plan, on.framework, on.options, "windows").seconds
                yield replace(one, step_time_s=seconds, fidelity="windows")

    def _simulate_window(self, task: CoRunWindow) -> bool:
        """Return whether a window is on disk, simulating it if time is left; True if the engine refuses the window."""
        store = Store()
        if not self.search.time_left:
            return store.get(question(task)) is not None
        with suppress(InputError):
            results([task], dict, store=store)
        return True

    def _search_sentences(self, chosen: Framework) -> Iterator[str]:
        """Say under which frameworks plans were timed, and how to see what the chosen one turns on."""
        used = [[one.framework.name for one in kind.spaces] for kind in self.kinds]
        if sum(map(len, used)) > 1:
            others = ", ".join(name for names in used for name in names[1:])
            more = f"; the {_ADOPTED} fastest of each also under {others}" if others else ""
            yield (
                f"All plans were timed under {' and '.join(names[0] for names in used)}{more}; --framework names one, "
                f"and 'weft frameworks show {chosen.name}' says what it turns on."
            )

    def _impossible(self) -> Groups[Planned, str]:
        """Return why no plan runs, and the least number of GPUs that would hold the model, or what to give up."""
        of, rejected = self.kinds[0].spaces[0], self.search.infeasible
        gpus = of.system.gpus
        why = max(rejected, key=lambda reason: rejected[reason], default="no degrees multiply to its GPUs")
        text = f"no plan of {of.model.title} runs on {gpus:,} GPU{'s' * (gpus > 1)} like {of.system.gpu.name}: {why}"
        if any(reason.startswith("needs") for reason in rejected):
            held = yield from self._least_that_holds()
            if held is not None:
                return f"{text}; {held.gpus} GPUs would hold it, as with {degrees(held.plan)}"
            text += f", and up to {_LARGER[-1] * gpus:,} GPUs do not hold it either"
        given = ", ".join(sorted(of.fixed))
        return f"{text}; " + (f"leave {given} out of fix" if given else "take a smaller batch or shorter sequences")

    def _least_that_holds(self) -> Groups[Planned, Planned | None]:
        """Return the plan that needs least of each GPU on the smallest larger machine that holds the model, if one
        does.

        Machines grow by doubling; then whole nodes below the first that holds it are tried, at most `_BETWEEN` numbers.
        """
        on = self.kinds[0].spaces[0].system
        for doubled in (on.gpus * factor for factor in _LARGER):
            found = yield from self._least_memory(doubled)
            if found is not None:
                step = max(on.gpus_per_node, doubled // 2 // _BETWEEN) if on.node else max(doubled // 2 // _BETWEEN, 1)
                for gpus in range(doubled // 2 + step, doubled, step):
                    if fewer := (yield from self._least_memory(gpus)):
                        return fewer
                return found
        return None

    def _least_memory(self, gpus: int) -> Groups[Planned, Planned | None]:
        """Return the plan that needs least of each of `gpus`, None if none fits."""
        plans: list[Planned] = []
        for kind in self.kinds:
            plans += yield from self._time_plans(kind, Counter(), gpus)
        return min(plans, key=lambda one: one.peak_bytes, default=None)


def _notes(refined: int, wanted: int) -> tuple[str, ...]:
    if refined == wanted:
        return ()
    said = (
        f"The time was up after {refined} of {wanted} plans were timed again with the engine's windows; the windows so "
        "far are kept on disk, and the next search goes on from there; --refine N, or in Python a larger "
        "budget_s, gives it more time."
    )
    return (said,)


def _frameworks(named: Framework | str | None, fix: Mapping[str, Any], where: System) -> list[list[Framework]]:
    """Return the frameworks whose plans are searched: the one that is named, or by kind those of today that run on the
    machine under the recipes and stages of ZeRO that `fix` has, first the one under which all plans are timed.
    """
    if named is not None:
        return [[named if isinstance(named, Framework) else framework_of(named)]]
    zero, recipes = (value if isinstance(value, list | tuple) else [value] for value in map(fix.get, _DECIDING))
    running = [
        one
        for one in map(framework_of, current_frameworks())
        if not any(one.unlike(where.gpu, recipe or "") for recipe in recipes)
        and (zero == [None] or any((stage == 3) == (one.zero == 3) for stage in zero))
    ]

    def base_first(one: Framework) -> int:
        return _BASES.index(one.name) if one.name in _BASES else len(_BASES)

    kinds = ([one for one in running if (one.zero == 3) == shards] for shards in (False, True))
    return [sorted(alike, key=base_first) for alike in kinds if alike]


_DECIDING = "zero", "precision"
"""Fields of a plan that decide which frameworks are searched."""


_AT_ONCE = 5000
"""Plans that are timed together, between two reports of progress."""
_QUICK = 20_000
"""Plans that are timed without reports: a few seconds."""


def _too_large(peaks: FloatArray, capacity: int, reserve: float, framework: Framework) -> str:
    room = (1 - reserve) * capacity / 1e9
    least, most = (f"{size / 1e9:,.0f}" for size in (peaks.min(), peaks.max()))
    if round(peaks.min() / 1e9) <= room:
        least = f"just over {room:,.3g}"
    free = f", of which {reserve:.0%} stay free" if reserve else ""
    who = framework.title or framework.name
    return f"needs {least} to {most} GB with {who}, and a GPU has {capacity / 1e9:,.0f}{free}"
